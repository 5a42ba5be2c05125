"""HTML for notebooks: tensors and tables, without scripts and colours, so that light and dark pages can show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure._native import Tensor, is_stream_capturing

_CELL = 'style="text-align: {align}; padding: 0 1em 0 {indent}em; white-space: {space}"'


def escaped(text: object) -> str:
    """Returns a text whose characters stand for themselves in HTML."""
    import html

    return html.escape(str(text))


def size(count: int) -> str:
    """Returns a number of bytes as a text with a unit."""
    number = float(count)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"


def line(text: str) -> str:
    """Returns a line of small text."""
    return f'<div style="font-size: 90%; opacity: 0.75">{escaped(text)}</div>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1, indents: Sequence[int] | None = None
) -> str:
    """Returns a table.

    Parameters
    ----------
    head : sequence of str
        The titles of the columns.
    rows : iterable of sequences
        The cells.
    texts : int, default 1
        The number of columns of text, which are first; figures follow, aligned at the right.
    indents : sequence of int, default None
        The depth of each row in a tree.
    """

    def cell(tag: str, column: int, value: object, depth: int = 0) -> str:
        is_text = column < texts
        style = _CELL.format(
            align="left" if is_text else "right",
            indent=depth * 1.5 if column == 0 else 0,
            space="pre-wrap" if is_text else "nowrap",
        )
        return f"<{tag} {style}>{escaped(value)}</{tag}>"

    lines = ["".join(cell("th", column, title) for column, title in enumerate(head))]
    for number, row in enumerate(rows):
        depth = indents[number] if indents else 0
        lines.append("".join(cell("td", column, value, depth) for column, value in enumerate(row)))
    return '<table style="background: none">' + "".join(f"<tr>{cells}</tr>" for cells in lines) + "</table>"


def _repr_html_(self: Tensor) -> str:
    """Returns the elements, or some of many, and the properties of the tensor, for notebooks.

    Like `repr`, it waits for a device only to copy elements. While a graph is captured it shows properties only.
    """
    facts = [f"shape {tuple(self.shape)}", str(self.dtype), str(self.device), size(self.nbytes)]
    if not self.is_contiguous():
        facts.append(f"strides {tuple(self.stride())}")
    if self.storage_offset():
        facts.append(f"from element {self.storage_offset()} of its storage")
    if self.requires_grad:
        facts.append("requires a gradient" if self.grad_fn is None else f"made by {self.grad_fn.name()}")
    facts_line = line(", ".join(facts))
    if self.is_cuda and is_stream_capturing():
        return facts_line
    return f'<pre style="background: none; margin: 0">{escaped(repr(self))}</pre>{facts_line}'


setattr(Tensor, _repr_html_.__name__, _repr_html_)
