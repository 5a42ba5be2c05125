//! Matrix products in half the bits.
