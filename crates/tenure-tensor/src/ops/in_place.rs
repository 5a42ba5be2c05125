//! Operations that write to their tensor.
