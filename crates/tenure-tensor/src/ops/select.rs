//! One of two values by a condition, limits, masks.
