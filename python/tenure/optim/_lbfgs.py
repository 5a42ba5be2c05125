"""L-BFGS. Its constructor and its state are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from tenure import _native
from tenure import _operations as _ops
from tenure._native import Tensor, asarray, float64, int64, tensor
from tenure.autograd import enable_grad
from tenure.optim._optimizer import Optimizer, ParamsT
from tenure.optim._rules import check_lr


class LBFGS(Optimizer):
    """L-BFGS (Liu and Nocedal, 1989), a quasi-Newton method for functions without noise.

    There is one group of parameters, which all have the same dtype and device.

    Parameters
    ----------
    params : iterable
        Parameters, or pairs of a name and a parameter.
    lr : float, default 1
        The length of an iteration in directions, or of the first try of a line search.
    max_iter : int, default 20
        The largest number of iterations in a step.
    max_eval : int, default None
        The number of calls of the closure after which a step ends; by default 5/4 of `max_iter`.
    tolerance_grad : float, default 1e-7
        The largest absolute element of a gradient at which a step ends.
    tolerance_change : float, default 1e-9
        The change of the loss, or the largest change of an element, at which a step ends.
    history_size : int, default 100
        The number of earlier iterations that the direction depends on. Each takes twice the parameters' memory.
    line_search_fn : {"strong_wolfe"}, default None
        Whether the length of each iteration is searched for, so that it fulfils the strong Wolfe conditions.

    Examples
    --------
    >>> import tenure
    >>> x = tenure.tensor([4.0], requires_grad=True)
    >>> optimizer = tenure.optim.LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (x - 1).square().sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item()
    9.0
    >>> x.tolist()
    [1.0]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_lr(lr)
        defaults: dict[str, Any] = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)

    def _make_state(self) -> None:
        self._native = _native.Lbfgs()
        self.state = _State(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves the parameters to a lower value of a function.

        Parameters
        ----------
        closure : callable
            A function that drops the gradients, computes the loss, calls its `backward`, and returns it. It is called
            several times. If it raises an exception, so does the step.

        Returns
        -------
        The first loss.
        """
        if closure is None:
            raise TypeError("LBFGS computes the loss several times in a step: call step(closure)")
        (group,) = self.param_groups
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        first: list[Any] = []

        def evaluate() -> float:
            with enable_grad():
                loss = closure()
            if not first:
                first.append(loss)
            return float(loss)

        self._native.step(group, evaluate)
        return first[0]

    def _load_state(self, state: dict[Any, Any]) -> None:
        self._make_state()
        for param, values in state.items():
            self.state[param] = values


class _State(MutableMapping[Tensor, Any]):
    """The state, which the first parameter has, as in PyTorch: a view of what Rust's optimizer has."""

    def __init__(self, optimizer: LBFGS) -> None:
        self._optimizer = optimizer

    def _own(self) -> dict[str, Tensor]:
        """Returns Rust's state; nothing before the first step."""
        own = dict(self._optimizer._native.state())
        return own if own["func_evals"].item() > 0 else {}

    def _first(self) -> Tensor:
        first: Tensor = self._optimizer.param_groups[0]["params"][0]
        return first

    def __getitem__(self, param: Tensor) -> dict[str, Any]:
        own = self._own()
        if param is not self._first() or not own:
            raise KeyError("LBFGS has its state for the first parameter, after the first step")
        values: dict[str, Any] = {name: int(own[name].item()) for name in ("func_evals", "n_iter")}
        if "d" not in own:
            return values
        changes, steps = (list(own[name].unbind(0)) if name in own else [] for name in ("old_dirs", "old_stps"))
        curvatures = [change.dot(step) for change, step in zip(changes, steps, strict=True)]
        return values | {
            "d": own["d"],
            "t": own["t"].item(),
            "old_dirs": changes,
            "old_stps": steps,
            "ro": [1.0 / curvature for curvature in curvatures],
            "H_diag": curvatures[-1] / changes[-1].dot(changes[-1]) if changes else 1,
            "prev_flat_grad": own["prev_flat_grad"],
        }

    def __setitem__(self, param: Tensor, values: Any) -> None:
        if param is not self._first():
            raise KeyError("LBFGS has its state for the first parameter")
        own = {name: tensor(int(values[name]), dtype=int64) for name in ("n_iter", "func_evals")}
        if values.get("d") is not None:
            own |= {name: asarray(values[name]) for name in ("d", "prev_flat_grad")}
            own["t"] = tensor(float(values["t"]), dtype=float64)
            if values["old_dirs"]:
                own |= {name: _ops.stack([asarray(row) for row in values[name]]) for name in ("old_dirs", "old_stps")}
        self._optimizer._native.load(self._optimizer.param_groups[0], list(own), list(own.values()))

    def __delitem__(self, param: Tensor) -> None:
        if param not in self:
            raise KeyError("LBFGS has its state for the first parameter, after the first step")
        self._optimizer._native = _native.Lbfgs()

    def __contains__(self, param: object) -> bool:
        return any(param is own for own in self)

    def __iter__(self) -> Iterator[Tensor]:
        if self._own():
            yield self._first()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))
