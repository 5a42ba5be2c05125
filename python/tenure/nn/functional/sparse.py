"""Dropout, embeddings, attention, and rearrangements of images."""

from __future__ import annotations

from collections.abc import Callable

from tenure import _operations as _ops
from tenure._native import Tensor
from tenure._native import bool as _bool

__all__ = [
    "alpha_dropout",
    "channel_shuffle",
    "cosine_similarity",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "embedding",
    "one_hot",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "scaled_dot_product_attention",
]


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, sets each element to 0 with the probability `p`, and divides the others by 1 - `p`."""
    if inplace:
        return input.copy_(_ops.dropout(input.clone(), p, training))
    return _ops.dropout(input, p, training)


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _dropout_nd(dims: int) -> Callable[..., Tensor]:
    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """In training, sets each channel to 0 with the probability `p`, and divides the others by 1 - `p`."""
        _check_probability(p)
        if not training:
            return input
        channels = tuple(input.shape[: input.ndim - dims])
        ones = _ops.ones(channels + (1,) * dims, dtype=input.dtype, device=input.device)
        kept = _ops.dropout(ones, p, True)
        return input.mul_(kept) if inplace else input * kept

    return drop


dropout1d, dropout2d, dropout3d = _dropout_nd(1), _dropout_nd(2), _dropout_nd(3)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Drops elements so that mean and variance stay as they are: for networks with `selu`."""
    _check_probability(p)
    if not training or p == 0.0:
        return input
    alpha = 1.7580993408473766
    kept = _ops.bernoulli(_ops.full_like(input.detach(), 1.0 - p))
    scale = 0.0 if p == 1.0 else ((alpha**2 * p + 1) * (1 - p)) ** -0.5
    result = input * kept * scale + ((kept - 1) * alpha + alpha * p) * scale
    return input.copy_(result) if inplace else result


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Selects rows of `weight` by index. Row `padding_idx` gets no gradient."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding takes neither max_norm nor scale_grad_by_freq nor sparse: leave them out")
    if padding_idx is None:
        return _ops.embedding(weight, input)
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return _ops.embedding(weight, input, padding_idx % count)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Returns for each element a vector of `num_classes` numbers, 1 at the element and 0 elsewhere."""
    if num_classes == -1:
        if tensor.numel() == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(tensor.max().item()) + 1
    return _ops.one_hot(tensor, num_classes)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Computes, for each query, the mean of the values weighted by its attention to their keys."""
    if attn_mask is not None and attn_mask.dtype != _bool:
        attn_mask = attn_mask.to(query.dtype)
    return _ops.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Computes the cosine of the angle between vectors along a dimension."""
    norms = [_ops.vector_norm(x, 2.0, dim, True).clamp_min(eps) for x in (x1, x2)]
    return ((x1 / norms[0]) * (x2 / norms[1])).sum(dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Computes the `p`-norm of the differences of vectors, plus `eps`."""
    return _ops.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _check_pixels(name: str, input: Tensor, factor_name: str, factor: int) -> None:
    if input.dim() < 3:
        raise RuntimeError(
            f"{name} expects input to have at least 3 dimensions, but got input with {input.dim()} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{name} expects a positive {factor_name}, but got {factor}")


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Makes images larger: `[..., C r², H, W]` to `[..., C, H r, W r]`."""
    _check_pixels("pixel_shuffle", input, "upscale_factor", upscale_factor)
    *batch, channels, height, width = input.shape
    r = upscale_factor
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {r * r}"
        )
    parts = input.reshape((-1, channels // (r * r), r, r, height, width)).permute((0, 1, 4, 2, 5, 3))
    return parts.reshape((*batch, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Makes images smaller: `[..., C, H r, W r]` to `[..., C r², H, W]`."""
    _check_pixels("pixel_unshuffle", input, "downscale_factor", downscale_factor)
    *batch, channels, height, width = input.shape
    r = downscale_factor
    for name, dim in (("height", -2), ("width", -1)):
        if input.size(dim) % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, "
                f"but input.size({dim})={input.size(dim)} is not divisible by {r}"
            )
    parts = input.reshape((-1, channels, height // r, r, width // r, r)).permute((0, 1, 3, 5, 2, 4))
    return parts.reshape((*batch, channels * r * r, height // r, width // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Mixes the channels of groups: takes one channel of each group in turn."""
    batch, channels, *rest = input.shape
    return input.reshape((batch, groups, channels // groups, -1)).transpose(1, 2).reshape((batch, channels, *rest))
