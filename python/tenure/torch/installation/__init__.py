"""Putting Tenure under PyTorch."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from tenure import Error, _native
from tenure.torch.installation import build, fallback
from tenure.torch.installation.state import TESTED, Allocator, InstallError, Mode, Status, limitations_of

if TYPE_CHECKING:
    from tenure.torch.placement import Placement, WhenFull

_LOG = logging.getLogger("tenure")

#: The oldest PyTorch that the shim supports.
_OLDEST = (2, 8)

#: The error where PyTorch's own allocator is in use already, even if only by PyTorch's C++ code.
_HAS_STARTED = (
    "CUDA has started already, on PyTorch's own allocator: call tenure.torch.install() earlier, before the first "
    "tensor on a GPU or in pinned memory and before a memory history is recorded, or set TENURE_TORCH=1"
)


@dataclass(frozen=True)
class Options:
    """The arguments of `install`."""

    allocator: Allocator = "paged"
    fraction: float = 1.0
    #: In bytes.
    headroom: int = 0
    #: In bytes, if not the default.
    pinned_cache: int | None = None

    def __str__(self) -> str:
        headroom = f",headroom={self.headroom}" if self.headroom else ""
        pinned_cache = f",pinned_cache={self.pinned_cache}" if self.pinned_cache is not None else ""
        return f"allocator={self.allocator},fraction={self.fraction}{headroom}{pinned_cache}"


@dataclass(frozen=True)
class Installation:
    """The installation under PyTorch."""

    options: Options
    mode: Mode
    torch: str
    cuda: str
    library: str | None

    @property
    def backend(self) -> str:
        """PyTorch's name of the allocator."""
        return "pluggable" if self.mode == "pluggable" else "tenure"


_installed: Installation | None = None
_stood_aside: str | None = None

#: The socket of the server that this process yields to.
_background: Path | None = None
_installing = threading.Lock()


def installed() -> Installation | None:
    """Returns the installation, if there is one."""
    return _installed


def status() -> Status:
    """Returns the state of Tenure under PyTorch, and its limitations there.

    Returns
    -------
    Status
        The state. Printed, it is a readable text.
    """
    from tenure import __version__

    active = _installed
    if active is None:
        return Status("not installed", __version__, _stood_aside)
    if (backend := sys.modules["torch"].cuda.get_allocator_backend()) != active.backend:
        return Status("not installed", __version__, f"the program has put another in its place since, {backend}")
    release = ".".join(active.torch.split(".")[:2])
    return Status(
        mode=active.mode,
        tenure=__version__,
        torch=active.torch,
        cuda=active.cuda,
        allocator=active.options.allocator,
        fraction=_native.torch_memory_fraction(),
        library=active.library,
        devices=tuple(_native.installed()),
        tested=release in TESTED,
        limitations=limitations_of(active.mode, release),
    )


@overload
def install(
    allocator: Allocator | None = None,
    *,
    fraction: float | None = None,
    headroom: str | int | None = None,
    pinned_cache: str | int | None = None,
    background: str | PathLike[str] | None = None,
    device: Literal["cuda"] = "cuda",
) -> Status: ...


@overload
def install(
    *,
    device: Literal["cpu"],
    mapping: str | PathLike[str],
    tiers: Mapping[str, str],
    strict: bool = False,
    when_full: WhenFull = "refuse",
) -> Placement: ...


def install(
    allocator: Allocator | None = None,
    *,
    fraction: float | None = None,
    headroom: str | int | None = None,
    pinned_cache: str | int | None = None,
    background: str | PathLike[str] | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
    mapping: str | PathLike[str] | None = None,
    tiers: Mapping[str, str] | None = None,
    strict: bool = False,
    when_full: WhenFull = "refuse",
) -> Status | Placement:
    """Puts Tenure's allocator under PyTorch for the rest of the process: for GPUs, or for the CPU.

    Call it before the program first uses CUDA, even for pinned memory or to record a memory history. A second call with
    the same options does nothing. Where ``TENURE_TORCH`` is set, Tenure makes the first call itself, with the options
    in ``TENURE_TORCH_OPTIONS``.

    Parameters
    ----------
    allocator
        Tenure's own allocator (``paged``), or PyTorch's policy in Tenure, without or with expandable segments
        (``native``, ``expandable``). Default: the installed one, or else ``paged``.
    fraction
        The fraction of each device's memory, more than 0 and at most 1, that this process may hold, its CUDA context
        included. If ``per_process_memory_fraction`` in ``PYTORCH_ALLOC_CONF`` is less, that one holds, with PyTorch's
        meaning. Default: the installed one, or else 1.
    headroom
        Memory of each device that the allocator leaves free for other libraries and processes, such as ``"4GiB"``, or
        a number of bytes. Default: the installed one, or else none. Libraries of this process need none: if they find
        no room, the allocator gives them what it has cached.
    pinned_cache
        The most pinned host memory that is kept for later requests when tensors in it are gone, such as ``"4GiB"``, or
        a number of bytes. Default: the installed one, or else an eighth of the host's memory.
    background
        The socket of a server on the same GPU: that of ``tenure serve --background SOCKET``. While the server has work,
        threads of this process wait at their next GPU allocation, and soon the GPU has finished their earlier work.
        They go on when the server is idle or gone. Results stay the same, bit for bit.
    device
        ``cuda``; or ``cpu``, to place CPU tensors by a mapping, for threads that enter the placement. The parameters
        below are only for the CPU.
    mapping
        The mapping file: the tier in which each key lives (docs/reference/mapping-format.md).
    tiers
        The medium of each of the mapping's tiers, by name: ``dram``, ``numa:N``, a DAX device such as ``/dev/dax0.0``,
        or a folder or the name of a new file, on any file system. A capacity in bytes may follow after an ``@``, as in
        ``/mnt/pmem@64GiB``. Files need one.
    strict
        Whether an allocation whose key has no place is an error. If not, it lives in the first tier and is reported.
    when_full
        The treatment of an allocation whose tier is full: an error (``refuse``), or another tier and an entry in the
        report (``miss``).

    Returns
    -------
    Status or Placement
        For GPUs, the installation. If there is no GPU, or PyTorch is set to CUDA's own allocator, nothing is installed
        and a warning says so. For the CPU, the placement, which threads enter and which reports where tensors are.

    Raises
    ------
    InstallError
        Tenure cannot be installed; the message says what to do.

    Examples
    --------
    >>> placement = tenure.torch.install(  # doctest: +SKIP
    ...     device="cpu", mapping="mapping.json", tiers={"DRAM": "dram@8GiB", "PM": "/mnt/pmem@64GiB"}
    ... )
    >>> with placement, tenure.torch.tag(model, optimizer):  # doctest: +SKIP
    ...     train(model, optimizer)
    ...     print(placement)
    """
    if device == "cpu":
        if background is not None:
            raise InstallError("background is for GPUs: on the CPU, start the program by `tenure background SOCKET --`")
        return _install_on_cpu((allocator, fraction, headroom, pinned_cache), mapping, tiers, strict, when_full)
    if device != "cuda":
        raise InstallError(f"device={device!r}: expected 'cuda' or 'cpu'")
    if mapping is not None or tiers is not None:
        raise InstallError("a mapping and its tiers are for the CPU: say device='cpu'")
    installed = _install_on_cuda(_checked(allocator, fraction, headroom, pinned_cache))
    if background is not None and _installed is not None:
        _yield_to(Path(background).absolute())
    return installed


def _install_on_cpu(
    for_gpus: tuple[object, ...],
    mapping: str | PathLike[str] | None,
    tiers: Mapping[str, str] | None,
    strict: bool,
    when_full: WhenFull,
) -> Placement:
    if any(option is not None for option in for_gpus):
        raise InstallError(
            "allocator, fraction, headroom and pinned_cache are for GPUs: leave them out with device='cpu'"
        )
    if mapping is None or tiers is None:
        raise InstallError("device='cpu' needs a mapping and its tiers, as in tiers={'DRAM': 'dram@8GiB'}")
    _torch()
    from tenure.torch import placement

    return placement.install(mapping, tiers, strict=strict, when_full=when_full)


def _install_on_cuda(wanted: dict[str, Any]) -> Status:
    global _installed, _stood_aside
    # Outside of the lock: with TENURE_TORCH set, the first import of PyTorch installs Tenure before the import ends.
    torch = _torch()
    with _installing:
        if _installed is not None:
            if replace(_installed.options, **wanted) != _installed.options:
                raise InstallError(
                    f"Tenure is installed already, with {_installed.options}: install it once, with the options wanted "
                    "(TENURE_TORCH_OPTIONS has them if TENURE_TORCH is set)"
                )
            return status()
        _check(torch)
        _stood_aside = _reason_to_stand_aside(torch)
        if _stood_aside is not None:
            warnings.warn(f"Tenure is not installed: {_stood_aside}", stacklevel=2)
            return status()
        options = Options(**wanted)
        mode, library = _put_under(torch, options)
        _native.torch_yield_to_libraries()
        _installed = Installation(options, mode, torch.__version__, str(torch.version.cuda), library)
    _LOG.info("installed under PyTorch %s by way of: %s", torch.__version__, mode)
    return status()


def _yield_to(socket: Path) -> None:
    global _background
    with _installing:
        if _background is None:
            try:
                _native.torch_background(socket)
            except Error as error:
                raise InstallError(f"no server to yield to: {error}") from error
            _background = socket
        elif socket != _background:
            raise InstallError(f"this process yields to {_background} already, and to one server only")


def _checked(
    allocator: Allocator | None, fraction: float | None, headroom: str | int | None, pinned_cache: str | int | None
) -> dict[str, Any]:
    """Returns the `Options` that are given, checked."""
    given: dict[str, Any] = {}
    if allocator is not None:
        if allocator not in get_args(Allocator):
            raise InstallError(f"allocator={allocator!r}: expected one of {', '.join(map(repr, get_args(Allocator)))}")
        given["allocator"] = allocator
    if fraction is not None:
        # Any library's number type counts, such as NumPy's.
        if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 < fraction <= 1:
            raise InstallError(f"fraction={fraction!r}: expected more than 0 and at most 1")
        given["fraction"] = float(fraction)
    if headroom is not None:
        given["headroom"] = _bytes_of("headroom", headroom)
    if pinned_cache is not None:
        given["pinned_cache"] = _bytes_of("pinned_cache", pinned_cache)
    return given


def _bytes_of(name: str, amount: str | int) -> int:
    """Returns an amount of memory in bytes."""
    if isinstance(amount, str):
        number, _ = _native.parse_amount(name, amount)
    else:
        number = None if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0 else amount
    if number is None:
        raise InstallError(f"{name}={amount!r}: expected bytes, as in '4GiB' or 4_000_000_000")
    return number


def _torch() -> ModuleType:
    """Imports PyTorch."""
    try:
        import torch
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InstallError(f"PyTorch cannot be imported ({reason}): install it again") from error
    return torch


def _check(torch: ModuleType) -> None:
    """Raises an error if Tenure cannot be put under PyTorch."""
    if torch.version.hip:
        raise InstallError(f"PyTorch {torch.__version__} is built for ROCm: Tenure needs one built for CUDA")
    if torch.version.cuda is None:
        raise InstallError(
            f"PyTorch {torch.__version__} is built without CUDA: install one with it (https://pytorch.org/get-started)"
        )
    if torch.cuda.is_initialized():
        raise InstallError(_HAS_STARTED)
    backend = torch.cuda.get_allocator_backend()
    if backend == "tenure":
        raise InstallError(
            "Tenure is under PyTorch already, put there by another copy of this package: import only one"
        )
    if backend == "pluggable":
        raise InstallError(
            "another allocator is under PyTorch already, and PyTorch takes only one: install Tenure instead of it"
        )


def _reason_to_stand_aside(torch: ModuleType) -> str | None:
    """Returns why PyTorch should be left as it is, if it should.

    Nothing here may start CUDA or count the devices: the program may still choose which ones it sees, or fork.
    """
    if (backend := torch.cuda.get_allocator_backend()) != "native":
        return f"PYTORCH_ALLOC_CONF asks for the allocator {backend}: take `backend` out of it to have Tenure's"
    if not _has_driver():
        return "this machine has no driver for GPUs (libcuda.so.1): check `nvidia-smi`"
    return None


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _put_under(torch: ModuleType, options: Options) -> tuple[Mode, str | None]:
    """Installs the shim, or the fallback if there is no shim."""
    try:
        mode, library, shim = _shim(torch)
    except build.BuildError as error:
        warnings.warn(
            f"{error}. Without the shim, PyTorch can do less on Tenure: tenure.torch.status() says what",
            stacklevel=3,
        )
        try:
            fallback.install(str(options))
        except fallback.HasStarted as too_late:
            raise InstallError(_HAS_STARTED) from too_late
        return "pluggable", None
    _start(shim, options)
    return mode, str(library)


def _shim(torch: ModuleType) -> tuple[Mode, Path, ctypes.CDLL]:
    """Loads the shim that came with the package, or else one that is built here."""
    current = build.Torch.current()
    if current.release < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise build.BuildError(
            f"PyTorch {torch.__version__} is older than {oldest}, which the shim is written for: upgrade it"
        )
    if found := build.prebuilt(current):
        try:
            return "prebuilt shim", found, _load(found)
        except OSError as error:
            # For example, the C++ library may be older than that of the machine that the shim was built on.
            _LOG.warning("the shim that came with the package cannot be loaded (%s): one is built instead", error)
    library = build.built(current)
    try:
        return "built shim", library, _load(library)
    except OSError as error:
        raise build.BuildError(
            f"the shim cannot be loaded ({error}): set CXX to a compiler whose C++ library this Python finds"
        ) from error


def _load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def _start(shim: ctypes.CDLL, options: Options) -> None:
    shim.tenure_torch_has_started.restype = ctypes.c_bool
    if shim.tenure_torch_has_started():
        raise InstallError(_HAS_STARTED)
    shim.tenure_torch_install.restype = ctypes.c_bool
    message = ctypes.create_string_buffer(4096)
    table = ctypes.c_void_p(_native.torch_api())
    size = ctypes.c_size_t(len(message))
    if not shim.tenure_torch_install(table, str(options).encode(), message, size):
        raise InstallError(message.value.decode(errors="replace"))
