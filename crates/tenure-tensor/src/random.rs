//! Random numbers by counter: Philox.
