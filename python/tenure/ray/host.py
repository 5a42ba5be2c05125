"""Models in the host's memory, within a limit of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from tenure import Error


class HostModels:
    """Makes models when they are called, and drops the least recently called ones when there is no room.

    Calls take turns.
    """

    def __init__(self, builders: Mapping[str, Callable[[], Any]], limit_bytes: int) -> None:
        self._builders = builders
        self._limit_bytes = limit_bytes
        #: The resident models, the least recently called first.
        self._resident: OrderedDict[str, Any] = OrderedDict()
        self._bytes = dict.fromkeys(builders, 0)
        self._lock = threading.Lock()

    def call(self, name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Computes a model's answer.

        Raises
        ------
        tenure.Error
            The model alone takes more than the limit.
        """
        with self._lock:
            if name not in self._resident:
                self._make_room(self._bytes[name])
                model = self._builders[name]()
                self._bytes[name] = _bytes_of(model)
                if self._bytes[name] > self._limit_bytes:
                    raise Error(
                        f"model {name!r} has {self._bytes[name]} bytes of weights, and device_bytes is "
                        f"{self._limit_bytes}: raise it to at least the model's"
                    )
                self._make_room(self._bytes[name])
                self._resident[name] = model
            self._resident.move_to_end(name)
            return self._resident[name](*inputs, **named)

    def resident(self) -> list[str]:
        """Returns the names of the resident models."""
        return list(self._resident)

    def bytes_of(self, name: str) -> int:
        """Returns the bytes of a model's weights; 0 before it was made."""
        return self._bytes[name]

    def _make_room(self, wanted_bytes: int) -> None:
        while self._resident and sum(map(self.bytes_of, self._resident)) + wanted_bytes > self._limit_bytes:
            self._resident.popitem(last=False)


def _bytes_of(model: Any) -> int:
    return sum(tensor.nbytes for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
