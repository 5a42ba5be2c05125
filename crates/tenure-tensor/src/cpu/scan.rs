//! Running sums.
