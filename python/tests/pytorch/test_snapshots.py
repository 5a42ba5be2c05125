"""Snapshots, and the history of allocations in them."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda._memory_viz import segment_plot, trace_plot

from .memory import MIB, blocks, tensor


@contextmanager
def recorded(**settings: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Records the history within the block; yields a function that takes a snapshot."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(**settings)
    try:
        yield torch.cuda.memory._snapshot
    finally:
        torch.cuda.memory._record_memory_history(None)


def actions(snapshot: dict[str, Any]) -> list[str]:
    return [event["action"] for event in snapshot["device_traces"][0]]


def allocate_here(size: int = 512) -> torch.Tensor:
    """Allocates, with a name to look for in frames."""
    return tensor(size)


def free_here(held: list[torch.Tensor]) -> None:
    """Frees, with a name to look for in frames."""
    held.clear()


def test_blocks_tile_their_segment() -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot, TestCudaMallocAsync.test_cycles."""
    held = [tensor(size) for size in (512, 1000, 5 * MIB, 30 * MIB)]
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        live = [block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert segment["allocated_size"] == sum(live)
    del held


def test_a_live_block_is_found_by_its_address_and_size() -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot."""
    held = tensor(123_456)
    (block,) = [block for block in blocks() if block["requested_size"] == 123_456]
    assert block["address"] == held.untyped_storage().data_ptr()
    assert block["state"] == "active_allocated"


def test_a_snapshot_s_figures_are_the_counters() -> None:
    """Covers TestMemPool.test_mempool_ctx_multithread."""
    held = [tensor(size) for size in (MIB, MIB, 3 * MIB)]
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated()
    del held


def test_with_nothing_alive_nothing_is_left_after_the_cache_is_emptied() -> None:
    """Covers TestMemPool.test_mempool_ctx_multithread, TestCudaMallocAsync.test_memory_snapshot."""
    if torch.cuda.memory_allocated():
        pytest.skip("something lives that this test did not make")
    with recorded() as snapshot:
        del (held := [tensor(size) for size in (512, 40 * MIB)])[:]
        torch.cuda.empty_cache()
        seen = snapshot()
    assert held == []
    assert seen["segments"] == []
    assert actions(seen)[-1] in ("segment_free", "segment_unmap")


def test_events_are_in_the_order_in_which_things_happened() -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot_skip_actions."""
    with recorded() as snapshot:
        held = tensor(40 * MIB)
        address = held.data_ptr()
        del held
        seen = snapshot()["device_traces"][0]
    mine = [event["action"] for event in seen if event["addr"] == address and not event["action"].startswith("segment")]
    assert mine == ["alloc", "free_requested", "free_completed"]
    assert any(event["action"] in ("segment_alloc", "segment_map") for event in seen)


@pytest.mark.parametrize("skipped", [["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None])
def test_actions_can_be_left_out(skipped: list[str] | None) -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot_skip_actions."""
    with recorded(skip_actions=skipped) as snapshot:
        tensor(512)
        seen = set(actions(snapshot()))
    assert seen
    assert not seen & set(skipped or [])
    assert {"alloc", "free_requested", "free_completed"} - seen == set(skipped or [])


def test_only_the_last_events_are_kept() -> None:
    """Covers TestCudaMallocAsync.test_cpp_memory_snapshot_pickle."""
    with recorded(max_entries=10) as snapshot:
        for _ in range(20):
            tensor(512)
        held = tensor(1024)
        seen = snapshot()["device_traces"][0]
    assert len(seen) == 10
    assert (seen[-1]["action"], seen[-1]["size"]) == ("alloc", held.numel())


@pytest.mark.parametrize(
    ("context", "allocation", "free"), [("alloc", True, False), ("all", True, True), ("state", False, False)]
)
def test_frames_are_kept_as_asked(context: str, allocation: bool, free: bool) -> None:
    """Covers TestCudaMallocAsync.test_memory_plots_free_stack."""
    # Makes the segment exist before the recording.
    beside = tensor(512)
    with recorded(context=context, stacks="python") as snapshot:
        free_here([allocate_here()])
        seen = json.dumps(snapshot())
    assert ("allocate_here" in seen) == allocation
    assert ("free_here" in seen) == free
    del beside


@pytest.mark.parametrize(("context", "kept"), [("alloc", False), ("all", True), ("state", False)])
def test_frames_of_what_empties_the_cache_are_kept_as_asked(context: str, kept: bool) -> None:
    """Covers TestCudaMallocAsync.test_memory_plots_free_segment_stack."""
    with recorded(context=context, stacks="python") as snapshot:
        tensor(80 * MIB)
        torch.cuda.empty_cache()
        seen = json.dumps(snapshot())
    assert ("empty_cache" in seen) == kept


def test_a_live_block_has_the_frames_of_its_allocation() -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot."""
    with recorded(enabled="state", stacks="python"):
        held = allocate_here(34_567)
        (block,) = [block for block in blocks() if block["requested_size"] == held.numel()]
    assert block["frames"][0]["name"] in ("tensor", "allocate_here")
    assert Path(block["frames"][1]["filename"]).name in (Path(__file__).name, "memory.py")


def test_a_new_recording_forgets_the_earlier_one() -> None:
    """Covers TestCudaMallocAsync.test_memory_plots."""
    with recorded(context="all", stacks="python"):
        allocate_here()
    with recorded(context=None) as snapshot:
        tensor(512)
        assert "allocate_here" not in json.dumps(snapshot())


def test_a_recording_goes_on_with_other_settings() -> None:
    """Covers TestCudaMallocAsync.test_memory_plots_history_context."""
    with recorded(context="all", stacks="python") as snapshot:
        allocate_here()
        torch.cuda.memory._record_memory_history(context=None)
        free_here([tensor(512)])
        torch.cuda.memory._record_memory_history(context="all", stacks="python")
        seen = json.dumps(snapshot())
    assert "allocate_here" in seen
    assert "free_here" not in seen


def test_events_carry_the_program_s_own_words() -> None:
    """Covers TestCudaMallocAsync.test_memory_plots_metadata."""
    torch.cuda.memory._set_memory_metadata("an epoch")
    with recorded() as snapshot:
        tensor(512)
        torch.cuda.empty_cache()
        torch.cuda.memory._set_memory_metadata("")
        events = snapshot()["device_traces"][0]
    assert {event["user_metadata"] for event in events} == {"an epoch"}


def test_pytorch_s_tools_draw_it(tmp_path: Path) -> None:
    """Covers TestCudaMallocAsync.test_memory_plots."""
    with recorded(stacks="python") as snapshot:
        held = [tensor(66_000), tensor(512)]
        del held[1]
        seen = snapshot()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    assert "<" in trace_plot(seen)
    assert "<" in trace_plot(seen, filter_freed=True)
    assert "<" in segment_plot(seen)
    assert "66000" in json.dumps(seen)
    assert Path(__file__).name in json.dumps(seen)
    kept = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert len(kept["segments"]) == len(seen["segments"])


def test_frames_of_other_languages() -> None:
    """Covers TestCudaMallocAsync.test_memory_snapshot_with_cpp, TestCudaMallocAsync.test_memory_snapshot_script."""

    def script() -> torch.Tensor:
        return torch.rand(311, 411, device="cuda")

    with recorded(enabled="state", stacks="all"):
        held = torch.jit.script(script)()
        (block,) = [block for block in blocks() if block["requested_size"] == held.nbytes]
    names = [frame["name"] for frame in block["frames"]]
    assert "script" in names
    assert any("::rand" in name for name in names)


def test_the_profiler_sees_allocations() -> None:
    """Covers TestCudaMallocAsync.test_memory_profiler_viz."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        with torch.profiler.record_function("allocates"):
            held = tensor(4096)
    used = {event.key: event.device_memory_usage for event in profile.key_averages()}
    assert used["allocates"] == held.numel()


def test_events_name_the_compiled_region_that_they_are_of() -> None:
    """Covers TestCudaMallocAsync.test_memory_compile_regions."""
    with recorded(context="all", compile_context=True) as snapshot:
        held = torch.compile(lambda size: tensor(size), backend="eager")(512)
        outside = tensor(512)
        found = {
            event["addr"]: event["compile_context"]
            for event in snapshot()["device_traces"][0]
            if event["action"] == "alloc"
        }
    assert found[held.data_ptr()].startswith("Torch-Compiled Region: ")
    assert found[outside.data_ptr()] == "N/A"


annotates = pytest.mark.skipif(not hasattr(torch.cuda.memory, "_annotate_tensor"), reason="came after PyTorch 2.11")


@annotates
def test_a_note_about_a_live_tensor_is_an_event() -> None:
    with recorded() as snapshot:
        held = tensor(1000)
        torch.cuda.memory._set_memory_metadata("mine")
        torch.cuda.memory._annotate_tensor(held[5:], "packed")
        after = tensor(2000)
        events = snapshot()["device_traces"][0]
    (note,) = [event for event in events if event["action"] == "annotate"]
    assert (note["addr"], note["size"], note["user_metadata"]) == (held.data_ptr(), 1000, "packed")
    assert note["frames"]
    assert [event["user_metadata"] for event in events if event["addr"] == after.data_ptr()][-1] == "mine"


@annotates
def test_a_note_about_no_tensor_is_refused_while_events_are_recorded() -> None:
    torch._C._cuda_annotateMemory(12345, "nothing")
    with recorded(), pytest.raises(RuntimeError, match="no live allocation found at pointer"):
        torch._C._cuda_annotateMemory(12345, "nothing")


@annotates
def test_a_live_block_says_where_it_was_allocated() -> None:
    with recorded():
        held = allocate_here()
        frames = torch.cuda.memory._allocation_traceback(held.data_ptr())
        assert any(frame["name"] == "allocate_here" for frame in frames)
        assert torch.cuda.memory._allocation_traceback(held.data_ptr() + 512) is None
        address = held.data_ptr()
        del held
        assert torch.cuda.memory._allocation_traceback(address) is None


def test_pinned_memory_has_its_segments_and_events_beside_the_device_s() -> None:
    if "record_pinned_host_memory" not in inspect.signature(torch.cuda.memory._record_memory_history).parameters:
        pytest.skip("this PyTorch records no pinned memory")
    with recorded(record_pinned_host_memory=True) as snapshot:
        pinned = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
        device = tensor(MIB)
        taken = snapshot()
    (segment,) = [it for it in taken["host_segments"] if it["address"] == pinned.data_ptr()]
    assert segment["allocated_size"] >= 3 * MIB and segment["blocks"][0]["state"] == "active_allocated"
    assert "alloc" in {event["action"] for event in taken["host_traces"] if event["addr"] == pinned.data_ptr()}
    assert device.data_ptr() in {event["addr"] for event in taken["device_traces"][0]}
    assert device.data_ptr() not in {event["addr"] for event in taken["host_traces"]}
