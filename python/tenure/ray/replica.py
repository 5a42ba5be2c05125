"""A replica: answers requests to any of the models, and keeps those on its device that fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from ray import serve

from tenure import Error
from tenure.ray.host import HostModels

#: A function that makes a model's module.
Builder: TypeAlias = Callable[[], Any]


class Models(Protocol):
    """Models of which some are resident on a device."""

    def call(self, name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Computes a model's answer."""

    def resident(self) -> list[str]:
        """Returns the names of models that are on the device now. Does not wait for calls."""

    def bytes_of(self, name: str) -> int:
        """Returns the bytes of a model's weights; 0 if they are not known yet."""


class ModelReplica:
    """Answers Ray Serve's requests to many models, within a limit of bytes for weights."""

    def __init__(self, models: Mapping[str, Builder], *, device: str, device_bytes: int, host_bytes: int) -> None:
        self._names = tuple(models)
        self._models: Models
        if device == "cpu":
            self._models = HostModels(models, device_bytes)
        else:
            from tenure.ray.switched import SwitchedModels

            self._models = SwitchedModels(models, device, device_bytes, host_bytes)

    async def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Calls the model that the request names, with the request's arguments."""
        name = serve.get_multiplexed_model_id()
        if name not in self._names:
            asked = f"there is no model {name!r}" if name else "the request names no model"
            raise Error(f"{asked}: call handle.options(multiplexed_model_id=...) with one of {', '.join(self._names)}")
        return await asyncio.to_thread(self._models.call, name, inputs, named)

    def record_routing_stats(self) -> dict[str, Any]:
        """Reports to Ray Serve's routers the resident models, and the bytes of all models."""
        sizes = {name: self._models.bytes_of(name) for name in self._names}
        return {"resident": self._models.resident(), "bytes": sizes}
