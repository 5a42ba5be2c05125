"""What programs are made of: their sizes, a model with the loop that trains it, random data, and an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

#: A function that is called after each step.
OnStep = Callable[[], None]


@dataclass(frozen=True)
class Sizes:
    """The sizes of programs, and their device."""

    device: torch.device
    #: Whether they are small enough for the CPU, to see that they run.
    is_small: bool

    def pick(self, full: int, small: int) -> int:
        return small if self.is_small else full


@dataclass
class Program:
    """A model, and the loop that trains it for some steps."""

    model: nn.Module
    train: Callable[[int, OnStep], None]
    #: The parts that are checkpointed for the way `checkpoint`.
    blocks: list[nn.Module] = field(default_factory=list)
    #: Makes a model of transformers checkpoint its blocks, with these options.
    checkpoint: Callable[[dict[str, Any]], None] | None = None


def steps_of(step: Callable[[int], object], on_step: OnStep, count: int) -> None:
    for number in range(count):
        step(number)
        on_step()


def ids(sizes: Sizes, seed: int, *shape: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, shape, generator=drawing(sizes, seed), device=sizes.device)


def normal(sizes: Sizes, seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=drawing(sizes, seed), device=sizes.device)


def drawing(sizes: Sizes, seed: int) -> torch.Generator:
    return torch.Generator(sizes.device).manual_seed(seed)


def optimized(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-4)
