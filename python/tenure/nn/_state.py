"""State dictionaries: parameters and buffers by name, as files keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tenure._native import Tensor, asarray
from tenure.autograd import no_grad
from tenure.nn.parameter import Parameter

if TYPE_CHECKING:
    from tenure.nn.module import Module


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class IncompatibleKeys(_Keys):
    """The names that a state dictionary lacked, and the ones that the module lacked."""

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


def as_tensor(value: Any) -> Tensor | None:
    """Returns a tensor, or an array of another library as a tensor. `None` if it is neither."""
    if isinstance(value, Tensor):
        return value
    return asarray(value) if hasattr(value, "__dlpack__") or hasattr(value, "__array__") else None


def own_state(module: Module) -> dict[str, Tensor | None]:
    """Returns the parameters and persistent buffers of a module itself."""
    temporary = module._non_persistent_buffers_set
    buffers = {name: buffer for name, buffer in module._buffers.items() if name not in temporary}
    return {**module._parameters, **buffers}


def load_own(
    module: Module,
    state: Mapping[str, Any],
    prefix: str,
    assign: bool,
    missing: list[str],
    errors: list[str],
) -> None:
    """Copies values to the parameters and buffers of a module itself."""
    for name, target in own_state(module).items():
        if target is None:
            continue
        key = prefix + name
        if key not in state:
            missing.append(key)
            continue
        source = as_tensor(state[key])
        if source is None:
            errors.append(
                f'While copying the parameter named "{key}", expected tenure.Tensor or Tensor-like object from '
                f"checkpoint but received {type(state[key])}"
            )
        elif tuple(source.shape) != tuple(target.shape):
            errors.append(
                f"size mismatch for {key}: copying a param with shape {list(source.shape)} from checkpoint, "
                f"the shape in current model is {list(target.shape)}."
            )
        elif assign:
            _assign(module, name, target, source)
        else:
            with no_grad():
                target.copy_(source)


def _assign(module: Module, name: str, target: Tensor, source: Tensor) -> None:
    if name in module._buffers:
        module._buffers[name] = source
    elif isinstance(source, Parameter):
        module._parameters[name] = source
    else:
        module._parameters[name] = Parameter(source, requires_grad=target.requires_grad)


def unexpected_keys(module: Module, state: Iterable[str], prefix: str) -> list[str]:
    """Returns the names below `prefix` that neither the module itself nor a module in it has."""
    own = own_state(module)
    found = []
    for key in state:
        if not key.startswith(prefix):
            continue
        first, *rest = key[len(prefix) :].split(".", 1)
        if first not in module._modules if rest else first not in own:
            found.append(key)
    return found


def raise_errors(module: Module, strict: bool, names: IncompatibleKeys, errors: list[str]) -> None:
    """Raises PyTorch's error if loading failed."""
    texts = list(errors)
    if strict:
        for kind, keys in (("Unexpected", names.unexpected_keys), ("Missing", names.missing_keys)):
            if keys:
                quoted = ", ".join(f'"{key}"' for key in keys)
                texts.insert(0, f"{kind} key(s) in state_dict: {quoted}. ")
    if texts:
        joined = "\n\t".join(texts)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{joined}")
