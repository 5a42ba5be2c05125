# mypy: disallow-subclassing-any=False
"""Random small models and the loops that train them, for tests of budgets. A seed gives the same program each time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tenure

MIB = 1 << 20

#: The numbers in a row. 2048 rows are 1 MiB, the least that a budget moves.
WIDTH = 128


class Fault(Exception):
    """An error raised in the middle of a pass; the loop catches it and goes on."""


class Dense(nn.Module):
    """A linear layer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x))


class Norm(nn.Module):
    """A layer norm within a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(x).sin()


class Convolution(nn.Module):
    """A convolution of rows as small images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x.view(-1, 2, 8, 8))).view(-1, WIDTH)


class Attention(nn.Module):
    """Attention within groups of 64 rows, written so that it can be differentiated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, v = (part(x).view(-1, 64, WIDTH) for part in (self.query, self.value))
        return x + (q @ q.transpose(1, 2) / 16).softmax(-1).matmul(v).view(-1, WIDTH)


class InPlace(nn.Module):
    """Writes to its intermediate results in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x).relu_() * 2).add_(x)


class Views(nn.Module):
    """Saves halves and transposed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.linear(x).chunk(2, 1)
        return (left.t() * right.t().sigmoid()).t().flip(1)


class Drop(nn.Module):
    """Draws from the global generator, which the loop seeds."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, self.training) * x.cos()


class Detached(nn.Module):
    """Computes a part without gradients, and a part that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.linear(x).tanh().mean(0)
        unused = self.linear(x).exp().sin()
        return x * scale + unused.detach() * 0.1


class Keeping(nn.Module):
    """Keeps its output, with its graph, until it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        made = x.sin().tanh()
        self.kept[:] = [made]
        return made


class Checkpointed(nn.Module):
    """Computes a layer again in the backward pass."""

    def __init__(self, layer: nn.Module, is_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.is_reentrant = layer, is_reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=self.is_reentrant)


LAYERS: list[type[nn.Module]] = [Dense, Norm, Convolution, Attention, InPlace, Views, Drop, Detached, Keeping]


class Net(nn.Module):
    """A stack of random layers. `fault` makes the next pass fail in its middle."""

    def __init__(self, choose: random.Random, layers: int, is_reentrant: bool) -> None:
        super().__init__()
        self.fault: str | None = None
        chosen = [Dense(), *(choose.choice(LAYERS)() for _ in range(layers - 1))]
        self.layers = nn.ModuleList(
            Checkpointed(layer, is_reentrant)
            if number and choose.random() < 0.2 and type(layer) is not Keeping
            else layer
            for number, layer in enumerate(chosen)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Computes the same as a call, through a method, which hooks of the module do not see."""
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if self.fault is not None and number == len(self.layers) // 2:
                if self.fault == "forward":
                    raise Fault
                if x.requires_grad:
                    x.register_hook(_fail)
        return x


class Pair(nn.Module):
    """A generator and a critic, which may share one budget."""

    def __init__(self, model: Net, critic: Net) -> None:
        super().__init__()
        self.model, self.critic = model, critic


class Program:
    """A random model and its training loop. `run` notes losses and gradients."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.choose = random.Random(seed)
        self.device = device
        self.seed = seed
        torch.manual_seed(seed)
        choose = self.choose
        is_reentrant = choose.random() < 0.3
        self.model = Net(choose, choose.randint(2, 5), is_reentrant)
        self.critic = Net(choose, 2, is_reentrant)
        self.pair = Pair(self.model, self.critic).to(device)
        #: The module that the budget is for: the model that is called, or a module around it that is never called.
        self.budgeted: nn.Module = choose.choice([self.model, self.pair])
        self.is_method = choose.random() < 0.3
        #: Whether the loop asks for reports, which end a step.
        self.asks = choose.random() < 0.3
        make: Any = choose.choice([torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
        self.optimizers = {net: make(net.parameters(), lr=1e-3, foreach=False) for net in (self.model, self.critic)}
        self.has_optimizer = choose.random() < 0.8
        self.zeroing = choose.choice(["before", "between", "after"])
        self.to_none = choose.random() < 0.7
        self.rows = choose.choice([2048, 3072])
        self.has_sizes = choose.random() < 0.3
        phases: list[Callable[[], None]] = [
            self.plain,
            self.accumulated,
            self.several_losses,
            self.in_two_parts,
            self.generator_and_critic,
            self.critic_and_generator,
        ]
        if not is_reentrant:
            # Reentrant checkpoints refuse torch.autograd.grad().
            phases += [self.penalty, self.asked_gradients]
        between: list[Callable[[], None]] = [
            self.evaluated,
            self.evaluated_with_graph,
            self.failed_forward,
            self.failed_backward,
        ]
        self.cycle = [choose.choice(phases) for _ in range(choose.randint(1, 2))]
        if choose.random() < 0.7:
            self.cycle.insert(choose.randrange(len(self.cycle) + 1), choose.choice(between))
        self.cycles = choose.randint(3, 5)
        self.number = 0
        self.results: list[Tensor] = []

    def __str__(self) -> str:
        layers = [type(layer).__name__ for layer in self.model.layers]
        phases = [phase.__name__ for phase in self.cycle]
        return (
            f"seed {self.seed}: {'model' if self.budgeted is self.model else 'pair'} of {layers}, {self.cycles} times "
            f"{phases}, optimizer {self.has_optimizer}, zeroing {self.zeroing}, method {self.is_method}, "
            f"sizes {self.has_sizes}, asks {self.asks}"
        )

    def run(self, within: AbstractContextManager[Any] | None = None, after: Callable[[], None] | None = None) -> None:
        """Trains within a budget. `after` is called after each cycle."""
        self.results.clear()
        with within or nullcontext():
            for _ in range(self.cycles):
                for phase in self.cycle:
                    self.number += 1
                    torch.manual_seed(self.number)
                    phase()
                if after is not None:
                    after()

    def bits(self) -> list[bytes]:
        """Returns all that was computed, to the bit."""
        return [tensor.numpy().tobytes() for tensor in self.results]

    def batch(self, number: int = 0) -> Tensor:
        rows = self.rows + (1024 * (self.number % 2) if self.has_sizes else 0)
        numbers = torch.arange(rows * WIDTH, dtype=torch.float32).add(self.number + 10 * number).sin()
        return numbers.view(rows, WIDTH).to(self.device)

    def call(self, net: Net, x: Tensor) -> Tensor:
        made: Tensor = net.compute(x) if self.is_method else net(x)
        return made

    def note(self, *tensors: Tensor) -> None:
        self.results += [tensor.detach().cpu().clone() for tensor in tensors]

    def zero(self, net: Net, where: str) -> None:
        if where == self.zeroing:
            net.zero_grad(set_to_none=self.to_none)

    def update(self, net: Net) -> None:
        self.note(*(parameter.grad for parameter in net.parameters() if parameter.grad is not None))
        if self.has_optimizer:
            self.optimizers[net].step()
        else:
            with torch.no_grad():
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=1e-3)
        self.zero(net, "after")

    def plain(self) -> None:
        self.zero(self.model, "before")
        loss = self.call(self.model, self.batch()).square().mean()
        self.zero(self.model, "between")
        loss.backward()
        self.note(loss)
        self.update(self.model)

    def accumulated(self) -> None:
        self.zero(self.model, "before")
        for number in range(3):
            loss = self.call(self.model, self.batch(number)).square().mean() / 3
            if number == 0:
                self.zero(self.model, "between")
            loss.backward()
            self.note(loss)
        self.update(self.model)

    def several_losses(self) -> None:
        self.zero(self.model, "before")
        made = self.call(self.model, self.batch())
        losses = [made.square().mean(), made.sin().sum() / made.numel()]
        self.zero(self.model, "between")
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        self.note(*losses)
        self.update(self.model)

    def in_two_parts(self) -> None:
        """Ends the critic's backward pass before the model's begins."""
        self.zero(self.model, "before")
        made = self.call(self.model, self.batch())
        middle = made.detach().requires_grad_()
        loss = self.call(self.critic, middle).square().mean()
        self.zero(self.model, "between")
        loss.backward()
        made.backward(middle.grad)
        self.note(loss)
        self.critic.zero_grad()
        self.update(self.model)

    def penalty(self) -> None:
        self.zero(self.model, "before")
        x = self.batch().requires_grad_()
        made = self.call(self.model, x)
        (gradient,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        loss = made.mean() + gradient.square().mean()
        self.zero(self.model, "between")
        loss.backward()
        self.note(loss)
        self.update(self.model)

    def asked_gradients(self) -> None:
        loss = self.call(self.model, self.batch()).square().mean()
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.note(loss)
        self.update(self.model)

    def generator_and_critic(self) -> None:
        self.train_generator()
        self.train_critic()

    def critic_and_generator(self) -> None:
        self.train_critic()
        self.train_generator()

    def train_generator(self) -> None:
        self.zero(self.model, "before")
        loss = -self.call(self.critic, self.call(self.model, self.batch())).mean()
        self.zero(self.model, "between")
        loss.backward()
        self.note(loss)
        self.critic.zero_grad()
        self.update(self.model)

    def train_critic(self) -> None:
        self.zero(self.critic, "before")
        made = self.call(self.model, self.batch(1))
        loss = (self.call(self.critic, made.detach()) - self.call(self.critic, self.batch(2))).square().mean()
        self.zero(self.critic, "between")
        loss.backward()
        self.note(loss)
        self.update(self.critic)

    def evaluated(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.note(self.call(self.model, self.batch(3)).mean())
        self.model.train()

    def evaluated_with_graph(self) -> None:
        self.note(self.call(self.model, self.batch(4)).mean())

    def failed_forward(self) -> None:
        self._failed("forward")

    def failed_backward(self) -> None:
        self._failed("backward")

    def _failed(self, where: str) -> None:
        self.model.fault = where
        try:
            self.call(self.model, self.batch(5)).square().mean().backward()
        except Fault:
            pass
        finally:
            self.model.fault = None
        self.model.zero_grad()


def _fail(_: Tensor) -> None:
    raise Fault


def larger(error: tenure.Error | torch.OutOfMemoryError, memory: int | str | None) -> int:
    """Returns a budget that may suffice where `memory` was too small: the least that the error names, or more."""
    if isinstance(error, torch.OutOfMemoryError) and isinstance(memory, int):
        # Outside of a step, as in evaluation, the error is PyTorch's own.
        return memory * 9 // 8
    named = re.search(r"a budget of at least (\d+)", str(error))
    if named:
        return int(named[1])
    asked = re.search(r"a budget of (\d+) bytes is too small", str(error))
    if asked is None:
        raise error
    return int(asked[1]) * 9 // 8
