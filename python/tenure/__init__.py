"""A tensor memory runtime: tensors with gradients, and PyTorch programs that hold no more GPU memory than they ask for.

========================  ============================================================================
`tenure.Tensor`           tensors, and functions on them by PyTorch's names: `tenure.zeros`, `tenure.matmul`, ...
`tenure.array_api`        the functions of the Python array API standard, on tensors
`tenure.autograd`         gradients of tensors
`tenure.data`             data sets, samplers, and a loader of batches with worker processes
`tenure.linalg`           decompositions, solvers and norms of matrices
`tenure.random`           the seed and the state of random numbers
`tenure.safetensors`      tensors in files, and `tenure.save` and `tenure.load` of state dicts
`tenure.nn`               layers and models
`tenure.onnx`             export of modules and functions as ONNX models
`tenure.optim`            optimizers and schedulers of learning rates
`tenure.amp`              mixed precision
`tenure.extension`        functions in C++, compiled while the program runs
`tenure.cuda`             CUDA devices: streams, events, memory and graphs
`tenure.distributions`    probability distributions
`tenure.profiler`         the time and memory of operations, and traces that Perfetto opens
`tenure.backends`         whether products and convolutions may take `float32` as TF32
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

import importlib as _importlib
import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from tenure._operations import *  # noqa: F403
from tenure._operations import __all__ as _operation_names

# isort: split
from tenure import _array_methods as _array_methods
from tenure import _html as _html
from tenure import autograd, backends, memory, plan, random, trace
from tenure._devices import Cpu, Device, Devices, Link, Process, devices
from tenure._errors import DeviceError, Error, OutOfMemoryError, TraceError
from tenure._functions import as_tensor, from_numpy, is_tensor, tensordot
from tenure._native import VERSION as __version__
from tenure._native import (
    Generator,
    Tensor,
    asarray,
    bfloat16,
    bool,
    device,
    dtype,
    float16,
    float32,
    float64,
    from_dlpack,
    frombuffer,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    tensor,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tenure.autograd import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from tenure.backends import get_float32_matmul_precision, set_float32_matmul_precision
from tenure.random import default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

#: PyTorch's other names of dtypes.
half, float, double = float16, float32, float64
short, int, long = int16, int32, int64

inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None

#: The orders of elements in memory, by PyTorch's names.
contiguous_format, preserve_format = "contiguous_format", "preserve_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"

if _TYPE_CHECKING:
    from tenure import (
        amp,
        array_api,
        budgets,
        cuda,
        data,
        distributions,
        extension,
        linalg,
        nn,
        onnx,
        optim,
        profiler,
        safetensors,
    )
    from tenure.amp import autocast
    from tenure.budgets import budget
    from tenure.safetensors import load, save

# Modules, and functions of modules, that are imported when they are first used: `import tenure` takes half as long.
_MODULES = (
    "amp",
    "array_api",
    "budgets",
    "cuda",
    "data",
    "distributions",
    "extension",
    "linalg",
    "nn",
    "onnx",
    "optim",
    "profiler",
    "safetensors",
)
_FUNCTIONS = {"autocast": "amp", "budget": "budgets", "load": "safetensors", "save": "safetensors"}


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _importlib.import_module(f"tenure.{name}")
    if name in _FUNCTIONS:
        value = getattr(_importlib.import_module(f"tenure.{_FUNCTIONS[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tenure' has no attribute {name!r}")


__all__ = [
    *_operation_names,
    "Cpu",
    "Device",
    "DeviceError",
    "Devices",
    "Error",
    "Generator",
    "Link",
    "OutOfMemoryError",
    "Process",
    "Tensor",
    "TraceError",
    "__version__",
    "amp",
    "array_api",
    "as_tensor",
    "asarray",
    "autocast",
    "autograd",
    "backends",
    "budget",
    "budgets",
    "bfloat16",
    "bool",
    "cuda",
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "data",
    "extension",
    "default_generator",
    "device",
    "devices",
    "distributions",
    "double",
    "dtype",
    "e",
    "enable_grad",
    "float",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "frombuffer",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_rng_state",
    "half",
    "inf",
    "initial_seed",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "is_tensor",
    "linalg",
    "load",
    "long",
    "manual_seed",
    "memory",
    "nan",
    "newaxis",
    "nn",
    "no_grad",
    "onnx",
    "optim",
    "pi",
    "plan",
    "preserve_format",
    "profiler",
    "promote_types",
    "random",
    "safetensors",
    "save",
    "seed",
    "set_default_dtype",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_rng_state",
    "short",
    "tensor",
    "tensordot",
    "trace",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
