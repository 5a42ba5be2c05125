//! Random numbers by counter.
