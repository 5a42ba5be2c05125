"""The base class of optimizers: groups of parameters, their state, and hooks."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, MutableMapping
from copy import deepcopy
from itertools import chain
from typing import Any

from tenure._native import Tensor, asarray

#: What optimizers are made of: parameters, parameters with their names, or groups of either.
ParamsT = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]


class HookHandle:
    """A hook that was registered. `remove` removes it."""

    def __init__(self, hooks: dict[int, Any], hook: object) -> None:
        self._hooks = hooks
        self._number = max(hooks, default=-1) + 1
        hooks[self._number] = hook

    def remove(self) -> None:
        """Removes the hook."""
        self._hooks.pop(self._number, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `step` with the optimizer's hooks called around it."""

    @functools.wraps(step)
    def hooked(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        for hook in list(self._step_pre_hooks.values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(f"a hook before step must return None or (args, kwargs), not {changed!r}")
                args, kwargs = changed
        result = step(self, *args, **kwargs)
        self._was_stepped = True
        for hook in list(self._step_post_hooks.values()):
            hook(self, args, kwargs)
        return result

    return hooked


class Optimizer:
    """The base class of optimizers. Subclasses in Python override `step`.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor), or of dict
        The parameters, or groups of them with settings of their own.
    defaults : dict
        The settings of groups that have none of their own.

    Attributes
    ----------
    param_groups : list of dict
        The groups: each has its parameters in ``"params"``, and its settings, which every step reads again.
    state : mapping
        The state of each parameter.
    """

    state: MutableMapping[Tensor, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {type(params).__module__}.{type(params).__name__}"
            )
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self._step_pre_hooks: dict[int, Callable[..., Any]] = OrderedDict()
        self._step_post_hooks: dict[int, Callable[..., Any]] = OrderedDict()
        self._was_stepped = False
        self._make_state()
        groups: list[Any] = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def _make_state(self) -> None:
        self.state = defaultdict(dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, for example of layers that are trained from now on.

        Parameters
        ----------
        param_group : dict
            ``"params"``, and settings that differ from the defaults.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections: a set has no order")
        params = list(params)
        names = [param[0] for param in params if isinstance(param, tuple)]
        if names:
            if len(names) != len(params):
                raise ValueError("all optimizer params should be with/without names. Some param names are missing")
            params = [param for _, param in params]
        if self.param_groups and ("param_names" in self.param_groups[0]) != bool(names):
            raise ValueError("all optimizer param groups should be with/without names")
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(param).__name__}")
            if not (param.is_leaf or self.defaults.get("differentiable")):
                raise ValueError("can't optimize a non-leaf Tensor")
        known = {id(param) for group in self.param_groups for param in group["params"]}
        if not known.isdisjoint(map(id, params)):
            raise ValueError("some parameters appear in more than one parameter group")
        if len({id(param) for param in params}) < len(params):
            raise ValueError("optimizer contains a parameter group with duplicate parameters")
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        param_group["params"] = params
        if names:
            param_group["param_names"] = names
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters.

        Parameters
        ----------
        set_to_none : bool, default True
            If False, the gradients are kept and become zero.
        """
        for param in self._params():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad = param.grad.detach().zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient.

        Parameters
        ----------
        closure : callable, default None
            A function that computes the loss, and the gradients. It is called before the update.

        Returns
        -------
        The loss, if there is a closure.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in PyTorch's layout: parameters are numbered in the order of the groups."""
        numbers = {id(param): number for number, param in enumerate(self._params())}
        groups = []
        first = 0
        for group in self.param_groups:
            count = len(group["params"])
            settings = {name: value for name, value in group.items() if name != "params"}
            groups.append(settings | {"params": list(range(first, first + count))})
            first += count
        state = {
            numbers[id(key)] if isinstance(key, Tensor) else key: dict(value) if isinstance(key, Tensor) else value
            for key, value in self.state.items()
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state that `state_dict` returned; also from one of the same optimizer of PyTorch.

        Parameters
        ----------
        state_dict : dict
            The state. Its tensors may be those of any library that shares them through DLPack. They are copied.
        """
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        lengths = zip(self.param_groups, saved, strict=True)
        if any(len(group["params"]) != len(other["params"]) for group, other in lengths):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        numbers = chain.from_iterable(group["params"] for group in saved)
        params = dict(zip(numbers, self._params(), strict=True))
        for group, other in zip(self.param_groups, saved, strict=True):
            kept = {name: group[name] for name in ("params", "param_names") if name in group}
            group.update(deepcopy({name: value for name, value in other.items() if name not in kept}))
        self._load_state({params.get(number, number): value for number, value in state_dict["state"].items()})

    def _load_state(self, state: dict[Any, Any]) -> None:
        self._make_state()
        for key, value in state.items():
            if isinstance(key, Tensor):
                value = {name: _cast(key, name, item) for name, item in value.items()}
            self.state[key] = value

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Calls ``hook(optimizer, args, kwargs)`` before every step. It may return other ``(args, kwargs)``."""
        return HookHandle(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Calls ``hook(optimizer, args, kwargs)`` after every step."""
        return HookHandle(self._step_post_hooks, hook)

    def _params(self) -> Iterable[Any]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


def _cast(param: Tensor, name: str, value: Any) -> Any:
    """Returns a value of a loaded state as a tensor like the parameter, if it is one."""
    if not hasattr(value, "__dlpack__"):
        return deepcopy(value)
    tensor = asarray(value, copy=True)
    return tensor if name == "step" else tensor.to(param.device, param.dtype)
