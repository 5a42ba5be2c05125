//! Elements chosen by index.
