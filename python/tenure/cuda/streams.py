"""Streams, and the thread's current one.

Work put on a stream runs in order; works on two streams may run at the same time. A stream waits for another with
`Stream.wait_stream`, or for an `Event`. Without that wait, a tensor that one stream writes must not be used on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenure import _native
from tenure._native import Event, Stream, set_stream
from tenure.cuda._devices import DeviceLike, index_of

__all__ = ["Event", "ExternalStream", "Stream", "current_stream", "default_stream", "set_stream", "stream"]


class ExternalStream(Stream):
    """A stream that another library created.

    Parameters
    ----------
    stream_ptr : int
        CUDA's handle of the stream, which must be one of the device's. The other library keeps the stream for as long
        as this object and the tensors used on it live.
    device : device, default None
        The stream's device. Default: the current device.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> ExternalStream:
        return super().__new__(cls, device, stream_ptr=stream_ptr)


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns the thread's current stream of a device, on which operations on tensors run."""
    return _native.current_stream(index_of(device))


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the default stream of a device, which is the current one until another is made current."""
    return _native.default_stream(index_of(device))


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Makes a stream, and its device, the thread's current ones within a `with` block. None changes nothing.

    Examples
    --------
    >>> import tenure
    >>> if tenure.cuda.is_available():
    ...     x = tenure.ones(1000, device="cuda")
    ...     side = tenure.cuda.Stream()
    ...     side.wait_stream(tenure.cuda.current_stream())
    ...     with tenure.cuda.stream(side):
    ...         y = x * 2
    ...     tenure.cuda.current_stream().wait_stream(side)
    ...     assert y.sum().item() == 2000
    """
    if stream is None:
        yield
        return
    device_before = _native.current_device()
    stream_before = _native.current_stream(stream.device_index)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(stream_before)
        _native.set_device(device_before)
