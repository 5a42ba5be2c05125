# Python before 3.12 does not tell type checkers which objects are buffers.
# mypy: disable-error-code="arg-type, comparison-overlap, untyped-decorator"
"""Exchange of tensors with NumPy and others by DLPack: values, memory that both share, and who frees it when."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tenure

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class View(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("view", View),
    ]


class Legacy(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = [("view", View), ("context", ctypes.c_void_p), ("deleter", DELETER)]


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
TO_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


class ExchangeApi(ctypes.Structure):
    """`DLPackExchangeAPI`."""

    _fields_ = [
        ("version", Version),
        ("previous", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT),
        ("view_of_object", FROM_OBJECT),
        ("current_stream", CURRENT_STREAM),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Producer:
    """A library with arrays on the CPU, which counts how often each is freed."""

    def __init__(
        self,
        values: Any,
        *,
        version: tuple[int, int] | None = (1, 0),
        flags: int = 0,
        code: int | None = None,
        lanes: int = 1,
        device: tuple[int, int] = (1, 0),
        byte_offset: int = 0,
        no_strides: bool = False,
    ) -> None:
        self.array = np.asarray(values)
        self.freed = 0
        self.asked: list[dict[str, object]] = []
        self.device = device
        rank = self.array.ndim
        kinds = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
        self._shape = (ctypes.c_int64 * rank)(*self.array.shape)
        strides = [stride // self.array.itemsize for stride in self.array.strides]
        self._strides = (ctypes.c_int64 * rank)(*strides)
        view = View(
            self.array.ctypes.data - byte_offset,
            *device,
            rank,
            kinds[self.array.dtype.kind] if code is None else code,
            self.array.itemsize * 8,
            lanes,
            self._shape,
            None if no_strides else self._strides,
            byte_offset,
        )
        self._deleter = DELETER(self._free)
        self.name = b"dltensor" if version is None else b"dltensor_versioned"
        self.managed: Managed | Legacy = (
            Legacy(view, None, self._deleter)
            if version is None
            else Managed(Version(*version), None, self._deleter, flags, view)
        )

    def _free(self, managed: int) -> None:
        assert managed == ctypes.addressof(self.managed)
        self.freed += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **kwargs: object) -> object:
        self.asked.append(kwargs)
        if self.name == b"dltensor" and kwargs:
            raise TypeError("__dlpack__() takes no keyword arguments")
        return _new_capsule(ctypes.addressof(self.managed), self.name, None)


def exported(tensor: tenure.Tensor, **kwargs: Any) -> Managed:
    """Returns what a capsule of a tensor describes, valid as long as the capsule, which it keeps."""
    capsule = tensor.__dlpack__(max_version=(1, 3), **kwargs)
    managed = Managed.from_address(_pointer_of(capsule, b"dltensor_versioned"))
    managed.capsule = capsule
    return managed


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_numpy_of_every_dtype_are_shared_both_ways(dtype: str) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype=dtype)
    tensor = tenure.from_dlpack(values)
    assert tensor.dtype is getattr(tenure, dtype)
    assert tensor.data_ptr() == values.ctypes.data
    values[0, 0] = 1
    assert tensor.tolist() == values.tolist()
    back = np.from_dlpack(tensor)
    assert back.dtype == values.dtype
    assert back.ctypes.data == values.ctypes.data
    tensor.zero_()
    assert not values.any()


@pytest.mark.parametrize(
    "view",
    [
        lambda values: values.T,
        lambda values: values[1:, ::2],
        lambda values: values[1, 2],
        lambda values: np.broadcast_to(values[0], (4, 6)),
    ],
)
def test_views_of_numpy_are_shared(view: Callable[[Any], Any]) -> None:
    part = np.asarray(view(np.arange(24.0).reshape(4, 6)))
    tensor = tenure.from_dlpack(part)
    assert tensor.data_ptr() == part.ctypes.data
    assert tensor.tolist() == part.tolist()
    assert [stride * 8 for stride in tensor.stride()] == list(part.strides)
    assert np.from_dlpack(tensor).tolist() == part.tolist()


def test_negative_strides_are_copied_and_refused_where_a_copy_is_forbidden() -> None:
    reverse = np.arange(6).reshape(2, 3)[::-1, ::-1]
    tensor = tenure.from_dlpack(reverse)
    assert tensor.tolist() == [[5, 4, 3], [2, 1, 0]]
    tensor.zero_()
    assert reverse.any()
    with pytest.raises(BufferError, match="needs a copy"):
        tenure.from_dlpack(reverse, copy=False)
    assert tenure.from_dlpack(np.arange(3)[::-1][:1], copy=False).tolist() == [2]


def test_misaligned_elements_are_copied() -> None:
    values = np.frombuffer(bytes(1) + np.arange(3.0).tobytes(), dtype=np.uint8)[1:].view(np.float64)
    assert values.ctypes.data % 8 != 0
    assert tenure.from_dlpack(Producer(values)).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="aligned to 8 bytes needs a copy"):
        tenure.from_dlpack(Producer(values), copy=False)


def test_arrays_without_elements_and_without_dimensions_are_exchanged() -> None:
    empty = tenure.from_dlpack(np.empty((2, 0, 3), dtype=np.float32))
    assert (empty.shape, empty.dtype) == ((2, 0, 3), tenure.float32)
    assert np.from_dlpack(empty).shape == (2, 0, 3)
    assert exported(empty).view.data is None
    number = tenure.from_dlpack(np.array(7, dtype=np.int16))
    assert (number.shape, number.item()) == ((), 7)
    assert np.from_dlpack(number).shape == ()


def test_read_only_arrays_are_shared_and_refuse_writes() -> None:
    values = np.arange(6.0)
    values.flags.writeable = False
    tensor = tenure.from_dlpack(values)
    assert tensor.data_ptr() == values.ctypes.data
    for write in (lambda: tensor.add_(1), lambda: tensor[1:].zero_(), lambda: tensor.__setitem__(0, 1.0)):
        with pytest.raises(tenure.Error, match="is read-only.*write to a copy"):
            write()
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    back = np.from_dlpack(tensor[2:])
    assert not back.flags.writeable
    assert back.ctypes.data == values.ctypes.data + 16
    assert memoryview(tensor).readonly
    assert exported(tensor).flags == 1
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert tensor.__dlpack__(copy=True) is not None
    assert exported(tensor, copy=True).flags == 2
    copy = tenure.from_dlpack(values, copy=True)
    assert copy.add_(1).tolist() == [1, 2, 3, 4, 5, 6]
    assert tensor.clone().add_(1).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("version", [None, (1, 0), (1, 9)])
def test_imported_memory_is_freed_once_with_its_last_tensor(version: tuple[int, int] | None) -> None:
    producer = Producer([1.0, 2.0, 3.0], version=version)
    tensor = tenure.from_dlpack(producer)
    row = tensor[1:]
    array = np.from_dlpack(tensor.view(3))
    del tensor
    assert (producer.freed, row.tolist()) == (0, [2, 3])
    del row
    gc.collect()
    assert (producer.freed, array.tolist()) == (0, [1, 2, 3])
    del array
    gc.collect()
    assert producer.freed == 1


def test_memory_without_strides_or_with_an_offset_is_read() -> None:
    values = np.arange(6.0).reshape(2, 3)
    assert tenure.from_dlpack(Producer(values, no_strides=True)).stride() == (3, 1)
    assert tenure.from_dlpack(Producer(values, byte_offset=16)).data_ptr() == values.ctypes.data


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ({"values": [1j]}, "complex numbers"),
        ({"values": [1.0], "lanes": 2}, "2 lanes are not supported"),
        ({"values": [1.0], "code": 3}, "type code 3 with 64 bits"),
        ({"values": [1.0], "device": (8, 0)}, "device type 8, number 0, is not supported"),
    ],
)
def test_arrays_that_tenure_cannot_have_are_refused_and_freed(faults: dict[str, Any], text: str) -> None:
    producer = Producer(**faults)
    with pytest.raises(BufferError, match=text):
        tenure.from_dlpack(producer)
    assert producer.freed == 1


def test_another_major_version_is_refused_and_left_to_its_capsule() -> None:
    producer = Producer([1.0], version=(2, 0))
    capsule = producer.__dlpack__()
    with pytest.raises(BufferError, match=r"DLPack 2.0 is not supported: 1.x is"):
        tenure.from_dlpack(capsule)
    assert producer.freed == 0
    assert _pointer_of(capsule, b"dltensor_versioned") == ctypes.addressof(producer.managed)


@pytest.mark.parametrize("kwargs", [{}, {"max_version": (1, 0)}])
def test_a_capsule_is_consumed_once(kwargs: dict[str, Any]) -> None:
    capsule = tenure.arange(3).__dlpack__(**kwargs)
    assert tenure.from_dlpack(capsule).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="consumed before"):
        tenure.from_dlpack(capsule)
    with pytest.raises(TypeError, match="must return a capsule"):
        tenure.from_dlpack(type("Odd", (Producer,), {"__dlpack__": lambda *_, **__: 3})([1.0]))


def test_a_copy_that_is_asked_for_is_made_also_for_producers_that_cannot() -> None:
    for version in (None, (1, 0)):
        producer = Producer([1.0], version=version)
        copy = tenure.from_dlpack(producer, copy=True)
        assert copy.data_ptr() != producer.array.ctypes.data
        assert copy.tolist() == [1]
        assert producer.freed == 1
    assert Producer([1.0]).asked == []
    marked = Producer([1.0], flags=2)
    assert tenure.from_dlpack(marked, copy=True).data_ptr() == marked.array.ctypes.data
    assert marked.asked == [{"max_version": (1, 3), "copy": True}]


def test_an_exported_tensor_lives_as_long_as_its_consumers() -> None:
    for kwargs in ({}, {"max_version": (1, 0)}):
        producer = Producer([1.0, 2.0])
        tensor = tenure.from_dlpack(producer)
        capsule = tensor.__dlpack__(**kwargs)
        del tensor
        assert producer.freed == 0
        # A capsule that is never consumed frees it too.
        del capsule
        assert producer.freed == 1


def test_objects_are_not_kept_longer_than_needed() -> None:
    values = np.arange(3.0)
    count = sys.getrefcount(values)
    tensor = tenure.from_dlpack(values)
    assert sys.getrefcount(values) == count + 1
    del tensor
    assert sys.getrefcount(values) == count
    owner = tenure.arange(3)
    alive = weakref.ref(owner)
    view = memoryview(owner)
    del owner
    assert alive() is not None
    view.release()
    assert alive() is None


def test_streams_are_for_devices_only() -> None:
    tensor = tenure.arange(3)
    assert tensor.__dlpack_device__() == (1, 0)
    for stream in (None, -1):
        assert np.from_dlpack(tenure.from_dlpack(tensor.__dlpack__(stream=stream))).tolist() == [0, 1, 2]
    for stream in (0, 1, 2, 4096):
        with pytest.raises(BufferError, match="has no stream"):
            tensor.__dlpack__(stream=stream)
    with pytest.raises(TypeError, match="integer or None"):
        tensor.__dlpack__(stream="1")
    with pytest.raises(BufferError, match="cannot be exported to DLPack's device"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert exported(tensor, dl_device=(1, 0)).view.data == tensor.data_ptr()
    with pytest.raises(BufferError, match="detach"):
        tenure.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(AttributeError, match="on the CPU"):
        tensor.__cuda_array_interface__  # noqa: B018


def test_threads_import_and_free_at_the_same_time() -> None:
    producers = [Producer(np.full(64, float(index))) for index in range(200)]
    sums: list[float] = []

    def work(part: list[Producer]) -> None:
        for producer in part:
            tensor = tenure.from_dlpack(producer)
            sums.append(np.from_dlpack(tensor).sum() + memoryview(tensor)[0])

    threads = [threading.Thread(target=work, args=(producers[index::4],)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert sum(sums) == 65 * sum(range(200))
    assert [producer.freed for producer in producers] == [1] * 200


def test_the_namespace_of_a_tensor_is_that_of_the_standard() -> None:
    assert tenure.ones(1).__array_namespace__(api_version="2025.12") is tenure.array_api


@pytest.fixture
def api() -> ExchangeApi:
    capsule = tenure.Tensor.__dlpack_c_exchange_api__
    return ExchangeApi.from_address(_pointer_of(capsule, b"dlpack_exchange_api"))


def test_the_functions_for_c_export_and_import(api: ExchangeApi) -> None:
    assert (api.version.major, api.previous) == (1, None)
    tensor = tenure.arange(6.0).view(2, 3).T
    out = ctypes.POINTER(Managed)()
    assert api.from_object(tensor, ctypes.addressof(out)) == 0
    view = out.contents.view
    assert (view.data, view.shape[:2], view.strides[:2]) == (tensor.data_ptr(), [3, 2], [1, 3])
    place = ctypes.py_object()
    assert api.to_object(ctypes.addressof(out.contents), ctypes.addressof(place)) == 0
    back = place.value
    ctypes.pythonapi.Py_DecRef(place)
    assert back.tolist() == tensor.tolist()
    assert back.data_ptr() == tensor.data_ptr()
    stack = View()
    assert api.view_of_object(tensor, ctypes.addressof(stack)) == 0
    assert (stack.data, stack.shape[:2], stack.strides[:2]) == (tensor.data_ptr(), [3, 2], [1, 3])
    stream = ctypes.c_void_p(7)
    assert api.current_stream(1, 0, ctypes.addressof(stream)) == 0
    assert stream.value is None
    with pytest.raises(TypeError):
        api.from_object(3, ctypes.addressof(out))
    with pytest.raises(BufferError, match="device type 8"):
        api.current_stream(8, 0, ctypes.addressof(stream))


def test_the_functions_for_c_allocate(api: ExchangeApi) -> None:
    shape = (ctypes.c_int64 * 2)(2, 3)
    prototype = View(None, 1, 0, 2, 2, 32, 1, shape, None, 0)
    out = ctypes.POINTER(Managed)()
    errors: list[tuple[bytes, bytes]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    def fail(_: int, kind: bytes, text: bytes) -> None:
        errors.append((kind, text))

    report = ctypes.cast(fail, ctypes.c_void_p)
    assert api.allocate(ctypes.addressof(prototype), ctypes.addressof(out), None, report) == 0
    managed = out.contents
    assert (managed.view.shape[:2], managed.view.strides[:2], managed.flags) == ([2, 3], [3, 1], 0)
    managed.deleter(ctypes.addressof(managed))
    prototype.code = 5
    assert api.allocate(ctypes.addressof(prototype), ctypes.addressof(out), None, report) == -1
    assert errors == [(b"BufferError", b"the dtype is not supported")]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint32", "uint8", "bool"])
def test_jax_shares_memory_both_ways(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax")
    tensor = tenure.arange(12).reshape(3, 4).to(getattr(tenure, dtype))
    for ours in (tensor, tensor.t()):
        array = jax.dlpack.from_dlpack(ours)
        assert (str(array.dtype), array.shape) == (dtype, ours.shape)
        assert array.unsafe_buffer_pointer() == ours.data_ptr()
        back = tenure.from_dlpack(array)
        assert tenure.equal(back, ours) and back.data_ptr() == ours.data_ptr()
    copied = tenure.from_dlpack(jax.numpy.ones(3), copy=True)
    assert copied.add_(1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.own_process
def test_cupy_shares_the_memory_of_a_gpu_both_ways() -> None:
    cupy = pytest.importorskip("cupy")
    if not tenure.cuda.is_available():
        pytest.skip("there is no CUDA device")
    tensor = tenure.arange(12, dtype=tenure.float32, device="cuda").reshape(3, 4)
    for convert in (cupy.from_dlpack, cupy.asarray):
        array = convert(tensor)
        array *= 2
        assert array.data.ptr == tensor.data_ptr()
    assert tensor.flatten().tolist() == [4.0 * number for number in range(12)]
    back = tenure.from_dlpack(cupy.arange(4) + 1)
    assert back.tolist() == [1, 2, 3, 4] and back.is_cuda
