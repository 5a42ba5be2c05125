//! Printing, as PyTorch does.
