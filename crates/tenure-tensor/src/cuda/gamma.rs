//! The logarithm of the gamma function and its derivatives.

use super::elementwise::expressions;

expressions! {
    of gamma:
    LGAMMA: ["T", "T"] (lanes of floats), "lgamma(a)";
    DIGAMMA: ["T", "T"] (lanes of floats), "(T)digamma((double)a)";
    POLYGAMMA: ["T", "T"] (lanes of floats), "(T)polygamma((double)n0, (double)a)", given numbers: [f64; 1];
}
