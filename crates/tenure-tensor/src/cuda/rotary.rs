//! Rotary position embeddings.

use super::elementwise::expressions;

expressions! {
    of rotary:
    ROTATE: ["T", "T", "T", "T", "T", "T"] (lanes of floats),
        "a * c + n0 * b * d", also "b * c - n0 * a * d", given sign: f64;
}
