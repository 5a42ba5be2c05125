"""Tensors and events that processes share.

Children are spawned, and install their allocator because of `TENURE_TORCH`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from .memory import ALLOCATOR, MIB
from .peers import fills, multiplies, records, sends, tells_of_gradients, waits_for_an_event

context = mp.get_context("spawn")


@pytest.fixture(autouse=True)
def same_allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TENURE_TORCH", "1" if ALLOCATOR == "tenure" else "0")
    yield
    torch.cuda.ipc_collect()


class Child:
    """A process, and the queues to and from it."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self.inbox, self.outbox, self.done = context.Queue(), context.Queue(), context.Event()
        self.process = context.Process(
            target=target, args=(self.inbox, self.outbox, self.done, *arguments), daemon=True
        )
        self.process.start()

    def end(self) -> None:
        self.done.set()
        self.process.join(300)
        assert self.process.exitcode == 0


def test_a_child_writes_into_a_tensor_and_its_view() -> None:
    """Covers TestMultiprocessing.test_cuda_simple, .test_cuda_variable_sharing, .test_cuda_parameter_sharing."""
    tensor = torch.zeros(5, 5, device="cuda")
    beside = torch.zeros(5, device="cuda")
    child = Child(fills)
    child.inbox.put([tensor, tensor[:, 1]])
    assert child.outbox.get(timeout=3000) == "filled"
    assert tensor.cpu().eq(4).all()
    assert beside.cpu().eq(0).all()
    child.end()


@pytest.mark.parametrize(("count", "size"), [(5, 5), (200, 100), (3, 30 * MIB)])
def test_a_child_sends_tensors_and_forgets_them(count: int, size: int) -> None:
    """Covers TestMultiprocessing.test_cuda_memory_allocation, .test_cuda_send_many, .test_cuda_small_tensors."""
    child = Child(sends, count, size)
    for number in range(count):
        tensor = child.outbox.get(timeout=3000)
        assert tensor.cpu().eq(number).all()
        del tensor
    child.end()


def test_types_share_a_segment() -> None:
    """Covers TestMultiprocessing.test_mixed_types_cuda_sharing, .test_rebuild_cuda_tensor."""
    tensors = [torch.zeros(4, device="cuda"), torch.zeros(4, dtype=torch.uint8, device="cuda")]
    child = Child(fills)
    child.inbox.put(tensors)
    assert child.outbox.get(timeout=3000) == "filled"
    assert all(tensor.cpu().eq(4).all() for tensor in tensors)
    child.end()


@pytest.mark.values
def test_an_event_orders_the_work_of_two_processes() -> None:
    """Covers TestMultiprocessing.test_event."""
    child = Child(multiplies)
    tensor = torch.ones(4, device="cuda")
    event = torch.cuda.Event(interprocess=True)
    torch.cuda._sleep(20_000_000)
    tensor.add_(1)
    event.record()
    child.inbox.put((event, tensor))
    assert child.outbox.get(timeout=3000) == "recorded"
    event.synchronize()
    assert tensor.tolist() == [4, 4, 4, 4]
    child.end()


def test_a_tensor_of_nothing_is_shared() -> None:
    """Covers TestMultiprocessing.test_empty_tensor_sharing_cuda."""
    queue = context.Queue()
    empty = torch.empty(0, device="cuda")
    queue.put(empty)
    assert queue.get(timeout=300).equal(empty)


def test_every_device_tensor_can_be_shared() -> None:
    """Covers TestMultiprocessing.test_is_shared_cuda."""
    assert torch.empty(1, device="cuda").is_shared()


@pytest.mark.values
@pytest.mark.parametrize("is_handle", [False, True])
def test_a_child_waits_for_an_event_of_its_parent(is_handle: bool) -> None:
    """Covers TestMultiprocessing.test_event_multiprocess, .test_event_handle_importer."""
    event = torch.cuda.Event(interprocess=True)
    assert event.query()
    child = Child(waits_for_an_event)
    child.inbox.put(event.ipc_handle() if is_handle else event)
    assert child.outbox.get(timeout=3000) == "here"
    assert is_pending(event)
    child.inbox.put("recorded")
    assert child.outbox.get(timeout=3000) == "synchronized"
    assert event.query()
    child.end()


def is_pending(event: torch.cuda.Event) -> bool:
    """Records an event after some work, and doubles the work until this process sees the event pending."""
    for doublings in range(12):
        torch.cuda._sleep(50_000_000 << doublings)
        event.record()
        if not event.query():
            return True
    return False


@pytest.mark.values
def test_a_parent_waits_for_an_event_of_its_child() -> None:
    """Covers TestMultiprocessing.test_event_handle_exporter."""
    child = Child(records)
    event = torch.cuda.Event.from_ipc_handle(0, child.outbox.get(timeout=3000))
    event.synchronize()
    assert event.query()
    child.end()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_leaf_is_one_in_the_child_too(requires_grad: bool) -> None:
    """Covers TestMultiprocessing.test_leaf_variable_sharing."""
    tensor = torch.zeros(5, 5, device="cuda", requires_grad=requires_grad)
    child = Child(tells_of_gradients)
    child.inbox.put(tensor)
    assert child.outbox.get(timeout=3000) == (requires_grad, True)
    child.end()


def test_a_result_that_needs_a_gradient_is_not_sent() -> None:
    """Covers TestMultiprocessing.test_non_leaf_variable_sharing."""
    result = torch.zeros(5, device="cuda", requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="requires_grad"):
        context.SimpleQueue().put(result)


def test_a_forked_child_is_told_that_it_has_no_device() -> None:
    """Covers TestMultiprocessing.test_cuda_bad_call, .test_wrong_cuda_fork."""
    torch.zeros(1, device="cuda")
    queue = mp.get_context("fork").SimpleQueue()
    process = mp.get_context("fork").Process(target=_uses_the_device, args=(queue,))
    process.start()
    assert "Cannot re-initialize CUDA in forked subprocess" in queue.get()
    process.join(300)


def _uses_the_device(queue: Any) -> None:
    try:
        torch.zeros(1, device="cuda")
        queue.put("nothing")
    except RuntimeError as error:
        queue.put(str(error))
