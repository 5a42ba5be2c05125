"""Models whose weights are copied to a GPU while they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree

from tenure.torch import SwitchedModel, Switcher


class SwitchedModels:
    """The models of a `Switcher`, with inputs and answers on the CPU."""

    def __init__(
        self, builders: Mapping[str, Callable[[], Any]], device: str, device_bytes: int, host_bytes: int
    ) -> None:
        self._switcher = Switcher(device, device_bytes=device_bytes, host_bytes=host_bytes)
        self._models: dict[str, SwitchedModel] = {}
        self._bytes: dict[str, int] = {}
        for name, builder in builders.items():
            module = builder().eval()
            tensors = [*module.parameters(), *module.buffers()]
            self._bytes[name] = sum(tensor.nbytes for tensor in tensors)
            self._models[name] = self._switcher.add(name, module)

    def call(self, name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Computes a model's answer. Input tensors come from the CPU, and answers are moved there."""
        with torch.inference_mode():
            inputs, named = _moved((inputs, named), self._switcher.device)
            return _moved(self._models[name](*inputs, **named), torch.device("cpu"))

    def resident(self) -> list[str]:
        """Returns the names of the models that are on the device, or on their way there."""
        return [name for name, model in self._models.items() if model.is_resident]

    def bytes_of(self, name: str) -> int:
        """Returns the bytes of a model's weights."""
        return self._bytes[name]


def _moved(values: Any, device: torch.device) -> Any:
    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return _pytree.tree_map(move, values)
