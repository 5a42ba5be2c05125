"""Exchange of tensors with PyTorch: shared memory, and functions of Tenure's in PyTorch's graphs."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tenure
import tenure.torch

torch = pytest.importorskip("torch")

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_are_shared_both_ways(dtype: str) -> None:
    theirs = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(torch, dtype)).T
    ours = tenure.from_dlpack(theirs)
    assert ours.dtype is getattr(tenure, dtype)
    assert (ours.data_ptr(), ours.stride()) == (theirs.data_ptr(), theirs.stride())
    assert ours.tolist() == theirs.tolist()
    ours.zero_()
    assert not theirs.any()
    for back in (torch.from_dlpack(ours), torch.utils.dlpack.from_dlpack(ours.__dlpack__())):
        assert (back.dtype, back.data_ptr(), back.stride()) == (theirs.dtype, theirs.data_ptr(), theirs.stride())
    assert torch.from_dlpack(ours, copy=True).data_ptr() != theirs.data_ptr()


def test_pytorchs_tensors_become_tenures_by_the_usual_names() -> None:
    theirs = torch.arange(3.0)
    assert tenure.asarray(theirs).data_ptr() == theirs.data_ptr()
    assert tenure.tensor(theirs).data_ptr() != theirs.data_ptr()
    assert torch.as_tensor(tenure.arange(3)).tolist() == [0, 1, 2]
    # PyTorch takes the bytes of an object with a buffer, and not its format.
    assert torch.asarray(tenure.arange(3), dtype=torch.int64).tolist() == [0, 1, 2]
    with pytest.raises(BufferError):
        tenure.from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises(BufferError, match="complex numbers"):
        tenure.from_dlpack(torch.ones(2, dtype=torch.complex64))


def test_memory_of_either_lives_as_long_as_the_others_tensors() -> None:
    ours = tenure.from_dlpack(torch.arange(1000.0))
    gc.collect()
    assert ours.sum().item() == 499500
    theirs = torch.from_dlpack(tenure.arange(1000.0))
    gc.collect()
    assert theirs.sum().item() == 499500


def test_a_function_of_tenures_has_pytorchs_gradients() -> None:
    def formula(library: Any, x: Any, w: Any) -> Any:
        return library.tanh(library.matmul(x, w)) * x.sum()

    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    ours = tenure.torch.function(lambda x, w: formula(tenure, x, w))
    assert torch.allclose(ours(x * 2, w), formula(torch, x * 2, w))
    assert torch.autograd.gradcheck(ours, (x, w))
    found = torch.autograd.grad(ours(x * 2, w).square().sum(), (x, w))
    expected = torch.autograd.grad(formula(torch, x * 2, w).square().sum(), (x, w))
    for left, right in zip(found, expected, strict=True):
        assert torch.allclose(left, right)


def test_arguments_and_results_may_be_nested() -> None:
    @tenure.torch.function
    def split(pair: tuple[Any, Any], *, scale: float, extra: dict[str, Any]) -> dict[str, Any]:
        left, right = pair
        return {"sum": (left + right) * scale + extra["bias"], "text": "ok", "index": left.argmax()}

    x, y, bias = (torch.tensor(values, requires_grad=True) for values in ([1.0, 3.0], [2.0, 5.0], [0.5, 0.5]))
    result = split((x, y), scale=2.0, extra={"bias": bias, "unused": torch.ones(1)})
    assert (result["text"], result["index"].item(), result["index"].requires_grad) == ("ok", 1, False)
    result["sum"].sum().backward()
    assert (x.grad.tolist(), y.grad.tolist(), bias.grad.tolist()) == ([2, 2], [2, 2], [1, 1])


def test_unused_inputs_have_no_gradient() -> None:
    x, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    tenure.torch.function(lambda x, _: x * 3)(x, unused).sum().backward()
    assert (x.grad.tolist(), unused.grad) == ([3, 3], None)


def test_a_result_on_an_inputs_memory_is_a_copy() -> None:
    x = torch.ones(2, requires_grad=True)
    same = tenure.torch.function(lambda x: x)(x)
    assert same.data_ptr() != x.data_ptr()
    same.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_graphs_are_kept_only_if_pytorch_keeps_its_own() -> None:
    x = torch.ones(2, requires_grad=True)
    y = tenure.torch.function(lambda x: (x * x).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_writes_are_seen_by_pytorch() -> None:
    x = torch.ones(2)
    y = torch.ones(2, requires_grad=True)
    product = x * y
    tenure.torch.function(lambda x: x.add_(1))(x)
    assert x.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    z = tenure.torch.function(lambda y: y * y)(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_no_graph_is_made_where_no_gradient_is_asked_for() -> None:
    def f(x: tenure.Tensor) -> tenure.Tensor:
        assert not tenure.is_grad_enabled()
        return x * 2

    assert not tenure.torch.function(f)(torch.ones(2)).requires_grad
    with torch.no_grad():
        assert not tenure.torch.function(f)(torch.ones(2, requires_grad=True)).requires_grad


def test_an_error_of_the_function_is_raised_as_it_is() -> None:
    with pytest.raises(tenure.Error, match="matmul"):
        tenure.torch.function(tenure.matmul)(torch.ones(2, 3), torch.ones(2, 3))


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_cuda
def test_cuda_tensors_are_shared_both_ways_in_the_order_of_streams() -> None:
    side = torch.cuda.Stream()
    size = 4096
    for step in range(5):
        with torch.cuda.stream(side):
            theirs = torch.ones(size, size, device="cuda")
            for _ in range(20):
                theirs = (theirs @ theirs) / size
            theirs = theirs + step
            ours = tenure.from_dlpack(theirs)
        assert ours.data_ptr() == theirs.data_ptr()
        doubled = ours * 2
        with torch.cuda.stream(side):
            back = torch.from_dlpack(doubled)
            del ours, doubled, theirs
            total = back.mean()
            tenure.zeros(size, size, device="cuda").fill_(-1.0)
            assert total.item() == 2 * (1 + step)
            del back


@on_cuda
def test_cuda_memory_is_given_back_to_pytorch() -> None:
    def given_back() -> int:
        """Returns PyTorch's memory, after what waited for the device was given back, which the next import does."""
        torch.cuda.synchronize()
        tenure.from_dlpack(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        tenure.from_dlpack(torch.ones(1, device="cuda"))
        allocated: int = torch.cuda.memory_allocated()
        return allocated

    before = given_back()
    ours = tenure.from_dlpack(torch.ones(1 << 20, device="cuda"))
    ours.add_(1)
    assert torch.cuda.memory_allocated() >= before + (4 << 20)
    del ours
    assert given_back() <= before


@on_cuda
def test_consumers_name_a_stream_of_cuda() -> None:
    ours = tenure.arange(3, device="cuda")
    assert ours.__dlpack_device__() == (2, 0)
    for stream in (None, -1, 1, 2, torch.cuda.Stream().cuda_stream):
        capsule = ours.__dlpack__(stream=stream, max_version=(1, 0))
        assert torch.utils.dlpack.from_dlpack(capsule).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="stream 0 may be"):
        ours.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="stream -2 does not exist"):
        ours.__dlpack__(stream=-2)
    assert tenure.from_dlpack(ours, device="cpu").tolist() == [0, 1, 2]
    capsule = ours.__dlpack__(dl_device=(1, 0))
    assert torch.utils.dlpack.from_dlpack(capsule).device.type == "cpu"
    with pytest.raises(BufferError, match="copy=False"):
        ours.__dlpack__(dl_device=(1, 0), copy=False)


@on_cuda
def test_the_cuda_array_interface_describes_a_tensor() -> None:
    ours = tenure.arange(6.0, device="cuda").view(2, 3).T
    interface = ours.__cuda_array_interface__
    assert interface == {
        "shape": (3, 2),
        "typestr": "<f4",
        "data": (ours.data_ptr(), False),
        "strides": (4, 12),
        "stream": 1,
        "version": 3,
    }
    theirs = torch.as_tensor(ours, device="cuda")
    assert theirs.tolist() == ours.tolist()
    with pytest.raises(RuntimeError, match="detach"):
        ours.requires_grad_(True).__cuda_array_interface__  # noqa: B018


@on_cuda
def test_a_function_on_cuda_has_pytorchs_gradients() -> None:
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        tenure.torch.function(lambda x: (x * x).sum())(x * 3).backward()
    torch.cuda.synchronize()
    assert torch.allclose(x.grad, 18 * x)
