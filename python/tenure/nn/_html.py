"""HTML of modules, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenure._html import line, size, table

if TYPE_CHECKING:
    from tenure.nn.module import Module

#: The most modules that a table shows.
_MOST_ROWS = 200


def module_html(module: Module) -> str:
    """Returns a table of a module and those within it, with the sizes, number and bytes of their parameters."""
    rows: list[tuple[str, str, str, str, str]] = []
    depths: list[int] = []
    left_out = 0
    for name, depth, inner in _tree(module, "", 0):
        if len(rows) == _MOST_ROWS:
            left_out += 1
            continue
        parameters = list(inner.parameters())
        sizes = [f"{own}: {tuple(tensor.shape)}" for own, tensor in inner.named_parameters(recurse=False)]
        count = sum(tensor.numel() for tensor in parameters)
        held = sum(tensor.nbytes for tensor in parameters)
        title = f"({name}): " if name else ""
        settings = " ".join(inner.extra_repr().split())
        rows.append((f"{title}{inner._get_name()}", settings, ", ".join(sizes), f"{count:,}", size(held)))
        depths.append(depth)
    parts = [table(("Module", "Settings", "Own parameters", "Parameters", "Size"), rows, texts=3, indents=depths)]
    if left_out:
        parts.append(line(f"{left_out} more modules"))
    return "".join([*parts, line(_totals(module))])


def _tree(module: Module, name: str, depth: int) -> Iterator[tuple[str, int, Module]]:
    yield name, depth, module
    for inner_name, inner in module.named_children():
        yield from _tree(inner, inner_name, depth + 1)


def _totals(module: Module) -> str:
    parameters = list(module.parameters())
    buffers = list(module.buffers())
    trainable = sum(tensor.numel() for tensor in parameters if tensor.requires_grad)
    devices = sorted({str(tensor.device) for tensor in (*parameters, *buffers)})
    facts = [
        f"{sum(tensor.numel() for tensor in parameters):,} parameters ({trainable:,} trainable)",
        f"{size(sum(tensor.nbytes for tensor in parameters))} of parameters",
        f"{size(sum(tensor.nbytes for tensor in buffers))} of buffers",
        *devices,
        "training" if module.training else "evaluation",
    ]
    return ", ".join(facts)
