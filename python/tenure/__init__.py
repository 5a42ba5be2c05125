"""A tensor memory runtime: PyTorch programs that hold no more GPU memory than they ask for."""

from tenure._native import VERSION as __version__

__all__ = ["__version__"]
