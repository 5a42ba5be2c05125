# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
"""What PyTorch's operations make is made again, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tenure.torch.recipes import Recorder  # noqa: E402

from torch import nn  # noqa: E402  isort: skip


class Told:
    """Is told what an engine is, and keeps what it is told of."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int], tuple[list[tuple[int, int]], Any]] = {}
        self.bytes: dict[tuple[int, int], Any] = {}

    def is_repeated(self, stream: int) -> bool:
        return True

    def operation(self, made: list[Any], stream: int, inputs: list[Any], again: list[Any]) -> None:
        given = [(address, version) for address, _, version in inputs]
        for (address, _, version), compute in zip(made, again, strict=False):
            self.made[address, version] = given, compute

    def compute(self, made: tuple[int, int]) -> Any:
        """The storage of what was made, computed again from the beginning."""
        if made not in self.made:
            return self.bytes[made]
        given, compute = self.made[made]
        result, address, count = compute([self.compute(each) for each in given], 0)
        assert (address, count) == (result.untyped_storage().data_ptr(), result.untyped_storage().nbytes())
        return result.untyped_storage()


class Keeping(TorchDispatchMode):
    """Keeps all that is made, so that no two have one address."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append(func(*args, **(kwargs or {})))
        return self.made[-1]


def rows() -> Any:
    return torch.arange(8 * 16 * 32, dtype=torch.float32).sin().view(8, 16, 32)


def attended(x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(*(x.view(8, 16, 4, 8).transpose(1, 2) for _ in range(3)))


def convolved(x: Any) -> Any:
    norm = nn.BatchNorm2d(8)
    return nn.functional.relu_(norm(nn.functional.conv2d(x.view(8, 4, 8, 16), torch.ones(8, 4, 3, 3))))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: nn.functional.silu(x) * x + 1,
        lambda x: (x + 1).add_(x, alpha=2).mul_(3).relu_(),
        lambda x: nn.functional.layer_norm(x.exp(), (32,)),
        lambda x: nn.functional.rms_norm(x.exp(), (32,)),
        lambda x: nn.functional.linear(x, torch.ones(48, 32), torch.ones(48)).softmax(-1),
        lambda x: torch.cat([x.chunk(2, -1)[1].exp(), x], -1).to(torch.bfloat16),
        lambda x: nn.functional.embedding(torch.arange(16), x.flatten(0, 1).cos()),
        lambda x: nn.functional.max_pool2d(x.view(8, 4, 8, 16).exp(), 2).permute(0, 2, 3, 1).contiguous(),
        attended,
        convolved,
        # What was dropped is small, and kept.
        lambda x: nn.functional.dropout(x, 0.5),
    ],
)
def test_what_an_operation_makes_is_made_again(compute: Callable[[Any], Any]) -> None:
    told, x = Told(), rows().requires_grad_()
    there = lambda tensor: (tensor.untyped_storage().data_ptr(), tensor._version)  # noqa: E731
    told.bytes[there(x)] = x.untyped_storage()
    with Keeping(), Recorder(told, x.device, lambda tensor: tensor is x, set()):  # type: ignore[arg-type]
        made = compute(x)
    again = torch.empty(0, dtype=made.dtype)
    assert there(made) in told.made
    again.set_(told.compute(there(made)), made.storage_offset(), made.shape, made.stride())
    assert again.data_ptr() != made.data_ptr() and torch.equal(again, made)


@pytest.mark.parametrize(
    "compute",
    [
        # Something else each time.
        torch.rand_like,
        # A part of what is there.
        lambda x: (y := x.exp())[0].add_(1) is not None and y,
        # In an order of its own.
        lambda x: x.exp().index_add(0, torch.tensor([0, 0]), x[:2]),
    ],
)
def test_what_nobody_can_repeat_is_not_made_again(compute: Callable[[Any], Any]) -> None:
    told, x = Told(), rows().requires_grad_()
    with Keeping(), Recorder(told, x.device, lambda tensor: tensor is x, set()):  # type: ignore[arg-type]
        made = compute(x)
    assert (made.untyped_storage().data_ptr(), made._version) not in told.made


def test_what_was_written_to_since_is_not_computed_with() -> None:
    told, weight = Told(), torch.ones(32)
    with Recorder(told, weight.device, lambda tensor: tensor is weight, set()):  # type: ignore[arg-type]
        made = rows() * weight
    weight.add_(1)
    with pytest.raises(RuntimeError, match="written to"):
        told.compute((made.untyped_storage().data_ptr(), 0))
