//! Attention compared with PyTorch.

use tenure_tensor::{Attention, Result, Tensor};

use crate::harness::Case;

fn attend(x: &[Tensor], how: &Attention<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].attention(&x[1], &x[2], &Attention { mask: x.get(3).or(how.mask), ..*how })?])
}

pub(crate) const CASES: &[Case] = &[
    ("plain", |x| attend(x, &Attention::default())),
    ("matrices", |x| attend(x, &Attention::default())),
    ("scaled", |x| attend(x, &Attention { scale: Some(0.3), ..Attention::default() })),
    ("causal", |x| attend(x, &Attention { is_causal: true, ..Attention::default() })),
    ("seen", |x| {
        let mask = Tensor::from_slice(&[true, false, true, true, true, true], &[2, 3])?.to_device(x[0].device())?;
        attend(x, &Attention { mask: Some(&mask), ..Attention::default() })
    }),
    ("one_seen", |x| {
        let mask = Tensor::from_slice(&[false, true, false], &[3])?.to_device(x[0].device())?;
        attend(x, &Attention { mask: Some(&mask), ..Attention::default() })
    }),
    ("added", |x| attend(x, &Attention::default())),
    ("added_with_gradient", |x| attend(x, &Attention::default())),
    ("grouped", |x| attend(x, &Attention::default())),
    ("grouped_causal", |x| attend(x, &Attention { is_causal: true, ..Attention::default() })),
];
