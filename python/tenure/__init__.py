"""A tensor memory runtime: PyTorch programs that hold no more GPU memory than they ask for.

========================  ============================================================================
`tenure.torch`            stock PyTorch on Tenure's allocator
`tenure.ray`              models on a Ray cluster, each asked where it is already
`tenure.devices`          what devices there are, what is on them, how they are linked
`tenure.memory`           what this process holds on its devices
`tenure.trace`            what a program did with its memory, and what another allocator would have
                          made of it
`tenure.plan`             in which tier of memory each tensor of a program lives
========================  ============================================================================

`tenure.torch` and `tenure.ray` are imported by their names, since they import PyTorch and Ray.
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
