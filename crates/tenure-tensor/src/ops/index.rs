//! Indexing: integers, ranges, new dimensions, tensors.
