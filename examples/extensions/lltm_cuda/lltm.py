"""Builds LLTM with kernels in CUDA (lltm.cpp, lltm_kernel.cu), and trains a layer of it: ``python lltm.py``."""

from __future__ import annotations

import math
from pathlib import Path

import tenure
from tenure import Tensor, nn
from tenure.extension import load

FOLDER = Path(__file__).parent

lltm = load("lltm_cuda", [FOLDER / "lltm.cpp", FOLDER / "lltm_kernel.cu"])


class LLTM(nn.Module):
    """A layer of the cell."""

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(tenure.empty(3 * state_size, input_features + state_size))
        self.bias = nn.Parameter(tenure.empty(3 * state_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(state_size), 1 / math.sqrt(state_size))

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        old_h, old_cell = state
        gates = nn.functional.linear(tenure.cat([old_h, input], 1), self.weights, self.bias)
        h, cell = lltm.cell(gates, old_cell)
        return h, cell


def main() -> None:
    device = "cuda" if tenure.cuda.is_available() else "cpu"
    if device == "cpu":
        print("There is no CUDA device: this trains on the CPU.")
    tenure.manual_seed(0)
    layer = LLTM(8, 16).to(device)
    optimizer = tenure.optim.SGD(layer.parameters(), lr=0.1)
    inputs, target = tenure.randn(10, 4, 8).to(device), tenure.randn(4, 16).tanh().to(device)
    for step in range(20):
        h, cell = tenure.zeros(4, 16, device=device), tenure.zeros(4, 16, device=device)
        for input in inputs:
            h, cell = layer(input, (h, cell))
        loss = nn.functional.mse_loss(h, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 or step == 19:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
