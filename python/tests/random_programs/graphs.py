"""Steps of random programs that record graphs: formulas, backward passes, hooks, checkpoints and optimizers."""

from __future__ import annotations

import functools
from typing import Any

import numpy

import tenure
from tenure import Tensor, nn, optim
from tenure.autograd import Function, checkpoint, grad, no_grad, saved_tensors_hooks

from .pool import Graph, Leaf, Origin, Pool
from .steps import Step, viewed


class Raised(Exception):
    """An exception that a program raises on purpose."""


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return grad * 3 * x * x


class FailingForward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        raise Raised(x.sum())


class FailingBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x * 2
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise Raised(grad, ctx.kept)


def ignore(kept: Tensor, grad: Tensor) -> None:
    """Stands for a hook that keeps a tensor."""


def leaf(pool: Pool) -> None:
    shape = tuple(pool.random.randint(1, 4) for _ in range(pool.random.randint(1, 2)))
    array = pool.values(shape)
    pool.leaves.append(Leaf(tenure.tensor(array, requires_grad=True), array))


def source(pool: Pool) -> Graph | None:
    """Returns what to record the next operation on: a graph, or a leaf as one."""
    # A view of a leaf that was written to since has other values than its array.
    current = [graph for graph in pool.graphs if graph.origin.writes == graph.origin.leaf.writes]
    if current and pool.random.random() < 0.5:
        return pool.random.choice(current)
    if not pool.leaves:
        return None
    of = pool.random.choice(pool.leaves)
    index = numpy.arange(of.array.size).reshape(of.array.shape)
    return Graph(of.tensor, of.array.copy(), index, numpy.ones(of.array.shape), Origin(of, of.writes))


def record(pool: Pool) -> None:
    x = source(pool)
    if x is None:
        return
    values = pool.values(x.array.shape)
    tensor, array, slope, index = x.tensor, x.array, x.slope, x.index
    match pool.random.randrange(7):
        case 0:
            tensor, array, slope = tensor * tenure.tensor(values), array * values, slope * values
        case 1:
            tensor, array, slope = Cube.apply(tensor), array**3, slope * 3 * array**2
        case 2:
            tensor, slope, array = tensor.tanh(), slope * (1 - numpy.tanh(array) ** 2), numpy.tanh(array)
        case 3:
            tensor = checkpoint(lambda x: (x * x).sin(), tensor)
            x.origin.has_checkpoint = True
            array, slope = numpy.sin(array**2), slope * numpy.cos(array**2) * 2 * array
        case 4:
            tensor = tensor * 2
            tensor.mul_(3)
            tensor.add_(tenure.tensor(values))
            array, slope = array * 6 + values, slope * 6
        case 5:
            with saved_tensors_hooks(lambda x: x.detach().numpy().copy(), tenure.from_numpy):
                tensor = tensor * tensor
            array, slope = array**2, slope * 2 * array
        case _:
            tensor, (array, slope, index) = viewed(pool, tensor, [array, slope, index])
    if tensor.requires_grad and abs(array).max(initial=0) < 1e4:
        pool.graphs.append(Graph(tensor, array, index, slope, x.origin))


def backward(pool: Pool) -> None:
    if not pool.graphs:
        return
    graph = pool.random.choice(pool.graphs)
    of_result = pool.values(graph.array.shape)
    retain = pool.random.random() < 0.5
    origin = graph.origin
    if origin.has_checkpoint and origin.writes < origin.leaf.writes:
        return
    try:
        graph.tensor.backward(tenure.tensor(of_result), retain_graph=retain)
    except tenure.Error:
        # The graph was freed before, or what it needs was modified.
        assert origin.is_freed or origin.writes < origin.leaf.writes
    else:
        origin.leaf.add(graph.gradient(of_result))
    origin.is_freed |= not retain


def gradient(pool: Pool) -> None:
    if not pool.leaves:
        return
    of = pool.random.choice(pool.leaves)
    cube = Cube.apply(of.tensor)
    (first,) = grad(cube.sum(), of.tensor, create_graph=True)
    (second,) = grad(first.sum(), of.tensor)
    numpy.testing.assert_allclose(first.tolist(), 3 * of.array**2, rtol=1e-9)
    numpy.testing.assert_allclose(second.tolist(), 6 * of.array, rtol=1e-9)


def hook(pool: Pool) -> None:
    if not pool.leaves:
        return
    of = pool.random.choice(pool.leaves)
    seen: list[Tensor] = []
    match pool.random.randrange(4):
        case 0:
            handle = of.tensor.register_hook(lambda grad: grad * 2)
            (of.tensor * 3).sum().backward()
            handle.remove()
            of.add(numpy.full(of.array.shape, 6.0))
        case 1:
            result = of.tensor * 3
            result.register_hook(seen.append)
            result.retain_grad()
            result.sum().backward()
            of.add(numpy.full(of.array.shape, 3.0))
            assert seen[0].tolist() == numpy.ones(of.array.shape).tolist()
        case 2:
            # The hook stays, and the program drops the leaf with it.
            kept = of.tensor * 5
            of.tensor.register_hook(functools.partial(ignore, kept.detach()))
        case _:
            handle = of.tensor.register_post_accumulate_grad_hook(seen.append)
            of.tensor.sum().backward()
            handle.remove()
            of.add(numpy.ones(of.array.shape))
            assert seen[0] is of.tensor


def fail(pool: Pool) -> None:
    if not pool.leaves:
        return
    x = pool.random.choice(pool.leaves).tensor

    def raising(*_: object) -> Any:
        raise Raised(x * 2)

    kind = pool.random.randrange(6)
    handle = None
    try:
        match kind:
            case 0:
                handle = x.register_hook(raising)
                (x * x).sum().backward()
            case 1:
                FailingForward.apply(x)
            case 2:
                Cube.apply(FailingBackward.apply(x)).sum().backward()
            case 3:
                with saved_tensors_hooks(raising, raising):
                    x * x
            case 4:
                checkpoint(raising, x)
            case _:
                calls: list[int] = []

                def second_time(x: Tensor) -> Tensor:
                    calls.append(1)
                    return raising() if len(calls) > 1 else x * x

                checkpoint(second_time, x).sum().backward()
    except Raised:
        pass
    else:
        raise AssertionError(f"failure {kind} raised nothing")
    finally:
        if handle is not None:
            handle.remove()


def write_leaf(pool: Pool) -> None:
    if not pool.leaves:
        return
    of = pool.random.choice(pool.leaves)
    with no_grad():
        of.tensor.mul_(0.5).add_(1)
    of.array = of.array * 0.5 + 1
    of.writes += 1


def drop_gradient(pool: Pool) -> None:
    if pool.leaves:
        of = pool.random.choice(pool.leaves)
        of.tensor.grad = None
        of.gradient = None


def step(pool: Pool) -> None:
    """Steps leaves down their gradients."""
    if not pool.leaves:
        return
    sgd = optim.SGD([of.tensor for of in pool.leaves], lr=2.0**-6)
    sgd.step()
    sgd.zero_grad()
    with no_grad():
        for of in pool.leaves:
            of.tensor.clamp_(-2, 2)
            if of.gradient is not None:
                of.array = of.array - 2.0**-6 * of.gradient
            of.array = numpy.clip(of.array, -2, 2)
            of.gradient = None
            of.writes += 1


def train(pool: Pool) -> None:
    """Trains a small model for two steps."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kind: Any = pool.random.choice([optim.Adam, optim.SGD])
    optimizer = kind(model.parameters(), lr=0.01)
    x = tenure.tensor(pool.values((5, 3), "float32"))
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), tenure.zeros(5, 2))
        loss.backward()
        optimizer.step()
    assert numpy.isfinite(loss.item())
    model.load_state_dict(model.state_dict())


STEPS: list[Step] = [
    leaf,
    leaf,
    record,
    record,
    record,
    backward,
    backward,
    gradient,
    hook,
    fail,
    write_leaf,
    drop_gradient,
    step,
    train,
]
