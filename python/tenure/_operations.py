"""The functions of the table of operations. `_operations.pyi` declares them for type checkers."""

from tenure._native import operation_functions

_functions = operation_functions()
globals().update(_functions)
# `tenure.trace` is a module, and `tenure.tensordot` takes PyTorch's forms of `dims`.
__all__ = [name for name in _functions if name not in ("tensordot", "trace")]
