# mypy: disallow-subclassing-any=False
"""Models whose memory is easy to count, and queries of the memory's owners."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.autograd import Function  # noqa: E402

import tenure.torch  # noqa: E402
from tenure import _native  # noqa: E402

WIDTH = 1024
BATCH = 64
ROW = WIDTH * 4
ACTIVATION = BATCH * ROW

TAGS = _native.tags()
NOTHING = ("unknown", "")

needs_device = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU under PyTorch, or the simulated CUDA of tests/cudart"
)


class Scale(nn.Module):
    """An elementwise module: an activation for each call, and two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


class Probe(nn.Module):
    """Notes the purpose of the thread's allocations when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(purpose())
        return x


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("on purpose")


class Noting(nn.Module):
    """Notes the purpose of allocations, and the thread, when backward reaches it; or fails there."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []
        self.threads: list[int] = []
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = _Note.apply(x, self)
        return output

    def note(self) -> None:
        self.seen.append(purpose())
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error("on purpose")


class _Note(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, noting: Noting) -> Tensor:
        ctx.noting = noting
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.noting.note()
        return gradient.clone(), None


def purpose() -> tuple[str, str]:
    """Returns the tag and the module for which this thread allocates."""
    tag, key = _native.current_purpose()
    return TAGS[tag], _native.module_of_key(key)


def batch(**settings: Any) -> Tensor:
    """Returns an input on the device."""
    return torch.ones(BATCH, WIDTH, device="cuda", **settings)


def backward_thread_has() -> tuple[str, str]:
    """Returns the purpose of allocations on the device's backward thread, in a pass without tags."""
    noting = Noting()
    noting(torch.ones(1, device="cuda", requires_grad=True)).sum().backward()
    assert noting.threads != [threading.get_ident()]
    return noting.seen[0]


def figures(tag: str) -> int:
    """Returns the bytes requested under a tag."""
    count = tenure.memory.stats(0)[f"requested_bytes.{tag}.current"]
    assert count is not None
    return count


def held(tag: str) -> dict[str, int]:
    """Returns a tag's bytes by module, according to hooks, without the modules that hold none."""

    def walk(module: dict[str, Any], path: str) -> Iterator[tuple[str, int]]:
        yield path, module["tags"].get(tag, 0)
        for child in module["children"]:
            yield from walk(child, f"{path}.{child['name']}".lstrip("."))

    modules = json.loads(_native.memory_report(0, "", True))["modules"]
    return {path: count for path, count in walk(modules, "") if count}


def tagged_keys(tag: str) -> set[str]:
    """Returns the keys of live blocks of a tag."""
    blocks = json.loads(_native.memory_report(0, "", True))["largest"]
    return {block["key"] for block in blocks if block["tag"] == tag}
