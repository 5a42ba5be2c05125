//! Concatenation and repetition compared with PyTorch.

use tenure_tensor::Tensor;
use tenure_tensor::ops::{cat, meshgrid, stack};

use crate::harness::Case;

fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

pub(crate) const CASES: &[Case] = &[
    ("cat", |x| Ok(vec![cat(&refs(x), 1)?])),
    ("cat_none", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_promoted", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_integers", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_twice", |x| Ok(vec![cat(&[&x[0], &x[0]], 0)?])),
    ("stack", |x| Ok(vec![stack(&refs(x), -1)?])),
    ("meshgrid", |x| meshgrid(&refs(x))),
    ("repeat", |x| Ok(vec![x[0].repeat(&[2, 1, 3])?])),
    ("repeat_once", |x| Ok(vec![x[0].repeat(&[1, 1])?])),
    ("repeat_none", |x| Ok(vec![x[0].repeat(&[0, 2])?])),
    ("tile", |x| Ok(vec![x[0].tile(&[2])?])),
    ("repeat_interleave", |x| Ok(vec![x[0].repeat_interleave(3, 0)?])),
    ("roll", |x| Ok(vec![x[0].roll(&[1, -4], &[0, 1])?])),
    ("roll_one", |x| Ok(vec![x[0].roll(&[2], &[-1])?])),
    ("flip_last", |x| Ok(vec![x[0].flip(&[-1])?])),
    ("flip", |x| Ok(vec![x[0].flip(&[0, -1])?])),
    ("tril", |x| Ok(vec![x[0].tril(-1)?])),
    ("triu", |x| Ok(vec![x[0].triu(1)?])),
    ("triu_integers", |x| Ok(vec![x[0].triu(0)?])),
];
