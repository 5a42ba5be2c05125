"""Cells: one step of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tenure import _operations as _ops
from tenure._native import Tensor, device, dtype
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]

_State = tuple[Tensor, ...]
_Step = Callable[..., _State]


def _rnn_step(activation: Callable[[Tensor], Tensor]) -> _Step:
    def step(projected: Tensor, state: _State, weight: Tensor, bias: Tensor | None) -> _State:
        return (activation(projected + F.linear(state[0], weight, bias)),)

    return step


def _lstm_step(
    projected: Tensor, state: _State, weight: Tensor, bias: Tensor | None, projection: Tensor | None = None
) -> _State:
    h, c = state
    i, f, g, o = (projected + F.linear(h, weight, bias)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if projection is None else F.linear(h, projection), c)


def _gru_step(projected: Tensor, state: _State, weight: Tensor, bias: Tensor | None) -> _State:
    (h,) = state
    input_r, input_z, input_n = projected.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = F.linear(h, weight, bias).chunk(3, -1)
    n = (input_n + (input_r + hidden_r).sigmoid() * hidden_n).tanh()
    return (n + (input_z + hidden_z).sigmoid() * (h - n),)


# The step of each mode, and the number of its gates. A step takes the projected input and the state before it.
_STEPS: dict[str, tuple[_Step, int]] = {
    "RNN_TANH": (_rnn_step(_ops.tanh), 1),
    "RNN_RELU": (_rnn_step(_ops.relu), 1),
    "LSTM": (_lstm_step, 4),
    "GRU": (_gru_step, 3),
}


def _reset(module: Module, hidden_size: int) -> None:
    """Draws all parameters from -1 / √hidden_size to 1 / √hidden_size."""
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class RNNCellBase(Module):
    """The base of `RNNCell`, `LSTMCell` and `GRUCell`.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    bias : bool
    num_chunks : int
        The number of gates.
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = num_chunks * hidden_size

        def parameter(*sizes: int) -> Parameter:
            return Parameter(_ops.empty(sizes, dtype=dtype, device=device))

        self.weight_ih, self.weight_hh = parameter(gates, input_size), parameter(gates, hidden_size)
        self.register_parameter("bias_ih", parameter(gates) if bias else None)
        self.register_parameter("bias_hh", parameter(gates) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters from -1 / √hidden_size to 1 / √hidden_size."""
        _reset(self, self.hidden_size)

    def _run(self, mode: str, input: Tensor, state: Sequence[Tensor] | None, count: int = 1) -> _State:
        """Computes one step from a state of `count` tensors."""
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for index, part in enumerate(state or ()):
            if part.dim() not in (1, 2):
                which = f"hx[{index}]" if count == 2 else "hidden"
                raise ValueError(f"{name}: Expected {which} to be 1D or 2D, got {part.dim()}D instead")
        is_batched = input.dim() == 2
        if not is_batched:
            input = input.unsqueeze(0)
            state = None if state is None else [part.unsqueeze(0) for part in state]
        if state is None:
            state = [_ops.zeros((input.size(0), self.hidden_size), dtype=input.dtype, device=input.device)] * count
        if input.size(1) != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {input.size(1)} expected {self.input_size}")
        for index, part in enumerate(state):
            if part.size(0) != input.size(0):
                raise RuntimeError(
                    f"Input batch size {input.size(0)} doesn't match hidden{index} batch size {part.size(0)}"
                )
            if part.size(1) != self.hidden_size:
                raise RuntimeError(
                    f"hidden{index} has inconsistent hidden_size: got {part.size(1)}, expected {self.hidden_size}"
                )
        step, _ = _STEPS[mode]
        projected = F.linear(input, self.weight_ih, self.bias_ih)
        after = step(projected, tuple(state), self.weight_hh, self.bias_hh)
        return after if is_batched else tuple(part.squeeze(0) for part in after)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        text += "" if self.bias is True else f", bias={self.bias}"
        nonlinearity: Any = self.__dict__.get("nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"


class RNNCell(RNNCellBase):
    """Computes one step of `RNN`.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    bias : bool, default True
    nonlinearity : str, default "tanh"
        ``"tanh"`` or ``"relu"``.
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Returns the state after `hx`, which is by default zeros."""
        mode = f"RNN_{self.nonlinearity.upper()}"
        if mode not in _STEPS:
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        (after,) = self._run(mode, input, None if hx is None else [hx])
        return after


class LSTMCell(RNNCellBase):
    """Computes one step of `LSTM`.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Returns the hidden state and the cell state after `hx`, which are by default zeros."""
        h, c = self._run("LSTM", input, hx, 2)
        return h, c


class GRUCell(RNNCellBase):
    """Computes one step of `GRU`.

    Parameters
    ----------
    input_size : int
    hidden_size : int
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Returns the state after `hx`, which is by default zeros."""
        (after,) = self._run("GRU", input, None if hx is None else [hx])
        return after
