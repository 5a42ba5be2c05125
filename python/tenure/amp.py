"""Mixed precision: matrix products in 16-bit floats, and the scaling of losses that float16 needs.

Examples
--------
>>> import tenure
>>> x = tenure.ones(2, 2)
>>> with tenure.amp.autocast("cpu", dtype=tenure.bfloat16):
...     product = x @ x
>>> product.dtype
tenure.bfloat16
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import _native
from tenure._native import Tensor, bfloat16, dtype, float16
from tenure.autograd import _Setting
from tenure.optim import Optimizer

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]

_DEFAULT_DTYPES = {"cpu": bfloat16, "cuda": float16}


class autocast(_Setting):
    """The thread's operations compute in a 16-bit dtype where that is enough: a context manager and a decorator.

    Parameters
    ----------
    device_type : str
        ``"cuda"`` or ``"cpu"``. It decides the default dtype. The setting holds for tensors on all devices.
    dtype : dtype, default None
        `float16` or `bfloat16`; by default `float16` for CUDA, `bfloat16` for the CPU.
    enabled : bool, default True
        If False, dtypes are left as they are, also within another `autocast`.
    cache_enabled : bool, default None
        Changes nothing: parameters are always converted once for all uses.
    """

    def __init__(
        self,
        device_type: str,
        dtype: dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__()
        if device_type not in _DEFAULT_DTYPES:
            raise RuntimeError(
                f"User specified an unsupported autocast device_type {device_type!r}: use 'cpu' or 'cuda'"
            )
        chosen = _DEFAULT_DTYPES[device_type] if dtype is None else dtype
        if enabled and chosen not in (float16, bfloat16):
            raise ValueError(f"autocast computes in float16 or bfloat16, not in {chosen}")
        self._dtype = chosen if enabled else None

    def _enter(self) -> int:
        return _native.enter_autocast(self._dtype)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Returns whether the thread is within an enabled `autocast`. `device_type` changes nothing."""
    return _native.autocast_dtype() is not None


def get_autocast_dtype(device_type: str) -> Any:
    """Returns the dtype of the thread's `autocast`, or the default one of a type of device."""
    return _native.autocast_dtype() or _DEFAULT_DTYPES[device_type]


class GradScaler:
    """Scales losses up before `backward` and gradients down after it, and skips steps whose gradients are not finite.

    Parameters
    ----------
    device : str, default "cuda"
        Changes nothing.
    init_scale : float, default 65536
        The first scale.
    growth_factor : float, default 2
        The factor of the scale after `growth_interval` steps without a skipped one.
    backoff_factor : float, default 0.5
        The factor of the scale after a skipped step.
    growth_interval : int, default 2000
    enabled : bool, default True
        If False, nothing is scaled, and no step skipped.

    Examples
    --------
    >>> import tenure
    >>> x = tenure.tensor([4.0], requires_grad=True)
    >>> optimizer = tenure.optim.SGD([x], lr=0.25)
    >>> scaler = tenure.amp.GradScaler()
    >>> scaler.scale((x * x).sum()).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> x.tolist()
    [2.0]
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1.0:
            raise ValueError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise ValueError("The backoff factor must be < 1.0.")
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        #: Whether the gradients were finite, for each optimizer whose gradients were scaled down since `update`.
        self._unscaled: dict[int, bool] = {}
        self._stepped: set[int] = set()

    def scale(self, outputs: Tensor | Iterable[Any]) -> Any:
        """Returns a loss, or several, times the scale.

        Parameters
        ----------
        outputs : Tensor, or iterable of Tensor
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(output) for output in outputs)  # type: ignore[call-arg]

    def unscale_(self, optimizer: Optimizer) -> None:
        """Scales the gradients of an optimizer down, so that they can be clipped before `step`.

        Gradients that are not all finite stay as they are; `step` is skipped then.

        Parameters
        ----------
        optimizer : Optimizer
        """
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._unscaled:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._unscaled[id(optimizer)] = _native.unscale_gradients(params, self._scale)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Steps an optimizer if its gradients are finite. Scales them down before, unless `unscale_` has.

        Parameters
        ----------
        optimizer : Optimizer
        *args, **kwargs
            The arguments of the optimizer's `step`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs) if self._unscaled[id(optimizer)] else None

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapts the scale, after the steps of all optimizers.

        Parameters
        ----------
        new_scale : float, default None
            The scale to go on with.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._unscaled:
            raise RuntimeError("No inf checks were recorded prior to update.")
        elif not all(self._unscaled.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                self._scale *= self._growth_factor
                self._growth_tracker = 0
        self._unscaled.clear()
        self._stepped.clear()

    def is_enabled(self) -> bool:
        """Returns whether losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Returns the scale; 1 if it is not enabled."""
        return self._scale if self._enabled else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in PyTorch's layout."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state that `state_dict` returned.

        Parameters
        ----------
        state_dict : dict
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]
