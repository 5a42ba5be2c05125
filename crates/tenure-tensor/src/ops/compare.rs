//! Comparisons and logic.
