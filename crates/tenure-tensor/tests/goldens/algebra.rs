//! Contractions, diagonals, distances, reductions by index, interpolation and composed functions, compared with PyTorch.

use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

fn both((values, places): (Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![values, places])
}

/// Reduces into ones, without a gradient for them.
fn into_ones(x: &[Tensor], reduce: &str) -> Result<Vec<Tensor>> {
    let ones = Tensor::ones(&[2], x[0].dtype(), x[0].device())?;
    Ok(vec![ones.scatter_reduce(0, &x[1], &x[0], reduce, true)?])
}

fn resized(
    x: &[Tensor],
    size: &[usize],
    scale_factor: Option<f64>,
    mode: &str,
    align_corners: bool,
) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].interpolate(size, scale_factor, mode, align_corners)?])
}

pub(crate) const CASES: &[Case] = &[
    ("tensordot", |x| Ok(vec![x[0].tensordot(&x[1], 2)?])),
    ("tensordot_none", |x| Ok(vec![x[0].tensordot(&x[1], 0)?])),
    ("tensordot_over", |x| Ok(vec![x[0].tensordot_over(&x[1], &[0, -1], &[1, 0])?])),
    ("tensordot_one", |x| Ok(vec![x[0].tensordot_over(&x[1], &[1], &[0])?])),
    ("diag", |x| Ok(vec![x[0].diag(0)?])),
    ("diag_below", |x| Ok(vec![x[0].diag(-2)?])),
    ("diag_of_matrix", |x| Ok(vec![x[0].diag(1)?])),
    ("diag_embed", |x| Ok(vec![x[0].diag_embed(0, -2, -1)?])),
    ("diag_embed_apart", |x| Ok(vec![x[0].diag_embed(1, 0, 2)?])),
    ("trace", |x| Ok(vec![x[0].trace()?])),
    ("trace_integers", |x| Ok(vec![x[0].trace()?])),
    ("cross", |x| Ok(vec![x[0].cross(&x[1], -1)?])),
    ("cross_first", |x| Ok(vec![x[0].cross(&x[1], 0)?])),
    ("cross_integers", |x| Ok(vec![x[0].cross(&x[1], -1)?])),
    ("cdist_1_0", |x| Ok(vec![x[0].cdist(&x[1], 1.0)?])),
    ("cdist_2_0", |x| Ok(vec![x[0].cdist(&x[1], 2.0)?])),
    ("cdist_3_0", |x| Ok(vec![x[0].cdist(&x[1], 3.0)?])),
    ("cdist_1_5", |x| Ok(vec![x[0].cdist(&x[1], 1.5)?])),
    ("cdist_inf", |x| Ok(vec![x[0].cdist(&x[1], f64::INFINITY)?])),
    ("cdist_zero", |x| Ok(vec![x[0].cdist(&x[1], 0.0)?])),
    ("cdist_batches", |x| Ok(vec![x[0].cdist(&x[1], 2.0)?])),
    ("cdist_many", |x| Ok(vec![x[0].cdist(&x[1], 2.0)?])),
    ("scatter_sum", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "sum", true)?])),
    ("scatter_sum_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "sum", true)?])),
    ("scatter_sum_without_self", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "sum", false)?])),
    ("scatter_sum_without_self_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "sum", false)?])),
    ("scatter_mean", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "mean", true)?])),
    ("scatter_mean_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "mean", true)?])),
    ("scatter_mean_without_self", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "mean", false)?])),
    ("scatter_mean_without_self_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "mean", false)?])),
    ("scatter_prod", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "prod", true)?])),
    ("scatter_prod_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "prod", true)?])),
    ("scatter_prod_without_self", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "prod", false)?])),
    ("scatter_prod_without_self_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "prod", false)?])),
    ("scatter_amax", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "amax", true)?])),
    ("scatter_amax_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amax", true)?])),
    ("scatter_amax_without_self", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "amax", false)?])),
    ("scatter_amax_without_self_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amax", false)?])),
    ("scatter_amin", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "amin", true)?])),
    ("scatter_amin_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amin", true)?])),
    ("scatter_amin_without_self", |x| Ok(vec![x[0].scatter_reduce(-1, &x[1], &x[2], "amin", false)?])),
    ("scatter_amin_without_self_first", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amin", false)?])),
    ("scatter_prod_zeros", |x| into_ones(x, "prod")),
    ("scatter_amax_equal", |x| into_ones(x, "amax")),
    ("scatter_sum_integers", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "sum", true)?])),
    ("scatter_mean_integers", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "mean", true)?])),
    ("scatter_prod_integers", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "prod", true)?])),
    ("scatter_amax_integers", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amax", true)?])),
    ("scatter_amin_integers", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "amin", true)?])),
    ("scatter_reduce_", |x| {
        let target = x[0].copy()?;
        target.scatter_reduce_(-1, &x[1], &x[2], "prod", true)?;
        Ok(vec![target])
    }),
    ("scatter_reduce_of_one", |x| Ok(vec![x[0].scatter_reduce(0, &x[1], &x[2], "mean", true)?])),
    ("prelu", |x| Ok(vec![x[0].prelu(&x[1])?])),
    ("prelu_number", |x| Ok(vec![x[0].prelu(&x[1])?])),
    ("nearest", |x| resized(x, &[5], None, "nearest", false)),
    ("nearest_half", |x| resized(x, &[], Some(0.5), "nearest", false)),
    ("nearest_volume", |x| resized(x, &[3, 2, 4], None, "nearest", false)),
    ("linear", |x| resized(x, &[7], None, "linear", false)),
    ("linear_corners", |x| resized(x, &[7], None, "linear", true)),
    ("bilinear", |x| resized(x, &[5, 3], None, "bilinear", false)),
    ("bilinear_corners", |x| resized(x, &[5, 1], None, "bilinear", true)),
    ("bilinear_scaled", |x| resized(x, &[], Some(1.7), "bilinear", false)),
    ("trilinear", |x| resized(x, &[3, 2, 4], None, "trilinear", false)),
    ("bicubic", |x| resized(x, &[6, 2], None, "bicubic", false)),
    ("bicubic_corners", |x| resized(x, &[6, 2], None, "bicubic", true)),
    ("bicubic_scaled", |x| resized(x, &[], Some(1.7), "bicubic", false)),
    ("nearest_integers", |x| resized(x, &[5], None, "nearest", false)),
    ("adaptive_max_pool1d", |x| both(x[0].adaptive_max_pool1d(&[3])?)),
    ("adaptive_max_pool2d", |x| both(x[0].adaptive_max_pool2d(&[2, 3])?)),
    ("adaptive_max_pool3d", |x| both(x[0].adaptive_max_pool3d(&[2, 1, 4])?)),
    ("logaddexp", |x| Ok(vec![x[0].logaddexp(&x[1])?])),
    ("hypot", |x| Ok(vec![x[0].hypot(&x[1])?])),
    ("copysign", |x| Ok(vec![x[0].copysign(&x[1])?])),
    ("copysign_number", |x| Ok(vec![x[0].copysign(-0.0)?])),
    ("copysign_integers", |x| Ok(vec![x[0].copysign(&x[1])?])),
    ("signbit", |x| Ok(vec![x[0].signbit()?])),
    ("signbit_integers", |x| Ok(vec![x[0].signbit()?])),
    ("positive", |x| Ok(vec![x[0].positive()?])),
    ("logit", |x| Ok(vec![x[0].logit(None)?])),
    ("logit_limited", |x| Ok(vec![x[0].logit(Some(0.1))?])),
    ("asinh", |x| Ok(vec![x[0].asinh()?])),
    ("acosh", |x| Ok(vec![x[0].acosh()?])),
    ("atanh", |x| Ok(vec![x[0].atanh()?])),
];
