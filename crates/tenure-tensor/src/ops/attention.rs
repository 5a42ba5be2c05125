//! Scaled dot-product attention.
