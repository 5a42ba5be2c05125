//! Matrix products, convolutions, pooling, attention and losses compared with PyTorch.

use tenure_tensor::ops::{CrossEntropy, LossReduction};
use tenure_tensor::{Attention, Conv, Pool, Result, Tensor, einsum};

use crate::harness::Case;

fn equation(text: &str, operands: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![einsum(text, &operands.iter().collect::<Vec<_>>())?])
}

pub(crate) const MATMUL: &[Case] = &[
    ("matmul", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_vectors", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_row", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_column", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_fold", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_broadcast", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_left", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_integers", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("bmm", |x| Ok(vec![x[0].bmm(&x[1])?])),
    ("mv", |x| Ok(vec![x[0].mv(&x[1])?])),
    ("dot", |x| Ok(vec![x[0].dot(&x[1])?])),
    ("outer", |x| Ok(vec![x[0].outer(&x[1])?])),
    ("addmm", |x| Ok(vec![x[0].addmm(&x[1], &x[2], 0.5, -2)?])),
    ("addmm_without", |x| Ok(vec![x[0].addmm(&x[1], &x[2], 0, 1)?])),
    ("baddbmm", |x| Ok(vec![x[0].baddbmm(&x[1], &x[2], 1, 3)?])),
    ("linear", |x| Ok(vec![x[0].linear(&x[1], Some(&x[2]))?])),
    ("linear_one", |x| Ok(vec![x[0].linear(&x[1], Some(&x[2]))?])),
    ("linear_without_bias", |x| Ok(vec![x[0].linear(&x[1], None)?])),
    ("einsum_matmul", |x| equation("ij,jk->ik", x)),
    ("einsum_batches", |x| equation("bij,bkj->bik", x)),
    ("einsum_trace", |x| equation("ii", x)),
    ("einsum_diagonal", |x| equation("iij -> ji", x)),
    ("einsum_transpose", |x| equation("ij->ji", x)),
    ("einsum_implicit", |x| equation("ba,ca", x)),
    ("einsum_numbers", |x| equation(",->", x)),
    ("einsum_outer", |x| equation("i,j->ij", x)),
    ("einsum_ellipsis", |x| equation("...ij,...jk->...ik", x)),
    ("einsum_ellipsis_dropped", |x| equation("i...->...", x)),
    ("einsum_three", |x| equation("ij,jk,kl->il", x)),
    ("einsum_bilinear", |x| equation("bn,anm,bm->ba", x)),
    ("einsum_one", |x| equation("ij,jk->k", x)),
];

const PAIR: Conv<'_> = Conv { stride: &[2, 1], padding: &[1, 0], dilation: &[1, 2], groups: 1 };
const PLAIN: Conv<'_> = Conv { stride: &[1], padding: &[0], dilation: &[1], groups: 1 };
const WINDOW: Pool<'_> = Pool { kernel: &[], stride: &[], padding: &[0], dilation: &[1], ceil: false };
const THREE: Pool<'_> = Pool { kernel: &[3, 3], stride: &[2], padding: &[1], ..WINDOW };

pub(crate) const CONV: &[Case] = &[
    ("conv1d", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &Conv { stride: &[2], padding: &[1], ..PLAIN })?])),
    ("conv2d", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &Conv { padding: &[1], ..PLAIN })?])),
    ("conv2d_pair", |x| Ok(vec![x[0].conv(&x[1], None, &PAIR)?])),
    ("conv2d_groups", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { groups: 2, ..PLAIN })?])),
    ("conv2d_depthwise", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { padding: &[1], groups: 3, ..PLAIN })?])),
    ("conv2d_pointwise", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { stride: &[2], ..PLAIN })?])),
    ("conv2d_unbatched", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &PLAIN)?])),
    ("conv3d", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { stride: &[1, 2, 1], padding: &[1], ..PLAIN })?])),
    ("conv_transpose1d", |x| {
        let how = Conv { stride: &[3], padding: &[1], ..PLAIN };
        Ok(vec![x[0].conv_transpose(&x[1], Some(&x[2]), &how, &[2])?])
    }),
    ("conv_transpose2d", |x| Ok(vec![x[0].conv_transpose(&x[1], None, &Conv { groups: 2, ..PAIR }, &[0])?])),
    ("conv_transpose3d", |x| Ok(vec![x[0].conv_transpose(&x[1], None, &Conv { stride: &[2], ..PLAIN }, &[0])?])),
    ("max_pool1d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[3], ..THREE })?])),
    ("max_pool2d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 3], ..THREE })?])),
    ("max_pool2d_dilated", |x| {
        Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 2], stride: &[1], dilation: &[2], ..WINDOW })?])
    }),
    ("max_pool2d_ceil", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 2], ceil: true, ..WINDOW })?])),
    ("max_pool3d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2; 3], stride: &[1], ..WINDOW })?])),
    ("avg_pool1d", |x| Ok(vec![x[0].avg_pool(&Pool { kernel: &[3], ..THREE }, true)?])),
    ("avg_pool2d", |x| Ok(vec![x[0].avg_pool(&THREE, true)?])),
    ("avg_pool2d_inside", |x| Ok(vec![x[0].avg_pool(&THREE, false)?])),
    ("avg_pool2d_ceil", |x| Ok(vec![x[0].avg_pool(&Pool { ceil: true, ..THREE }, true)?])),
    ("avg_pool3d", |x| Ok(vec![x[0].avg_pool(&Pool { kernel: &[2; 3], stride: &[1], ..WINDOW }, true)?])),
    ("adaptive_avg_pool1d", |x| Ok(vec![x[0].adaptive_avg_pool(&[3])?])),
    ("adaptive_avg_pool2d", |x| Ok(vec![x[0].adaptive_avg_pool(&[2, 7])?])),
];

fn attend(x: &[Tensor], how: &Attention<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].attention(&x[1], &x[2], &Attention { mask: x.get(3).or(how.mask), ..*how })?])
}

pub(crate) const ATTENTION: &[Case] = &[
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

fn entropy(x: &[Tensor], options: CrossEntropy<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].cross_entropy(&x[1], &CrossEntropy { weight: x.get(2), ..options })?])
}

pub(crate) const LOSS: &[Case] = &[
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
