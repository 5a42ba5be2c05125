//! Activations computed again instead of kept.
