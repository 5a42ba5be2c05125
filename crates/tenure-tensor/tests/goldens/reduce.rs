//! Reductions and softmax beside PyTorch.

use crate::harness::Case;

pub(crate) const CASES: &[Case] = &[
    ("sum_all", |x| Ok(vec![x[0].sum(&[], false)?])),
    ("sum_last", |x| Ok(vec![x[0].sum(&[-1], false)?])),
    ("sum_first", |x| Ok(vec![x[0].sum(&[0], true)?])),
    ("sum_two", |x| Ok(vec![x[0].sum(&[0, 2], false)?])),
    ("mean_all", |x| Ok(vec![x[0].mean(&[], false)?])),
    ("mean_last", |x| Ok(vec![x[0].mean(&[-1], false)?])),
    ("mean_first", |x| Ok(vec![x[0].mean(&[0], true)?])),
    ("mean_two", |x| Ok(vec![x[0].mean(&[0, 2], false)?])),
    ("amax_all", |x| Ok(vec![x[0].amax(&[], false)?])),
    ("amax_last", |x| Ok(vec![x[0].amax(&[-1], false)?])),
    ("amax_first", |x| Ok(vec![x[0].amax(&[0], true)?])),
    ("amax_two", |x| Ok(vec![x[0].amax(&[0, 2], false)?])),
    ("amin_all", |x| Ok(vec![x[0].amin(&[], false)?])),
    ("amin_last", |x| Ok(vec![x[0].amin(&[-1], false)?])),
    ("amin_first", |x| Ok(vec![x[0].amin(&[0], true)?])),
    ("amin_two", |x| Ok(vec![x[0].amin(&[0, 2], false)?])),
    ("var_all", |x| Ok(vec![x[0].var(&[], 1.0, false)?])),
    ("var_last", |x| Ok(vec![x[0].var(&[-1], 1.0, false)?])),
    ("var_first", |x| Ok(vec![x[0].var(&[0], 1.0, true)?])),
    ("var_two", |x| Ok(vec![x[0].var(&[0, 2], 1.0, false)?])),
    ("std_all", |x| Ok(vec![x[0].std(&[], 0.0, false)?])),
    ("std_last", |x| Ok(vec![x[0].std(&[-1], 0.0, false)?])),
    ("std_first", |x| Ok(vec![x[0].std(&[0], 0.0, true)?])),
    ("std_two", |x| Ok(vec![x[0].std(&[0, 2], 0.0, false)?])),
    ("norm_1_all", |x| Ok(vec![x[0].norm(1.0, &[], false)?])),
    ("norm_1_last", |x| Ok(vec![x[0].norm(1.0, &[-1], false)?])),
    ("norm_1_first", |x| Ok(vec![x[0].norm(1.0, &[0], true)?])),
    ("norm_1_two", |x| Ok(vec![x[0].norm(1.0, &[0, 2], false)?])),
    ("norm_2_all", |x| Ok(vec![x[0].norm(2.0, &[], false)?])),
    ("norm_2_last", |x| Ok(vec![x[0].norm(2.0, &[-1], false)?])),
    ("norm_2_first", |x| Ok(vec![x[0].norm(2.0, &[0], true)?])),
    ("norm_2_two", |x| Ok(vec![x[0].norm(2.0, &[0, 2], false)?])),
    ("logsumexp_all", |x| Ok(vec![x[0].logsumexp(&[], false)?])),
    ("logsumexp_last", |x| Ok(vec![x[0].logsumexp(&[-1], false)?])),
    ("logsumexp_first", |x| Ok(vec![x[0].logsumexp(&[0], true)?])),
    ("logsumexp_two", |x| Ok(vec![x[0].logsumexp(&[0, 2], false)?])),
    ("var_mean", |x| {
        let (a, b) = x[0].var_mean(&[1], 1.0, false)?;
        Ok(vec![a, b])
    }),
    ("norm_inf", |x| Ok(vec![x[0].norm(f64::INFINITY, &[-1], false)?])),
    ("norm_3", |x| Ok(vec![x[0].norm(3.0, &[0, 2], true)?])),
    ("prod_all", |x| Ok(vec![x[0].prod(&[], false)?])),
    ("prod_last", |x| Ok(vec![x[0].prod(&[-1], false)?])),
    ("prod_zeros", |x| Ok(vec![x[0].gt(0.0)?.to_dtype(x[0].dtype())?.mul(&x[0])?.prod(&[1], false)?])),
    ("max", |x| {
        let (a, b) = x[0].max(1, false)?;
        Ok(vec![a, b])
    }),
    ("min", |x| {
        let (a, b) = x[0].min(-1, true)?;
        Ok(vec![a, b])
    }),
    ("argmax_all", |x| Ok(vec![x[0].argmax(None, false)?])),
    ("argmin", |x| Ok(vec![x[0].argmin(Some(0), false)?])),
    ("all", |x| Ok(vec![x[0].gt(-1.9)?.all(&[1], false)?])),
    ("any", |x| Ok(vec![x[0].gt(1.9)?.any(&[0], true)?])),
    ("count_nonzero", |x| Ok(vec![x[0].gt(0.0)?.count_nonzero(&[0, 1], false)?])),
    ("sum_integers", |x| Ok(vec![x[0].sum(&[0], false)?])),
    ("prod_integers", |x| Ok(vec![x[0].prod(&[1], false)?])),
    ("amax_integers", |x| Ok(vec![x[0].amax(&[1], false)?])),
    ("sum_bool", |x| Ok(vec![x[0].sum(&[1], false)?])),
    ("sum_to", |x| Ok(vec![x[0].sum_to(&[4, 1])?])),
    ("softmax_last", |x| Ok(vec![x[0].softmax(-1)?])),
    ("softmax_first", |x| Ok(vec![x[0].softmax(0)?])),
    ("log_softmax_last", |x| Ok(vec![x[0].log_softmax(-1)?])),
    ("log_softmax_middle", |x| Ok(vec![x[0].log_softmax(1)?])),
];
