"""Models for a switcher, and operations that compute on the host, for tests on a simulated GPU.

The simulated GPU copies bytes, but its kernels compute nothing: operations compute here, on the host, with the bytes
that their tensors have on the device.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import tenure.torch

MIB = 1 << 20
CHUNK = 16 * MIB


#: Operations that return views where they can.
COPYING = [torch.ops.aten.to, torch.ops.aten.contiguous, torch.ops.aten.reshape]


class OnHost(TorchDispatchMode):
    """Computes on the host with the tensors' bytes on the device, and puts the results there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        is_view = function.is_view and function.overloadpacket not in COPYING
        is_made_there = torch.device(kwargs.get("device") or "cpu").type == "cuda"
        if is_view or not (is_made_there or any(tensor.is_cuda for tensor in tensors_of((args, kwargs)))):
            return function(*args, **kwargs)
        copies = {tensor: on_host(tensor) for tensor in tensors_of((args, kwargs)) if tensor.is_cuda}
        target = kwargs.pop("device", None) or "cuda"
        moved = tree_map_only(Tensor, lambda tensor: copies.get(tensor, tensor), (args, kwargs))
        made = function(*moved[0], **moved[1])
        if function._schema.is_mutable:
            written = args[0]
            assert written.is_contiguous()
            written.copy_(copies[written])
            return written
        return tree_map_only(Tensor, lambda tensor: on(target, tensor), made)


def on_host(tensor: Tensor) -> Tensor:
    """Returns a tensor's elements on the host, with the same strides: the copy goes byte by byte."""
    if tensor.is_contiguous():
        return tensor.cpu()
    storage = torch.empty(0, dtype=torch.uint8, device="cuda").set_(tensor.untyped_storage()).cpu().untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def on(device: Any, tensor: Tensor) -> Tensor:
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return (tensor if is_last else tensor.contiguous()).to(device)


def tensors_of(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, values)
    return found


@contextmanager
def computing() -> Iterator[None]:
    torch.backends.cudnn.enabled = False
    with sdpa_kernel(SDPBackend.MATH), OnHost():
        yield


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + x)


def resnet() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    # Channels last, as for tensor cores.
    return model.to(memory_format=torch.channels_last), torch.randn(2, 3, 8, 8)


class Language(nn.Module):
    """A language model: tied weights, a buffer of integers outside the state, a parameter that its parent takes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 50, bias=False)
        self.embed = nn.Embedding(50, 16)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.scale = nn.Linear(16, 16)
        self.register_buffer("positions", torch.arange(32) % 7, persistent=False)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.positions[: ids.shape[1]]
        x = self.embed(ids) + positions[:, None].to(torch.float32) * self.scale.weight[0]
        x = self.block(x) * self.flags.sum()
        return self.head(x.to(torch.bfloat16).to(torch.float32))


def language() -> tuple[nn.Module, Tensor]:
    return Language(), torch.randint(50, (2, 6))


def recurrent() -> tuple[nn.Module, Tensor]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    return Last(), torch.randn(2, 4, 6)


class Large(nn.Module):
    """Layers of a few MiB each; a call returns a part of each layer."""

    def __init__(self, seed: int, layers: int = 5, rows: int = 1 << 20) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # The call uses the layers in another order.
        self.layers = nn.ModuleList(nn.Linear(1, rows, bias=False) for _ in range(layers))
        for layer in self.layers:
            layer.weight = nn.Parameter(torch.rand(rows, 1, generator=generator))

    def forward(self, start: Tensor) -> Tensor:
        parts = [start]
        for layer in reversed(self.layers):
            parts += [layer.weight[:2].flatten().clone(), layer.weight[-2:].flatten().clone()]
        return torch.cat(parts)


def large(seed: int = 0, **kwargs: int) -> tuple[nn.Module, Tensor]:
    return Large(seed, **kwargs), torch.zeros(1)


def opened(chunks: int, **kwargs: Any) -> tenure.torch.Switcher:
    """Returns a switcher for the tests' own modules, which captures graphs of them."""
    tenure.torch.install()
    kwargs = {"graphs": True, **kwargs}
    return tenure.torch.Switcher("cuda:0", device_bytes=chunks * CHUNK, host_bytes=1 << 30, **kwargs)


def slow_down() -> None:
    """Makes copies take a hundred times as long as on an H200, on a clock that advances only while a thread waits."""
    os.environ |= {"TENURE_CUDART_SLOWNESS": "100", "TENURE_CUDART_CLOCK": "virtual"}


def answer_of(module: nn.Module, x: Tensor) -> Tensor:
    """Returns the plain module's answer."""
    with torch.inference_mode():
        return copy.deepcopy(module).cuda()(x.cuda()).cpu()


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    kinds = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}
    header, contents = {}, b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().numpy().tobytes()
        offsets = [len(contents), len(contents) + len(content)]
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        contents += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + contents)


#: A step of Tenure's Python code: its frame, the kind of event ("call", "c_call", "c_return") and, for a C function,
#: the function's name.
Step = tuple[Any, str, str]


@contextmanager
def signalled(kind: signal.Signals, at: Callable[[Step], bool]) -> Iterator[None]:
    """Sends this process a signal at a step.

    Python handles signals where a function begins, and where a C function returns during which they may have come.
    """
    folder = str(Path(tenure.torch.__file__).parent)

    def look(frame: Any, event: str, argument: Any) -> None:
        # Python ends a generator without its `finally` if a signal raises an error where the generator resumes.
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR and event == "call"
        is_ours = frame.f_code.co_filename.startswith(folder) and not is_generator
        if is_ours and at((frame, event, getattr(argument, "__name__", ""))):
            sys.setprofile(None)
            signal.raise_signal(kind)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def interrupted(number: int, work: Callable[[], object], files: tuple[str, ...] = (".py",)) -> bool:
    """Runs `work` with Ctrl-C at step `number` in some files. Returns whether it had that many steps."""
    steps = iter(range(number + 1))

    def is_now(step: Step) -> bool:
        frame, event, _ = step
        is_one = event in ("call", "c_return") and frame.f_code.co_filename.endswith(files)
        return is_one and next(steps, None) == number

    try:
        with signalled(signal.SIGINT, is_now):
            work()
    except KeyboardInterrupt:
        return True
    assert next(steps, None) is not None, "Ctrl-C was lost"
    return False
