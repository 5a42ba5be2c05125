//! Arithmetic compared with PyTorch.

use crate::harness::Case;

pub(crate) const CASES: &[Case] = &[
    ("add", |x| Ok(vec![x[0].add(&x[1])?])),
    ("add_column", |x| Ok(vec![x[0].add(&x[1])?])),
    ("sub", |x| Ok(vec![x[0].sub(&x[1])?])),
    ("sub_column", |x| Ok(vec![x[0].sub(&x[1])?])),
    ("mul", |x| Ok(vec![x[0].mul(&x[1])?])),
    ("mul_column", |x| Ok(vec![x[0].mul(&x[1])?])),
    ("div", |x| Ok(vec![x[0].div(&x[1])?])),
    ("div_column", |x| Ok(vec![x[0].div(&x[1])?])),
    ("neg", |x| Ok(vec![x[0].neg()?])),
    ("mul_number", |x| Ok(vec![x[0].mul(2.5)?.sub(1)?])),
    ("add_integers", |x| Ok(vec![x[0].add(&x[1])?])),
    ("div_integers", |x| Ok(vec![x[0].div(&x[1])?])),
    ("mul_promoted", |x| Ok(vec![x[0].mul(&x[1])?])),
];
