//! `+`, `-`, `*`, `/` and their kin.
