"""The functions of the table of operations. `_operations.pyi` declares them for type checkers."""

from tenure._native import operation_functions

_functions = operation_functions()
globals().update(_functions)
# `tenure.trace` is a module that can be called, `tenure.tensordot` takes PyTorch's forms of `dims`, and `tenure.linalg`
# has the functions that begin with its name.
__all__ = [name for name in _functions if name not in ("tensordot", "trace") and not name.startswith("linalg_")]
