//! Elements chosen by index tensors.
