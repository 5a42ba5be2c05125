//! Einstein's sums.
