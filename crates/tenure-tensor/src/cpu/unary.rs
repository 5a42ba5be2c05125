//! Functions of one number.
