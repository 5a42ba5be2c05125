//! Losses compared with PyTorch.

use tenure_tensor::ops::{CrossEntropy, LossReduction};
use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

fn entropy(x: &[Tensor], options: CrossEntropy<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].cross_entropy(&x[1], &CrossEntropy { weight: x.get(2), ..options })?])
}

pub(crate) const CASES: &[Case] = &[
    ("cross_entropy", |x| entropy(x, CrossEntropy::default())),
    ("cross_entropy_none", |x| entropy(x, CrossEntropy { reduction: LossReduction::None, ..CrossEntropy::default() })),
    ("cross_entropy_weight", |x| entropy(x, CrossEntropy::default())),
    ("cross_entropy_all", |x| {
        entropy(x, CrossEntropy { ignore_index: 1, label_smoothing: 0.2, ..CrossEntropy::default() })
    }),
    ("cross_entropy_smooth", |x| {
        let reduction = LossReduction::Sum;
        entropy(x, CrossEntropy { label_smoothing: 0.1, reduction, ..CrossEntropy::default() })
    }),
    ("cross_entropy_pixels", |x| entropy(x, CrossEntropy { ignore_index: 2, ..CrossEntropy::default() })),
    ("cross_entropy_one", |x| entropy(x, CrossEntropy::default())),
    ("cross_entropy_probabilities", |x| {
        let options = CrossEntropy { weight: Some(&x[2]), label_smoothing: 0.1, ..CrossEntropy::default() };
        Ok(vec![x[0].cross_entropy(&x[1].softmax(1)?, &options)?])
    }),
    ("nll_loss", |x| Ok(vec![x[0].nll_loss(&x[1], Some(&x[2]), 3, LossReduction::Mean)?])),
    ("nll_loss_pixels", |x| Ok(vec![x[0].nll_loss(&x[1], None, -100, LossReduction::None)?])),
    ("nll_loss_one", |x| Ok(vec![x[0].nll_loss(&x[1], None, -100, LossReduction::Mean)?])),
    ("mse_loss", |x| Ok(vec![x[0].mse_loss(&x[1], LossReduction::Mean)?])),
    ("mse_loss_none", |x| Ok(vec![x[0].mse_loss(&x[1], LossReduction::None)?])),
    ("l1_loss", |x| Ok(vec![x[0].l1_loss(&x[1], LossReduction::Mean)?])),
    ("smooth_l1_loss", |x| Ok(vec![x[0].smooth_l1_loss(&x[1], 0.7, LossReduction::Mean)?])),
    ("huber_loss", |x| Ok(vec![x[0].huber_loss(&x[1], 0.7, LossReduction::Sum)?])),
    ("binary_cross_entropy", |x| Ok(vec![x[0].binary_cross_entropy(&x[1], None, LossReduction::Mean)?])),
    ("binary_cross_entropy_sum", |x| Ok(vec![x[0].binary_cross_entropy(&x[1], None, LossReduction::Sum)?])),
    ("binary_cross_entropy_sure", |x| Ok(vec![x[0].binary_cross_entropy(&x[1], None, LossReduction::None)?])),
    ("bce_with_logits", |x| Ok(vec![x[0].binary_cross_entropy_with_logits(&x[1], None, None, LossReduction::Mean)?])),
    ("bce_with_logits_weights", |x| {
        Ok(vec![x[0].binary_cross_entropy_with_logits(&x[1], Some(&x[2]), Some(&x[3]), LossReduction::Mean)?])
    }),
    ("kl_div", |x| Ok(vec![x[0].kl_div(&x[1], false, LossReduction::Sum)?])),
    ("kl_div_log", |x| Ok(vec![x[0].kl_div(&x[1], true, LossReduction::Mean)?])),
];
