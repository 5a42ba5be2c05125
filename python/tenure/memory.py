"""What this process holds on its devices.

The memory meant here is Tenure's: that of PyTorch after `tenure.torch.install`, or of a device that was opened through
the C interface. A device is given by its number. Where there is no such memory, every function but `installed` raises
`tenure.Error`, whose text says how to get it.
"""

from __future__ import annotations

import pickle
from typing import Any

from tenure import _native

__all__ = ["empty_cache", "installed", "reset_peak", "set_memory_fraction", "snapshot", "stats"]


def installed() -> list[int]:
    """The numbers of the devices whose memory is Tenure's in this process.

    Returns
    -------
    list of int
        Ascending.

    Examples
    --------
    >>> import tenure
    >>> 100 in tenure.memory.installed()
    False
    """
    return _native.installed()


def stats(device: int = 0) -> dict[str, int | None]:
    """Counters of a device's memory.

    Parameters
    ----------
    device
        The device's number.

    Returns
    -------
    dict
        The keys are those of ``torch.cuda.memory_stats()``, such as ``allocated_bytes.all.current`` and
        ``reserved_bytes.all.peak``; the same by tag, such as ``requested_bytes.weight.current``; and
        ``overhead_bytes``, which the process holds beside all that (context, kernels, libraries) and which counts
        against its limit, None where the system does not tell.
    """
    return _native.memory_stats(device)


def reset_peak(device: int = 0) -> None:
    """Starts every peak again from the current value.

    Parameters
    ----------
    device
        The device's number.
    """
    _native.reset_peak_stats(device)


def snapshot(device: int = 0) -> dict[str, Any]:
    """Every segment and block of a device's memory, and its history if that is recorded.

    Parameters
    ----------
    device
        The device's number.

    Returns
    -------
    dict
        In the shape of ``torch.cuda.memory._snapshot()``, so that tools for that take it. Pickled into a file, it is
        a trace for `tenure.trace.load`.
    """
    # Our own bytes, of plain data.
    content: dict[str, Any] = pickle.loads(_native.memory_snapshot(device))
    return content


def empty_cache(device: int = 0) -> None:
    """Gives every byte of a device back to it on which no block lives.

    Parameters
    ----------
    device
        The device's number.
    """
    _native.empty_cache(device)


def set_memory_fraction(fraction: float, device: int = 0) -> None:
    """Limits what this process may hold of a device, its context and kernels included where the system tells.

    Parameters
    ----------
    fraction
        The part of the device's memory, from 0 to 1.
    device
        The device's number.

    Raises
    ------
    tenure.Error
        The fraction is not from 0 to 1.
    """
    _native.set_memory_fraction(device, fraction)
