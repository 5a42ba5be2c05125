"""Tests of `tenure.safetensors`, `tenure.save` and `tenure.load`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.safetensors import load_file, safe_open, save_file

NAMES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
]


def every_dtype() -> dict[str, tenure.Tensor]:
    """Returns a tensor of each dtype, with three elements, so that many would not be aligned in this order."""
    return {name: tenure.tensor([1, 0, 3]).to(getattr(tenure, name)) for name in NAMES}


def file_of(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    """Returns the bytes of a file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


def entry(begin: int, end: int, **other: Any) -> dict[str, Any]:
    """Returns the description of a tensor of bytes."""
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end], **other}


def test_tensors_of_every_dtype_and_shape_come_back(tmp_path: Path) -> None:
    saved = {**every_dtype(), "scalar": tenure.tensor(2.5), "empty": tenure.zeros(0, 3), "ä": tenure.ones(2, 3).t()}
    save_file(saved, tmp_path / "file", {"format": "pt"})
    loaded = load_file(tmp_path / "file")
    assert set(loaded) == set(saved)
    for name, tensor in saved.items():
        found = loaded[name]
        assert (found.dtype, found.shape, found.tolist()) == (tensor.dtype, tensor.shape, tensor.tolist())
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_reference_reads_our_files_and_we_its(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    save_file(every_dtype(), tmp_path / "ours", {"a": "b"})
    theirs = reference.load_file(tmp_path / "ours")
    assert {name: tensor.tolist() for name, tensor in theirs.items()} == {
        name: tensor.tolist() for name, tensor in every_dtype().items()
    }
    reference.save_file(theirs, tmp_path / "theirs", {"a": "b"})
    ours = load_file(tmp_path / "theirs")
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in ours.items()} == {
        name: (tensor.dtype, tensor.tolist()) for name, tensor in every_dtype().items()
    }


def test_loaded_tensors_are_on_the_mapped_file_and_do_not_change_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"weight": tenure.zeros(1000)}, path)
    content = path.read_bytes()
    weight = load_file(path)["weight"]
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if str(path) in line]
    assert any(int(begin, 16) <= weight.data_ptr() < int(end, 16) for begin, end in ranges)
    weight += 1
    assert path.read_bytes() == content
    assert load_file(path)["weight"].sum().item() == 0


def test_a_tensor_may_be_saved_over_the_file_that_it_is_on(tmp_path: Path) -> None:
    save_file({"weight": tenure.arange(5)}, tmp_path / "file")
    loaded = load_file(tmp_path / "file")
    save_file({"weight": loaded["weight"] + 1, "old": loaded["weight"]}, tmp_path / "file")
    assert loaded["weight"].tolist() == [0, 1, 2, 3, 4]
    assert load_file(tmp_path / "file")["weight"].tolist() == [1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_save_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    save_file({"weight": tenure.arange(5)}, tmp_path / "file")
    with pytest.raises(TypeError, match="strings"):
        save_file({}, tmp_path / "file", {"step": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="list"):
        save_file({"weight": [1]}, tmp_path / "file")  # type: ignore[dict-item]
    assert load_file(tmp_path / "file")["weight"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="missing/file"):
        save_file({}, tmp_path / "missing/file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_parts_of_a_tensor_are_read_by_slices(tmp_path: Path) -> None:
    save_file({"weight": tenure.arange(12).reshape(3, 4)}, tmp_path / "file")
    with safe_open(tmp_path / "file") as file:
        part = file.get_slice("weight")
        assert (part.get_shape(), part.get_dtype()) == ([3, 4], "I64")
        assert part[1:, :2].tolist() == [[4, 5], [8, 9]]
        with pytest.raises(KeyError, match="weight"):
            file.get_tensor("bias")
    with pytest.raises(ValueError, match="closed"):
        file.get_tensor("weight")


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": tenure.ones(3), "b": tenure.arange(2)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(tenure.Error, match="cut: not a whole file of safetensors"):
            load_file(tmp_path / "cut")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_of({"a": entry(0, 2), "b": entry(1, 3)}, b"abc"), "'b' begins at byte 1"),
        (file_of({"a": entry(0, 2), "b": entry(3, 4)}, b"abcd"), "'b' begins at byte 3"),
        (file_of({"a": entry(0, 2)}, b"abc"), "end at byte"),
        (file_of({"a": entry(0, 2, shape=[3])}, b"ab"), "needs 3 bytes"),
        (file_of({"a": entry(0, 2, shape=[-2])}, b"ab"), "not numbers"),
        (file_of({"a": entry(0, 2, shape=[True, 2])}, b"ab"), "not numbers"),
        (file_of({"a": entry(0, 2, dtype="F4")}, b"ab"), "'F4'"),
        (file_of({"a": entry(0, 2, more=1)}, b"ab"), "no dtype, shape"),
        (file_of({"a": [0, 2]}, b"ab"), "no dtype, shape"),
        (file_of({"__metadata__": {"a": 1}}), "metadata"),
        (file_of(b'{"a": 1, "a": 1}'), "twice"),
        (file_of(b"[" * 100_000), "nested"),
        (file_of(b"\xff\xfe"), "decode"),
        (file_of([]), "not a JSON object"),
        (file_of({}, length=2**63), "would have"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(tenure.Error, match=message):
        load_file(tmp_path / "file")


def test_state_dicts_are_saved_and_loaded(tmp_path: Path) -> None:
    state = {"layer.weight": tenure.rand(2, 3, requires_grad=True)}
    tenure.save(state, tmp_path / "state.safetensors")
    loaded = tenure.load(tmp_path / "state.safetensors")
    assert tenure.equal(loaded["layer.weight"], state["layer.weight"].detach())


def same(left: Any, right: Any) -> bool:
    """Returns whether two values have the same types, order and numbers."""
    if isinstance(left, tenure.Tensor):
        return isinstance(right, tenure.Tensor) and left.dtype == right.dtype and tenure.equal(left.detach(), right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(repr(left) == repr(right))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2**80,
        -0.0,
        1e-300,
        float("inf"),
        float("nan"),
        "a \u00e4 \n",
        [],
        (),
        {},
        {"a": {}, "b": [(), [None, (1, 2.0, False)]], 3: {"3": "x"}},
        {"dict": 1, "tuple": {"tensor": "a"}, "float": {"float": "nan"}},
        tenure.ones(2),
        [tenure.arange(3), (tenure.zeros(0, 2),)],
        {"a": {"b": tenure.ones(1)}, "a.b": tenure.zeros(1), "a.b#2": tenure.full((1,), 2.0), "n": 1},
        {"__metadata__": tenure.ones(1), "n": None},
        {"": tenure.ones(1), "n": [tenure.zeros(1)]},
        {0: tenure.ones(1), 1: tenure.zeros(1)},
    ],
)
def test_nested_values_come_back(tmp_path: Path, value: Any) -> None:
    tenure.save(value, tmp_path / "file")
    assert same(value, tenure.load(tmp_path / "file"))


def test_the_state_of_a_run_is_saved_and_continued(tmp_path: Path) -> None:
    def step(x: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        (x * x).sum().backward()
        optimizer.step()

    x = tenure.tensor([4.0, -2.0], requires_grad=True)
    optimizer = tenure.optim.Adam([("x", x)], lr=0.1)
    step(x, optimizer)
    state = {"model": {"x": x}, "optimizer": optimizer.state_dict(), "epoch": 1}
    tenure.save(state, tmp_path / "run")
    assert set(load_file(tmp_path / "run")) == {
        "model.x",
        "optimizer.state.0.step",
        "optimizer.state.0.exp_avg",
        "optimizer.state.0.exp_avg_sq",
    }
    loaded = tenure.load(tmp_path / "run")
    assert same(state, loaded)
    other = loaded["model"]["x"].clone().requires_grad_()
    resumed = tenure.optim.Adam([("x", other)])
    resumed.load_state_dict(loaded["optimizer"])
    step(x, optimizer)
    step(other, resumed)
    assert other.tolist() == x.tolist()


def test_the_reference_reads_the_tensors_of_nested_values(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    tenure.save({"layers": [{"weight": tenure.arange(3)}], "epoch": 1}, tmp_path / "file")
    assert {name: tensor.tolist() for name, tensor in reference.load_file(tmp_path / "file").items()} == {
        "layers.0.weight": [0, 1, 2]
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\] is of the type set"),
        ({"a": {"b": b"x"}}, r"value\['a'\]\['b'\] is of the type bytes"),
        ([1 + 2j], r"value\[0\] is of the type complex"),
        ({1.5: 2}, "value has the key 1.5"),
        ([{True: 2}], r"value\[0\] has the key True"),
        (object(), "value is of the type object"),
    ],
)
def test_values_of_other_types_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tenure.save(value, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="contains itself"):
        tenure.save(value, tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"tensor": "b"}',
        '{"tensor": 1}',
        '{"set": []}',
        '{"float": "1"}',
        '{"dict": {"a": 1}}',
        '{"dict": [["a"]]}',
        '{"dict": [[["a"], 1]]}',
        '{"tuple": 1}',
        '{"tuple": [], "dict": []}',
        "{}",
    ],
)
def test_damaged_structures_are_refused(tmp_path: Path, text: str) -> None:
    save_file({"a": tenure.ones(1)}, tmp_path / "file", {"tenure.structure": text})
    with pytest.raises(tenure.Error, match="file: "):
        tenure.load(tmp_path / "file")
