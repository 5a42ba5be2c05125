"""The Python array API standard, version 2025.12: its functions, dtypes and constants, on `tenure.Tensor`.

Functions of `tenure` have PyTorch's names and meanings, which differ from the standard's. Programs for any array
library take this namespace from their arrays:

Examples
--------
>>> import tenure
>>> x = tenure.asarray([3.0, 1.0, 2.0])
>>> xp = x.__array_namespace__()
>>> xp.concat([xp.sort(x), xp.max(x, keepdims=True)])
tensor([1., 2., 3., 3.])

Notes
-----
The complex dtypes, which the standard requires, are missing, and so are the functions that need them: `linalg.eig`,
`linalg.eigvals` and the optional extension `fft`.
"""

import math as _math

from tenure._native import bool, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from tenure.array_api import linalg
from tenure.array_api._binary import *  # noqa: F403
from tenure.array_api._binary import __all__ as _of_binary
from tenure.array_api._creation import *  # noqa: F403
from tenure.array_api._creation import __all__ as _of_creation
from tenure.array_api._data_types import *  # noqa: F403
from tenure.array_api._data_types import __all__ as _of_data_types
from tenure.array_api._info import *  # noqa: F403
from tenure.array_api._info import __all__ as _of_info
from tenure.array_api._linear_algebra import *  # noqa: F403
from tenure.array_api._linear_algebra import __all__ as _of_linear_algebra
from tenure.array_api._manipulation import *  # noqa: F403
from tenure.array_api._manipulation import __all__ as _of_manipulation
from tenure.array_api._searching import *  # noqa: F403
from tenure.array_api._searching import __all__ as _of_searching
from tenure.array_api._statistics import *  # noqa: F403
from tenure.array_api._statistics import __all__ as _of_statistics
from tenure.array_api._unary import *  # noqa: F403
from tenure.array_api._unary import __all__ as _of_unary

__array_api_version__ = "2025.12"

e, inf, nan, pi = _math.e, _math.inf, _math.nan, _math.pi
newaxis = None

__all__ = [
    "__array_api_version__",
    "bool",
    "e",
    "float32",
    "float64",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "linalg",
    "nan",
    "newaxis",
    "pi",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    *_of_binary,
    *_of_creation,
    *_of_data_types,
    *_of_info,
    *_of_linear_algebra,
    *_of_manipulation,
    *_of_searching,
    *_of_statistics,
    *_of_unary,
]
