"""Steps of random programs that leave reference cycles with tensors in them to the garbage collector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import tenure
from tenure import Tensor, nn, optim
from tenure.autograd import Function

from .graphs import Cube, Raised
from .pool import Pool


class Named(Tensor):
    """A tensor with attributes."""

    owner: Any


class Keeping(Function):
    """An operation whose context refers to its result, once a backward pass has gone through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, results: list[Tensor]) -> Tensor:
        ctx.results = results
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 2, None


def leaf() -> Tensor:
    return tenure.ones(3, 3, requires_grad=True)


def list_in_itself() -> None:
    kept: list[Any] = [tenure.ones(5), tenure.ones(4, 4)[1]]
    kept.append(kept)


def attribute_on_itself() -> None:
    named = Named(tenure.ones(6))
    named.owner = named
    (named * 2).sum()


def hook_on_its_leaf() -> None:
    x = leaf()
    x.register_hook(lambda grad: x * 1)
    (x * x).sum().backward()


def hook_on_its_result() -> None:
    x = leaf()
    y = Cube.apply(x)
    y.register_hook(lambda grad: y.detach())
    y.sum().backward()


def hook_after_accumulation() -> None:
    x = leaf()

    def hook(leaf: Tensor) -> None:
        assert leaf is x

    x.register_post_accumulate_grad_hook(hook)
    x.sum().backward()


def context_with_its_result() -> None:
    results: list[Tensor] = []
    y = Keeping.apply(leaf(), results)
    results.append(y)
    y.sum().backward(retain_graph=True)


def module_in_itself() -> None:
    outer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    # A list hides the module from the search for submodules.
    outer.owners = [outer]
    outer.register_forward_hook(lambda module, args, result: outer.owners and result * 1)
    outer(tenure.ones(2, 3)).sum().backward()


def optimizer_and_model() -> None:
    model = nn.Linear(3, 2)
    adam = optim.Adam(model.parameters())
    model.optimizers = [adam]
    adam.param_groups[0]["model"] = model
    model(tenure.ones(2, 3)).sum().backward()
    adam.step()


def exception_in_its_frame() -> None:
    x = leaf()
    kept: list[BaseException] = []

    def fail(grad: Tensor) -> None:
        raise Raised(grad)

    x.register_hook(fail)
    try:
        Cube.apply(x).sum().backward()
    except Raised as raised:
        kept.append(raised)


def generator_in_itself() -> None:
    box: list[Any] = []

    def rows() -> Iterator[Tensor]:
        x = tenure.ones(4, 2)
        yield from x.unbind()
        box.clear()

    box.append(rows())
    next(box[0])


def array_in_a_tensor_s_attribute() -> None:
    named = Named(tenure.ones(7))
    named.owner = (named.numpy(), memoryview(cast(Any, named)), named)


CYCLES = [
    list_in_itself,
    attribute_on_itself,
    hook_on_its_leaf,
    hook_on_its_result,
    hook_after_accumulation,
    context_with_its_result,
    module_in_itself,
    optimizer_and_model,
    exception_in_its_frame,
    generator_in_itself,
    array_in_a_tensor_s_attribute,
]


def cycle(pool: Pool) -> None:
    pool.has_cycles = True
    pool.random.choice(CYCLES)()
