"""Attention and transformers of `tenure.nn` against `torch.nn`: results, gradients, names and errors."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest

import tenure
from tenure import nn

torch = pytest.importorskip("torch")

from .module_comparison import as_ours, close, compare, given, same_error  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PyTorch's own remarks on nested tensors, and on masks of two types.
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
]

QUERIES, KEYS, BATCH, SIZE, HEADS = 5, 7, 3, 8, 2

LAYERS: list[dict[str, Any]] = [
    {},
    dict(batch_first=True),
    dict(bias=False),
    dict(add_bias_kv=True),
    dict(add_zero_attn=True),
    dict(add_bias_kv=True, add_zero_attn=True, batch_first=True),
    dict(kdim=6, vdim=4),
    dict(kdim=6, bias=False, batch_first=True),
]
FORMS: list[dict[str, bool]] = [
    {},
    dict(average_attn_weights=False),
    dict(need_weights=False),
]


def pair(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)


def padding(keys: int = KEYS) -> Any:
    """Returns a mask that leaves each sequence at least its first key."""
    return torch.arange(keys).expand(BATCH, keys) >= torch.tensor([[keys], [2], [4]])


def causal(queries: int, keys: int) -> Any:
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


def added(*sizes: int) -> Any:
    return given(*sizes, seed=9)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": dict(key_padding_mask=padding()),
    "added padding": dict(key_padding_mask=added(BATCH, KEYS)),
    "mask": dict(attn_mask=causal(QUERIES, KEYS)),
    "added mask": dict(attn_mask=added(QUERIES, KEYS)),
    "mask of heads": dict(attn_mask=causal(QUERIES, KEYS).expand(BATCH * HEADS, QUERIES, KEYS)),
    "added mask of heads": dict(attn_mask=added(BATCH * HEADS, QUERIES, KEYS)),
    "both": dict(key_padding_mask=padding(), attn_mask=causal(QUERIES, KEYS)),
    "mixed": dict(key_padding_mask=padding(), attn_mask=added(BATCH * HEADS, QUERIES, KEYS)),
    "causal": dict(attn_mask=causal(QUERIES, KEYS), is_causal=True),
    "causal and padding": dict(attn_mask=causal(QUERIES, KEYS), key_padding_mask=padding(), is_causal=True),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_attention_computes_as_pytorchs(layer: dict[str, Any], masks: str, form: dict[str, bool]) -> None:
    ours, theirs = pair("MultiheadAttention", SIZE, HEADS, **layer)
    sizes = [(QUERIES, SIZE), (KEYS, layer.get("kdim", SIZE)), (KEYS, layer.get("vdim", SIZE))]
    inputs = []
    for seed, (length, size) in enumerate(sizes):
        batch = given(BATCH, length, size, seed=seed)
        inputs.append(batch if layer.get("batch_first") else batch.transpose(0, 1).contiguous())
    compare(ours, theirs, *inputs, **MASKS[masks], **form)
    assert (ours(*map(as_ours, inputs), **form)[1] is None) is (form == {"need_weights": False})


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_computes_as_pytorchs(batch_first: bool, form: dict[str, bool]) -> None:
    ours, theirs = pair("MultiheadAttention", SIZE, HEADS, batch_first=batch_first)
    x, y = given(BATCH, BATCH, SIZE), given(BATCH, BATCH, SIZE, seed=1)
    compare(ours, theirs, x, x, x, **form)
    compare(ours, theirs, x, y, y, **form)
    compare(ours, theirs, x, x, y, **form)
    compare(ours.eval(), theirs.eval(), x, x, x, **form)
    with tenure.no_grad(), torch.no_grad():
        found, expected = ours(as_ours(x), as_ours(x), as_ours(x), **form), theirs(x, x, x, **form)
    assert close(found[0], expected[0])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_sequence_without_a_batch_is_taken(layer: dict[str, Any], form: dict[str, bool]) -> None:
    ours, theirs = pair("MultiheadAttention", SIZE, HEADS, **layer)
    key, value = given(KEYS, layer.get("kdim", SIZE), seed=1), given(KEYS, layer.get("vdim", SIZE), seed=2)
    masks = dict(key_padding_mask=padding()[1], attn_mask=added(HEADS, QUERIES, KEYS))
    compare(ours, theirs, given(QUERIES, SIZE), key, value, **form)
    compare(ours, theirs, given(QUERIES, SIZE), key, value, **masks, **form)


def test_a_query_that_attends_to_no_key_computes_as_pytorchs() -> None:
    ours, theirs = pair("MultiheadAttention", SIZE, HEADS)
    x = given(4, 2, SIZE)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    ours.load_state_dict(theirs.state_dict())
    for form in FORMS:
        found = ours(*[as_ours(x)] * 3, attn_mask=as_ours(mask), **form)[0]
        assert close(found, theirs(x, x, x, attn_mask=mask, **form)[0])


def test_attention_drops_weights_in_training_only() -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS, dropout=0.5)
    x = tenure.randn(64, 2, SIZE)
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert 0.4 < weights.eq(0.0).float().mean().item() < 0.6
    assert not layer.eval()(x, x, x, average_attn_weights=False)[1].eq(0.0).any()
    assert tenure.allclose(layer(x, x, x)[0], layer(x, x, x, need_weights=False)[0], atol=1e-5)
    layer.train()
    assert not tenure.equal(layer(x, x, x, need_weights=False)[0], layer(x, x, x, need_weights=False)[0])


def test_attention_draws_the_weight_of_its_inputs_and_then_that_of_its_result() -> None:
    every: list[dict[str, Any]] = [{}, {"kdim": 6}]
    for sizes in every:
        tenure.manual_seed(5)
        layer = nn.MultiheadAttention(SIZE, HEADS, add_bias_kv=True, **sizes)
        tenure.manual_seed(5)
        for name in ("q_proj", "k_proj", "v_proj") if sizes else ("in_proj",):
            drawn = getattr(layer, f"{name}_weight")
            assert tenure.equal(drawn, nn.init.xavier_uniform_(tenure.empty(tuple(drawn.shape))))
        result = nn.init.kaiming_uniform_(tenure.empty(SIZE, SIZE), a=math.sqrt(5))
        assert tenure.equal(layer.out_proj.weight, result)
        for drawn in (layer.bias_k, layer.bias_v):
            assert drawn is not None
            assert tenure.equal(drawn, nn.init.xavier_normal_(tenure.empty(1, 1, SIZE)))
        assert not layer.in_proj_bias.any() and not layer.out_proj.bias.any()


def test_attention_takes_static_keys_and_values_as_pytorchs() -> None:
    theirs = torch.nn.MultiheadAttention(SIZE, HEADS)
    query, key = given(QUERIES, BATCH, SIZE), given(KEYS, BATCH, SIZE, seed=1)
    static = given(BATCH * HEADS, KEYS, SIZE // HEADS, seed=2)
    state = theirs.state_dict()
    args = (SIZE, HEADS, state["in_proj_weight"], state["in_proj_bias"], None, None, False, 0.0)
    given_args = (query, key, key, *args, state["out_proj.weight"], state["out_proj.bias"])
    ours_args = [as_ours(each) for each in given_args]
    for names in (("static_k",), ("static_v",), ("static_k", "static_v")):
        expected = torch.nn.functional.multi_head_attention_forward(*given_args, **dict.fromkeys(names, static))
        found = nn.functional.multi_head_attention_forward(*ours_args, **dict.fromkeys(names, as_ours(static)))
        assert close(found[0], expected[0]) and close(found[1], expected[1])
    for wrong in ({"static_k": static[:2]}, {"static_v": static[..., :2]}):
        ours_wrong = {name: as_ours(each) for name, each in wrong.items()}
        same_error(
            lambda given=ours_wrong: nn.functional.multi_head_attention_forward(*ours_args, **given),  # type: ignore[misc]
            lambda given=wrong: torch.nn.functional.multi_head_attention_forward(*given_args, **given),  # type: ignore[misc]
        )


@pytest.mark.parametrize(
    ("sizes", "masks"),
    [
        (((5, 3, 8), (7, 8), (7, 8)), {}),
        (((5, 8), (7, 3, 8), (7, 3, 8)), {}),
        (((5, 3, 2, 8),) * 3, {}),
        (((5, 3, 6), (7, 3, 6), (7, 3, 6)), {}),
        (((5, 3, 8), (7, 3, 8), (6, 3, 8)), {}),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(key_padding_mask=torch.zeros(7))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(key_padding_mask=torch.zeros(2, 7))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(key_padding_mask=torch.zeros(3, 6))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(key_padding_mask=torch.zeros(3, 7, dtype=torch.int64))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(attn_mask=torch.zeros(5))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(attn_mask=torch.zeros(7, 5))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(attn_mask=torch.zeros(3, 5, 7))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(attn_mask=torch.zeros(5, 7, dtype=torch.int64))),
        (((5, 3, 8), (7, 3, 8), (7, 3, 8)), dict(is_causal=True)),
        (((5, 8), (7, 8), (7, 8)), dict(key_padding_mask=torch.zeros(1, 7))),
        (((5, 8), (7, 8), (7, 8)), dict(attn_mask=torch.zeros(3, 5, 7))),
        (((5, 8), (7, 8), (7, 8)), dict(attn_mask=torch.zeros(1, 1, 5, 7))),
    ],
    ids=str,
)
def test_attention_refuses_wrong_sizes_as_pytorchs(sizes: Any, masks: dict[str, Any]) -> None:
    ours, theirs = pair("MultiheadAttention", SIZE, HEADS)
    inputs = [given(*each) for each in sizes]
    our_masks = {name: as_ours(mask) for name, mask in masks.items()}
    same_error(lambda: ours(*map(as_ours, inputs), **our_masks), lambda: theirs(*inputs, **masks))


@pytest.mark.parametrize("arguments", [(0, 1), (8, 0), (8, 3)])
def test_attention_refuses_wrong_settings_as_pytorchs(arguments: tuple[int, int]) -> None:
    same_error(lambda: nn.MultiheadAttention(*arguments), lambda: torch.nn.MultiheadAttention(*arguments))


def test_masks_of_two_types_are_warned_of_as_in_pytorch() -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS)
    x = tenure.ones(4, 2, SIZE)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        layer(x, x, x, key_padding_mask=tenure.zeros(2, 4), attn_mask=tenure.zeros(4, 4, dtype=tenure.bool))
    assert "Support for mismatched key_padding_mask and attn_mask is deprecated" in str(seen[0].message)


SETTINGS: list[dict[str, Any]] = [
    {},
    dict(batch_first=True),
    dict(norm_first=True, activation="gelu"),
    dict(bias=False, layer_norm_eps=1e-3),
    dict(batch_first=True, norm_first=True, bias=False, activation="relu"),
]
SMALL: dict[str, Any] = dict(d_model=SIZE, nhead=HEADS, dim_feedforward=12, dropout=0.0)


def sequence(length: int, batch_first: bool = False, seed: int = 0) -> Any:
    sizes = (BATCH, length, SIZE) if batch_first else (length, BATCH, SIZE)
    return given(*sizes, seed=seed)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_encoders_compute_as_pytorchs(settings: dict[str, Any]) -> None:
    src = sequence(KEYS, settings.get("batch_first", False))
    causal_mask = torch.nn.Transformer.generate_square_subsequent_mask(KEYS)
    layer = pair("TransformerEncoderLayer", **SMALL, **settings)
    stack = (
        nn.TransformerEncoder(layer[0], 2, nn.LayerNorm(SIZE)),
        torch.nn.TransformerEncoder(layer[1], 2, torch.nn.LayerNorm(SIZE)),
    )
    for (ours, theirs), name in ((layer, "src_mask"), (stack, "mask")):
        compare(ours, theirs, src)
        compare(ours, theirs, src, src_key_padding_mask=padding())
        compare(ours, theirs, src, **{name: causal(KEYS, KEYS)}, src_key_padding_mask=padding())
        compare(ours, theirs, src, **{name: causal_mask}, is_causal=True)
        compare(ours, theirs, src, **{name: causal_mask})
        compare(ours.eval(), theirs.eval(), src, **{name: added(KEYS, KEYS)})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_decoders_compute_as_pytorchs(settings: dict[str, Any]) -> None:
    batch_first = settings.get("batch_first", False)
    tgt, memory = sequence(QUERIES, batch_first), sequence(KEYS, batch_first, 1)
    layer = pair("TransformerDecoderLayer", **SMALL, **settings)
    stack = (
        nn.TransformerDecoder(layer[0], 2, nn.LayerNorm(SIZE)),
        torch.nn.TransformerDecoder(layer[1], 2, torch.nn.LayerNorm(SIZE)),
    )
    masks = dict(
        tgt_mask=causal(QUERIES, QUERIES),
        memory_mask=added(QUERIES, KEYS),
        tgt_key_padding_mask=padding(QUERIES),
        memory_key_padding_mask=padding(),
    )
    for ours, theirs in (layer, stack):
        compare(ours, theirs, tgt, memory)
        compare(ours, theirs, tgt, memory, **masks)
        compare(ours, theirs, tgt, memory, tgt_mask=causal(QUERIES, QUERIES), tgt_is_causal=True)
        compare(ours, theirs, tgt, memory, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(QUERIES))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_transformers_compute_as_pytorchs(settings: dict[str, Any]) -> None:
    batch_first = settings.get("batch_first", False)
    src, tgt = sequence(KEYS, batch_first), sequence(QUERIES, batch_first, 1)
    ours, theirs = pair("Transformer", num_encoder_layers=2, num_decoder_layers=1, **SMALL, **settings)
    compare(ours, theirs, src, tgt)
    compare(ours, theirs, src, tgt, tgt_mask=causal(QUERIES, QUERIES), src_key_padding_mask=padding())
    unbatched = given(KEYS, SIZE), given(QUERIES, SIZE)
    compare(ours, theirs, *unbatched)


def test_a_stack_finds_that_its_mask_is_causal() -> None:
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SMALL), 1)
    seen = []
    stack.layers[0].register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    x = tenure.ones(4, 2, SIZE)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    assert close(mask, torch.nn.Transformer.generate_square_subsequent_mask(4))
    for given_mask, is_causal in ((mask, None), (mask * 0, None), (None, None), (mask, False)):
        stack(x, given_mask, is_causal=is_causal)
    assert [kwargs["is_causal"] for kwargs in seen] == [True, False, False, False]


def test_copied_layers_of_a_stack_have_their_own_parameters() -> None:
    layer = nn.TransformerDecoderLayer(**SMALL)
    stack = nn.TransformerDecoder(layer, 2)
    assert stack.layers[0].linear1.weight is not stack.layers[1].linear1.weight
    assert tenure.equal(stack.layers[0].linear1.weight, layer.linear1.weight)
    copied = copy.deepcopy(stack)
    assert list(copied.state_dict()) == list(stack.state_dict())


def test_activations_of_transformers_are_functions_or_modules() -> None:
    def theirs_of(activation: Any) -> Any:
        return torch.nn.TransformerEncoderLayer(**SMALL, activation=activation)

    compare(nn.TransformerEncoderLayer(**SMALL, activation=nn.SiLU()), theirs_of(torch.nn.SiLU()), sequence(KEYS))
    function = nn.TransformerEncoderLayer(**SMALL, activation=lambda x: x * 2)
    compare(function, theirs_of(lambda x: x * 2), sequence(KEYS))
    same_error(lambda: nn.TransformerEncoderLayer(**SMALL, activation="tanh"), lambda: theirs_of("tanh"))


@pytest.mark.parametrize("sizes", [((4, 3, 8), (4, 2, 8)), ((4, 3, 6), (4, 3, 8)), ((4, 3, 8), (4, 3, 6))])
def test_transformers_refuse_wrong_sizes_as_pytorchs(sizes: Any) -> None:
    ours, theirs = pair("Transformer", num_encoder_layers=1, num_decoder_layers=1, **SMALL)
    src, tgt = (given(*each) for each in sizes)
    same_error(lambda: ours(as_ours(src), as_ours(tgt)), lambda: theirs(src, tgt))
    batch_first = pair("Transformer", num_encoder_layers=1, num_decoder_layers=1, **SMALL, batch_first=True)
    src, tgt = src.transpose(0, 1).contiguous(), tgt.transpose(0, 1).contiguous()
    same_error(lambda: batch_first[0](as_ours(src), as_ours(tgt)), lambda: batch_first[1](src, tgt))


def test_a_transformer_draws_its_matrices_by_xavier() -> None:
    model = nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **SMALL)
    weight = model.encoder.layers[0].linear1.weight
    bound = math.sqrt(6 / (SIZE + 12))
    assert bound / 2 < abs(weight).max().item() <= bound
