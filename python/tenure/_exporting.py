"""Whether an export runs, for modules that choose their path by the elements of tensors."""

from __future__ import annotations

from contextvars import ContextVar

#: True while `tenure.onnx.export` runs a function.
IS_EXPORTING: ContextVar[bool] = ContextVar("tenure_is_exporting", default=False)
