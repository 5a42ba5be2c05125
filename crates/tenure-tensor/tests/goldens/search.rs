//! Searches in sorted sequences, distinct elements, medians, quantiles, and extremes so far, compared with PyTorch.

use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

fn two(tensors: (Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![tensors.0, tensors.1])
}

fn three(tensors: (Tensor, Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![tensors.0, tensors.1, tensors.2])
}

pub(crate) const CASES: &[Case] = &[
    ("searchsorted", |x| Ok(vec![x[0].searchsorted(&x[1], false, None)?])),
    ("searchsorted_right", |x| Ok(vec![x[0].searchsorted(&x[1], true, None)?])),
    ("searchsorted_rows", |x| {
        let sequence = x[0].sort(-1, false, false)?.0;
        let left = sequence.searchsorted(&x[1], false, Some("left"))?;
        Ok(vec![left, sequence.searchsorted(&x[1], false, Some("right"))?])
    }),
    ("searchsorted_nothing", |x| Ok(vec![x[0].searchsorted(&x[1], true, None)?])),
    ("searchsorted_number", |x| Ok(vec![x[0].searchsorted(0.5, false, None)?])),
    ("bucketize", |x| Ok(vec![x[0].bucketize(&x[1], false)?, x[0].bucketize(&x[1], true)?])),
    ("bucketize_of_one", |x| Ok(vec![x[0].bucketize(&x[1].sort(-1, false, false)?.0, false)?])),
    ("isin", |x| Ok(vec![x[0].isin(&x[1], false, false)?, x[0].isin(&x[1], true, true)?])),
    ("isin_floats", |x| Ok(vec![x[0].isin(&x[1], false, false)?])),
    ("isin_number", |x| Ok(vec![x[0].isin(2, false, false)?])),
    ("unique", |x| three(x[0].unique(true, true, true, None)?)),
    ("unique_floats", |x| three(x[0].unique(true, true, true, None)?)),
    ("unique_bool", |x| three(x[0].unique(true, true, true, None)?)),
    ("unique_only", |x| Ok(vec![x[0].unique(true, false, false, None)?.0])),
    ("unique_rows", |x| three(x[0].unique(true, true, true, Some(0))?)),
    ("unique_columns", |x| three(x[0].unique(true, true, true, Some(-1))?)),
    ("unique_slices", |x| three(x[0].unique(true, true, true, Some(1))?)),
    ("unique_of_vector", |x| three(x[0].unique(true, true, true, Some(0))?)),
    ("cummax", |x| two(x[0].cummax(-1)?)),
    ("cummin", |x| two(x[0].cummin(-1)?)),
    ("cummax_first", |x| two(x[0].cummax(0)?)),
    ("cummin_repeated", |x| two(x[0].cummin(1)?)),
    ("cummax_repeated", |x| two(x[0].cummax(1)?)),
    ("cummax_nan", |x| Ok([two(x[0].cummax(1)?)?, two(x[0].cummin(1)?)?].concat())),
    ("median_all", |x| Ok(vec![x[0].median_all()?])),
    ("median_all_shared", |x| Ok(vec![x[0].median_all()?])),
    ("median", |x| two(x[0].median(-1, false)?)),
    ("median_kept", |x| two(x[0].median(0, true)?)),
    ("median_integers", |x| two(x[0].median(0, false)?)),
    ("median_nan", |x| Ok([vec![x[0].median_all()?], two(x[0].median(1, false)?)?].concat())),
    ("nanmedian_all", |x| Ok(vec![x[0].nanmedian_all()?])),
    ("nanmedian", |x| two(x[0].nanmedian(-1, false)?)),
    ("nanmedian_nan", |x| {
        let rows = x[0].slice(0, 0, 3, 2)?;
        Ok([vec![x[0].nanmedian_all()?], two(rows.nanmedian(1, false)?)?].concat())
    }),
    ("quantile", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "linear")?])),
    ("quantile_lower", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "lower")?])),
    ("quantile_higher", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "higher")?])),
    ("quantile_nearest", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "nearest")?])),
    ("quantile_midpoint", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "midpoint")?])),
    ("quantile_all", |x| Ok(vec![x[0].quantile(0.3, None, false, "linear")?])),
    ("quantile_all_kept", |x| Ok(vec![x[0].quantile(0.3, None, true, "linear")?])),
    ("quantile_several", |x| Ok(vec![x[0].quantile(&x[1], Some(-1), false, "linear")?])),
    ("quantile_several_kept", |x| Ok(vec![x[0].quantile(&x[1], Some(0), true, "linear")?])),
    ("quantile_several_of_all", |x| Ok(vec![x[0].quantile(&x[1], None, true, "linear")?])),
    ("quantile_nan", |x| Ok(vec![x[0].quantile(0.4, Some(1), false, "linear")?])),
];
