//! Filling a tensor with one value.

use super::elementwise::expressions;
use crate::Scalar;

expressions! {
    of fill:
    FILL: ["T"] (all), "n0", given value: Scalar;
}
