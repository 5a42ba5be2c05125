"""A tensor memory runtime: PyTorch programs that hold no more GPU memory than they ask for.

========================  ============================================================================
`tenure.torch`            stock PyTorch on Tenure's allocator
`tenure.ray`              models on a Ray cluster, each request sent to a replica that has its model
`tenure.devices`          the devices, the processes on them, and the links between them
`tenure.memory`           the memory that this process holds on its devices
`tenure.trace`            recordings of a program's memory use, and their replay on other
                          allocators
`tenure.plan`             planning of the memory tier for each tensor of a program
========================  ============================================================================

`tenure.torch` and `tenure.ray` must be imported by name, since they import PyTorch and Ray.
"""

from tenure import memory, plan, trace
from tenure._devices import Cpu, Device, Devices, Link, Process, devices
from tenure._errors import DeviceError, Error, OutOfMemoryError, TraceError
from tenure._native import VERSION as __version__

__all__ = [
    "Cpu",
    "Device",
    "DeviceError",
    "Devices",
    "Error",
    "Link",
    "OutOfMemoryError",
    "Process",
    "TraceError",
    "__version__",
    "devices",
    "memory",
    "plan",
    "trace",
]
