//! Normalisation, scans and sorting compared with PyTorch.

use tenure_tensor::ops::BatchNormParameters;
use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

fn both(pair: (Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![pair.0, pair.1])
}

fn batch(x: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].batch_norm(None, Some(&x[1]), Some(&x[2]), true, 0.1, 1e-5)?])
}

fn running(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let mean = x[1].copy()?;
    let variance = x[2].copy()?;
    let out = x[0].batch_norm(Some((&mean, &variance)), None, None, true, 0.3, 1e-5)?;
    Ok(vec![out, mean, variance])
}

fn rectified(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let norm = BatchNormParameters {
        running: None,
        weight: Some(&x[1]),
        bias: Some(&x[2]),
        training: true,
        momentum: 0.1,
        eps: 1e-5,
    };
    Ok(vec![x[0].batch_norm_relu(x.get(3), &norm)?])
}

/// Returns a batch normalisation by running averages.
fn evaluated<'a>(mean: &'a Tensor, variance: &'a Tensor) -> BatchNormParameters<'a> {
    let running = Some((mean, variance));
    BatchNormParameters { running, weight: None, bias: None, training: false, momentum: 0.1, eps: 1e-5 }
}

pub(crate) const CASES: &[Case] = &[
    ("layer_norm", |x| Ok(vec![x[0].layer_norm(&[4], Some(&x[1]), Some(&x[2]), 1e-5)?])),
    ("layer_norm_plain", |x| Ok(vec![x[0].layer_norm(&[3, 4], None, None, 1e-5)?])),
    ("layer_norm_weight", |x| Ok(vec![x[0].layer_norm(&[4], Some(&x[1]), None, 1e-5)?])),
    ("rms_norm", |x| Ok(vec![x[0].rms_norm(&[4], Some(&x[1]), 1e-5)?])),
    ("group_norm", |x| Ok(vec![x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5)?])),
    ("group_norm_plain", |x| Ok(vec![x[0].group_norm(2, None, None, 1e-5)?])),
    ("batch_norm", batch),
    ("batch_norm_2d", batch),
    ("batch_norm_5d", batch),
    ("batch_norm_running", running),
    ("batch_norm_evaluated", |x| {
        Ok(vec![x[0].batch_norm(Some((&x[3], &x[4])), Some(&x[1]), Some(&x[2]), false, 0.1, 1e-5)?])
    }),
    ("batch_norm_relu", rectified),
    ("batch_norm_add_relu", rectified),
    ("batch_norm_relu_running", |x| {
        let mean = x[1].copy()?;
        let variance = x[2].copy()?;
        let norm = BatchNormParameters { training: true, momentum: 0.3, ..evaluated(&mean, &variance) };
        let out = x[0].batch_norm_relu(None, &norm)?;
        Ok(vec![out, mean, variance])
    }),
    ("batch_norm_relu_evaluated", |x| {
        let norm = BatchNormParameters { weight: Some(&x[1]), bias: Some(&x[2]), ..evaluated(&x[3], &x[4]) };
        Ok(vec![x[0].batch_norm_relu(None, &norm)?])
    }),
    ("batch_norm_add_relu_evaluated", |x| Ok(vec![x[0].batch_norm_relu(Some(&x[1]), &evaluated(&x[2], &x[3]))?])),
    ("rotary", |x| Ok(vec![x[0].rotary(&x[1], &x[2])?])),
    ("rotary_angles", |x| Ok(vec![x[0].rotary(&x[1], &x[2])?])),
    ("cumsum", |x| Ok(vec![x[0].cumsum(1)?])),
    ("cumsum_last", |x| Ok(vec![x[0].cumsum(-1)?])),
    ("cumsum_integers", |x| Ok(vec![x[0].cumsum(0)?])),
    ("cumprod", |x| Ok(vec![x[0].cumprod(1)?])),
    ("cumprod_last", |x| Ok(vec![x[0].cumprod(-1)?])),
    ("cumprod_zeros", |x| Ok(vec![x[0].gt(0.0)?.to_dtype(x[0].dtype())?.mul(&x[0])?.cumprod(0)?])),
    ("sort", |x| both(x[0].sort(1, false, false)?)),
    ("sort_descending", |x| both(x[0].sort(-1, true, false)?)),
    ("sort_stable", |x| both(x[0].sort(0, false, false)?)),
    ("argsort", |x| Ok(vec![x[0].argsort(-1, true, false)?])),
    ("topk_one", |x| both(x[0].topk(1, -1, true)?)),
    ("kthvalue_first", |x| both(x[0].kthvalue(1, -1, true)?)),
    ("topk", |x| both(x[0].topk(2, 1, true)?)),
    ("topk_smallest", |x| both(x[0].topk(3, 0, false)?)),
    ("kthvalue", |x| both(x[0].kthvalue(2, 1, false)?)),
];
