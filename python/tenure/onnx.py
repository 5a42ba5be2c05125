"""Export of modules and functions as ONNX models, which ONNX Runtime and other programs run.

The function is run, and the operations that it calls on tensors become nodes of the graph. So conditions and loops of
Python are not in the graph, and elements that Python reads (`item()`, `if tensor`) are refused.

Examples
--------
>>> import tenure
>>> from tenure import nn, onnx
>>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
>>> onnx.export(
...     model,
...     (tenure.ones(2, 4),),
...     "/tmp/example.onnx",
...     input_names=["rows"],
...     output_names=["scores"],
...     dynamic_axes={"rows": {0: "batch"}},
... )
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from tenure._errors import Error
from tenure._exporting import IS_EXPORTING
from tenure._native import Tensor, export_onnx
from tenure.nn.module import Module

__all__ = ["export", "is_in_onnx_export"]

_PACKAGE = str(Path(__file__).parent)


def export(
    model: Module | Callable[..., Any],
    args: Tensor | Sequence[Tensor],
    f: str | os.PathLike[str] | IO[bytes],
    *,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    opset_version: int = 18,
    external_data: bool | None = None,
) -> None:
    """Writes a module, or a function of tensors, as an ONNX model.

    Parameters
    ----------
    model
        The module or function. It takes tensors, and returns a tensor, or tensors in tuples, lists and dictionaries,
        also one within the other: the outputs are the tensors in their order. Call `eval()` on a module first.
    args
        Tensors to run it with, which are copied. Each is an input, also where one tensor is given twice.
    f
        The file's path, or an object with `write`, such as `io.BytesIO`, if no second file is needed.
    input_names, output_names
        Names of the inputs and outputs; without, `input_0`, `output_0` and so on.
    dynamic_axes
        The axes whose size varies: for the name of an input, the axes and names for their sizes, or only the axes.
        Axes of one name have the same size. The function is run five more times with other sizes of these. For an
        output, only the names are taken: its dynamic axes follow from those of the inputs, and the named ones must be
        among them.
    opset_version
        The version of ONNX's operators, from 18 to 23.
    external_data
        Whether the parameters are written to a second file, `f` with `.data` at the end. By default they are if they
        have more than 2 GB.

    Raises
    ------
    TypeError
        The function returns something else than tensors and `None`, or no tensor.
    tenure.Error
        An operation has no counterpart in ONNX, or not with these arguments; the function reads elements of tensors,
        makes tensors of Python's numbers, writes through a view, or calls other operations with other sizes; a number
        depends on dynamic axes by no formula.
    ValueError
        `f` is a stream, and the parameters need a second file.
    """
    if not isinstance(f, str | os.PathLike):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(
                model,
                args,
                path,
                input_names=input_names,
                output_names=output_names,
                dynamic_axes=dynamic_axes,
                opset_version=opset_version,
                external_data=external_data,
            )
            if path.with_name("model.onnx.data").exists():
                raise ValueError("the parameters need a second file: give export() the path of a file")
            f.write(path.read_bytes())
        return
    inputs = [_copy(tensor) for tensor in ((args,) if isinstance(args, Tensor) else args)]
    axes = [
        (tensor, axis, name)
        for tensor, named in (dynamic_axes or {}).items()
        for axis, name in (
            named.items() if isinstance(named, Mapping) else ((axis, f"{tensor}_dynamic_axes_{axis}") for axis in named)
        )
    ]
    names = [*model.named_parameters(), *model.named_buffers()] if isinstance(model, Module) else []
    limit = None if external_data is None else 0 if external_data else sys.maxsize

    interrupted: list[BaseException] = []

    def function(*inputs: Tensor) -> list[Tensor]:
        # Another run would follow an error with some sizes.
        if interrupted:
            raise interrupted[0]
        try:
            outputs = list(_tensors(model(*inputs)))
        except BaseException as error:
            if not isinstance(error, Exception):
                interrupted.append(error)
            raise
        if not outputs:
            raise TypeError("the function returns no tensor, so the model would have no output")
        return outputs

    token = IS_EXPORTING.set(True)
    try:
        export_onnx(
            function, inputs, f, list(input_names), list(output_names), axes, opset_version, names, limit, _running_line
        )
    except Error as error:
        if interrupted:
            raise interrupted[0] from error
        raise
    finally:
        IS_EXPORTING.reset(token)


def is_in_onnx_export() -> bool:
    """Returns whether `export` runs the program, so that it reads no elements of tensors."""
    return IS_EXPORTING.get()


def _copy(tensor: Tensor) -> Tensor:
    """Copies an argument: each is an input of its own, apart from the tensors that the function has otherwise."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _tensors(result: Any) -> Iterator[Tensor]:
    """Yields the tensors of a function's result in their order."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for part in result.values():
            yield from _tensors(part)
    elif isinstance(result, list | tuple):
        for part in result:
            yield from _tensors(part)
    elif result is not None:
        kind = type(result).__name__
        raise TypeError(f"the function must return tensors, also in tuples, lists and dictionaries, but returns {kind}")


def _running_line() -> str | None:
    """Returns the line of the program, outside of this package, that runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code.co_filename
        if not code.startswith(_PACKAGE):
            return f"{code}:{frame.f_lineno}"
        frame = frame.f_back
    return None
