//! One of two.
