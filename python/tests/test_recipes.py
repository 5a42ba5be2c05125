# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
"""Recomputation of the results of PyTorch's operations: the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tenure.torch.budgets.recipes import operations  # noqa: E402

from torch import nn  # noqa: E402  isort: skip

CPU = -1
ALL = 2


class Bytes(Structure):
    """`tenure_bytes`."""

    _fields_ = (("address", c_size_t), ("bytes", c_size_t), ("version", c_uint64))

    @property
    def id(self) -> tuple[int, int]:
        return self.address, self.version


Drop = CFUNCTYPE(None, c_void_p)
Wish = CFUNCTYPE(c_int, c_void_p, c_void_p)
Told = CFUNCTYPE(None, c_void_p, c_void_p, POINTER(Bytes), c_size_t, POINTER(Bytes), c_size_t, c_void_p)


class Listener(Structure):
    """`tenure_listener`."""

    _fields_ = (("user", c_void_p), ("drop", Drop), ("wish", Wish), ("operation", Told))


class Operations(Structure):
    """`tenure_operations`."""

    _fields_ = (
        ("size", c_size_t),
        ("last_error", CFUNCTYPE(c_char_p)),
        ("new_recorder", CFUNCTYPE(c_void_p, c_int, Listener)),
        ("drop_recorder", Drop),
        ("begin", CFUNCTYPE(None, c_void_p, POINTER(c_size_t), c_size_t)),
        ("listen", CFUNCTYPE(None, c_void_p, c_uint64)),
        ("sequence", CFUNCTYPE(c_int64)),
        ("node_sequence", CFUNCTYPE(c_int64)),
        # Functions for hooks, which test_budget.py tests.
        ("hooks", c_void_p * 6),
        ("run", CFUNCTYPE(c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(Bytes))),
        ("drop_call", Drop),
        ("drop_tensor", Drop),
        # Functions for saved tensors and storages, which test_budget.py tests.
        ("others", c_void_p * 10),
    )


class Book:
    """A recorder of operations on the CPU, which can recompute their results."""

    def __init__(self, staying: list[int]) -> None:
        self.table = Operations.from_address(operations())
        assert self.table.size == ctypes.sizeof(Operations)
        #: How each tensor was made: its inputs, the call, and its number among the call's results.
        self.made: dict[tuple[int, int], tuple[list[tuple[int, int]], int, int]] = {}
        self.bytes: dict[tuple[int, int], Any] = {}
        self.is_dropped = False
        self._listener = Listener(None, Drop(self._drop), Wish(lambda user, stream: ALL), Told(self._told))
        self._recorder = self.table.new_recorder(CPU, self._listener)
        self.table.begin(self._recorder, (c_size_t * len(staying))(*staying), len(staying))

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.table.listen(self._recorder, 0)
        try:
            yield
        finally:
            self.table.listen(None, 0)

    def close(self) -> None:
        for call in {call for _, call, _ in self.made.values()}:
            self.table.drop_call(call)
        self.table.drop_recorder(self._recorder)

    def compute(self, made: tuple[int, int]) -> Any:
        """Returns the storage of a tensor, recomputed from the beginning."""
        if made not in self.made:
            return self.bytes[made]
        given, call, number = self.made[made]
        storages = [self.compute(each) for each in given]
        handles = (c_void_p * len(storages))(*(storage._cdata for storage in storages))
        found = Bytes()
        result = self.table.run(call, number, handles, byref(found))
        if not result:
            raise RuntimeError(self.table.last_error().decode())
        copy = bytes((ctypes.c_char * found.bytes).from_address(found.address))
        self.table.drop_tensor(result)
        return torch.frombuffer(bytearray(copy), dtype=torch.uint8).untyped_storage()

    def _drop(self, user: Any) -> None:
        self.is_dropped = True

    def _told(self, user: Any, stream: Any, made: Any, count: int, inputs: Any, given: int, call: Any) -> None:
        of = [inputs[at].id for at in range(given)]
        for number in range(count if call else 0):
            self.made[made[number].id] = of, call, number


class Keeping(TorchDispatchMode):
    """Keeps all results alive, so that no two have the same address."""

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
        # In-place operations whose functional form would give another type or other strides.
        lambda x: x.exp().to(torch.bfloat16).mul_(torch.full((32,), 0.5)),
        lambda x: x.exp().view(16, 1, 256).transpose(1, 2).relu_(),
        lambda x: nn.functional.glu(x.exp()).flip(0).roll(1, 1),
        lambda x: nn.functional.interpolate(x.exp().unflatten(0, (2, 4)), scale_factor=2, mode="bicubic"),
        lambda x: nn.functional.pad(x.exp(), (1, 2), mode="reflect")[:, [3, 1, 1]],
        lambda x: x.sin().sort(-1, descending=True).values.amax(1),
        lambda x: torch.arange(0, 1, 0.25) + 1,
    ],
)
def test_results_of_an_operation_are_made_again(compute: Callable[[Any], Any]) -> None:
    x = rows().requires_grad_()
    there = lambda tensor: (tensor.untyped_storage().data_ptr(), tensor._version)  # noqa: E731
    book = Book([x.data_ptr()])
    book.bytes[there(x)] = x.untyped_storage()
    with Keeping(), book.listening():
        made = compute(x)
    again = torch.empty(0, dtype=made.dtype)
    assert there(made) in book.made
    again.set_(book.compute(there(made)), made.storage_offset(), made.shape, made.stride())
    assert again.data_ptr() != made.data_ptr() and torch.equal(again, made)
    book.close()
    assert book.is_dropped


@pytest.mark.parametrize(
    "compute",
    [
        # Samples whose probabilities are added up in an order that may vary.
        lambda x: torch.multinomial(x.exp().flatten(1), 4),
        # Constants, which are often buffers that the program's own kernels write to.
        torch.zeros_like,
        lambda x: torch.empty_like(x).fill_(2),
        # Random numbers for a parameter, and for a part of a tensor.
        lambda x: x.detach().uniform_(),
        lambda x: (y := torch.empty_like(x))[0].uniform_() is not None and y,
        # A write to a part of a tensor.
        lambda x: (y := x.exp())[0].add_(1) is not None and y,
        # An operation whose order of additions may vary.
        lambda x: x.exp().index_add(0, torch.tensor([0, 0]), x[:2]),
    ],
)
def test_operations_that_cannot_be_repeated_are_not_made_again(compute: Callable[[Any], Any]) -> None:
    x = rows().requires_grad_()
    book = Book([x.data_ptr()])
    with Keeping(), book.listening():
        made = compute(x)
    assert (made.untyped_storage().data_ptr(), made._version) not in book.made
    book.close()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, generator: nn.functional.dropout(x, 0.5),
        lambda x, generator: nn.functional.alpha_dropout(x, 0.5, True),
        lambda x, generator: nn.functional.dropout2d(x.view(8, 4, 8, 16), 0.5),
        lambda x, generator: torch.native_dropout(x, 0.5, True)[0],
        lambda x, generator: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda x, generator: torch.rand_like(x) + torch.randn_like(x),
        lambda x, generator: torch.randint_like(x, 7),
        lambda x, generator: torch.rand(3, 5) * torch.randn(3, 5),
        # An odd number of normal ones leaves one in the generator for the next.
        lambda x, generator: (torch.randn(3), torch.randn(5, dtype=torch.float64))[1],
        lambda x, generator: torch.randint(9, (64,)),
        lambda x, generator: torch.randperm(64),
        lambda x, generator: torch.randperm(64, generator=generator),
        lambda x, generator: torch.rand(64, generator=generator),
        lambda x, generator: torch.bernoulli(x.sigmoid()),
        lambda x, generator: torch.bernoulli(x.sigmoid(), generator=generator),
        lambda x, generator: torch.normal(x.exp(), 2.0, generator=generator),
        lambda x, generator: torch.poisson(x.exp()),
        # Operations that fill memory whose bytes nothing else depends on.
        lambda x, generator: torch.empty_like(x).bernoulli_(0.3),
        lambda x, generator: torch.empty(8, 16, 32).bernoulli_(x.sigmoid()),
        lambda x, generator: torch.empty(16, 8).t().normal_(2, 3, generator=generator),
        lambda x, generator: torch.empty(64).exponential_().log_(),
        lambda x, generator: torch.empty(64, dtype=torch.bfloat16).uniform_(),
        lambda x, generator: torch.empty(64).cauchy_(),
        lambda x, generator: torch.empty(64, dtype=torch.int64).random_(100),
    ],
)
def test_random_results_are_made_again_and_later_numbers_stay_the_same(compute: Callable[[Any, Any], Any]) -> None:
    x = rows().requires_grad_()
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(4)
    torch.randn(3)
    book = Book([x.data_ptr()])
    book.bytes[x.untyped_storage().data_ptr(), x._version] = x.untyped_storage()
    with Keeping(), book.listening():
        made = compute(x, generator)
    # Further numbers are drawn before the results are made again.
    torch.randn(7)
    torch.rand(3, generator=generator)
    later = torch.get_rng_state(), generator.get_state()
    for _ in range(2):
        again = torch.empty(0, dtype=made.dtype)
        storage = book.compute((made.untyped_storage().data_ptr(), made._version))
        again.set_(storage, made.storage_offset(), made.shape, made.stride())
        assert again.data_ptr() != made.data_ptr() and torch.equal(again, made)
        assert torch.equal(torch.get_rng_state(), later[0]) and torch.equal(generator.get_state(), later[1])
    book.close()


def test_recorded_operations_draw_the_numbers_they_would_draw_otherwise() -> None:
    def drawn() -> tuple[Any, ...]:
        torch.manual_seed(4)
        return *(torch.randn(size) for size in (3, 64)), torch.rand(5), torch.empty(9).normal_(), torch.get_rng_state()

    book = Book([])
    with book.listening():
        recorded = drawn()
    assert all(torch.equal(*pair) for pair in zip(recorded, drawn(), strict=True))
    book.close()


def test_the_generator_goes_on_where_it_was_if_an_operation_fails() -> None:
    book = Book([])
    with Keeping(), book.listening():
        limit = torch.arange(8).sum()
        made = torch.randint_like(rows(), limit)
    # A limit that the operation refuses.
    known = limit.untyped_storage().data_ptr(), 0
    del book.made[known]
    book.bytes[known] = torch.zeros(1, dtype=torch.int64).untyped_storage()
    torch.rand(3)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="random_ expects"):
        book.compute((made.untyped_storage().data_ptr(), 0))
    assert torch.equal(torch.get_rng_state(), before)
    book.close()


def test_an_input_that_was_written_to_since_is_not_computed_with() -> None:
    weight = torch.ones(32)
    book = Book([weight.data_ptr()])
    with Keeping(), book.listening():
        made = rows() * weight
    weight.add_(1)
    with pytest.raises(RuntimeError, match="written to"):
        book.compute((made.untyped_storage().data_ptr(), 0))
    book.close()


def test_small_tensors_may_be_written_to_since() -> None:
    small, book = torch.ones(32), Book([])
    with Keeping(), book.listening():
        made = rows() * small
    small.add_(1)
    again = torch.empty(0).set_(book.compute((made.untyped_storage().data_ptr(), 0)), 0, made.shape, made.stride())
    assert torch.equal(again, made)
    book.close()


def test_operations_without_a_listener_are_not_told() -> None:
    book, x = Book([]), rows()
    with book.listening():
        elsewhere = Thread(target=x.exp)
        elsewhere.start()
        elsewhere.join()
    x.exp()
    assert not book.made
    book.close()
