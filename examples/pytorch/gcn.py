"""PyTorch Geometric on Tenure's allocator: graphs of changing sizes, for which cached blocks rarely fit."""

import argparse
import random

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from torch_geometric.nn import GCNConv  # noqa: E402


class Gcn(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([GCNConv(width, width, add_self_loops=False) for _ in range(3)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edges).relu()
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="graphs of some hundred nodes, six steps")
    small = parser.parse_args().small
    width, most, steps = (16, 400, 6) if small else (256, 400_000, 60)
    model = Gcn(width).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    chance = random.Random(1)
    for _ in range(steps):
        nodes = chance.randint(most // 4, most)
        edges = torch.randint(0, nodes, (2, nodes * chance.randint(3, 8))).cuda()
        loss = model(torch.rand(nodes, width, device="cuda"), edges).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
