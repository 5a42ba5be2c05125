"""CUDA devices by PyTorch's names: streams, events, memory and graphs.

Devices are opened when they are first used. Where there is no device, `is_available()` is false, and what needs one
raises a `RuntimeError` that says why.

Examples
--------
>>> import tenure
>>> if tenure.cuda.is_available():
...     print(tenure.cuda.get_device_name(), tenure.cuda.memory_allocated())
"""

from tenure._native import Generator
from tenure.cuda import graphs, memory, random, streams
from tenure.cuda._devices import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from tenure.cuda.graphs import (
    CUDAGraph,
    GraphPool,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from tenure.cuda.memory import (
    OutOfMemoryError,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from tenure.cuda.random import (
    _generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from tenure.cuda.streams import Event, ExternalStream, Stream, current_stream, default_stream, set_stream, stream

__all__ = [
    "CUDAGraph",
    "DeviceProperties",
    "Event",
    "ExternalStream",
    "GraphPool",
    "OutOfMemoryError",
    "Stream",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "graphs",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "random",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
]

#: The default generators of all GPUs.
default_generators: tuple[Generator, ...]


def __getattr__(name: str) -> tuple[Generator, ...]:
    if name == "default_generators":
        return _generators()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
