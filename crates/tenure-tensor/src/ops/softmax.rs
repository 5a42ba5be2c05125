//! Softmax and its relatives.
