"""Recurrent layers and cells of `tenure.nn` against `torch.nn`: results, gradients, names and errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import tenure
from tenure import nn

torch = pytest.importorskip("torch")

from .module_comparison import as_ours, compare, given, same_error  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

LENGTH, BATCH, INPUT, HIDDEN = 5, 3, 4, 6

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("RNN", dict(nonlinearity="relu")),
    ("LSTM", {}),
    ("LSTM", dict(proj_size=2)),
    ("GRU", {}),
]
SETTINGS: list[dict[str, Any]] = [
    {},
    dict(bias=False),
    dict(batch_first=True),
    dict(num_layers=2),
    dict(bidirectional=True),
    dict(num_layers=3, bidirectional=True, bias=False, batch_first=True),
    dict(num_layers=2, bidirectional=True),
]


def pair(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)


def states(name: str, settings: dict[str, Any], *batch: int) -> Any:
    """Returns a state for a layer: for `LSTM`, two tensors."""
    layers = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    hidden = given(layers, *batch, settings.get("proj_size") or HIDDEN, seed=3)
    return (hidden, given(layers, *batch, HIDDEN, seed=4)) if name == "LSTM" else hidden


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "kind"), KINDS, ids=str)
def test_a_recurrent_layer_computes_as_pytorchs(name: str, kind: dict[str, Any], settings: dict[str, Any]) -> None:
    settings = settings | kind
    ours, theirs = pair(name, INPUT, HIDDEN, **settings)
    sizes = (BATCH, LENGTH) if settings.get("batch_first") else (LENGTH, BATCH)
    compare(ours, theirs, given(*sizes, INPUT))
    compare(ours, theirs, given(*sizes, INPUT), states(name, settings, BATCH))
    compare(ours, theirs, given(LENGTH, INPUT))
    compare(ours, theirs, given(LENGTH, INPUT), states(name, settings))
    compare(ours.eval(), theirs.eval(), given(*sizes, INPUT))
    result = ours(as_ours(given(*sizes, INPUT)))
    expected = theirs(given(*sizes, INPUT))
    assert isinstance(result, tuple) and isinstance(result[1], tuple) is isinstance(expected[1], tuple)


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=str)
def test_recurrent_layers_compute_in_double_precision(name: str, kind: dict[str, Any]) -> None:
    ours, theirs = pair(name, INPUT, HIDDEN, num_layers=2, **kind)
    compare(ours.double(), theirs.double(), given(LENGTH, BATCH, INPUT).double())
    made = getattr(nn, name)(INPUT, HIDDEN, dtype=tenure.float64, **kind)
    assert {parameter.dtype for parameter in made.parameters()} == {tenure.float64}


CELLS: list[tuple[str, dict[str, Any]]] = [
    ("RNNCell", {}),
    ("RNNCell", dict(nonlinearity="relu", bias=False)),
    ("LSTMCell", {}),
    ("LSTMCell", dict(bias=False)),
    ("GRUCell", {}),
    ("GRUCell", dict(bias=False)),
]


@pytest.mark.parametrize(("name", "settings"), CELLS, ids=str)
def test_a_cell_computes_as_pytorchs(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = pair(name, INPUT, HIDDEN, **settings)
    for sizes in ((BATCH,), ()):
        hidden: Any = given(*sizes, HIDDEN, seed=3)
        if name == "LSTMCell":
            hidden = (hidden, given(*sizes, HIDDEN, seed=4))
        compare(ours, theirs, given(*sizes, INPUT))
        compare(ours, theirs, given(*sizes, INPUT), hidden)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_a_cell_with_a_layers_parameters_computes_its_steps(name: str) -> None:
    layer, cell = getattr(nn, name)(INPUT, HIDDEN), getattr(nn, f"{name}Cell")(INPUT, HIDDEN)
    cell.load_state_dict({key.removesuffix("_l0"): tensor for key, tensor in layer.state_dict().items()})
    x = tenure.randn(LENGTH, BATCH, INPUT)
    output, _ = layer(x)
    state = None
    for index in range(LENGTH):
        state = cell(x[index], state)
        assert tenure.allclose(state[0] if name == "LSTM" else state, output[index], atol=1e-6)


def test_dropout_is_between_layers_and_in_training_only() -> None:
    x = tenure.randn(LENGTH, BATCH, INPUT)
    layer = nn.GRU(INPUT, HIDDEN, num_layers=2, dropout=1.0)
    output, last = layer(x)
    changed, other = layer(x * 2)
    # Everything that layer 1 takes is dropped, and nothing that it returns.
    assert tenure.equal(output, changed) and output.ne(0.0).any() and not tenure.equal(last[0], other[0])
    layer.eval()
    assert not tenure.equal(layer(x)[0], layer(x * 2)[0])
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last recurrent layer") as seen:
        nn.LSTM(INPUT, HIDDEN, dropout=0.5)
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_recurrent_parameters_are_drawn_in_order(name: str) -> None:
    tenure.manual_seed(5)
    layer = getattr(nn, name)(INPUT, HIDDEN)
    tenure.manual_seed(5)
    for parameter in layer.parameters():
        drawn = tenure.empty(tuple(parameter.shape)).uniform_(-(HIDDEN**-0.5), HIDDEN**-0.5)
        assert tenure.equal(parameter, drawn)


def test_recurrent_layers_copy_pickle_and_list_their_parameters() -> None:
    layer, theirs = pair("LSTM", INPUT, HIDDEN, num_layers=2, bidirectional=True, proj_size=2)
    layer.flatten_parameters()
    shapes = [[tuple(weight.shape) for weight in weights] for weights in theirs.all_weights]
    assert [[tuple(weight.shape) for weight in weights] for weights in layer.all_weights] == shapes
    x = tenure.randn(LENGTH, BATCH, INPUT)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.weight_hr_l1_reverse is not layer.weight_hr_l1_reverse
        assert tenure.equal(other(x)[0], layer(x)[0])
    layer.weight_ih_l0 = nn.Parameter(tenure.zeros(4 * HIDDEN, INPUT))
    layer.weight_ih_l0_reverse = nn.Parameter(tenure.zeros(4 * HIDDEN, INPUT))
    assert tenure.equal(layer(x)[0], layer(x * 2)[0])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LSTM", dict(input_size=0, hidden_size=2)),
        ("LSTM", dict(input_size=2.0, hidden_size=2)),
        ("GRU", dict(input_size=2, hidden_size=0)),
        ("GRU", dict(input_size=2, hidden_size="2")),
        ("GRU", dict(input_size=2, hidden_size=2, num_layers=0)),
        ("GRU", dict(input_size=2, hidden_size=2, num_layers=2, dropout=1.5)),
        ("GRU", dict(input_size=2, hidden_size=2, dropout=True)),
        ("RNN", dict(input_size=2, hidden_size=2, bias=1)),
        ("RNN", dict(input_size=2, hidden_size=2, batch_first=1)),
        ("RNN", dict(input_size=2, hidden_size=2, nonlinearity="sigmoid")),
        ("LSTM", dict(input_size=2, hidden_size=2, proj_size=2)),
        ("LSTM", dict(input_size=2, hidden_size=2, proj_size=-1)),
        ("RNNBase", dict(mode="LTSM", input_size=2, hidden_size=2)),
    ],
    ids=str,
)
def test_recurrent_layers_refuse_wrong_settings_as_pytorchs(name: str, settings: dict[str, Any]) -> None:
    same_error(lambda: getattr(nn, name)(**settings), lambda: getattr(torch.nn, name)(**settings))


WRONG: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [
    ((4,), None),
    ((5, 3, 2, 4), None),
    ((5, 3, 2), None),
    ((0, 3, 4), None),
    ((5, 3, 4), (1, 6)),
    ((5, 4), (1, 3, 6)),
    ((5, 3, 4), (1, 2, 6)),
    ((5, 3, 4), (2, 3, 6)),
    ((5, 3, 4), (1, 3, 4)),
    ((5, 4), (2, 6)),
]


@pytest.mark.parametrize(("sizes", "hidden"), WRONG, ids=str)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_refuse_wrong_sizes_as_pytorchs(name: str, sizes: Any, hidden: Any) -> None:
    ours, theirs = pair(name, INPUT, HIDDEN)
    x = given(*sizes)
    hx: Any = None if hidden is None else given(*hidden)
    if hidden is not None and name == "LSTM":
        hx = (hx, hx)
    same_error(lambda: ours(as_ours(x), as_ours(hx)), lambda: theirs(x, hx))


def test_an_lstm_tells_which_state_has_the_wrong_size_as_pytorchs() -> None:
    ours, theirs = pair("LSTM", INPUT, HIDDEN, proj_size=2)
    x = given(LENGTH, BATCH, INPUT)
    for sizes in ((6, 6), (2, 2), (6, 2)):
        hx = tuple(given(1, BATCH, size) for size in sizes)
        same_error(lambda hx=hx: ours(as_ours(x), as_ours(hx)), lambda hx=hx: theirs(x, hx))  # type: ignore[misc]


def test_an_input_of_another_dtype_is_refused_except_under_autocast() -> None:
    ours, theirs = pair("GRU", INPUT, HIDDEN)
    x = given(LENGTH, BATCH, INPUT).double()
    same_error(lambda: ours(as_ours(x)), lambda: theirs(x))
    with tenure.amp.autocast("cpu", dtype=tenure.bfloat16):
        assert ours(as_ours(x.bfloat16()))[0].shape == (LENGTH, BATCH, HIDDEN)


@pytest.mark.parametrize(
    ("sizes", "hidden"),
    [((2, 3, 4), None), ((3, 5), None), ((3, 4), (1, 3, 6)), ((3, 4), (2, 6)), ((3, 4), (3, 5)), ((4,), (5,))],
    ids=str,
)
@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells_refuse_wrong_sizes_as_pytorchs(name: str, sizes: Any, hidden: Any) -> None:
    ours, theirs = pair(name, INPUT, HIDDEN)
    x = given(*sizes)
    hx: Any = None if hidden is None else given(*hidden)
    if hidden is not None and name == "LSTMCell":
        hx = (hx, hx)
    same_error(lambda: ours(as_ours(x), as_ours(hx)), lambda: theirs(x, hx))


def test_a_cell_refuses_an_unknown_nonlinearity_as_pytorchs() -> None:
    ours, theirs = pair("RNNCell", INPUT, HIDDEN, nonlinearity="sin")
    same_error(lambda: ours(tenure.ones(2, INPUT)), lambda: theirs(torch.ones(2, INPUT)))
