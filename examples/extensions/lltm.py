"""Builds LLTM in C++ (lltm.cpp), and trains a layer of it: ``python lltm.py``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import tenure
from tenure import Tensor, nn
from tenure.extension import load

lltm = load("lltm", Path(__file__).with_name("lltm.cpp"))


class LLTMFunction(tenure.autograd.Function):
    """The cell by the extension's two functions, as in PyTorch's tutorial. ``lltm.cell`` does the same in one."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> Any:
        new_h, new_cell, *others = lltm.forward(input, weights, bias, old_h, old_cell)
        ctx.save_for_backward(new_cell, *others, weights)
        return new_h, new_cell

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_cell: Tensor) -> Any:
        return tuple(lltm.backward(grad_h, grad_cell, *ctx.saved_tensors))


class LLTM(nn.Module):
    """A layer of the cell."""

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(tenure.empty(3 * state_size, input_features + state_size))
        self.bias = nn.Parameter(tenure.empty(3 * state_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(state_size), 1 / math.sqrt(state_size))

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, cell = lltm.cell(input, self.weights, self.bias, *state)
        return h, cell


def main() -> None:
    tenure.manual_seed(0)
    layer = LLTM(8, 16)
    optimizer = tenure.optim.SGD(layer.parameters(), lr=0.1)
    inputs, target = tenure.randn(10, 4, 8), tenure.randn(4, 16).tanh()
    for step in range(20):
        h, cell = tenure.zeros(4, 16), tenure.zeros(4, 16)
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
