//! Positions as angles.

use super::elementwise::expressions;

expressions! {
    of rotary:
    ROTATE: ["T", "T", "T", "T", "T"] (lanes of floats), "a * c + n0 * b * d", given sign: f64;
}
