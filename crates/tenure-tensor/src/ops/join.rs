//! Tensors side by side, and apart again.
