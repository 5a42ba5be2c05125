"""The exceptions, which are public as `tenure.Error` and so on."""


class Error(RuntimeError):
    """An operation that Tenure refuses or fails to do. The message says what to try.

    Mistakes in arguments raise a `ValueError` or a `TypeError`, as everywhere in Python.

    Examples
    --------
    >>> import tenure
    >>> try:
    ...     tenure.trace.load("missing.pickle")
    ... except tenure.Error as error:
    ...     print(error)
    missing.pickle: No such file or directory (os error 2)
    """

    __module__ = "tenure"


class DeviceError(Error):
    """A device does not exist, or one of its driver's calls failed."""

    __module__ = "tenure"


class LinAlgError(Error):
    """A matrix for which an operation has no result: it is singular, not positive definite, or not finite.

    It is public as `tenure.linalg.LinAlgError`.
    """

    __module__ = "tenure.linalg"


class OutOfMemoryError(Error):
    """A device has no memory left. The message says what holds the memory, and what to try.

    PyTorch's own allocations raise `torch.OutOfMemoryError`, also on Tenure's allocator.
    """

    __module__ = "tenure"


class TraceError(Error):
    """A trace, or a report on one, cannot be read or written. The message names the file, and the byte or the event."""

    __module__ = "tenure"
