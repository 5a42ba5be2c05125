"""Multi-head attention."""

from __future__ import annotations

import math

from tenure import _operations as _ops
from tenure._native import Tensor, device, dtype
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.functional.attention import _canonical_mask
from tenure.nn.linear import Linear
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of several heads between sequences (Vaswani et al., 2017).

    Parameters
    ----------
    embed_dim : int
        The size of queries and results.
    num_heads : int
        A divisor of `embed_dim`.
    dropout : float, default 0.0
        The probability of dropping an attention weight in training.
    bias : bool, default True
    add_bias_kv : bool, default False
        Whether one more key and value are learned.
    add_zero_attn : bool, default False
        Whether one more key and value are zeros.
    kdim : int, default None
        The size of keys: by default `embed_dim`.
    vdim : int, default None
        The size of values: by default `embed_dim`.
    batch_first : bool, default False
        Whether sequences are `[batch, length, size]`, rather than `[length, batch, size]`.
    device : device or str, default None
    dtype : dtype, default None

    Attributes
    ----------
    in_proj_weight : Parameter or None
        The projections of queries, keys and values, `[3 * embed_dim, embed_dim]`; or, if keys or values have other
        sizes, `q_proj_weight`, `k_proj_weight` and `v_proj_weight`.
    in_proj_bias : Parameter or None
        `[3 * embed_dim]`.
    out_proj : Linear
        The projection of the heads' results.

    Examples
    --------
    >>> import tenure
    >>> attention = tenure.nn.MultiheadAttention(8, num_heads=2, batch_first=True)
    >>> x = tenure.ones(3, 5, 8)
    >>> result, weights = attention(x, x, x)
    >>> result.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, "
                f"got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")

        def parameter(*sizes: int) -> Parameter:
            return Parameter(_ops.empty(sizes, dtype=dtype, device=device))

        is_packed = self._qkv_same_embed_dim
        self.register_parameter("q_proj_weight", None if is_packed else parameter(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if is_packed else parameter(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if is_packed else parameter(embed_dim, self.vdim))
        self.register_parameter("in_proj_weight", parameter(3 * embed_dim, embed_dim) if is_packed else None)
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        with init._skipped():
            self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = parameter(1, 1, embed_dim) if add_bias_kv else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Draws the projections of the inputs, then that of the result, then the added key and value."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        init.kaiming_uniform_(self.out_proj.weight, a=math.sqrt(5))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                init.xavier_normal_(added)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention of `query` to `key`, and returns the weighted values.

        Parameters
        ----------
        query : Tensor
            `[length, batch, embed_dim]`, or `[batch, length, embed_dim]` if `batch_first`; one sequence has no batch.
        key : Tensor
        value : Tensor
        key_padding_mask : Tensor, default None
            `[batch, keys]`: true at keys that no query attends to, or numbers that are added to scores.
        need_weights : bool, default True
            Whether weights are returned. Without them, attention takes less memory and time.
        attn_mask : Tensor, default None
            `[queries, keys]` or `[batch * num_heads, queries, keys]`: true where a query does not attend to a key, or
            numbers that are added to scores.
        average_attn_weights : bool, default True
            Whether the weights are the mean of the heads.
        is_causal : bool, default False
            Whether `attn_mask` is known to be causal: it must be given nevertheless.

        Returns
        -------
        Tensor
            The result, with the sizes of `query`.
        Tensor or None
            The weights, `[batch, queries, keys]`; with a dimension of heads before `queries` unless averaged.
        """
        key_padding_mask = _canonical_mask(key_padding_mask, "key_padding_mask", attn_mask, "attn_mask", query.dtype)
        attn_mask = _canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, False)
        is_transposed = self.batch_first and query.dim() == 3
        if is_transposed:
            # The same tensor stays the same, so that it is projected once.
            transposed = {id(x): x.transpose(1, 0) for x in (query, key, value)}
            query, key, value = (transposed[id(x)] for x in (query, key, value))
        result, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return result.transpose(1, 0) if is_transposed else result, weights
