"""`Module`: the base of all layers and models."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from tenure._native import Tensor, bfloat16, device, dtype, float16, float32, float64
from tenure.nn import _state
from tenure.nn._attributes import ModuleAttributes
from tenure.nn._hooks import BackwardHooks, Handle
from tenure.nn.parameter import Parameter

__all__ = ["Module"]


def _forward_unimplemented(self: Module, *args: Any, **kwargs: Any) -> Any:
    """Computes the result. Each module defines it."""
    raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')


class Module(ModuleAttributes):
    """A layer or model: parameters, buffers and further modules in its attributes, and `forward`, which computes.

    Examples
    --------
    >>> import tenure
    >>> from tenure import nn
    >>> class Model(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden = nn.Linear(4, 8)
    ...         self.out = nn.Linear(8, 2)
    ...
    ...     def forward(self, x):
    ...         return self.out(self.hidden(x).relu())
    >>> model = Model()
    >>> model(tenure.ones(3, 4)).shape
    (3, 2)
    >>> list(model.state_dict())
    ['hidden.weight', 'hidden.bias', 'out.weight', 'out.bias']
    """

    forward: Callable[..., Any] = _forward_unimplemented

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = None
        remaining = [(number, hook) for number, hook in self._forward_hooks.items()]
        try:
            for hook, with_kwargs in list(self._forward_pre_hooks.values()):
                found = hook(self, args, kwargs) if with_kwargs else hook(self, args)
                if found is not None and with_kwargs:
                    args, kwargs = found
                elif found is not None:
                    args = found if isinstance(found, tuple) else (found,)
            backward = None
            if self._backward_hooks or self._backward_pre_hooks:
                before = list(self._backward_pre_hooks.values())
                backward = BackwardHooks(self, before, list(self._backward_hooks.values()))
                args = backward.watch_inputs(args)
            result = self.forward(*args, **kwargs)
            while remaining:
                _, (after, with_kwargs, _) = remaining.pop(0)
                found = after(self, args, kwargs, result) if with_kwargs else after(self, args, result)
                result = result if found is None else found
            return backward.watch_outputs(result) if backward else result
        except Exception:
            for _, (after, with_kwargs, always_call) in remaining:
                if always_call:
                    _ = after(self, args, kwargs, result) if with_kwargs else after(self, args, result)
            raise

    # Modules, parameters and buffers

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yields this module and all in it, with their paths. A module in two places comes once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yields this module and all in it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields the modules in this module's attributes, with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yields the modules in this module's attributes."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        modules = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in modules:
            for name, tensor in module.__dict__[table].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yields the parameters of this module and, if `recurse`, of all in it, with their paths."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yields the parameters of this module and, if `recurse`, of all in it."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields the buffers of this module and, if `recurse`, of all in it, with their paths."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yields the buffers of this module and, if `recurse`, of all in it."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """Returns the module at a path such as ``"layers.0.norm"``."""
        found: Module = self
        for name in target.split(".") if target else ():
            if not hasattr(found, name):
                raise AttributeError(f"{type(found).__name__} has no attribute `{name}`")
            found = getattr(found, name)
            if not isinstance(found, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return found

    def get_parameter(self, target: str) -> Parameter:
        """Returns the parameter at a path such as ``"layers.0.weight"``."""
        found = self._member(target)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{target}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """Returns the buffer at a path such as ``"layers.0.running_mean"``."""
        path, _, name = target.rpartition(".")
        found: Tensor = self._member(target)
        if name not in self.get_submodule(path)._buffers:
            raise AttributeError(f"`{target}` is not a buffer")
        return found

    def _member(self, target: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        return getattr(module, name)

    # State

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Returns the parameters and persistent buffers by path, on the memory of the module's own.

        Parameters
        ----------
        destination : dict, default None
            The dictionary to add to; by default a new one.
        prefix : str, default ""
            The beginning of all paths.
        keep_vars : bool, default False
            Whether the module's own tensors are returned, which require gradients.
        """
        state = OrderedDict() if destination is None else destination
        self._save_to_state_dict(state, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=state, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return state

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, tensor in _state.own_state(self).items():
            if tensor is not None:
                destination[prefix + name] = tensor if keep_vars else tensor.detach()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _state.IncompatibleKeys:
        """Copies tensors to the parameters and buffers of the same paths.

        Parameters
        ----------
        state_dict : mapping of str to Tensor
            The values. Arrays of other libraries, such as PyTorch's tensors, are taken as well.
        strict : bool, default True
            Whether a path that only the mapping or only the module has is an error.
        assign : bool, default False
            Whether the tensors become the module's own, rather than being copied.

        Returns
        -------
        named tuple
            `missing_keys` and `unexpected_keys`.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        names = _state.IncompatibleKeys([], [])
        errors: list[str] = []
        self._load(state_dict, "", strict, assign, names, errors)
        _state.raise_errors(self, strict, names, errors)
        return names

    def _load(
        self,
        state: Mapping[str, Any],
        prefix: str,
        strict: bool,
        assign: bool,
        names: _state.IncompatibleKeys,
        errors: list[str],
    ) -> None:
        metadata = {"assign_to_params_buffers": assign}
        missing, unexpected = names
        self._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        for name, module in self._modules.items():
            if module is not None:
                module._load(state, f"{prefix}{name}.", strict, assign, names, errors)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        _state.load_own(self, state_dict, prefix, assign, missing_keys, error_msgs)
        if strict:
            unexpected_keys += _state.unexpected_keys(self, state_dict, prefix)

    # Changes of all parameters and buffers

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> Self:
        for module in self.children():
            module._apply(fn)
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            data, grad = parameter.data, parameter.grad
            changed = fn(data)
            # Replaced data takes the gradient and its hooks away, so nothing is replaced without need.
            if changed is not data:
                parameter.data = changed
                parameter.grad = None if grad is None else fn(grad.detach())
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(
        self,
        *args: Any,
        dtype: dtype | None = None,
        device: device | str | None = None,
        non_blocking: bool = False,
        memory_format: str | None = None,
    ) -> Self:
        """Moves parameters and buffers to a device, and converts those of floating-point numbers to a dtype.

        Parameters
        ----------
        *args : dtype, device or Tensor
            The dtype and the device; a tensor stands for its own.
        dtype : dtype, default None
        device : device or str, default None
        non_blocking : bool, default False
            Changes nothing, and warns once, as in `Tensor.to`.
        memory_format : str, default None
            The order in memory of tensors of four dimensions, or of five.
        """
        wanted = dtype
        for argument in args:
            if isinstance(argument, Tensor):
                wanted, device = argument.dtype, argument.device
            elif isinstance(argument, _Dtype):
                wanted = argument
            elif isinstance(argument, bool):
                non_blocking = argument
            elif argument is not None:
                device = argument
        if wanted is not None and wanted not in (bfloat16, float16, float32, float64):
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={wanted}")

        def moved(tensor: Tensor) -> Tensor:
            of = wanted if tensor.is_floating_point() else None
            layout = memory_format if tensor.ndim in (4, 5) else None
            return tensor.to(dtype=of, device=device, non_blocking=non_blocking, memory_format=layout)

        return self._apply(moved)

    def _converted(self, wanted: dtype) -> Self:
        return self._apply(lambda tensor: tensor.to(wanted) if tensor.is_floating_point() else tensor)

    def float(self) -> Self:
        """Converts floating-point parameters and buffers to `float32`."""
        return self._converted(float32)

    def double(self) -> Self:
        """Converts floating-point parameters and buffers to `float64`."""
        return self._converted(float64)

    def half(self) -> Self:
        """Converts floating-point parameters and buffers to `float16`."""
        return self._converted(float16)

    def bfloat16(self) -> Self:
        """Converts floating-point parameters and buffers to `bfloat16`."""
        return self._converted(bfloat16)

    def type(self, dst_type: dtype) -> Self:
        """Converts all parameters and buffers to a dtype."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def cuda(self, device: device | str | int | None = None) -> Self:
        """Moves parameters and buffers to a CUDA device: device 0, or the given one."""
        return self._apply(lambda tensor: tensor.cuda(device))

    def cpu(self) -> Self:
        """Moves parameters and buffers to the CPU."""
        return self._apply(lambda tensor: tensor.cpu())

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls a function with every module in this one, then with this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets whether this module and all in it compute as in training."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Makes this module and all in it compute as in evaluation."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets whether the parameters get gradients."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients of all parameters, or sets them to zeros."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else parameter.grad.detach().zero_()

    # Hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Runs `hook(module, args)`, or `hook(module, args, kwargs)`, before `forward`. It may return arguments."""
        return self._forward_pre_hooks.register((hook, with_kwargs), prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> Handle:
        """Runs `hook(module, args, result)`, or `hook(module, args, kwargs, result)`, after `forward`.

        It may return another result. If `always_call`, it runs also if `forward` raises an exception.
        """
        return self._forward_hooks.register((hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Runs `hook(module, grad_output)` in the backward pass. It may return other gradients of the result."""
        return self._backward_pre_hooks.register(hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Runs `hook(module, grad_input, grad_output)` in the backward pass. It may return another `grad_input`."""
        return self._backward_hooks.register(hook, prepend)

    # Text

    def extra_repr(self) -> str:
        """Returns the settings that `repr` shows."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indented(repr(module))}" for name, module in self._modules.items()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({extra})"
        inside = "\n  ".join(lines + children)
        return f"{self._get_name()}(\n  {inside}\n)"

    def _repr_html_(self) -> str:
        from tenure.nn._html import module_html

        return module_html(self)


# The methods and parameters of `Module` have the names of dtypes.
_Dtype = dtype


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
