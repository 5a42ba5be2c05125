//! Running sums and products.
