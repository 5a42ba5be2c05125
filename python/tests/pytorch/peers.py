"""Functions of the processes that share tensors with a test. The processes import them from this module."""

from __future__ import annotations

from typing import Any

import torch


def fills(inbox: Any, outbox: Any, done: Any) -> None:
    for tensor in inbox.get(timeout=300):
        tensor.fill_(4)
    torch.cuda.synchronize()
    outbox.put("filled")
    done.wait(300)


def sends(inbox: Any, outbox: Any, done: Any, count: int, size: int) -> None:
    for number in range(count):
        outbox.put(torch.full((size,), number, device="cuda"))
    done.wait(300)


def multiplies(inbox: Any, outbox: Any, done: Any) -> None:
    event, tensor = inbox.get(timeout=300)
    with torch.cuda.stream(torch.cuda.Stream()):
        event.wait()
        tensor.mul_(2)
        event.record()
    outbox.put("recorded")
    done.wait(300)


def waits_for_an_event(inbox: Any, outbox: Any, done: Any) -> None:
    event = inbox.get(timeout=300)
    if isinstance(event, bytes):
        event = torch.cuda.Event.from_ipc_handle(0, event)
    outbox.put("here")
    assert inbox.get(timeout=300) == "recorded"
    event.synchronize()
    outbox.put("synchronized")
    done.wait(300)


def records(inbox: Any, outbox: Any, done: Any) -> None:
    event = torch.cuda.Event(interprocess=True)
    torch.cuda._sleep(20_000_000)
    event.record()
    outbox.put(event.ipc_handle())
    done.wait(300)


def tells_of_gradients(inbox: Any, outbox: Any, done: Any) -> None:
    tensor = inbox.get(timeout=300)
    outbox.put((tensor.requires_grad, tensor.is_leaf))
    done.wait(300)


def shows_and_fills(inbox: Any, outbox: Any) -> None:
    tensor = inbox.get(timeout=300)
    outbox.put(tensor.tolist())
    tensor.fill_(2)
    torch.cuda.synchronize()
    outbox.put([])
