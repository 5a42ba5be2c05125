//! Comparisons, logic and selection compared with PyTorch.

use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

/// Replaces some elements by infinities and NaN.
fn special(x: &Tensor) -> Result<Tensor> {
    let inner = x.abs()?.lt(0.3)?.where_(f64::NAN, x)?;
    let below = x.lt(-1)?.where_(f64::NEG_INFINITY, &inner)?;
    x.gt(1)?.where_(f64::INFINITY, &below)
}

pub(crate) const CASES: &[Case] = &[
    ("eq", |x| Ok(vec![x[0].eq(&x[1])?])),
    ("ne", |x| Ok(vec![x[0].ne(&x[1])?])),
    ("lt", |x| Ok(vec![x[0].lt(&x[1])?])),
    ("le", |x| Ok(vec![x[0].le(&x[1])?])),
    ("gt", |x| Ok(vec![x[0].gt(&x[1])?])),
    ("ge", |x| Ok(vec![x[0].ge(&x[1])?])),
    ("logical_and", |x| Ok(vec![x[0].logical_and(&x[1])?])),
    ("logical_or", |x| Ok(vec![x[0].logical_or(&x[1])?])),
    ("logical_xor", |x| Ok(vec![x[0].logical_xor(&x[1])?])),
    ("lt_floats", |x| Ok(vec![x[0].lt(&x[1])?])),
    ("ge_number", |x| Ok(vec![x[0].ge(0.25)?])),
    ("eq_promoted", |x| Ok(vec![x[0].eq(&x[1])?])),
    ("logical_not", |x| Ok(vec![x[0].logical_not()?])),
    ("bitwise_not", |x| Ok(vec![x[0].bitwise_not()?])),
    ("not_bool", |x| Ok(vec![x[0].bitwise_not()?])),
    ("isnan", |x| Ok(vec![special(&x[0])?.isnan()?])),
    ("isinf", |x| Ok(vec![special(&x[0])?.isinf()?])),
    ("isfinite", |x| Ok(vec![special(&x[0])?.isfinite()?])),
    ("isclose", |x| Ok(vec![x[0].isclose(&x[1], 0.1, 0.2, false)?])),
    ("where", |x| Ok(vec![x[0].where_(&x[1], &x[2])?])),
    ("where_number", |x| Ok(vec![x[0].where_(&x[1], 2.5)?])),
    ("masked_fill", |x| Ok(vec![x[0].masked_fill(&x[1], f64::NEG_INFINITY)?])),
    ("masked_fill_tensor", |x| Ok(vec![x[0].masked_fill(&x[1], &x[2])?])),
    ("clamp", |x| Ok(vec![x[0].clamp(-0.5, 1.0)?])),
    ("clamp_min", |x| Ok(vec![x[0].clamp_min(0.1)?])),
    ("clamp_max", |x| Ok(vec![x[0].clamp_max(0.1)?])),
    ("clamp_integers", |x| Ok(vec![x[0].clamp(2, 4)?])),
    ("clamp_tensors", |x| Ok(vec![x[0].clamp(&x[1], &x[2])?])),
    ("nan_to_num", |x| Ok(vec![special(&x[0])?.nan_to_num(0.5, Some(7.0), None)?])),
];
