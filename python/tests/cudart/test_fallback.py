"""PyTorch on Tenure without a compiler to build the shim: through `CUDAPluggableAllocator`.

The tests try every limit that `tenure.torch.status()` names, and the features that it does not name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import tenure
import tenure.torch
from tenure.torch.installation.state import Allocator

MIB = 1 << 20
CAPACITY = 8 << 30


def install(allocator: Allocator = "paged") -> tenure.torch.Status:
    """Installs Tenure without a compiler, and expects its warning."""
    nowhere = mock.patch.dict("os.environ", PATH="/nowhere", CXX="")
    says = r"^there is no C\+\+ compiler: install one .* tenure.torch.status\(\) says what$"
    prebuilt = mock.patch("tenure.torch.installation.build.prebuilt", return_value=None)
    with nowhere, prebuilt, pytest.warns(UserWarning, match=says):
        return tenure.torch.install(allocator)


def tensor(mib: float = 1) -> Any:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def figure(name: str) -> int:
    return int(tenure.memory.stats()[f"{name}.all.current"])


def test_status_says_that_it_is_the_fallback() -> None:
    status = install()
    assert status.mode == "pluggable" and status.library is None
    assert torch.cuda.get_allocator_backend() == "pluggable"
    assert "does not work:\n  - torch.cuda.memory_stats()" in str(status)


def test_all_eight_functions_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, int] = {}

    class Inner:
        def __getattr__(self, name: str) -> Callable[[int], None]:
            return lambda address: given.update({name: address})

    pluggable = SimpleNamespace(allocator=Inner)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", lambda *names: pluggable)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", lambda allocator: None)
    from tenure.torch.installation import fallback

    fallback.install("allocator=paged")
    assert len(given) == len(set(given.values())) == 8
    assert all(given.values())
    allocator = torch._C._cuda_customAllocator(1, 1)
    assert set(given) == {name for name in dir(allocator) if name.startswith("set_")}


def test_blocks_come_and_go() -> None:
    install()
    kept = torch.arange(1000).cuda()
    assert kept.cpu().tolist() == list(range(1000))
    assert figure("allocated_bytes") == 8192
    assert torch.empty(0, device="cuda").data_ptr() == 0
    del kept
    assert figure("allocated_bytes") == 0 < figure("reserved_bytes")
    torch.cuda.empty_cache()
    assert figure("reserved_bytes") == 0


def test_running_out_of_memory_is_an_error_and_no_null_tensor() -> None:
    install()
    with pytest.raises(
        RuntimeError, match="^CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total"
    ) as error:
        tensor(CAPACITY * 2 / MIB)
    assert not isinstance(error.value, torch.cuda.OutOfMemoryError)
    assert tensor().data_ptr() != 0


def test_a_fraction_is_kept_to() -> None:
    install()
    torch.cuda.set_per_process_memory_fraction(0.25)
    with pytest.raises(RuntimeError, match="raise its memory fraction to at least 0.5"):
        tensor(CAPACITY / 2 / MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    tensor(CAPACITY / 2 / MIB)


def test_a_block_is_not_reused_while_another_stream_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # On this clock, a stream is busy until a thread waits for it.
    monkeypatch.setenv("TENURE_CUDART_CLOCK", "virtual")
    install()
    side = torch.cuda.Stream()
    shared = tensor()
    address = shared.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
        shared.record_stream(side)
    del shared
    kept = tensor()
    assert kept.data_ptr() != address
    side.synchronize()


def test_graphs_have_pools_of_their_own() -> None:
    install()
    source = tensor()
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source * 2
    with torch.cuda.graph(second, pool=graph.pool()):
        sum_ = result + 1
    graph.replay()
    pools = [segment["segment_pool_id"] for segment in tenure.memory.snapshot()["segments"]]
    assert graph.pool() in pools
    others = {tensor().data_ptr() for _ in range(4)}
    assert not others & {result.data_ptr(), sum_.data_ptr()}
    del graph, second, result, sum_
    torch.cuda.empty_cache()
    assert {segment["segment_pool_id"] for segment in tenure.memory.snapshot()["segments"]} == {(0, 0)}


REFUSED: dict[str, Callable[[], object]] = {
    "torch.cuda.memory_stats()": lambda: torch.cuda.memory_stats(),
    "memory_allocated": lambda: torch.cuda.memory_allocated(),
    "peaks": lambda: torch.cuda.max_memory_reserved(),
    "their reset": lambda: torch.cuda.reset_peak_memory_stats(),
    "memory_summary": lambda: torch.cuda.memory_summary(),
    "_snapshot": lambda: torch.cuda.memory._snapshot(),
    "_record_memory_history": lambda: torch.cuda.memory._record_memory_history(),
    "torch.cuda.MemPool": lambda: torch.cuda.MemPool(),
    "out-of-memory observers": lambda: torch._C._cuda_attach_out_of_memory_observer(lambda *_: None),
    "torch.cuda.get_per_process_memory_fraction()": lambda: torch.cuda.get_per_process_memory_fraction(),
    "torch.compile(mode='reduce-overhead')": lambda: torch._C._cuda_getCheckpointState(0, (0, 1)),
    "sharing CUDA tensors between processes": lambda: tensor().untyped_storage()._share_cuda_(),
}


def test_named_limitations_are_refused() -> None:
    limits = install().limitations
    tensor()
    for limit, call in REFUSED.items():
        assert any(limit in named for named in limits), limit
        with pytest.raises(RuntimeError, match="does not yet support"):
            call()


@pytest.mark.parametrize("allocator", ["paged", "native"])
def test_copies_between_devices_are_named_and_work_only_under_native(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_CUDART_DEVICES", "2")
    limits = install(allocator).limitations
    assert "copies from one GPU to another, unless with install('native')" in limits
    source = torch.arange(1000).to("cuda:0")
    if allocator == "native":
        assert source.to("cuda:1").tolist() == list(range(1000))
    else:
        with pytest.raises(torch.AcceleratorError, match="cudaErrorIllegalAddress"):
            source.to("cuda:1").cpu()


def test_settings_without_effect_are_named_too() -> None:
    limits = install().limitations
    assert "PYTORCH_CUDA_ALLOC_CONF and torch.cuda.caching_allocator_enable(), which change nothing" in limits
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.caching_allocator_enable(False)
    tensor()  # allocates and frees
    assert figure("reserved_bytes") > 0


WORKING: dict[str, Callable[[], object]] = {
    "mem_get_info": lambda: torch.cuda.mem_get_info(),
    "ipc_collect": lambda: torch.cuda.ipc_collect(),
    "raw blocks": lambda: torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MIB)),
    "pinned memory": lambda: torch.empty(100).pin_memory(),
    "our figures": lambda: tenure.memory.stats(),
    "our snapshot": lambda: tenure.memory.snapshot(),
}


def test_calls_that_status_does_not_name_work() -> None:
    install()
    tensor()
    for call in WORKING.values():
        call()
