"""Recurrent layers."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor, autocast_dtype, device, dtype
from tenure.nn import functional as F
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter
from tenure.nn.recurrent_cells import _STEPS, _reset, _State

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]


def _check_sizes(input_size: object, hidden_size: object) -> None:
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if not isinstance(size, int):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")


class RNNBase(Module):
    """The base of `RNN`, `LSTM` and `GRU`.

    Parameters
    ----------
    mode : str
        ``"RNN_TANH"``, ``"RNN_RELU"``, ``"LSTM"`` or ``"GRU"``.
    input_size : int
        The size of an element of the sequence.
    hidden_size : int
        The size of the state.
    num_layers : int, default 1
        The number of layers. Each takes the result of the one before.
    bias : bool, default True
    batch_first : bool, default False
        Whether sequences are `[batch, length, size]`, rather than `[length, batch, size]`. States have layers first.
    dropout : float, default 0.0
        The probability of dropping an element between layers, in training.
    bidirectional : bool, default False
        Whether each layer computes also from the end of the sequence to its beginning.
    proj_size : int, default 0
        The size that an `LSTM` projects its hidden state to; 0 for none.
    device : device or str, default None
    dtype : dtype, default None

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0 : Parameter
        The parameters of layer 0; those of its other direction have the suffix `_reverse`.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being zeroed"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        for name, flag in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")
        _check_sizes(input_size, hidden_size)
        if num_layers <= 0:
            raise ValueError("num_layers must be greater than zero")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if mode not in _STEPS:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size

        gates = _STEPS[mode][1] * hidden_size
        output_size = proj_size or hidden_size
        # The names of the parameters of each direction of each layer.
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[: self._directions]:
                layer_size = input_size if layer == 0 else output_size * self._directions
                sizes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (gates, layer_size),
                    "weight_hh": (gates, output_size),
                }
                if bias:
                    sizes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                if proj_size:
                    sizes |= {"weight_hr": (proj_size, hidden_size)}
                self._all_weights.append([f"{name}_l{layer}{suffix}" for name in sizes])
                for name, each in zip(self._all_weights[-1], sizes.values(), strict=True):
                    setattr(self, name, Parameter(_ops.empty(each, dtype=dtype, device=device)))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each direction of each layer."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def reset_parameters(self) -> None:
        """Draws all parameters from -1 / √hidden_size to 1 / √hidden_size."""
        _reset(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Does nothing: parameters need no common memory."""

    def _check_input(self, input: Tensor) -> None:
        wanted = getattr(self, self._all_weights[0][0]).dtype
        if input.dtype != wanted and autocast_dtype() is None:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({wanted}). "
                f"Convert input: input.to({wanted}), or convert model: model.to({input.dtype})"
            )
        if input.size(-1) != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}"
            )

    def _run(self, input: Tensor, state: Sequence[Tensor] | None) -> tuple[Tensor, _State]:
        """Computes all layers. A single sequence, with its state, becomes a batch of one."""
        batch_dim = 0 if self.batch_first else 1
        is_batched = input.dim() == 3
        if not is_batched:
            input = input.unsqueeze(batch_dim)
            state = None if state is None else [part.unsqueeze(1) for part in state]
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        wanted = [(self.num_layers * self._directions, input.size(batch_dim), size) for size in sizes]
        if state is None:
            state = [_ops.zeros(each, dtype=input.dtype, device=input.device) for each in wanted]
        self._check_input(input)
        for index, (part, each) in enumerate(zip(state, wanted, strict=True)):
            if part.shape != each:
                name = f"hidden[{index}]" if self.mode == "LSTM" else "hidden"
                raise RuntimeError(f"Expected {name} size {each}, got {list(part.shape)}")
        x = input.transpose(0, 1) if self.batch_first else input
        if x.size(0) == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")

        parts = [part.unbind(0) for part in state]
        ends = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                which = layer * self._directions + direction
                before = tuple(part[which] for part in parts)
                output, end = self._run_direction(x, before, self._all_weights[which], direction == 1)
                outputs.append(output)
                ends.append(end)
            x = outputs[0] if len(outputs) == 1 else _ops.cat(outputs, -1)
            if layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        result = x.transpose(0, 1) if self.batch_first else x
        last = tuple(_ops.stack(list(part)) for part in zip(*ends, strict=True))
        if is_batched:
            return result, last
        return result.squeeze(batch_dim), tuple(part.squeeze(1) for part in last)

    def _run_direction(self, x: Tensor, state: _State, names: list[str], is_reverse: bool) -> tuple[Tensor, _State]:
        """Computes one direction of a layer, of a sequence `[length, batch, size]`."""
        weights = {name.rpartition("_l")[0]: getattr(self, name) for name in names}
        weight, bias = weights["weight_hh"], weights.get("bias_hh")
        projection = (weights["weight_hr"],) if self.proj_size else ()
        step, _ = _STEPS[self.mode]
        projected = list(F.linear(x, weights["weight_ih"], weights.get("bias_ih")).unbind(0))
        outputs = []
        for each in reversed(projected) if is_reverse else projected:
            state = step(each, state, weight, bias, *projection)
            outputs.append(state[0])
        return _ops.stack(outputs[::-1] if is_reverse else outputs), state

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0,
            "bidirectional": False,
        }
        for name, default in defaults.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text

    def _check_dimensions(self, input: Tensor, hx: Tensor | None, kind: str = "") -> None:
        """Checks the dimensions of the input, and of the state of `RNN` and `GRU`."""
        if input.dim() not in (2, 3):
            raise ValueError(
                f"{self.mode.partition('_')[0]}: Expected input to be 2D or 3D, got {input.dim()}D{kind} instead"
            )
        if hx is not None and hx.dim() != input.dim():
            batch = "batched" if input.dim() == 3 else "unbatched"
            raise RuntimeError(
                f"For {batch} {input.dim()}-D input, hx should also be {input.dim()}-D but got {hx.dim()}-D tensor"
            )


class RNN(RNNBase):
    """Layers that compute h = tanh(W x + b + W' h' + b') along a sequence, with the state h' before, or `relu` of it.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    num_layers : int, default 1
    nonlinearity : str, default "tanh"
        ``"tanh"`` or ``"relu"``.
    bias : bool, default True
    batch_first : bool, default False
    dropout : float, default 0.0
    bidirectional : bool, default False
    device : device or str, default None
    dtype : dtype, default None

    See Also
    --------
    RNNBase : Explains the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Computes a sequence from the state `hx`, by default zeros, `[layers * directions, batch, hidden_size]`.

        Returns
        -------
        Tensor
            The last layer's state at each element.
        Tensor
            The state of each layer at its end.
        """
        self._check_dimensions(input, hx, " tensor")
        output, (last,) = self._run(input, None if hx is None else [hx])
        return output, last


class LSTM(RNNBase):
    """Layers of long short-term memory (Hochreiter and Schmidhuber, 1997), along a sequence.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    num_layers : int, default 1
    bias : bool, default True
    batch_first : bool, default False
    dropout : float, default 0.0
    bidirectional : bool, default False
    proj_size : int, default 0
    device : device or str, default None
    dtype : dtype, default None

    See Also
    --------
    RNNBase : Explains the parameters.

    Examples
    --------
    >>> import tenure
    >>> lstm = tenure.nn.LSTM(4, 8, num_layers=2, batch_first=True)
    >>> output, (h, c) = lstm(tenure.ones(3, 5, 4))
    >>> output.shape, h.shape, c.shape
    ((3, 5, 8), (2, 3, 8), (2, 3, 8))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Computes a sequence from the hidden state and cell state `hx`, by default zeros.

        Returns
        -------
        Tensor
            The last layer's hidden state at each element.
        tuple of Tensor
            The hidden state and the cell state of each layer at its end.
        """
        self._check_dimensions(input, None)
        if hx is not None and any(part.dim() != input.dim() for part in hx):
            batch = "batched" if input.dim() == 3 else "unbatched"
            raise RuntimeError(
                f"For {batch} {input.dim()}-D input, hx and cx should also be {input.dim()}-D but got "
                f"({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
            )
        output, (h, c) = self._run(input, hx)
        return output, (h, c)


class GRU(RNNBase):
    """Layers of gated recurrent units (Cho et al., 2014), along a sequence.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    num_layers : int, default 1
    bias : bool, default True
    batch_first : bool, default False
    dropout : float, default 0.0
    bidirectional : bool, default False
    device : device or str, default None
    dtype : dtype, default None

    See Also
    --------
    RNNBase : Explains the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Computes a sequence from the state `hx`, as `RNN` does."""
        self._check_dimensions(input, hx)
        output, (last,) = self._run(input, None if hx is None else [hx])
        return output, last
