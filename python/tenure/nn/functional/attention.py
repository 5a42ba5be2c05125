"""Multi-head attention."""

from __future__ import annotations

import math
import warnings

from tenure import _operations as _ops
from tenure._native import Tensor, dtype
from tenure._native import bool as _bool
from tenure.nn.functional.linear import linear, pad
from tenure.nn.functional.sparse import dropout, scaled_dot_product_attention

__all__ = ["multi_head_attention_forward"]


def _canonical_mask(
    mask: Tensor | None, name: str, other: Tensor | None, other_name: str, target: dtype, check_other: bool = True
) -> Tensor | None:
    """Returns a mask that is added to scores: minus infinity where a mask of `bool` is true."""
    if mask is None:
        return None
    if mask.dtype != _bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if check_other and other is not None and mask.dtype != other.dtype:
        warnings.warn(
            f"Support for mismatched {name} and {other_name} is deprecated. Use same type for both instead.",
            stacklevel=3,
        )
    if mask.dtype != _bool:
        return mask
    return _ops.zeros_like(mask, dtype=target).masked_fill(mask, -math.inf)


def _check_dimensions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> None:
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
        )
    dims = query.dim()
    found = f"For {'batched' if dims == 3 else 'unbatched'} ({dims}-D) `query`, expected"
    if key.dim() != dims or value.dim() != dims:
        raise AssertionError(
            f"{found} `key` and `value` to be {dims}-D but found {key.dim()}-D and {value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != dims - 1:
        raise AssertionError(
            f"{found} `key_padding_mask` to be `None` or {dims - 1}-D "
            f"but found {key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is None:
        return
    if attn_mask.dim() not in (2, 3):
        raise AssertionError(
            f"{found} `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D tensor instead"
        )
    expected = (num_heads, query.shape[0], key.shape[0])
    if dims == 2 and attn_mask.dim() == 3 and attn_mask.shape != expected:
        raise AssertionError(f"Expected `attn_mask` shape to be {expected} but got {list(attn_mask.shape)}")


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
    bias: Tensor | None,
) -> list[Tensor]:
    """Projects queries, keys and values: by the rows of one weight, or if there are `separate` ones, by those."""
    biases: list[Tensor] | list[None] = [None] * 3 if bias is None else list(bias.chunk(3))
    inputs = (query, key, value)
    size = query.size(-1)
    if separate is None:
        if packed is None:
            raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
        if query is key and key is value:
            return list(linear(query, packed, bias).split(size, -1))
        weights = list(packed.chunk(3))
    else:
        weights = []
        for letter, name, weight, input, part in zip(
            "qkv", ("query", "key", "value"), separate, inputs, biases, strict=True
        ):
            if weight is None:
                raise AssertionError(f"use_separate_proj_weight is True but {letter}_proj_weight is None")
            wanted = (size, input.size(-1))
            if weight.shape != wanted:
                raise AssertionError(f"expecting {name} weights shape of {wanted}, but got {list(weight.shape)}")
            if part is not None and part.shape != (size,):
                raise AssertionError(f"expecting {name} bias shape of {(size,)}, but got {list(part.shape)}")
            weights.append(weight)
    return [linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def _check_mask(mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> None:
    wanted = {2: (queries, keys), 3: (batch * heads, queries, keys)}[mask.dim()]
    if mask.shape != wanted:
        raise RuntimeError(f"The shape of the {mask.dim()}D attn_mask is {list(mask.shape)}, but should be {wanted}.")


def _static(given: Tensor, name: str, heads: int, head_size: int) -> Tensor:
    """Checks the keys or values that a caller has computed before."""
    for dim, wanted in ((0, heads), (2, head_size)):
        if given.size(dim) != wanted:
            raise AssertionError(f"expecting {name}.size({dim}) of {wanted}, but got {given.size(dim)}")
    return given


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Computes `tenure.nn.MultiheadAttention` of sequences `[length, batch, size]`, from its parameters.

    `static_k` and `static_v`, `[batch * heads, length, size / heads]`, take the place of projected keys and values.

    Returns
    -------
    Tensor
        The result, with the sizes of `query`.
    Tensor or None
        If `need_weights`, how much each query attended to each key.
    """
    _check_dimensions(query, key, value, key_padding_mask, attn_mask, num_heads)
    is_batched = query.dim() == 3
    if not is_batched:
        is_same = query is key and key is value
        query = query.unsqueeze(1)
        key, value = (query, query) if is_same else (key.unsqueeze(1), value.unsqueeze(1))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    queries, batch, size = query.shape
    key_padding_mask = _canonical_mask(key_padding_mask, "key_padding_mask", attn_mask, "attn_mask", query.dtype)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    # The hint spares the mask only where no other mask or result needs it.
    is_causal = is_causal and key_padding_mask is None and not need_weights
    attn_mask = None if is_causal else _canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, False)

    if size != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {size}")
    head_size = size // num_heads
    if head_size * num_heads != size:
        raise AssertionError(f"embed_dim {size} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight and key.shape[:2] != value.shape[:2]:
        raise AssertionError(
            f"key's sequence and batch dims {list(key.shape[:2])} do not match value's {list(value.shape[:2])}"
        )
    if not use_separate_proj_weight and key.shape != value.shape:
        raise AssertionError(f"key shape {list(key.shape)} does not match value shape {list(value.shape)}")

    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _project(query, key, value, in_proj_weight, separate, in_proj_bias)
    if attn_mask is not None:
        _check_mask(attn_mask, batch, num_heads, queries, key.size(0))
    added = 0
    if bias_k is not None and bias_v is not None:
        if static_k is not None:
            raise AssertionError("bias cannot be added to static key.")
        if static_v is not None:
            raise AssertionError("bias cannot be added to static value.")
        k = _ops.cat([k, bias_k.expand(1, batch, -1)])
        v = _ops.cat([v, bias_v.expand(1, batch, -1)])
        added = 1
    elif bias_k is not None:
        raise AssertionError("bias_k is set but bias_v is None")
    elif bias_v is not None:
        raise AssertionError("bias_v is set but bias_k is None")

    q, k, v = (x.unflatten(-1, (num_heads, head_size)).permute(1, 2, 0, 3) for x in (q, k, v))
    if static_k is not None:
        k = _static(static_k, "static_k", batch * num_heads, head_size).unflatten(0, (batch, num_heads))
    if static_v is not None:
        v = _static(static_v, "static_v", batch * num_heads, head_size).unflatten(0, (batch, num_heads))
    if add_zero_attn:
        k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        added += 1
    mask = _joined_masks(attn_mask, key_padding_mask, added, batch, num_heads, k.size(2))

    p = dropout_p if training else 0.0
    weights = None
    if need_weights:
        scores = (q * math.sqrt(1.0 / head_size)) @ k.transpose(-2, -1)
        weights = dropout((scores if mask is None else scores + mask).softmax(-1), p)
        result = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if is_batched else weights.squeeze(0)
    else:
        result = scaled_dot_product_attention(q, k, v, mask, p, is_causal)
    result = linear(result.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    return result if is_batched else result.squeeze(1), weights


def _joined_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, added: int, batch: int, heads: int, keys: int
) -> Tensor | None:
    """Returns the sum of the masks, for scores `[batch, heads, queries, keys]`. Added keys are never masked."""
    if attn_mask is not None:
        attn_mask = pad(attn_mask, (0, added)) if added else attn_mask
        attn_mask = attn_mask.unflatten(0, (batch, heads)) if attn_mask.dim() == 3 else attn_mask
    if key_padding_mask is None:
        return attn_mask
    key_padding_mask = pad(key_padding_mask, (0, added)) if added else key_padding_mask
    for dim, wanted in enumerate((batch, keys)):
        if key_padding_mask.size(dim) != wanted:
            raise AssertionError(
                f"Expected key_padded_mask.shape[{dim}] to be {wanted}, but got {key_padding_mask.size(dim)}"
            )
    key_padding_mask = key_padding_mask.reshape((batch, 1, 1, keys))
    return key_padding_mask if attn_mask is None else attn_mask + key_padding_mask
