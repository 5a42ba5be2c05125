"""torch.compile on Tenure's allocator, in its three modes. The second one replays CUDA graphs."""

import argparse

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from torch import nn  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="narrow layers, four steps")
    small = parser.parse_args().small
    width, steps = (64, 4) if small else (2048, 40)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch.compiler.reset()
        model = nn.Sequential(*(nn.TransformerEncoderLayer(width, 4, batch_first=True) for _ in range(2))).cuda()
        compiled = torch.compile(model, mode=mode)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(torch.rand(8, 64 + 64 * (step % 2), width, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"{mode}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
