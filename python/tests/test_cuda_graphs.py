"""Graphs of `tenure.cuda`, on simulated devices or, with `TENURE_TEST_DEVICE=cuda`, on the first real one."""

from __future__ import annotations

import os

import pytest

import tenure
from tenure import _native, cuda, nn, optim

IS_REAL = os.environ.get("TENURE_TEST_DEVICE") == "cuda"
#: The seeds choose the order in which simulated streams run.
SEEDS = (0,) if IS_REAL else (0, 1, 2)

on_device = pytest.mark.own_process
on_seeds = pytest.mark.parametrize("seed", SEEDS)


def open_devices(seed: int = 0) -> None:
    """Gives this process a simulated device, or checks that there is a real one."""
    if not IS_REAL:
        _native.simulate_devices(1, seed)
    elif not cuda.is_available():
        pytest.skip("there is no CUDA device")


def numbers(count: int = 10) -> tenure.Tensor:
    return tenure.arange(count, dtype=tenure.float32).cuda()


@on_device
@on_seeds
def test_a_replay_reads_its_inputs_anew(seed: int) -> None:
    open_devices(seed)
    x = numbers()
    x * 2 + 1
    graph = cuda.CUDAGraph()
    assert not cuda.is_current_stream_capturing()
    with cuda.graph(graph):
        assert cuda.is_current_stream_capturing()
        y = x * 2 + 1
    assert not cuda.is_current_stream_capturing()
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 1] * 10


@on_device
def test_a_capture_begins_and_ends_by_hand() -> None:
    open_devices()
    x = numbers()
    graph = cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(ValueError, match="capture_error_mode"):
        graph.capture_begin(capture_error_mode="none")
    with pytest.raises(ValueError, match="capture_error_mode"), cuda.graph(graph, capture_error_mode="none"):
        pass
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x * 2
        graph.capture_begin()
        assert cuda.current_stream() == side
        y = x * 2
        graph.capture_end()
        graph.replay()
    cuda.current_stream().wait_stream(side)
    assert y.tolist() == [2 * n for n in range(10)]


@on_device
def test_a_graph_without_a_capture_says_so() -> None:
    open_devices()
    graph = cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.pool()
    with pytest.raises(RuntimeError, match="needs a capture_begin"):
        graph.capture_end()
    with cuda.graph(graph):
        numbers_before = tenure.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="already owns a captured graph"), cuda.graph(graph):
        pass
    graph.replay()
    assert numbers_before.tolist() == [1, 1, 1]
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with cuda.graph(graph):
        pass


@on_device
def test_an_exception_in_a_capture_leaves_no_graph() -> None:
    open_devices()
    x = numbers()
    graph = cuda.CUDAGraph()
    with pytest.raises(KeyError), cuda.graph(graph):
        x * 2
        raise KeyError
    assert not cuda.is_current_stream_capturing()
    assert cuda.current_stream() == cuda.default_stream()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError), cuda.graph(graph):
        x.sum().item()
    assert x.sum().item() == 45


@on_device
@on_seeds
def test_a_side_stream_takes_part_in_a_capture(seed: int) -> None:
    open_devices(seed)
    x = numbers()
    (x * 2) + (x * 3)
    main, side = cuda.Stream(), cuda.Stream()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=main):
        assert cuda.current_stream() == main
        side.wait_stream(main)
        with cuda.stream(side):
            y = x * 2
        z = x * 3
        main.wait_stream(side)
        total = y + z
    graph.replay()
    assert total.tolist() == [5 * n for n in range(10)]


@on_device
def test_graphs_share_a_pool() -> None:
    open_devices()
    x = numbers(1 << 20)
    pool = cuda.graph_pool_handle()
    first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(first, pool=pool):
        total = (x * 2).sum()
    reserved = cuda.memory_reserved()
    with cuda.graph(second, pool=first.pool()):
        other = (x * 3).sum()
    assert cuda.memory_reserved() - reserved < x.nbytes
    first.replay()
    expected = (x * 2).sum().item()
    assert total.item() == expected
    second.replay()
    assert other.item() == (x * 3).sum().item()


@on_device
def test_each_replay_draws_other_random_numbers() -> None:
    open_devices()
    tenure.manual_seed(4)
    expected = [tenure.rand(5, device="cuda").tolist() for _ in range(2)]
    tenure.manual_seed(4)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        x = tenure.rand(5, device="cuda")
    found = []
    for _ in range(2):
        graph.replay()
        found.append(x.tolist())
    assert found == expected


def steps(captured: bool) -> list[float]:
    """The losses of five steps of a small model."""
    tenure.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("cuda")
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    x = tenure.randn(16, 4, device="cuda")
    y = x.sum(1, keepdim=True)

    def step() -> tenure.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: tenure.Tensor = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step().item()]
    if not captured:
        return losses + [step().item() for _ in range(4)]
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = step()
    for _ in range(4):
        graph.replay()
        losses.append(loss.item())
    return losses


@on_device
def test_a_captured_training_step_learns_as_one_that_is_not() -> None:
    open_devices()
    assert steps(captured=True) == steps(captured=False)


@on_device
@on_seeds
def test_a_graphed_module_computes_what_the_module_does(seed: int) -> None:
    open_devices(seed)
    tenure.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("cuda")
    inputs = [tenure.randn(5, 4, device="cuda").requires_grad_() for _ in range(2)]

    def gradients(x: tenure.Tensor) -> tuple[tenure.Tensor, list[list[float]]]:
        out: tenure.Tensor = model(x)
        found = tenure.autograd.grad((out * out).sum(), (x, *model.parameters()))
        return out.detach().clone(), [grad.flatten().tolist() for grad in found]

    expected = [gradients(x) for x in inputs]
    cuda.make_graphed_callables(model, (inputs[0],))
    for x, (out, grads) in zip(inputs, expected, strict=True):
        found, found_grads = gradients(x)
        assert tenure.equal(found, out)
        assert found_grads == grads


@on_device
def test_graphed_functions_take_several_arguments() -> None:
    open_devices()
    a, b = numbers().requires_grad_(), numbers() + 1
    product, total = cuda.make_graphed_callables((lambda x, y: (x * y, x + y), lambda x: x.sum()), ((a, b), (a,)))
    out, added = product(a, b)
    assert tenure.equal(out.detach(), (a * b).detach())
    assert tenure.equal(added.detach(), (a + b).detach())
    out.sum().backward()
    assert a.grad is not None
    assert tenure.equal(a.grad, b)
    assert total(a).item() == 45
    with pytest.raises(TypeError, match="2 arguments, not 1"):
        product(a)
