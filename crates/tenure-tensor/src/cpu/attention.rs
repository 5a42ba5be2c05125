//! Attention in blocks, without the square of scores.
