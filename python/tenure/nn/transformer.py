"""Transformers (Vaswani et al., 2017): their layers, stacks of layers, and encoder and decoder together."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from tenure import _operations as _ops
from tenure._exporting import IS_EXPORTING
from tenure._native import Tensor, device, dtype
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.attention import MultiheadAttention
from tenure.nn.containers import ModuleList
from tenure.nn.functional.attention import _canonical_mask
from tenure.nn.linear import Linear
from tenure.nn.module import Module
from tenure.nn.norm import LayerNorm
from tenure.nn.shape import Dropout

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

_Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _causal_mask(size: int, device: device | str | None = None, dtype: dtype | None = None) -> Tensor:
    return _ops.full((size, size), -math.inf, dtype=dtype, device=device).triu(1)


def _is_causal(mask: Tensor | None, is_causal: bool | None, input: Tensor, batch_first: bool) -> bool:
    """Returns whether a mask is causal: as the caller says, or else by its values, which an export does not read."""
    if is_causal is not None or mask is None or IS_EXPORTING.get():
        return bool(is_causal)
    size = input.size(1 if batch_first and input.dim() == 3 else 0)
    return mask.shape == (size, size) and bool((mask == _causal_mask(size, mask.device, mask.dtype)).all())


class _TransformerLayer(Module):
    """Attentions and a network of two linear layers, each with a residual connection and a norm."""

    _attentions: tuple[str, ...]

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: _Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **made))
        self.linear1 = Linear(d_model, dim_feedforward, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **made)
        self.norm_first = norm_first
        parts = range(1, len(self._attentions) + 2)
        for part in parts:
            setattr(self, f"norm{part}", LayerNorm(d_model, eps=layer_norm_eps, **made))
        for part in parts:
            setattr(self, f"dropout{part}", Dropout(dropout))
        if isinstance(activation, str):
            if activation not in _ACTIVATIONS:
                raise RuntimeError(f"activation should be relu/gelu, not {activation}")
            activation = _ACTIVATIONS[activation]
        self.activation = activation

    def _residual(self, x: Tensor, norm: Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Adds what a block computes, and normalises the block's input or the sum."""
        result: Tensor = x + block(norm(x)) if self.norm_first else norm(x + block(x))
        return result

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        found, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False, is_causal=is_causal
        )
        result: Tensor = self.dropout1(found)
        return result

    def _ff_block(self, x: Tensor) -> Tensor:
        x = self.linear2(self.dropout(self.activation(self.linear1(x))))
        dropped: Tensor = getattr(self, f"dropout{len(self._attentions) + 1}")(x)
        return dropped


class TransformerEncoderLayer(_TransformerLayer):
    """Attention of a sequence to itself, then a network of two linear layers.

    Parameters
    ----------
    d_model : int
        The size of inputs and results.
    nhead : int
        The number of heads.
    dim_feedforward : int, default 2048
        The size between the two linear layers.
    dropout : float, default 0.1
    activation : str or callable, default `functional.relu`
        ``"relu"``, ``"gelu"``, or a function of one tensor.
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
        Whether sequences are `[batch, length, size]`, rather than `[length, batch, size]`.
    norm_first : bool, default False
        Whether inputs of attention and network are normalised, rather than sums.
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    _attentions = ("self_attn",)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Computes the layer, with the masks of `MultiheadAttention`."""
        padding = _canonical_mask(src_key_padding_mask, "src_key_padding_mask", src_mask, "src_mask", src.dtype)
        mask = _canonical_mask(src_mask, "src_mask", None, "", src.dtype, False)
        x = self._residual(src, self.norm1, lambda x: self._sa_block(x, mask, padding, is_causal))
        return self._residual(x, self.norm2, self._ff_block)


class TransformerDecoderLayer(_TransformerLayer):
    """Attention of a sequence to itself, then to an encoder's result, then a network of two linear layers.

    Parameters
    ----------
    d_model : int
    nhead : int
    dim_feedforward : int, default 2048
    dropout : float, default 0.1
    activation : str or callable, default `functional.relu`
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
    norm_first : bool, default False
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None

    See Also
    --------
    TransformerEncoderLayer : Explains the parameters.
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Computes the layer from `tgt` and the encoder's result `memory`, with the masks of `MultiheadAttention`."""

        def to_itself(x: Tensor) -> Tensor:
            return self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def to_memory(x: Tensor) -> Tensor:
            return self._mha_block(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal)

        x = self._residual(tgt, self.norm1, to_itself)
        x = self._residual(x, self.norm2, to_memory)
        return self._residual(x, self.norm3, self._ff_block)

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        found, _ = self.multihead_attn(
            x, mem, mem, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False, is_causal=is_causal
        )
        result: Tensor = self.dropout2(found)
        return result


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """A stack of encoder layers.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        The layer that is copied.
    num_layers : int
    norm : Module, default None
        Normalises the result.
    enable_nested_tensor : bool, default True
        Changes nothing: there are no nested tensors.
    mask_check : bool, default True
        Changes nothing.

    Examples
    --------
    >>> import tenure
    >>> from tenure import nn
    >>> layer = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> nn.TransformerEncoder(layer, num_layers=2)(tenure.ones(3, 5, 8)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Computes the layers one after the other. Unless `is_causal` says so, the values of `mask` tell."""
        padding = _canonical_mask(src_key_padding_mask, "src_key_padding_mask", mask, "mask", src.dtype)
        mask = _canonical_mask(mask, "mask", None, "", src.dtype, False)
        is_causal = _is_causal(mask, is_causal, src, self.layers[0].self_attn.batch_first)
        output = src
        for layer in self.layers:
            output = layer(output, src_mask=mask, is_causal=is_causal, src_key_padding_mask=padding)
        return output if self.norm is None else self.norm(output)


class TransformerDecoder(Module):
    """A stack of decoder layers.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        The layer that is copied.
    num_layers : int
    norm : Module, default None
        Normalises the result.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Computes the layers one after the other. Unless `tgt_is_causal` says so, the values of `tgt_mask` tell."""
        tgt_is_causal = _is_causal(tgt_mask, tgt_is_causal, tgt, self.layers[0].self_attn.batch_first)
        output = tgt
        for layer in self.layers:
            output = layer(
                output,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=tgt_is_causal,
                memory_is_causal=memory_is_causal,
            )
        return output if self.norm is None else self.norm(output)


class Transformer(Module):
    """An encoder of one sequence, and a decoder of another one that attends to it.

    Parameters
    ----------
    d_model : int, default 512
    nhead : int, default 8
    num_encoder_layers : int, default 6
    num_decoder_layers : int, default 6
    dim_feedforward : int, default 2048
    dropout : float, default 0.1
    activation : str or callable, default `functional.relu`
    custom_encoder : Module, default None
        Takes the place of the encoder.
    custom_decoder : Module, default None
        Takes the place of the decoder.
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
    norm_first : bool, default False
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None

    See Also
    --------
    TransformerEncoderLayer : Explains the parameters of layers.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: _Activation = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first)
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        if custom_encoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, **made)
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*layer, **made), num_encoder_layers, norm)
        self.encoder = custom_encoder
        if custom_decoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, **made)
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*layer, **made), num_decoder_layers, norm)
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                init.xavier_uniform_(parameter)

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: device | str | None = None, dtype: dtype | None = None
    ) -> Tensor:
        """Returns a causal mask: minus infinity above the diagonal, and zeros elsewhere."""
        return _causal_mask(sz, device, dtype)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Encodes `src`, and decodes `tgt` with it. Masks are those of `MultiheadAttention`."""
        batch = 0 if self.batch_first else 1
        if src.dim() == 3 and src.size(batch) != tgt.size(batch):
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.size(-1) != self.d_model or tgt.size(-1) != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        result: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
        return result
