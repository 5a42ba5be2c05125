"""Every function of `tenure` that PyTorch has by the same name, called with the same arguments of many forms.

Where PyTorch computes a result, Tenure's has the same values, dtype and sizes. Where PyTorch refuses values, sizes or
dimensions, Tenure refuses them. Calls that PyTorch has no form or no kernel for (`TypeError`, `NotImplementedError`)
may succeed. `KNOWN` lists all other differences.
"""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure import _native

np: Any = pytest.importorskip("numpy")
torch: Any = pytest.importorskip("torch")

#: Functions that draw random numbers, or return memory that nothing was written to.
UNDETERMINED = {
    *("bernoulli", "bernoulli_", "dropout", "dropout_", "empty", "empty_like", "multinomial", "normal"),
    *("rand", "rand_like", "randint", "randn", "randn_like", "randperm"),
}
NAMES = sorted(
    name for name in _native.operation_functions() if callable(getattr(torch, name, None)) and name not in UNDETERMINED
)

#: Differences on purpose, by function and by kind: what Tenure "accepts" and PyTorch refuses, what it "refuses" and
#: PyTorch computes, and where the "result" is another.
PROMOTES = "operands of different dtypes promote"
BOOLS = "truth values are in order: False is less than True"
ALPHA_FIRST = "PyTorch deprecates `add(input, alpha, other)`: the third argument is `alpha`"
AVERAGES = "averages are of floats"
EMPTY = "pooling no rows gives no rows"
LOSSES = "`torch` has the function of ATen, whose reduction is a number: Tenure's is that of `torch.nn.functional`"
KNOWN: dict[str, dict[str, str]] = {
    "adaptive_avg_pool1d": {"refuses": AVERAGES, "accepts": "sizes for two dimensions pool images"},
    "add": {"refuses": ALPHA_FIRST, "accepts": ALPHA_FIRST},
    "addcdiv": {"refuses": "PyTorch deprecates a factor before the tensors"},
    "addcmul": {"refuses": "PyTorch deprecates a factor before the tensors"},
    "allclose": {"accepts": PROMOTES},
    "argmax": {"accepts": BOOLS},
    "argmin": {"accepts": BOOLS},
    "avg_pool1d": {"refuses": AVERAGES, "accepts": EMPTY},
    "binary_cross_entropy_with_logits": {"result": LOSSES, "refuses": LOSSES},
    "cross": {"accepts": PROMOTES},
    "cummax": {"refuses": "PyTorch does not look at the dimension of a tensor without elements"},
    "cummin": {"refuses": "PyTorch does not look at the dimension of a tensor without elements"},
    "einsum": {"refuses": "the equation comes first: PyTorch takes operands and lists of dimensions too"},
    "index_add": {"refuses": "PyTorch does not look at the indices of a tensor without elements"},
    "isclose": {"accepts": PROMOTES},
    "isin": {"accepts": BOOLS},
    "kl_div": {"result": LOSSES, "refuses": LOSSES, "accepts": PROMOTES},
    "lerp": {"accepts": PROMOTES},
    "log_softmax": {"refuses": "PyTorch does not look at the dtype without elements"},
    "logit": {"result": "the upper limit decides where `eps` is so large that the limits cross, as for `clamp`"},
    "max_pool1d": {"accepts": EMPTY},
    "meshgrid": {"accepts": "each grid has its tensor's dtype"},
    "movedim": {"refuses": "a tensor without dimensions has none to move"},
    "norm": {"accepts": "with a dtype, integers are converted first"},
    "pinverse": {"result": "of singular values that should be zero, rounding decides which count"},
    "quantile": {"accepts": PROMOTES},
    "softmax": {"refuses": "PyTorch does not look at the dtype without elements"},
    "split": {"refuses": "PyTorch rounds the size in a tensor"},
    "sub": {"refuses": ALPHA_FIRST, "accepts": ALPHA_FIRST},
    "take_along_dim": {"refuses": "PyTorch reads past the end of a dimension"},
    "topk": {"accepts": BOOLS, "refuses": "a tensor without dimensions has none to select from"},
    "where": {"refuses": "PyTorch deprecates conditions of uint8"},
}

Array = Any
VALUES = np.array([[0.5, -1.25, 2.0], [0.75, 0.0, -3.0]])
INPUTS: dict[str, Array] = {
    "float32": VALUES.astype(np.float32),
    "float64": VALUES,
    "float16": VALUES.astype(np.float16),
    "int64": (VALUES * 2).astype(np.int64),
    "uint8": np.abs(VALUES * 2).astype(np.uint8),
    "bool": VALUES > 0,
    "no dimensions": np.array(0.5, dtype=np.float32),
    "one dimension": np.array([0.25, -0.5, 1.5], dtype=np.float32),
    "square": np.array([[2.0, 1.0], [0.5, 3.0]], dtype=np.float32),
    "no elements": np.zeros((0, 3), dtype=np.float32),
    "three dimensions": (np.arange(24).reshape(2, 3, 4) / 7 - 1.5).astype(np.float32),
}
SECOND = (VALUES[:, ::-1] + 0.25).astype(np.float32)
ROW = np.array([1.0, 2.0, -3.0], dtype=np.float32)
COUNTS = np.array([[1, 2, 0], [0, 1, 2]])
PLACES = np.array([0, 1])
TRUTHS = np.array([[True, False, True], [False, True, True]])
#: Arguments after the first. Arrays become tensors, and dtypes are given by name.
FORMS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *(((), {}), ((0,), {}), ((-1,), {}), ((1,), {}), ((5,), {}), ((2.5,), {}), ((-2,), {})),
    *(((each,), {}) for each in (SECOND, ROW, COUNTS, PLACES, TRUTHS, np.ones(4, np.float32), np.array(1.5))),
    *(((each, 0), {}) for each in (SECOND, COUNTS, PLACES)),
    *(((0, each), {}) for each in (COUNTS, PLACES)),
    *(((), {"dim": dim}) for dim in (0, -1, -3, 5, (0, 1), (0, 0))),
    *(((), {"dim": -1, "keepdim": True}), (((0, 1),), {}), ((0, 1), {}), ((1, 0), {}), ((0, -1), {}), ((1, 0, 2), {})),
    *(((0.5, 1), {}), ((0, 0, 1), {}), ((), {"min": 0.5, "max": 1}), ((), {"max": 1})),
    *(((), {"dtype": "float64"}), ((), {"dtype": "int32"}), ((0,), {"dtype": "float64"}), ((0,), {"dtype": "int64"})),
    *(((ROW,), {"alpha": 2}), ((2,), {"alpha": 2}), ((SECOND,), {"rounding_mode": "floor"}), ((), {"decimals": 1})),
    *(((), {"unbiased": False}), ((), {"correction": 0}), ((), {"descending": True}), ((2,), {"largest": False})),
    *(((), {"p": 1}), ((SECOND, SECOND), {}), ((ROW, ROW), {}), ((0, PLACES, SECOND), {}), ((0, COUNTS, SECOND), {})),
    *(((2,), {"dim": 1}), ((2,), {"dim": -1}), (((1, 2),), {"dim": 1}), ((2, 5), {"dim": 0})),
]
TOLERANCES = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-10}


def given(module: Any, argument: Any) -> Any:
    """Returns an argument for one of the two libraries."""
    if isinstance(argument, np.ndarray):
        return module.from_numpy(argument.copy())
    return getattr(module, argument) if argument in TOLERANCES or argument in ("int32", "int64") else argument


def called(module: Any, name: str, first: Array, form: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Returns the result of a call, or the error."""
    positional, named = form
    arguments = [given(module, argument) for argument in (first, *positional)]
    try:
        return getattr(module, name)(*arguments, **{key: given(module, value) for key, value in named.items()})
    except Exception as error:
        return error


def same(ours: Any, theirs: Any) -> bool:
    """Compares two results, also in dtypes and sizes."""
    if isinstance(theirs, (tuple, list)):
        pairs = zip(ours, theirs, strict=False)
        return isinstance(ours, (tuple, list)) and len(ours) == len(theirs) and all(same(*pair) for pair in pairs)
    if not isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs) and ours == theirs
    dtype = str(theirs.dtype).removeprefix("torch.")
    if not isinstance(ours, tenure.Tensor) or (ours.dtype.name, ours.shape) != (dtype, tuple(theirs.shape)):
        return False
    tolerance = TOLERANCES.get(dtype, 0)
    return bool(np.allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance, equal_nan=True))


def difference(ours: Any, theirs: Any) -> str | None:
    """Returns the kind of a difference, or `None` if there is none that matters."""
    if isinstance(theirs, (TypeError, NotImplementedError)):
        return None
    if isinstance(theirs, Exception):
        return None if isinstance(ours, Exception) else "accepts"
    if isinstance(ours, Exception):
        return "refuses"
    return None if same(ours, theirs) else "result"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_function_does_as_in_pytorch(name: str) -> None:
    found: dict[str, str] = {}
    for kind, first in INPUTS.items():
        for form in FORMS:
            theirs = called(torch, name, first, form)
            ours = called(tenure, name, first, form)
            differs = difference(ours, theirs)
            if differs:
                found.setdefault(differs, f"{name}({kind}, {form}): {ours!r} is not PyTorch's {theirs!r}")
    known = KNOWN.get(name, {})
    new = [text for differs, text in found.items() if differs not in known]
    assert not new, "\n".join(new)
    assert found.keys() == known.keys(), f"KNOWN has differences that are gone: {known.keys() - found.keys()}"


def test_enough_functions_are_called() -> None:
    assert len(NAMES) > 200
    assert KNOWN.keys() <= set(NAMES)
