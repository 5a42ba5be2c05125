"""The memory that this process holds on its devices.

This covers Tenure's memory only: PyTorch's after `tenure.torch.install`, or that of a device that was opened through
the C interface. A device is given by its number. On a device without such memory, every function but `installed` raises
`tenure.Error`; the message says how to get it.
"""

from __future__ import annotations

import pickle
from typing import Any, Literal

from tenure import _native

__all__ = ["empty_cache", "installed", "reset_peak", "set_memory_fraction", "snapshot", "stats"]


def installed() -> list[int]:
    """Returns the numbers of the devices whose memory is Tenure's in this process.

    Returns
    -------
    list of int
        The numbers in ascending order.

    Examples
    --------
    >>> import tenure
    >>> 100 in tenure.memory.installed()
    False
    """
    return _native.installed()


def stats(device: int | Literal["cpu"] = 0) -> dict[str, int | None]:
    """Returns the counters of a device's memory.

    Parameters
    ----------
    device
        The device's number, or ``"cpu"`` for the host memory of `tenure.Tensor`. Memory of other libraries, and that of
        tensors made of Python's numbers, is not counted there.

    Returns
    -------
    dict
        The counters, with the keys of ``torch.cuda.memory_stats()``, such as ``allocated_bytes.all.current`` and
        ``reserved_bytes.all.peak``; the same by tag, such as ``requested_bytes.weight.current``; and
        ``overhead_bytes``: the bytes that the process holds besides (context, kernels, libraries), which count against
        its limit. They are None where the system does not report them, and left out for the CPU.

    Examples
    --------
    >>> import tenure
    >>> before = tenure.memory.stats("cpu")["allocated_bytes.all.current"]
    >>> x = tenure.zeros(1000)
    >>> tenure.memory.stats("cpu")["allocated_bytes.all.current"] - before
    4000
    """
    if device == "cpu":
        return {**_native.host_memory_stats()}
    return _native.memory_stats(device)


def reset_peak(device: int = 0) -> None:
    """Resets every peak to the current value.

    Parameters
    ----------
    device
        The device's number.
    """
    _native.reset_peak_stats(device)


def snapshot(device: int = 0) -> dict[str, Any]:
    """Returns every segment and block of a device's memory, and its history if that is recorded.

    Parameters
    ----------
    device
        The device's number.

    Returns
    -------
    dict
        A snapshot in the form of ``torch.cuda.memory._snapshot()``, so that the same tools can read it. Pickled into a
        file, it is a trace for `tenure.trace.load`.
    """
    # Safe to unpickle: this process made the bytes, from plain data.
    content: dict[str, Any] = pickle.loads(_native.memory_snapshot(device))
    return content


def empty_cache(device: int = 0) -> None:
    """Gives a device's memory without live blocks back to the device.

    Parameters
    ----------
    device
        The device's number.
    """
    _native.empty_cache(device)


def set_memory_fraction(fraction: float, device: int = 0) -> None:
    """Limits the memory that this process may hold on a device, with its context and kernels where the system reports
    them.

    Parameters
    ----------
    fraction
        The fraction of the device's memory, from 0 to 1.
    device
        The device's number.

    Raises
    ------
    tenure.Error
        The fraction is not from 0 to 1.
    """
    _native.set_memory_fraction(device, fraction)
