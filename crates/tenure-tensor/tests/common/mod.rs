//! What tests share.

pub(crate) mod goldens;
