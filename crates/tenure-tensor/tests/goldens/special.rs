//! Special values (NaN, infinities, zeros, large and missing ones) and integers that overflow, compared with PyTorch.

use tenure_tensor::ops::{CrossEntropy, LossReduction};
use tenure_tensor::{DType, Result, Tensor};

use crate::harness::Case;

fn each<const N: usize>(results: [Result<Tensor>; N]) -> Result<Vec<Tensor>> {
    results.into_iter().collect()
}

fn pairs<const N: usize>(results: [Result<(Tensor, Tensor)>; N]) -> Result<Vec<Tensor>> {
    let results = results.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(results.into_iter().flat_map(|(a, b)| [a, b]).collect())
}

fn classes(scores: &Tensor) -> Result<Tensor> {
    Tensor::from_slice(&[0_i64, 1, 2, 3, 0, 1], &[6])?.to_device(scores.device())
}

pub(crate) const CASES: &[Case] = &[
    ("abs", |x| each([x[0].abs()])),
    ("sign", |x| each([x[0].sign()])),
    ("square", |x| each([x[0].square()])),
    ("frac", |x| each([x[0].frac()])),
    ("floor", |x| each([x[0].floor()])),
    ("ceil", |x| each([x[0].ceil()])),
    ("round", |x| each([x[0].round()])),
    ("trunc", |x| each([x[0].trunc()])),
    ("sqrt", |x| each([x[0].sqrt()])),
    ("rsqrt", |x| each([x[0].rsqrt()])),
    ("reciprocal", |x| each([x[0].reciprocal()])),
    ("exp", |x| each([x[0].exp()])),
    ("expm1", |x| each([x[0].expm1()])),
    ("log", |x| each([x[0].log()])),
    ("log1p", |x| each([x[0].log1p()])),
    ("log2", |x| each([x[0].log2()])),
    ("log10", |x| each([x[0].log10()])),
    ("sin", |x| each([x[0].sin()])),
    ("cos", |x| each([x[0].cos()])),
    ("tan", |x| each([x[0].tan()])),
    ("asin", |x| each([x[0].asin()])),
    ("acos", |x| each([x[0].acos()])),
    ("atan", |x| each([x[0].atan()])),
    ("sinh", |x| each([x[0].sinh()])),
    ("cosh", |x| each([x[0].cosh()])),
    ("tanh", |x| each([x[0].tanh()])),
    ("erf", |x| each([x[0].erf()])),
    ("erfc", |x| each([x[0].erfc()])),
    ("erfinv", |x| each([x[0].erfinv()])),
    ("lgamma", |x| each([x[0].lgamma()])),
    ("digamma", |x| each([x[0].digamma()])),
    ("sigmoid", |x| each([x[0].sigmoid()])),
    ("relu", |x| each([x[0].relu()])),
    ("relu6", |x| each([x[0].relu6()])),
    ("selu", |x| each([x[0].selu()])),
    ("gelu", |x| each([x[0].gelu()])),
    ("silu", |x| each([x[0].silu()])),
    ("mish", |x| each([x[0].mish()])),
    ("logsigmoid", |x| each([x[0].logsigmoid()])),
    ("hardsigmoid", |x| each([x[0].hardsigmoid()])),
    ("hardswish", |x| each([x[0].hardswish()])),
    ("softsign", |x| each([x[0].softsign()])),
    ("gelu_tanh", |x| each([x[0].gelu_tanh()])),
    ("softplus", |x| each([x[0].softplus(1.0, 20.0)])),
    ("elu", |x| each([x[0].elu(1.0)])),
    ("clamp", |x| each([x[0].clamp(-1, 1)])),
    ("to_bool", |x| each([x[0].to_dtype(DType::Bool)])),
    ("div", |x| each([x[0].div(&x[1])])),
    ("remainder", |x| each([x[0].remainder(&x[1])])),
    ("fmod", |x| each([x[0].fmod(&x[1])])),
    ("pow", |x| each([x[0].pow(&x[1])])),
    ("atan2", |x| each([x[0].atan2(&x[1])])),
    ("atan2_at_origin", |x| each([x[0].atan2(&x[1])])),
    ("maximum", |x| each([x[0].maximum(&x[1])])),
    ("minimum", |x| each([x[0].minimum(&x[1])])),
    ("eq", |x| each([x[0].eq(&x[1])])),
    ("ne", |x| each([x[0].ne(&x[1])])),
    ("lt", |x| each([x[0].lt(&x[1])])),
    ("ge", |x| each([x[0].ge(&x[1])])),
    ("div_floor", |x| each([x[0].div_floor(&x[1])])),
    ("div_trunc", |x| each([x[0].div_trunc(&x[1])])),
    ("isclose", |x| each([x[0].isclose(&x[1], 1e-5, 1e-8, true)])),
    ("softmax", |x| each([x[0].softmax(1)])),
    ("log_softmax", |x| each([x[0].log_softmax(1)])),
    ("softmax_columns", |x| each([x[0].softmax(0)])),
    ("logsumexp", |x| each([x[0].logsumexp(&[1], false)])),
    ("cross_entropy", |x| {
        let options = CrossEntropy { reduction: LossReduction::None, ..CrossEntropy::default() };
        each([x[0].cross_entropy(&classes(&x[0])?, &options)])
    }),
    ("extremes", |x| {
        let both = pairs([x[0].max(1, false), x[0].min(1, false)])?;
        Ok([both, each([x[0].amax(&[1], false), x[0].amin(&[0], false)])?].concat())
    }),
    ("places", |x| {
        each([
            x[0].argmax(Some(1), false),
            x[0].argmin(Some(0), false),
            x[0].argmax(None, false),
            x[0].argmin(None, false),
        ])
    }),
    ("sort", |x| pairs([x[0].sort(1, false, false), x[0].sort(1, true, false)])),
    ("topk", |x| pairs([x[0].topk(3, 1, true), x[0].topk(3, 1, false), x[0].kthvalue(2, 1, false)])),
    ("sums", |x| {
        let x = &x[0];
        each([
            x.sum(&[1], false),
            x.mean(&[0], false),
            x.prod(&[1], false),
            x.cumsum(1),
            x.cumprod(0),
            x.var(&[1], 1.0, false),
        ])
    }),
    ("norms", |x| {
        [0.0, 1.0, 2.0, 3.0, f64::INFINITY, f64::NEG_INFINITY].into_iter().map(|p| x[0].norm(p, &[1], false)).collect()
    }),
    ("truths", |x| {
        let x = &x[0];
        each([x.all(&[1], false), x.any(&[0], false), x.count_nonzero(&[1], false), x.isnan(), x.isinf(), x.isfinite()])
    }),
    ("norm_of_zeros", |x| each([x[0].norm(1.0, &[1], false), x[0].norm(2.0, &[1], false)])),
    ("std_of_equal", |x| each([x[0].std(&[1], 1.0, false), x[0].var(&[1], 1.0, false)])),
    ("wrapped", |x| each([x[0].add(&x[1]), x[0].sub(&x[1]), x[0].mul(&x[1]), x[0].neg(), x[0].abs(), x[0].square()])),
    ("wrapped_unsigned", |x| each([x[0].add(&x[1]), x[0].sub(&x[1]), x[0].mul(&x[1]), x[0].neg()])),
    ("wrapped_long", |x| each([x[0].add(&x[1]), x[0].mul(&x[1])])),
    ("wrapped_sums", |x| each([x[0].sum_all(), x[0].prod(&[], false), x[0].cumsum(0), x[0].cumprod(0)])),
    ("powers", |x| each([x[0].pow(&x[1]), x[0].pow(2), x[0].pow(3)])),
    ("rests", |x| each([x[0].remainder(&x[1]), x[0].fmod(&x[1]), x[0].div_floor(&x[1]), x[0].div_trunc(&x[1])])),
    ("shifts", |x| each([x[0].shift_left(&x[1]), x[0].shift_right(&x[1])])),
    ("bools", |x| {
        let (x, y) = (&x[0], &x[1]);
        each([x.add(y), x.mul(y), x.bitwise_and(y), x.bitwise_or(y), x.bitwise_xor(y), x.bitwise_not()])
    }),
    ("bool_sums", |x| each([x[0].sum_all(), x[0].prod(&[], false), x[0].cumsum(0), x[0].max_all()])),
    ("integer_functions", |x| each([x[0].exp(), x[0].sqrt(), x[0].sigmoid(), x[0].div(3), x[0].to_dtype(DType::F16)])),
];
