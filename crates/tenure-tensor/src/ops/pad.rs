//! Margins.
