//! Operations on integers of every width compared with PyTorch.

use tenure_tensor::ops::{PadMode, cat, stack};
use tenure_tensor::{DType, Result, Scalar, Tensor, einsum};

use crate::harness::Case;

fn each<const N: usize>(results: [Result<Tensor>; N]) -> Result<Vec<Tensor>> {
    results.into_iter().collect()
}

pub(crate) const CASES: &[Case] = &[
    ("add", |x| each([x[0].add(&x[1])])),
    ("sub", |x| each([x[0].sub(&x[1])])),
    ("mul", |x| each([x[0].mul(&x[1])])),
    ("div", |x| each([x[0].div(&x[1])])),
    ("remainder", |x| each([x[0].remainder(&x[1])])),
    ("fmod", |x| each([x[0].fmod(&x[1])])),
    ("pow", |x| each([x[0].pow(&x[1])])),
    ("maximum", |x| each([x[0].maximum(&x[1])])),
    ("minimum", |x| each([x[0].minimum(&x[1])])),
    ("eq", |x| each([x[0].eq(&x[1])])),
    ("lt", |x| each([x[0].lt(&x[1])])),
    ("ge", |x| each([x[0].ge(&x[1])])),
    ("div_floor", |x| each([x[0].div_floor(&x[1])])),
    ("div_trunc", |x| each([x[0].div_trunc(&x[1])])),
    ("bits", |x| {
        let (x, y) = (&x[0], &x[1]);
        let logic = [x.bitwise_and(y), x.bitwise_or(y), x.bitwise_xor(y), x.bitwise_not()];
        logic.into_iter().chain([x.shift_left(y), x.shift_right(y)]).collect()
    }),
    ("logic", |x| {
        let (x, y) = (&x[0], &x[1]);
        each([x.logical_and(y), x.logical_or(y), x.logical_xor(y), x.logical_not()])
    }),
    ("functions", |x| {
        let x = &x[0];
        each([x.neg(), x.abs(), x.sign(), x.square(), x.floor(), x.round(), x.clamp(2, 5), x.relu()])
    }),
    ("fused", |x| each([x[0].add_scaled(&x[1], 3), x[0].addcmul(&x[1], &x[2], 2)])),
    ("sums", |x| {
        let x = &x[0];
        each([x.sum_all(), x.sum(&[0], false), x.prod(&[1], false), x.cumsum(1), x.cumprod(0)])
    }),
    ("extremes", |x| {
        let (x, max, min) = (&x[0], x[0].max(1, false)?, x[0].min(0, false)?);
        let rest = each([
            x.amax(&[0], false),
            x.amin(&[1], false),
            x.max_all(),
            x.argmax(Some(1), false),
            x.argmin(None, false),
        ])?;
        Ok([vec![max.0, max.1, min.0, min.1], rest].concat())
    }),
    ("truths", |x| {
        let x = &x[0];
        let all = x.all(&[1], false)?.to_dtype(DType::Bool);
        let any = x.any(&[0], false)?.to_dtype(DType::Bool);
        each([all, any, x.count_nonzero(&[1], false), x.isnan(), x.isfinite()])
    }),
    ("order", |x| {
        let (x, sorted, most) = (&x[0], x[0].sort(1, false, false)?, x[0].topk(2, 1, true)?);
        Ok(vec![sorted.0, sorted.1, x.argsort(0, false, false)?, most.0, most.1])
    }),
    ("products", |x| {
        let (x, y) = (&x[0], &x[1]);
        let first = y.select(1, 0)?;
        let second = y.select(1, 1)?;
        each([x.matmul(y), x.mv(&first), x.select(0, 0)?.dot(&second), einsum("ij,jk->ik", &[x, y])])
    }),
    ("chosen", |x| each([x[1].where_(&x[0], &x[2]), x[0].masked_fill(&x[1], 7), x[0].masked_select(&x[1])])),
    ("joined", |x| {
        let (x, y) = (&x[0], &x[1]);
        each([cat(&[x, x], 0), stack(&[y, y], 1), x.repeat(&[1, 2]), x.flip(&[0]), x.roll(&[1], &[1])])
    }),
    ("moved", |x| {
        let (x, i, s) = (&x[0], &x[1], &x[2]);
        let first = i.select(1, 0)?;
        let second = i.select(1, 1)?;
        each([x.gather(0, i), x.scatter_add(0, i, s), x.index_add(0, &first, s), x.index(&second)])
    }),
    ("shaped", |x| {
        let x = &x[0];
        let padded = x.pad(&[1, 2], PadMode::Constant(Scalar::Int(3)));
        each([x.tril(0), x.triu(1), padded, x.nonzero(), x.t()?.contiguous()])
    }),
    ("converted", |x| {
        [DType::Bool, DType::F16, DType::F64, DType::U8, DType::I64].into_iter().map(|to| x[0].to_dtype(to)).collect()
    }),
];
