//! Formulas beside differences.
