"""`tenure.Tensor`: how tensors are made, indexed, computed with, converted, copied and printed."""

import copy
import os
import pickle
import random
import signal
import threading
import weakref
from typing import Any

import pytest

import tenure
from tenure import Tensor

np: Any = pytest.importorskip("numpy")


def numbers(*sizes: int) -> Any:
    """Returns a NumPy array of different numbers, and a tensor of its own with the same numbers."""
    array = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    return array, tenure.tensor(array)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (3, tenure.int64, ()),
        (2.5, tenure.float32, ()),
        (True, tenure.bool, ()),
        ([], tenure.float32, (0,)),
        ([[], []], tenure.float32, (2, 0)),
        ([1, 2.5], tenure.float32, (2,)),
        ([True, 2], tenure.int64, (2,)),
        ([[1, 2], (3, 4)], tenure.int64, (2, 2)),
        (range(3), tenure.int64, (3,)),
        ([np.float64(1), np.int32(2)], tenure.float32, (2,)),
        (np.zeros((2, 1), np.int16), tenure.int16, (2, 1)),
    ],
)
def test_data_decides_the_dtype_and_the_sizes(data: Any, dtype: tenure.dtype, shape: tuple[int, ...]) -> None:
    made = tenure.tensor(data)
    assert (made.dtype, made.shape) == (dtype, shape)
    assert made.tolist() == (data.tolist() if hasattr(data, "tolist") else np.asarray(data).tolist())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([1, [2]], ValueError),
        ([[1], [2, 3]], ValueError),
        (["a"], TypeError),
        ({1: 2}, TypeError),
        (object(), TypeError),
    ],
)
def test_data_that_is_no_array_of_numbers_is_refused(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        tenure.tensor(data)


def test_the_default_dtype_can_be_changed() -> None:
    try:
        tenure.set_default_dtype(tenure.float64)
        assert [tensor.dtype for tensor in (tenure.tensor(1.0), tenure.zeros(1), tenure.rand(1))] == [
            tenure.float64
        ] * 3
        assert tenure.randint(0, 3, (1,)).dtype == tenure.int64
    finally:
        tenure.set_default_dtype(tenure.float32)
    with pytest.raises(TypeError, match="floating"):
        tenure.set_default_dtype(tenure.int32)


def test_sizes_are_given_together_or_one_by_one() -> None:
    assert tenure.zeros(2, 3).shape == tenure.zeros((2, 3)).shape == tenure.zeros(size=[2, 3]).shape == (2, 3)
    x = tenure.arange(6)
    assert x.view(2, -1).shape == x.reshape((2, 3)).shape == (2, 3)
    assert x.view(1, 2, 3).permute(2, 0, 1).shape == (3, 1, 2)
    assert tenure.ones(2, requires_grad=True, dtype=tenure.float64).requires_grad


INDICES: list[Any] = [
    0,
    -1,
    (1, 2),
    slice(None),
    slice(1, None),
    slice(None, -1),
    slice(0, 10, 2),
    (slice(None), 0),
    (..., 0),
    (0, ...),
    (None, 0),
    (slice(None), None, 1),
    [0, 2],
    ([0, 2], [1, 0]),
    (slice(None), [2, 0]),
    ([0, 1], slice(None), [0, 1]),
    np.array([1, 1, 0]),
    np.array([True, False, True]),
    (0, np.array([True, False, True, True])),
    (),
    True,
    False,
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_selects_what_numpy_selects(index: Any) -> None:
    array, tensor = numbers(3, 4, 5)
    assert tensor[index].tolist() == array[index].tolist()
    assert tensor[index].shape == array[index].shape


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_writing_to_an_index_writes_where_numpy_writes(index: Any) -> None:
    array, tensor = numbers(3, 4, 5)
    array[index] = -1
    tensor[index] = -1
    assert tensor.tolist() == array.tolist()
    values = np.random.default_rng(0).random(array[index].shape).astype(np.float32)
    array[index] = values
    tensor[index] = tenure.tensor(values)
    assert tensor.tolist() == array.tolist()


def test_a_tensor_is_an_index() -> None:
    _, x = numbers(3, 4)
    assert x[tenure.tensor(1)].tolist() == x[1].tolist()
    assert x[x > 5].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    x[x > 5] = tenure.tensor(0.5, dtype=tenure.float64)
    assert x.sum().item() == 18.0


def test_a_slice_is_a_view_and_a_list_selects_a_copy() -> None:
    _, x = numbers(3, 4)
    x[0].zero_()
    x[1][:2] += 100
    assert x.tolist()[:2] == [[0.0] * 4, [104.0, 105.0, 6.0, 7.0]]
    x[[2]].zero_()
    assert x.tolist()[2] == [8.0, 9.0, 10.0, 11.0]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ((0, 0, 0), IndexError),
        (slice(None, None, -1), ValueError),
        (slice(None, None, 0), ValueError),
        ("a", TypeError),
        (1.5, TypeError),
        ([0, 7], IndexError),
    ],
)
def test_a_wrong_index_is_an_error(index: Any, error: type[Exception]) -> None:
    _, x = numbers(3, 4)
    with pytest.raises(error):
        x[index]
    with pytest.raises(error):
        x[index] = 0


def test_tensors_are_iterated_over_by_rows() -> None:
    _, x = numbers(3, 2)
    assert [row.tolist() for row in x] == x.tolist()
    assert len(x) == 3
    assert 4 in x
    assert 7 not in x
    with pytest.raises(TypeError):
        iter(tenure.tensor(1))
    with pytest.raises(TypeError):
        len(tenure.tensor(1))


OPERATORS: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("number", [3, 2.5])
def test_operators_with_numbers_give_pytorch_s_results(operator: str, dtype: str, number: float) -> None:
    torch: Any = pytest.importorskip("torch")
    values = [5, 1, 4]
    ours, theirs = (
        tenure.tensor(values, dtype=getattr(tenure, dtype)),
        torch.tensor(values, dtype=getattr(torch, dtype)),
    )
    operation = OPERATORS[operator]
    for left, right, expected in (
        (ours, number, operation(theirs, number)),
        (number, ours, operation(number, theirs)),
        (ours, ours, operation(theirs, theirs)),
    ):
        found = operation(left, right)
        assert str(found.dtype).removeprefix("tenure.") == str(expected.dtype).removeprefix("torch.")
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_operators_in_place_write_to_their_left_operand() -> None:
    x = tenure.tensor([7.0, 8.0])
    same = x
    x += 1
    x *= 2
    x -= tenure.tensor([1.0, 0.0])
    x /= 3
    x **= 2
    x //= 2
    x %= 9
    assert x is same
    assert x.tolist() == [3.0, 0.0]
    flags = tenure.tensor([True, False])
    flags |= tenure.tensor([False, False])
    flags ^= True
    assert flags.tolist() == [False, True]


def test_operators_with_other_objects_are_left_to_the_objects() -> None:
    class Other:
        def __radd__(self, left: Any) -> str:
            return "theirs"

    assert tenure.ones(1) + Other() == "theirs"
    with pytest.raises(TypeError):
        tenure.ones(1) + "text"  # type: ignore[operator]
    text: Any = "text"
    assert not (tenure.ones(2) == text)
    assert (np.float32(2) * tenure.ones(2)).tolist() == [2.0, 2.0]


def test_matrix_products() -> None:
    array, tensor = numbers(2, 3)
    assert (tensor @ tensor.T).tolist() == (array @ array.T).tolist()
    with pytest.raises(TypeError):
        tensor @ "text"
    with pytest.raises(tenure.Error, match="matmul"):
        tensor @ tensor


def test_a_tensor_of_one_element_is_a_number() -> None:
    x = tenure.tensor([2])
    assert (int(x), float(x), bool(x), x.item()) == (2, 2.0, True, 2)
    assert complex(x) == 2
    assert [10, 20, 30][tenure.tensor(1)] == 20
    assert f"{tenure.tensor(0.25):.1f}" == "0.2"
    for wrong in (bool, float, lambda x: x.item()):
        with pytest.raises(RuntimeError):
            wrong(tenure.ones(2))
    with pytest.raises(TypeError):
        [1, 2][tenure.tensor(0.0)]


name: Any = "float32"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.sum("a"), "sum() received an invalid combination of arguments: got (Tensor, str)"),
        (lambda x: x.exp(1), "exp() takes 1 positional arguments but 2 were given"),
        (lambda x: x.cumprod(), "received an invalid combination"),
        (lambda x: x.transpose(0), "transpose() missing required argument 'dim1'"),
        (lambda x: x.transpose(0, dim0=1), "transpose() got multiple values for argument 'dim0'"),
        (lambda x: x.tril(foo=1), "tril() got an unexpected keyword argument 'foo'"),
        (lambda x: tenure.tril(x.tolist()), "tril(): argument 'input' must be a tensor, not list"),
        (lambda x: tenure.zeros(2, dtype=name), "zeros(): argument 'dtype' must be a dtype, not str"),
    ],
)
def test_wrong_arguments_get_a_type_error_that_names_them(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        call(tenure.ones(2))
    assert text in str(error.value)


def test_numpy_s_names_of_parameters_are_understood() -> None:
    _, x = numbers(2, 3)
    assert x.sum(axis=1, keepdims=True).tolist() == [[3.0], [12.0]]


def test_operations_with_several_results_name_them() -> None:
    found = tenure.tensor([[3.0, 1.0], [2.0, 4.0]]).max(dim=1)
    assert (found.values.tolist(), found.indices.tolist()) == ([3.0, 4.0], [0, 1])
    values, indices = found
    assert values is found.values
    assert indices is found[1]


def test_tensors_move_between_dtypes() -> None:
    x = tenure.tensor([1.5, 2.0])
    assert x.to(tenure.int32).tolist() == [1, 2]
    assert x.to(dtype=tenure.float32) is x
    assert x.to("cpu") is x
    assert x.to(tenure.float32, copy=True) is not x
    assert x.to(tenure.tensor(1, dtype=tenure.float64)).dtype == tenure.float64
    images = tenure.ones(1, 2, 3, 4).to(memory_format="channels_last")
    assert images.stride() == (24, 1, 8, 2)
    with pytest.raises(TypeError):
        x.to(1.5)  # type: ignore[arg-type]


@pytest.mark.own_process
def test_non_blocking_changes_nothing_and_warns_once() -> None:
    x = tenure.ones(2)
    with pytest.warns(UserWarning, match="non_blocking=True changes nothing") as told:
        assert x.to("cpu", non_blocking=True) is x
        assert x.to(tenure.float64, True).dtype == tenure.float64
        tenure.nn.Linear(2, 2).to("cpu", non_blocking=True)
    assert len(told) == 1


def test_a_memory_format_orders_the_elements() -> None:
    images = tenure.ones(1, 2, 3, 4)
    last = images.contiguous(memory_format=tenure.channels_last)
    assert last.stride() == (24, 1, 8, 2)
    assert last.is_contiguous(memory_format=tenure.channels_last) and not last.is_contiguous()
    assert last.clone(memory_format=tenure.contiguous_format).is_contiguous()
    assert last.clone(memory_format=tenure.preserve_format).stride() == last.stride()
    assert last.to(memory_format=tenure.preserve_format) is last
    with pytest.raises(tenure.Error, match="channels_last_3d, got"):
        images.contiguous(memory_format="channels")


def test_heads_share_keys_only_if_that_is_asked_for() -> None:
    query, key = tenure.ones(1, 4, 2, 3), tenure.ones(1, 2, 5, 3)
    with pytest.raises(tenure.Error, match="enable_gqa=True"):
        tenure.scaled_dot_product_attention(query, key, key)
    assert tenure.scaled_dot_product_attention(query, key, key, enable_gqa=True).shape == query.shape
    one = key[:, :1]
    assert tenure.scaled_dot_product_attention(query, one, one).shape == query.shape


def test_a_view_in_another_dtype_shares_the_bytes() -> None:
    x = tenure.tensor([1.0, 2.0], requires_grad=True)
    bits = x.view(tenure.int32)
    assert bits.tolist() == [0x3F800000, 0x40000000] and not bits.requires_grad
    assert bits.shares_storage_with(x)
    # The second byte is at no address of a float.
    bytes_ = tenure.frombuffer(bytearray(9), dtype=tenure.uint8, offset=1)
    with pytest.raises(tenure.Error, match="not aligned|whole elements"):
        bytes_.view(tenure.float32)


def test_integers_stay_integers_in_relu() -> None:
    x = tenure.tensor([-3, 4], dtype=tenure.int8)
    assert x.relu().dtype == tenure.int8
    assert x.relu_() is x and x.tolist() == [0, 4]


def test_an_index_is_put_at_the_places_of_tensors() -> None:
    x = tenure.zeros(2, 3)
    rows, columns = tenure.tensor([0, 1, 1]), tenure.tensor([2, 0, 0])
    assert x.index_put_((rows, columns), tenure.tensor([1.0, 2.0, 3.0]), accumulate=True) is x
    assert x.tolist() == [[0, 0, 1], [5, 0, 0]]
    assert tenure.index_put(x, [x == 0], tenure.tensor(7.0)).tolist() == [[7, 7, 1], [5, 7, 7]]


def test_devices_are_compared_and_printed_as_pytorch_s() -> None:
    device = tenure.device("cuda", 1)
    assert (device.type, device.index, str(device), repr(device)) == (
        "cuda",
        1,
        "cuda:1",
        "device(type='cuda', index=1)",
    )
    assert device == tenure.device("cuda:1") != tenure.device("cpu")
    assert len({device, tenure.device("cuda:1")}) == 1
    assert pickle.loads(pickle.dumps(device)) == device
    with pytest.raises(RuntimeError):
        tenure.device("tpu")


def test_dtypes_are_single_objects() -> None:
    assert pickle.loads(pickle.dumps(tenure.float32)) is tenure.float32
    assert tenure.ones(1).dtype is tenure.float32
    assert repr(tenure.bfloat16) == "tenure.bfloat16"
    assert (tenure.int16.itemsize, tenure.half.is_floating_point, tenure.uint8.is_signed) == (2, True, False)
    assert tenure.promote_types(tenure.uint8, tenure.int8) is tenure.int16


def test_tensors_are_printed_as_pytorch_prints_them() -> None:
    torch: Any = pytest.importorskip("torch")
    makers: list[Any] = [
        lambda library: library.arange(4).view(2, 2),
        lambda library: library.zeros(2, dtype=library.float64),
        lambda library: library.tensor(0.5, requires_grad=True),
        lambda library: library.ones(30, 40) / 3,
    ]
    for make in makers:
        assert repr(make(tenure)) == repr(make(torch)).replace("torch.", "tenure.")
        assert f"{make(tenure)}" == f"{make(torch)}".replace("torch.", "tenure.")


def test_copies_are_leaves_of_their_own() -> None:
    x = tenure.tensor([1.0, 2.0], requires_grad=True)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.deepcopy({"x": [x]})["x"][0]):
        assert (other.tolist(), other.requires_grad, other.dtype) == ([1.0, 2.0], True, tenure.float32)
        assert not other.shares_storage_with(x)
    assert copy.copy(x).shares_storage_with(x)
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)


def test_subclasses_stay_subclasses_when_copied() -> None:
    class Weight(Tensor):
        pass

    weight = Weight(tenure.ones(2)).requires_grad_()
    assert isinstance(weight, Weight)
    other = copy.deepcopy(weight)
    assert isinstance(other, Weight)
    assert other.requires_grad
    weight.extra = [weight]  # type: ignore[attr-defined]


def test_data_shares_and_replaces_the_elements() -> None:
    x = tenure.tensor([1.0, 2.0], requires_grad=True)
    x.data.mul_(2)
    assert x.tolist() == [2.0, 4.0]
    x.data = tenure.tensor([5.0, 6.0])
    assert (x.tolist(), x.requires_grad, x.is_leaf) == ([5.0, 6.0], True, True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10.0, 12.0]


def test_a_leaf_that_requires_a_gradient_is_not_written_to() -> None:
    x = tenure.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="in place"):
        x += 1
    with tenure.no_grad():
        x += 1
    assert x.tolist() == [2.0, 2.0]


def test_tensors_are_freed_with_their_last_reference() -> None:
    x = tenure.ones(2, 3)
    end = weakref.ref(x)
    view = x[0]
    del x
    assert end() is None
    assert view.tolist() == [1.0] * 3


def test_threads_compute_at_once() -> None:
    x = tenure.rand(64, 64)
    expected = (x @ x).sum().item()
    found: list[float] = []
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(20):
                y = x @ x
                rows = [y[chance.randrange(64)] for _ in range(3)]
                assert all(row.shape == (64,) for row in rows)
                found.append(y.sum().item())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert found == [expected] * 80


def test_a_forked_child_computes() -> None:
    x = tenure.rand(256, 256)
    expected = (x @ x).sum().item()
    child = os.fork()
    if child == 0:
        # A child that hangs is ended, rather than the test.
        signal.alarm(60)
        os._exit(0 if (x @ x).sum().item() == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_functions_and_methods_are_documented_and_pickled_by_name() -> None:
    assert tenure.tril.__doc__ is not None
    assert tenure.tril.__doc__.startswith("tril(input, diagonal=0)")
    assert "Parameters\n----------\ninput : a tensor\ndiagonal : an integer, default 0" in tenure.tril.__doc__
    assert Tensor.tril.__doc__ == tenure.tril.__doc__
    assert pickle.loads(pickle.dumps(tenure.tril)) is tenure.tril


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (([True] * 3,), r"shape of the mask \[3\] at index 0 .* the indexed tensor \[2, 3\] at index 0"),
        ((slice(None), [True, False]), r"shape of the mask \[2\] at index 0 .* the indexed tensor \[2, 3\] at index 1"),
        (([[True, False]] * 2,), r"shape of the mask \[2, 2\] at index 1 .* the indexed tensor \[2, 3\] at index 1"),
        (([[[True]]],), "too many indices for tensor of dimension 2"),
        ((0, 0, 0), "too many indices for tensor of dimension 2"),
    ],
)
def test_masks_and_indices_that_do_not_fit_raise_pytorchs_errors(index: Any, message: str) -> None:
    torch = pytest.importorskip("torch")

    def placed(t: Any) -> Any:
        return tuple(t.tensor(part) if isinstance(part, list) else part for part in index)

    for t in (tenure, torch):
        with pytest.raises(IndexError, match=message):
            t.ones(2, 3)[placed(t)]
    with pytest.raises(IndexError, match=message):
        tenure.ones(2, 3)[placed(tenure)] = 1


def test_a_mask_without_elements_selects_nothing_as_in_numpy() -> None:
    array, tensor = numbers(2, 3)
    for sizes in ((0,), (2, 0), (0, 3)):
        expected = array[np.zeros(sizes, dtype=bool)]
        assert tensor[tenure.zeros(sizes, dtype=tenure.bool)].shape == expected.shape


def test_arrays_of_numpy_are_operands_on_both_sides() -> None:
    array, tensor = numbers(2, 3)
    row = np.array([1.0, 2.0, -3.0])
    for found, expected in (
        (tensor + row, array + row),
        (row - tensor, row - array),
        (tensor / row.astype(np.float32), array / row.astype(np.float32)),
        (tensor > row, array > row),
        (row == tensor, row == array),
        (row @ tensor.T.to(tenure.float64), row @ array.T.astype(np.float64)),
        (np.float64(2) * tensor, array * 2),
        (tensor * np.array(2.0, dtype=np.float32), array * 2),
    ):
        assert isinstance(found, Tensor)
        assert found.dtype.name == expected.dtype.name
        assert found.tolist() == expected.tolist()
    tensor += row.astype(np.float32)
    assert tensor.tolist() == (array + row).tolist()
