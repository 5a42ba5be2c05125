//! Functions of one number, activations among them.
