"""The functions of the table of operations. `_operations.pyi` declares them for type checkers."""

from tenure._native import operation_functions

_functions = operation_functions()
globals().update(_functions)
__all__ = list(_functions)
