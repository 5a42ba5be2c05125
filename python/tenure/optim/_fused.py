"""Optimizers whose steps are Rust's, and their state as PyTorch's optimizers have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar

from tenure import _native
from tenure._native import Tensor, asarray, float32, tensor
from tenure.autograd import enable_grad
from tenure.optim._optimizer import Optimizer


class FusedOptimizer(Optimizer):
    """The base class of optimizers whose steps are Rust's.

    A subclass names its rule, which `python/src/tensor/optimizer.rs` makes from a group's settings.
    """

    _rule: ClassVar[str]

    def _counts(self, group: dict[str, Any], steps: int) -> dict[str, Tensor]:
        """Returns the part of a parameter's state that its number of steps determines."""
        return {"step": tensor(float(steps), dtype=float32)}

    def _make_state(self) -> None:
        self._native = _native.Optimizer(self._rule)
        #: The group of each parameter, by its id, and its place there.
        self._places: dict[int, tuple[int, int]] = {}

    # Made anew each time: an optimizer that kept it would be a reference cycle, and live until a collection.
    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """The state of each parameter."""
        return _State(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in ("amsgrad", "differentiable"):
            if param_group.get(name, self.defaults.get(name)):
                raise ValueError(f"{name} is not supported: use {name}=False")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        first = sum(len(group["params"]) for group in self.param_groups[:-1])
        numbers = range(first, first + len(group["params"]))
        self._native.add_group(group, group.get("param_names", [str(number) for number in numbers]))
        places = {id(param): (len(self.param_groups) - 1, index) for index, param in enumerate(group["params"])}
        self._places.update(places)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._native.step(self.param_groups)
        return loss

    def _load_state(self, state: dict[Any, Any]) -> None:
        for param in self._params():
            self.state.pop(param, None)
        for param, value in state.items():
            self.state[param] = value


class _State(MutableMapping[Tensor, Any]):
    """The state of all parameters: a view of what Rust's optimizer has."""

    def __init__(self, optimizer: FusedOptimizer) -> None:
        self._optimizer = optimizer

    def __getitem__(self, param: Tensor) -> _ParameterState:
        place = self._optimizer._places.get(id(param))
        if place is None:
            raise KeyError("the optimizer has no such parameter")
        return _ParameterState(self._optimizer, place)

    def __setitem__(self, param: Tensor, values: Any) -> None:
        self[param].replace(dict(values))

    def __delitem__(self, param: Tensor) -> None:
        self[param].replace({})

    def __contains__(self, param: object) -> bool:
        place = self._optimizer._places.get(id(param))
        return place is not None and len(_ParameterState(self._optimizer, place)) > 0

    def __iter__(self) -> Iterator[Tensor]:
        return (param for param in self._optimizer._params() if param in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class _ParameterState(MutableMapping[str, Any]):
    """The state of a parameter: a view, whose tensors are those that the steps update."""

    def __init__(self, optimizer: FusedOptimizer, place: tuple[int, int]) -> None:
        self._optimizer = optimizer
        self._place = place

    def _values(self) -> dict[str, Any]:
        optimizer = self._optimizer
        steps, slots = optimizer._native.state(*self._place)
        counts = optimizer._counts(optimizer.param_groups[self._place[0]], steps) if slots else {}
        return counts | dict(slots)

    def replace(self, values: dict[str, Any]) -> None:
        """Takes over other values."""
        optimizer = self._optimizer
        values = {name: value for name, value in values.items() if value is not None}
        steps = int(float(values.pop("step", 1 if values else 0)))
        for name in optimizer._counts(optimizer.param_groups[self._place[0]], 0):
            values.pop(name, None)
        names = optimizer._native.slot_names(optimizer.param_groups, *self._place)
        if values and set(names) != set(values):
            raise ValueError(f"the state of a parameter has {sorted(values)}: {sorted(names)} are expected")
        slots = [asarray(values[name]) for name in names if values]
        optimizer._native.set_state(optimizer.param_groups, *self._place, steps, slots)

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.replace(self._values() | {name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("a parameter's state is whole: delete that of the parameter")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return repr(self._values())
