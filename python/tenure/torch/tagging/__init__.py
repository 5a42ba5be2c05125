"""Tags and keys of the memory of models, optimizers and operations, and reports by them."""
