//! Tests of senseless arguments: they give an error or a small result, never a panic, an overflow or use of all memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_tensor::ops::{CrossEntropy, LossReduction, PadMode};
use tenure_tensor::{Attention, Conv, DType, Device, Pool, Result, Scalar, Tensor, random};

const CPU: Device = Device::CPU;
const F32: DType = DType::F32;

fn numbers(sizes: &[usize]) -> Result<Tensor> {
    Tensor::arange(0, sizes.iter().product::<usize>() as i64, 1, F32, CPU)?
        .reshape(&sizes.iter().map(|size| *size as isize).collect::<Vec<_>>())
}

/// A name, and an operation that takes a number.
type Operation<N> = (&'static str, fn(N) -> Result<Tensor>);

/// Operations that take sizes, counts and distances.
const WHOLE: &[Operation<usize>] = &[
    ("empty", |n| Tensor::empty(&[n], F32, CPU)),
    ("zeros", |n| Tensor::zeros(&[2, n, n], F32, CPU)),
    ("eye", |n| Tensor::eye(n, 2, F32, CPU)),
    ("from_slice", |n| Tensor::from_slice(&[1.0_f32], &[n, 2])),
    ("from_vec", |n| Tensor::from_vec(vec![1.0_f32], &[n, 2])),
    ("linspace", |n| Tensor::linspace(0.0, 1.0, n, F32, CPU)),
    ("logspace", |n| Tensor::logspace(0.0, 1.0, n, 2.0, F32, CPU)),
    ("randperm", |n| Tensor::randperm(n, CPU, &random::Generator::default())),
    ("randn", |n| Tensor::randn(&[n, 2], F32, CPU, &random::Generator::default())),
    ("repeat", |n| numbers(&[2, 3])?.repeat(&[n, 1])),
    ("repeat both", |n| numbers(&[2, 3])?.repeat(&[n, n])),
    ("repeat to more", |n| numbers(&[2, 3])?.repeat(&[n, 1, n])),
    ("tile", |n| numbers(&[2, 3])?.tile(&[n])),
    ("repeat_interleave", |n| numbers(&[2, 3])?.repeat_interleave(n, 1)),
    ("narrow", |n| numbers(&[2, 3])?.narrow(1, n, n)),
    ("narrow from", |n| numbers(&[2, 3])?.narrow(1, n, 1)),
    ("narrow length", |n| numbers(&[2, 3])?.narrow(1, 1, n)),
    ("slice step", |n| numbers(&[2, 3])?.slice(1, 0, isize::MAX, n)),
    ("unfold", |n| numbers(&[2, 3])?.unfold(1, n, n)),
    ("unfold step", |n| numbers(&[2, 3])?.unfold(1, 1, n)),
    ("as_strided sizes", |n| numbers(&[2, 3])?.as_strided(&[n, n], &[1, 1], 0)),
    ("as_strided strides", |n| numbers(&[2, 3])?.as_strided(&[2, 2], &[n, n], 0)),
    ("as_strided offset", |n| numbers(&[2, 3])?.as_strided(&[1], &[1], n)),
    ("topk", |n| Ok(numbers(&[2, 3])?.topk(n, 1, true)?.0)),
    ("kthvalue", |n| Ok(numbers(&[2, 3])?.kthvalue(n, 1, false)?.0)),
    ("split", |n| Ok(numbers(&[2, 3])?.split(n, 1)?.remove(0))),
    ("split_sizes", |n| Ok(numbers(&[2, 3])?.split_sizes(&[n, n, 3], 1)?.remove(0))),
    ("chunk", |n| Ok(numbers(&[2, 3])?.chunk(n, 1)?.remove(0))),
    ("one_hot", |n| Tensor::from_slice(&[0_i64, 1], &[2])?.one_hot(n)),
    ("embedding_padded", |n| numbers(&[2, 3])?.embedding_padded(&Tensor::from_slice(&[0_i64, 1], &[2])?, n)),
    ("sum_to", |n| numbers(&[2, 3])?.sum_to(&[n, 3])),
    ("layer_norm", |n| numbers(&[2, 3])?.layer_norm(&[n], None, None, 1e-5)),
    ("group_norm", |n| numbers(&[2, 4])?.group_norm(n, None, None, 1e-5)),
    ("adaptive_avg_pool", |n| numbers(&[1, 1, 3, 3])?.adaptive_avg_pool(&[n, n])),
    ("adaptive_avg_pool of nothing", |n| Tensor::zeros(&[0, 1, 3], F32, CPU)?.adaptive_avg_pool(&[n])),
    ("max_pool kernel", |n| pooled(&Pool { kernel: &[n, n], ..Pool::default() })),
    ("max_pool stride", |n| pooled(&Pool { kernel: &[2, 2], stride: &[n], ..Pool::default() })),
    ("max_pool padding", |n| pooled(&Pool { kernel: &[2, 2], padding: &[n], ..Pool::default() })),
    ("max_pool kernel, padding", |n| pooled(&Pool { kernel: &[n, n], padding: &[n / 2], ..Pool::default() })),
    ("max_pool in three dimensions", |n| {
        // Without the limit, the product of two sizes would overflow already.
        let n = n.min(1 << 31);
        let how = Pool { kernel: &[n, n, 4], padding: &[n / 2, n / 2, 2], ..Pool::default() };
        numbers(&[1, 1, 2, 2, 2])?.max_pool(&how)
    }),
    ("max_pool dilation", |n| pooled(&Pool { kernel: &[2, 2], dilation: &[n], ..Pool::default() })),
    ("max_pool ceil", |n| pooled(&Pool { kernel: &[2, 2], stride: &[n], ceil: true, ..Pool::default() })),
    ("avg_pool kernel", |n| averaged(&Pool { kernel: &[n, n], ..Pool::default() })),
    ("avg_pool stride", |n| averaged(&Pool { kernel: &[2, 2], stride: &[n], ..Pool::default() })),
    ("avg_pool padding", |n| averaged(&Pool { kernel: &[2, 2], padding: &[n], ..Pool::default() })),
    ("avg_pool kernel, padding", |n| averaged(&Pool { kernel: &[n, n], padding: &[n / 2], ..Pool::default() })),
    ("avg_pool ceil", |n| averaged(&Pool { kernel: &[2, 2], stride: &[n], ceil: true, ..Pool::default() })),
    ("conv stride", |n| convolved(&Conv { stride: &[n], ..Conv::default() })),
    ("conv padding", |n| convolved(&Conv { padding: &[n], ..Conv::default() })),
    ("conv padding, stride", |n| convolved(&Conv { padding: &[n / 4], stride: &[n], ..Conv::default() })),
    ("conv dilation", |n| convolved(&Conv { dilation: &[n], ..Conv::default() })),
    ("conv dilation, padding", |n| convolved(&Conv { dilation: &[n / 4], padding: &[n / 4], ..Conv::default() })),
    ("conv groups", |n| convolved(&Conv { groups: n, ..Conv::default() })),
    ("conv_transpose stride", |n| transposed(&Conv { stride: &[n], ..Conv::default() }, 0)),
    ("conv_transpose padding", |n| transposed(&Conv { padding: &[n], ..Conv::default() }, 0)),
    ("conv_transpose dilation", |n| transposed(&Conv { dilation: &[n], ..Conv::default() }, 0)),
    ("conv_transpose groups", |n| transposed(&Conv { groups: n, ..Conv::default() }, 0)),
    ("conv_transpose output_padding", |n| transposed(&Conv::default(), n)),
    ("conv_transpose output_padding, stride", |n| {
        transposed(&Conv { stride: &[n], ..Conv::default() }, n.saturating_sub(1))
    }),
    ("index", |n| numbers(&[2, 3])?.index(n)),
    ("index range", |n| numbers(&[2, 3])?.index(n..)),
    ("index to", |n| numbers(&[2, 3])?.index((0, ..n))),
];

/// Operations that take indices, dimensions and shifts.
const SIGNED: &[Operation<isize>] = &[
    ("sum", |i| numbers(&[2, 3])?.sum(&[i], false)),
    ("amax", |i| numbers(&[2, 3])?.amax(&[i], false)),
    ("softmax", |i| numbers(&[2, 3])?.softmax(i)),
    ("cumsum", |i| numbers(&[2, 3])?.cumsum(i)),
    ("sort", |i| Ok(numbers(&[2, 3])?.sort(i, false, false)?.0)),
    ("transpose", |i| numbers(&[2, 3])?.transpose(i, 0)),
    ("permute", |i| numbers(&[2, 3])?.permute(&[i, 0])),
    ("movedim", |i| numbers(&[2, 3])?.movedim(&[0], &[i])),
    ("squeeze", |i| numbers(&[2, 3])?.squeeze(i)),
    ("unsqueeze", |i| numbers(&[2, 3])?.unsqueeze(i)),
    ("flatten", |i| numbers(&[2, 3])?.flatten(i, i)),
    ("unflatten", |i| numbers(&[2, 3])?.unflatten(0, &[i, i])),
    ("unflatten one", |i| numbers(&[2, 3])?.unflatten(0, &[i, -1])),
    ("view", |i| numbers(&[2, 3])?.view(&[i, i])),
    ("view rest", |i| numbers(&[2, 3])?.view(&[i, -1])),
    ("view of nothing", |i| Tensor::zeros(&[0, 3], F32, CPU)?.view(&[i, i, 0])),
    ("reshape", |i| numbers(&[2, 3])?.reshape(&[2, i])),
    ("expand", |i| numbers(&[1, 3])?.expand(&[i, 3])),
    ("expand twice, copied", |i| numbers(&[1, 1])?.expand(&[i, i])?.contiguous()),
    ("flip", |i| numbers(&[2, 3])?.flip(&[i])),
    ("roll", |i| numbers(&[2, 3])?.roll(&[i], &[1])),
    ("roll all", |i| numbers(&[2, 3])?.roll(&[i], &[])),
    ("tril", |i| numbers(&[2, 3])?.tril(i)),
    ("triu", |i| numbers(&[2, 3])?.triu(i)),
    ("diagonal", |i| numbers(&[2, 3])?.diagonal(i, 0, 1)),
    ("select", |i| numbers(&[2, 3])?.select(1, i)),
    ("slice", |i| numbers(&[2, 3])?.slice(1, i, i, 1)),
    ("slice from", |i| numbers(&[2, 3])?.slice(1, i, 3, 1)),
    ("slice to", |i| numbers(&[2, 3])?.slice(1, 0, i, 1)),
    ("index", |i| numbers(&[2, 3])?.index((0, i))),
    ("index_select", |i| numbers(&[2, 3])?.index_select(1, &Tensor::from_slice(&[i as i64], &[1])?)),
    ("take", |i| numbers(&[2, 3])?.take(&Tensor::from_slice(&[i as i64], &[1])?)),
    ("gather", |i| numbers(&[2, 3])?.gather(1, &Tensor::from_slice(&[i as i64], &[1, 1])?)),
    ("scatter", |i| numbers(&[2, 3])?.scatter(1, &Tensor::from_slice(&[i as i64], &[1, 1])?, 1.0)),
    ("one_hot", |i| Tensor::from_slice(&[i as i64], &[1])?.one_hot(3)),
    ("pad", |i| numbers(&[2, 3])?.pad(&[i, i], PadMode::Constant(Scalar::Int(0)))),
    ("pad after", |i| numbers(&[2, 3])?.pad(&[0, i, i, 0], PadMode::Constant(Scalar::Int(0)))),
    ("pad by the edge", |i| numbers(&[2, 3])?.pad(&[i, i], PadMode::Replicate)),
    ("pad by the edge before", |i| numbers(&[2, 3])?.pad(&[i, 0], PadMode::Replicate)),
    ("pad in a circle", |i| numbers(&[2, 3])?.pad(&[i, 1], PadMode::Circular)),
    ("pad by reflection", |i| numbers(&[2, 3])?.pad(&[1, i], PadMode::Reflect)),
    ("arange", |i| Tensor::arange(0, i as i64, 1, F32, CPU)),
    ("arange from", |i| Tensor::arange(i as i64, 3, 1, DType::I64, CPU)),
    ("arange steps", |i| Tensor::arange(0, 3, i as i64, DType::I64, CPU)),
    ("arange fractions", |i| Tensor::arange(0.0, 3.0, i as f64, F32, CPU)),
    ("arange down", |i| Tensor::arange(i64::MAX, i64::MIN, i as i64, DType::I64, CPU)),
    ("randint", |i| Tensor::randint(i as i64, i64::MAX, &[3], DType::I64, CPU, &random::Generator::default())),
    ("nll_loss", |i| {
        let target = Tensor::from_slice(&[i as i64, 1], &[2])?;
        numbers(&[2, 3])?.nll_loss(&target, None, -100, LossReduction::Mean)
    }),
    ("cross_entropy", |i| {
        let target = Tensor::from_slice(&[i as i64, 1], &[2])?;
        numbers(&[2, 3])?.cross_entropy(&target, &CrossEntropy::default())
    }),
    ("pow", |i| Tensor::from_slice(&[2_i64, -1, 0], &[3])?.pow(i as i64)),
    ("div_floor", |i| Tensor::from_slice(&[i64::MIN, 1], &[2])?.div_floor(i as i64)),
    ("remainder", |i| Tensor::from_slice(&[i64::MIN, 1], &[2])?.remainder(i as i64)),
    ("shift", |i| Tensor::from_slice(&[1_i64], &[1])?.shift_left(&Tensor::from_slice(&[i as i64], &[1])?)),
];

const PROBABILITIES: &[Operation<f64>] = &[
    ("dropout", |x| numbers(&[2, 3])?.dropout(x, true)),
    ("attention", |x| {
        let q = numbers(&[1, 2, 3])?;
        q.attention(&q, &q, &Attention { dropout: x, ..Attention::default() })
    }),
    ("bernoulli_", |x| written(|to| to.bernoulli_(x, &random::Generator::default()))),
    ("label_smoothing", |x| {
        let options = CrossEntropy { label_smoothing: x, ..CrossEntropy::default() };
        numbers(&[2, 3])?.cross_entropy(&Tensor::from_slice(&[0_i64, 1], &[2])?, &options)
    }),
];

const FACTORS: &[Operation<f64>] = &[
    ("normal_", |x| written(|to| to.normal_(0.0, x, &random::Generator::default()))),
    ("uniform_", |x| written(|to| to.uniform_(x, 1.0, &random::Generator::default()))),
    ("arange", |x| Tensor::arange(0.0, 3.0, x, F32, CPU)),
    ("arange to", |x| Tensor::arange(0.0, x, 1.0, F32, CPU)),
    ("arange of integers", |x| Tensor::arange(0.0, x, 1.0, DType::I64, CPU)),
    ("smooth_l1_loss", |x| numbers(&[2])?.smooth_l1_loss(&numbers(&[2])?, x, LossReduction::Mean)),
    ("huber_loss", |x| numbers(&[2])?.huber_loss(&numbers(&[2])?, x, LossReduction::Mean)),
    ("var", |x| numbers(&[2, 3])?.var(&[1], x, false)),
    ("norm", |x| numbers(&[2, 3])?.norm(x, &[1], false)),
    ("celu", |x| numbers(&[2, 3])?.celu(x)),
    ("to integers", |x| Tensor::full(&[2], x, F32, CPU)?.to_dtype(DType::I8)),
    ("fill integers", |x| Tensor::full(&[2], x, DType::I32, CPU)),
];

fn pooled(how: &Pool<'_>) -> Result<Tensor> {
    numbers(&[1, 1, 4, 5])?.max_pool(how)
}

fn averaged(how: &Pool<'_>) -> Result<Tensor> {
    numbers(&[1, 1, 4, 5])?.avg_pool(how, true)
}

fn convolved(how: &Conv<'_>) -> Result<Tensor> {
    numbers(&[1, 2, 4, 5])?.conv(&numbers(&[2, 2, 2, 3])?, None, how)
}

fn transposed(how: &Conv<'_>, output_padding: usize) -> Result<Tensor> {
    numbers(&[1, 2, 4, 5])?.conv_transpose(&numbers(&[2, 2, 2, 3])?, None, how, &[output_padding])
}

fn written(write: impl Fn(&Tensor) -> Result<()>) -> Result<Tensor> {
    let tensor = numbers(&[2, 3])?;
    write(&tensor)?;
    Ok(tensor)
}

/// Operations that accept any number: they limit it to the sizes, take it as an operand, or need no memory for it.
const TAKEN: &[&str] = &[
    "slice step",
    "slice",
    "slice from",
    "slice to",
    "index range",
    "index to",
    "unfold step",
    "split",
    "chunk",
    "roll",
    "roll all",
    "tril",
    "triu",
    "diagonal",
    "expand",
    "arange steps",
    "arange fractions",
    "arange down",
    "randint",
    "pow",
    "div_floor",
    "remainder",
    "shift",
];

/// Returns what is wrong with the outcome of a call, if anything is.
fn verdict(is_senseless: bool, call: impl FnOnce() -> Result<Tensor>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            Some(format!("panics: {}", said.unwrap_or_default()))
        }
        Ok(Ok(tensor)) if is_senseless || tensor.storage().bytes() > 40_000 => {
            Some(format!("gives sizes {:?}", tensor.sizes()))
        }
        Ok(_) => None,
    }
}

/// Checks that `small` numbers give an error or a small result, and `huge` ones an error.
fn check<N: Copy + std::fmt::Display>(operations: &[Operation<N>], small: &[N], huge: &[N]) {
    let mut wrong = Vec::new();
    for (name, operation) in operations {
        let numbers = small.iter().map(|number| (number, false)).chain(huge.iter().map(|number| (number, true)));
        for (number, is_huge) in numbers {
            let verdict = verdict(is_huge && !TAKEN.contains(name), || operation(*number));
            wrong.extend(verdict.map(|what| format!("{name} of {number} {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn sizes() {
    const MAX: usize = usize::MAX;
    check(WHOLE, &[0, 1, 2, 7], &[MAX >> 3, MAX >> 2, (MAX >> 2) + 1, MAX >> 1, (MAX >> 1) + 1, MAX - 1, MAX]);
}

#[test]
fn indices_and_dimensions() {
    const MAX: isize = isize::MAX;
    let small = [-7, -2, -1, 0, 1, 2, 7];
    check(SIGNED, &small, &[isize::MIN, isize::MIN + 1, -MAX / 2, MAX >> 2, MAX >> 1, MAX - 1, MAX]);
}

#[test]
fn probabilities() {
    let senseless = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, f64::MAX, -1e-9, 1.5];
    check(PROBABILITIES, &[-0.0, 0.0, 1e-320, 0.5, 1.0], &senseless);
}

#[test]
fn factors() {
    let any = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, f64::MAX, -1.0, -0.0, 0.0, 1e-320, 0.5, 1.5];
    check(FACTORS, &any, &[]);
    for step in [f64::NAN, f64::INFINITY, 0.0, -1e-9, -1.0, f64::MIN] {
        Tensor::arange(0.0, 3.0, step, F32, CPU).unwrap_err();
    }
}
