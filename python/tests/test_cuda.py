"""`tenure.cuda`: streams, events, memory and graphs. On simulated devices, which find accesses that are not ordered.

With `TENURE_TEST_DEVICE=cuda` the tests run on the first real device, where only results are checked. Each test has a
process of its own: a race ends the use of a simulated device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import tenure
from tenure import _native, cuda

IS_REAL = os.environ.get("TENURE_TEST_DEVICE") == "cuda"
#: The seeds choose the order in which simulated streams run.
SEEDS = (0,) if IS_REAL else (0, 1, 2)


def open_devices(seed: int = 0, count: int = 2) -> None:
    """Gives this process simulated devices, or checks that there is a real one."""
    if not IS_REAL:
        _native.simulate_devices(count, seed)
    elif not cuda.is_available():
        pytest.skip("there is no CUDA device")


def two_devices() -> None:
    open_devices()
    if cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")


def numbers(count: int = 1000) -> tenure.Tensor:
    return tenure.arange(count, dtype=tenure.float32).cuda()


on_device = pytest.mark.own_process
on_seeds = pytest.mark.parametrize("seed", SEEDS)


@on_device
def test_without_a_device_nothing_fails_that_only_asks() -> None:
    if cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert cuda.device_count() == 0
    assert not cuda.is_initialized()
    assert not cuda.is_bf16_supported()
    assert not cuda.is_current_stream_capturing()
    assert cuda.memory_allocated() == cuda.max_memory_reserved() == 0
    assert cuda.memory_stats() == {}
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    cuda.set_device(-1)
    cuda.set_stream(None)
    with cuda.device(-1), cuda.device(None), cuda.stream(None), cuda.device_of(tenure.ones(1)):
        pass


@on_device
@pytest.mark.parametrize(
    "call",
    [
        cuda.init,
        cuda.current_device,
        cuda.current_stream,
        cuda.default_stream,
        cuda.synchronize,
        cuda.mem_get_info,
        cuda.get_device_name,
        cuda.Stream,
        cuda.graph_pool_handle,
        lambda: cuda.set_device(0),
        lambda: cuda.Event().record(),
        lambda: cuda.CUDAGraph().capture_begin(),
        lambda: tenure.ones(1, device="cuda"),
    ],
)
def test_without_a_device_what_needs_one_says_so(call: Callable[[], object]) -> None:
    if cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="no CUDA driver was found|no CUDA device|CUDA_ERROR_NO_DEVICE"):
        call()


def test_the_package_is_imported_when_it_is_used() -> None:
    program = "import sys, tenure; assert 'tenure.cuda' not in sys.modules; tenure.cuda.is_available()"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


@on_device
def test_the_properties_of_a_device() -> None:
    open_devices()
    properties = cuda.get_device_properties("cuda:0")
    assert cuda.get_device_name(0) == properties.name != ""
    assert cuda.get_device_capability(tenure.device("cuda")) == (properties.major, properties.minor)
    free, total = cuda.mem_get_info()
    assert 0 < free <= total
    assert properties.total_memory == pytest.approx(total, rel=0.05)
    with pytest.raises(RuntimeError, match="device 100"):
        cuda.get_device_properties(100)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        cuda.synchronize("cpu")


@on_device
def test_tensors_are_made_on_the_current_device() -> None:
    two_devices()
    assert cuda.current_device() == 0
    with cuda.device("cuda:1"):
        assert cuda.current_device() == 1
        assert tenure.ones(1, device="cuda").device == tenure.ones(1).cuda().device == tenure.device("cuda", 1)
        with cuda.device_of(tenure.ones(1, device="cuda:0")):
            assert tenure.device("cuda") == tenure.device("cuda:0")
        assert cuda.current_stream().device == tenure.device("cuda:1")
    assert tenure.ones(1, device="cuda").device == tenure.device("cuda:0")
    cuda.set_device(1)
    assert cuda.Stream().device_index == 1
    with pytest.raises(RuntimeError, match="device 100"):
        cuda.set_device(100)
    assert cuda.current_device() == 1


@on_device
def test_each_thread_has_a_current_device_and_stream_of_its_own() -> None:
    two_devices()
    found: list[object] = []
    cuda.set_stream(cuda.Stream(1))
    thread = threading.Thread(target=lambda: found.extend((cuda.current_device(), cuda.current_stream(1))))
    thread.start()
    thread.join()
    assert found == [0, cuda.default_stream(1)]
    assert cuda.current_device() == 1


@on_device
def test_streams_come_from_a_pool_of_32_for_each_priority() -> None:
    open_devices()
    streams = [[cuda.Stream(priority=priority) for _ in range(33)] for priority in (-1, 0, 1)]
    assert len({stream for pool in streams for stream in pool}) == 3 * 32
    for priority, pool in zip((-1, 0, 1), streams, strict=True):
        assert pool[0] == pool[32]
        assert {stream.priority for stream in pool} == {priority}
        assert len({stream.cuda_stream for stream in pool} - {0}) == 32


@on_device
def test_a_stream_is_current_within_its_block() -> None:
    open_devices()
    default = cuda.current_stream()
    assert default == cuda.default_stream() != cuda.Stream()
    assert default.cuda_stream == 0
    outer, inner = cuda.Stream(), cuda.Stream()
    with pytest.raises(KeyError), cuda.stream(outer):
        with cuda.stream(inner):
            assert cuda.current_stream() == inner
        assert cuda.current_stream() == outer
        raise KeyError
    assert cuda.current_stream() == default

    @cuda.stream(outer)
    def decorated() -> cuda.Stream:
        return cuda.current_stream()

    assert decorated() == decorated() == outer


@on_device
@on_seeds
@pytest.mark.parametrize("way", ["wait_stream", "wait_event", "event.wait"])
def test_a_stream_that_waits_sees_what_the_other_wrote(seed: int, way: str) -> None:
    open_devices(seed)
    side = cuda.Stream()
    x = numbers() + 1
    if way == "wait_stream":
        side.wait_stream(cuda.current_stream())
    elif way == "wait_event":
        side.wait_event(cuda.current_stream().record_event())
    else:
        event = cuda.Event()
        event.record()
        event.wait(side)
    with cuda.stream(side):
        y = x * 2
    cuda.current_stream().wait_stream(side)
    assert tenure.equal((y + 1).cpu(), tenure.arange(1000, dtype=tenure.float32) * 2 + 3)


@on_device
@on_seeds
def test_streams_that_do_not_wait_are_a_race(seed: int) -> None:
    if IS_REAL:
        pytest.skip("real devices find no races")
    open_devices(seed)
    x = numbers() + 1
    with pytest.raises(RuntimeError, match="race"), cuda.stream(cuda.Stream()):
        x * 2


@on_device
@on_seeds
def test_memory_that_another_stream_uses_is_not_used_again_before(seed: int) -> None:
    open_devices(seed)
    side = cuda.Stream()
    results = []
    for value in range(8):
        x = tenure.full((64,), float(value), device="cuda")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            results.append(x + 1)
        x.record_stream(side)
        del x
    cuda.current_stream().wait_stream(side)
    assert [result[5].item() for result in results] == [value + 1 for value in range(8)]
    with pytest.raises(RuntimeError, match="CPU"):
        tenure.ones(1).record_stream(side)


@on_device
def test_a_gradient_is_computed_on_the_streams_of_the_forward_pass() -> None:
    open_devices()
    side = cuda.Stream()
    x = numbers(10).requires_grad_()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x * x
    cuda.current_stream().wait_stream(side)
    (y * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3 * n * n for n in range(10)]


@on_device
def test_queries_and_waits_tell_when_work_is_done() -> None:
    open_devices()
    event = cuda.Event()
    assert event.query()
    assert event.device is None
    event.synchronize()
    stream = cuda.Stream()
    with cuda.stream(stream):
        numbers() * 2
    assert stream.record_event(event) is event
    assert event.device == tenure.device("cuda:0")
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()
    cuda.synchronize()


@on_device
def test_events_measure_time() -> None:
    open_devices()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    numbers() * 2
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert start.elapsed_time(start) == 0
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        start.elapsed_time(cuda.Event())
    with pytest.raises(RuntimeError, match="enable_timing and interprocess"):
        cuda.Event(enable_timing=True, interprocess=True)


@on_device
def test_an_events_handle_needs_an_interprocess_event() -> None:
    open_devices()
    assert len(cuda.Event(interprocess=True).ipc_handle()) == 64
    with pytest.raises(RuntimeError):
        cuda.Event().ipc_handle()


@on_device
@pytest.mark.parametrize(("make", "name"), [(cuda.Event, "blocking"), (cuda.CUDAGraph, "keep_graph")])
def test_an_argument_without_effect_warns_once(make: Callable[..., object], name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name}=True changes nothing") as told:
        make(**{name: True})
        make(**{name: True})
    assert len(told) == 1


@on_device
def test_a_stream_of_another_library_is_waited_for() -> None:
    open_devices()
    own = cuda.Stream()
    external = cuda.ExternalStream(own.cuda_stream, "cuda:0")
    assert isinstance(external, cuda.Stream)
    assert external == own
    assert external.__cuda_stream__() == (0, own.cuda_stream)
    x = numbers() + 1
    external.wait_stream(cuda.current_stream())
    with cuda.stream(external):
        y = x * 2
    cuda.current_stream().wait_stream(own)
    assert y[1].item() == 4
    assert cuda.ExternalStream(0) == cuda.ExternalStream(1) == cuda.default_stream()


@on_device
def test_memory_is_counted() -> None:
    open_devices()
    before = cuda.memory_allocated()
    x = tenure.ones(1 << 20, device="cuda")
    assert cuda.memory_allocated() - before == x.nbytes
    del x
    assert cuda.memory_allocated() == before
    assert cuda.max_memory_allocated() >= before + (4 << 20)
    assert cuda.memory_reserved() >= 4 << 20
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    assert cuda.memory_reserved() < 4 << 20
    assert cuda.max_memory_allocated() == before
    assert cuda.max_memory_reserved() == cuda.memory_reserved()
    assert cuda.memory_stats()["allocated_bytes.all.current"] == before
    if not IS_REAL:
        assert cuda.memory_stats(1)["allocated_bytes.all.peak"] == 0


@on_device
def test_a_summary_has_the_counters() -> None:
    open_devices()
    x = tenure.ones(3 << 20, device="cuda")
    summary = cuda.memory_summary()
    assert x.nbytes == 12 << 20
    assert "12.0 MiB" in summary
    assert "freed" in summary
    assert "freed" not in cuda.memory_summary(abbreviated=True)


@on_device
def test_a_fraction_limits_the_memory() -> None:
    open_devices()
    cuda.set_per_process_memory_fraction(1e-2)
    with pytest.raises(cuda.OutOfMemoryError):
        tenure.empty(cuda.mem_get_info()[1] // 50, dtype=tenure.uint8, device="cuda")
    cuda.set_per_process_memory_fraction(1.0)


@on_device
def test_random_numbers_follow_the_seed() -> None:
    open_devices()
    assert cuda.initial_seed() == tenure.initial_seed()
    cuda.manual_seed_all(3)
    state = cuda.get_rng_state()
    first = tenure.rand(5, device="cuda")
    second = tenure.rand(5, device="cuda")
    assert not tenure.equal(first, second)
    cuda.set_rng_state(state)
    assert tenure.equal(tenure.rand(5, device="cuda"), first)
    cuda.manual_seed(3)
    assert cuda.initial_seed() == 3
    assert tenure.equal(tenure.rand(5, device="cuda"), first)
    cuda.set_rng_state_all([state] * cuda.device_count())
    assert tenure.equal(tenure.rand(5, device="cuda"), first)
    assert len(cuda.get_rng_state_all()) == cuda.device_count()


@on_device
def test_a_device_draws_from_a_generator_of_its_own() -> None:
    two_devices()
    tenure.manual_seed(3)
    states = [tenure.get_rng_state(), *cuda.get_rng_state_all()]
    assert all(tenure.equal(state, states[0]) for state in states)
    expected = tenure.rand(6)
    for device in ("cuda:0", "cuda:1"):
        before = [tenure.get_rng_state(), *cuda.get_rng_state_all()]
        drawn = tenure.rand(6, device=device)
        assert tenure.equal(drawn.cpu(), expected)
        tenure.nn.functional.dropout(drawn, 0.5)
        after = [tenure.get_rng_state(), *cuda.get_rng_state_all()]
        moved = [not tenure.equal(old, new) for old, new in zip(before, after, strict=True)]
        assert moved == [False, device == "cuda:0", device == "cuda:1"]
    with cuda.device(1):
        cuda.manual_seed(8)
        assert cuda.initial_seed() == 8
        cuda.seed()
    assert cuda.initial_seed() == 3 == tenure.initial_seed() != cuda.default_generators[1].initial_seed()
    cuda.seed_all()
    assert cuda.default_generators[0].initial_seed() == cuda.default_generators[1].initial_seed() != 3
    cuda.set_rng_state_all(states[1:])
    assert cuda.default_generators[1].initial_seed() == 3


@on_device
def test_a_generator_draws_for_its_own_kind_of_device() -> None:
    open_devices()
    assert str(tenure.Generator().device) == "cpu"
    on_gpu = tenure.Generator(device="cuda").manual_seed(4)
    assert on_gpu.device == tenure.device("cuda:0")
    first = tenure.rand(5, device="cuda", generator=on_gpu.clone_state())
    assert tenure.equal(tenure.rand(5, device="cuda", generator=on_gpu), first)
    draws: tuple[Callable[[], tenure.Tensor], ...] = (
        lambda: tenure.rand(3, device="cuda", generator=tenure.Generator()),
        lambda: tenure.randperm(3, device="cuda", generator=tenure.Generator()),
        lambda: tenure.zeros(3, device="cuda").normal_(generator=tenure.default_generator),
    )
    for draw in draws:
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            draw()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        tenure.rand(3, generator=on_gpu)


@on_device
def test_a_checkpoint_draws_the_same_numbers_again_on_each_device() -> None:
    open_devices()
    tenure.manual_seed(3)
    x = numbers(8).requires_grad_(True)

    def function(x: tenure.Tensor) -> tenure.Tensor:
        return tenure.nn.functional.dropout(x, 0.5) * x * tenure.rand(8).cuda()

    y = tenure.autograd.checkpoint(function, x)
    states = [tenure.get_rng_state(), cuda.get_rng_state()]
    tenure.rand(3, device="cuda")
    after = cuda.get_rng_state()
    y.sum().backward()
    assert x.grad is not None
    # The output is a x², and its gradient 2 a x, with the same a.
    assert tenure.allclose(x.grad * x / 2, y)
    assert tenure.equal(tenure.get_rng_state(), states[0])
    assert tenure.equal(cuda.get_rng_state(), after) and not tenure.equal(after, states[1])


@on_device
def test_a_fork_restores_the_generators_of_its_devices() -> None:
    two_devices()
    tenure.manual_seed(3)
    before = [tenure.get_rng_state(), *cuda.get_rng_state_all()]

    def draw() -> None:
        for device in ("cpu", "cuda:0", "cuda:1"):
            tenure.rand(3, device=device)

    def moved() -> list[bool]:
        after = [tenure.get_rng_state(), *cuda.get_rng_state_all()]
        return [not tenure.equal(old, new) for old, new in zip(before, after, strict=True)]

    with tenure.random.fork_rng():
        draw()
        assert all(moved())
    assert not any(moved())
    with tenure.random.fork_rng(devices=[1]):
        draw()
    assert moved() == [False, True, False]
