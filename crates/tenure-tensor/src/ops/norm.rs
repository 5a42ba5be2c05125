//! Normalisation.
