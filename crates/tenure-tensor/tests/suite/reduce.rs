//! Tests of reductions, norms and losses, for their guarantees besides values.

use proptest::prelude::*;
use tenure_tensor::ops::{BatchNormParameters, CrossEntropy};
use tenure_tensor::{DType, Device, MemoryFormat, Result, Tensor, autograd, threads};

use crate::views::{View, views};

/// Returns numbers without a pattern.
fn noise(sizes: &[usize]) -> Tensor {
    let mut state = 1_u64;
    let values = (0..sizes.iter().product()).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_slice(&values.collect::<Vec<f32>>(), sizes).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().iter().map(|value| value.to_bits()).collect()
}

/// Returns the bits of `function`'s result for `x`, and of the gradient of its sum.
fn run(x: &Tensor, function: &dyn Fn(&Tensor) -> Result<Tensor>) -> Vec<Vec<u32>> {
    let x = x.detach().requires_grad_(true).unwrap();
    let y = function(&x).unwrap();
    let upstream = noise(y.sizes());
    let grad = autograd::grad(&[&y], &[&x], &[Some(&upstream)], autograd::BackwardOptions::default()).unwrap();
    vec![bits(&y), bits(grad[0].as_ref().unwrap())]
}

#[test]
fn threads_do_not_change_a_bit() {
    let rows = noise(&[300, 1000]);
    let images = noise(&[8, 16, 40, 40]);
    let last = images.contiguous_in(MemoryFormat::ChannelsLast2d).unwrap();
    let classes = Tensor::from_slice(&(0..300).map(|row| row * 3).collect::<Vec<i64>>(), &[300]).unwrap();
    let [thousand, sixteen] = [1000, 16].map(|n| Tensor::ones(&[n], DType::F32, Device::CPU).unwrap());
    let normalized = |x: &Tensor| x.batch_norm(None, Some(&sixteen), Some(&sixteen), true, 0.1, 1e-5);
    type Function<'a> = (&'a str, &'a Tensor, &'a dyn Fn(&Tensor) -> Result<Tensor>);
    let functions: [Function<'_>; 15] = [
        ("sum all", &rows, &|x| x.sum_all()),
        ("sum rows", &rows, &|x| x.sum(&[1], false)),
        ("sum columns", &rows, &|x| x.sum(&[0], false)),
        ("sum of planes", &images, &|x| x.sum(&[0, 2, 3], false)),
        ("mean of pixels", &last, &|x| x.mean(&[2, 3], false)),
        ("var", &rows, &|x| x.var(&[0], 1.0, false)),
        ("norm", &rows, &|x| x.norm(2.0, &[], false)),
        ("softmax", &rows, &|x| x.softmax(1)),
        ("log_softmax", &images, &|x| x.log_softmax(1)),
        ("layer_norm", &rows, &|x| x.layer_norm(&[1000], Some(&thousand), Some(&thousand), 1e-5)),
        ("batch_norm", &images, &normalized),
        ("batch_norm, channels last", &last, &normalized),
        ("group_norm", &images, &|x| x.group_norm(4, Some(&sixteen), Some(&sixteen), 1e-5)),
        ("cross_entropy", &rows, &|x| x.cross_entropy(&classes, &CrossEntropy::default())),
        ("cumsum", &rows, &|x| x.cumsum(0)),
    ];
    for (name, x, function) in functions {
        let results = [1, 2, 3].map(|count| {
            threads::set_threads(count).unwrap();
            run(x, function)
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{name} differs");
    }
}

fn exact(values: Vec<f32>) -> f64 {
    values.into_iter().map(f64::from).sum()
}

#[test]
fn sums_do_not_lose_digits() {
    let n = 1 << 20;
    for sizes in [[n, 1], [1, n], [1024, 1024], [n / 4, 4]] {
        let x = noise(&sizes).add(1.0).unwrap();
        let expected = exact(x.to_vec().unwrap());
        let all = f64::from(x.sum_all().unwrap().item::<f32>().unwrap());
        let columns = exact(x.sum(&[0], false).unwrap().to_vec().unwrap());
        assert!((all - expected).abs() <= 2e-7 * expected, "{sizes:?}: {all}, expected {expected}");
        assert!((columns - expected).abs() <= 1e-6 * expected, "{sizes:?}: {columns}, expected {expected}");
    }
}

#[test]
fn nan_wins() {
    let x = Tensor::from_slice(&[1.0_f32, f32::NAN, 3.0, f32::NAN], &[4]).unwrap();
    assert!(x.max_all().unwrap().item::<f32>().unwrap().is_nan());
    assert!(x.amin(&[0], false).unwrap().item::<f32>().unwrap().is_nan());
    assert_eq!(x.argmax(None, false).unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(x.argmin(Some(0), false).unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(x.argsort(0, false, false).unwrap().to_vec::<i64>().unwrap(), [0, 2, 1, 3]);
    assert_eq!(x.argsort(0, true, false).unwrap().to_vec::<i64>().unwrap(), [1, 3, 2, 0]);
}

#[test]
fn channels_stay_last() {
    let x = noise(&[2, 3, 4, 5]).contiguous_in(MemoryFormat::ChannelsLast2d).unwrap();
    let y = x.batch_norm(None, None, None, true, 0.1, 1e-5).unwrap();
    assert!(y.layout().is_contiguous_in(MemoryFormat::ChannelsLast2d));
}

#[test]
fn a_batch_norm_with_what_follows_is_the_same_bits() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let new = |sizes: &[usize]| noise(sizes).to_dtype(dtype).unwrap().requires_grad_(true).unwrap();
        let leaves = [new(&[4, 8, 5, 5]), new(&[8]), new(&[8]), new(&[4, 8, 5, 5])];
        let [x, weight, bias, carried] = leaves.each_ref();
        let grad = noise(&[4, 8, 5, 5]).to_dtype(dtype).unwrap();
        for (training, around) in [(true, false), (true, true), (false, false), (false, true)] {
            let found = [false, true].map(|at_once| {
                let mean = noise(&[8]);
                let variance = noise(&[8]).abs().unwrap();
                let weight = Some(weight);
                let bias = Some(bias);
                let running = Some((&mean, &variance));
                let norm = BatchNormParameters { running, weight, bias, training, momentum: 0.1, eps: 1e-5 };
                let out = if at_once {
                    x.batch_norm_relu(around.then_some(carried), &norm).unwrap()
                } else {
                    let out = x.batch_norm(running, weight, bias, training, 0.1, 1e-5).unwrap();
                    if around { out.add(carried).unwrap().relu().unwrap() } else { out.relu().unwrap() }
                };
                let without = autograd::no_grad(|| x.batch_norm_relu(around.then_some(carried), &norm)).unwrap();
                assert!(training || numbers(&without) == numbers(&out));
                let inputs = if around { &leaves[..] } else { &leaves[..3] };
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                let mut found =
                    autograd::grad(&[&out], &inputs, &[Some(&grad)], autograd::BackwardOptions::default()).unwrap();
                found.extend([Some(out.detach()), Some(mean.clone()), Some(variance.clone())]);
                found.into_iter().map(|tensor| numbers(&tensor.unwrap())).collect::<Vec<_>>()
            });
            assert_eq!(found[0], found[1], "{dtype}, training {training}, around {around}");
        }
    }
}

fn said(result: Result<Tensor>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn errors_say_what_to_do() {
    let x = noise(&[2, 3]);
    let integers = Tensor::from_slice(&[0_i64, 5], &[2]).unwrap();
    let error = said(integers.mean_all());
    assert!(error.contains("mean") && error.contains("to_dtype"), "{error}");
    let error = said(x.cross_entropy(&integers, &CrossEntropy::default()));
    assert!(error.contains("class 5") && error.contains("classes 0 to 2"), "{error}");
    let error = said(x.sum(&[0, -2], false));
    assert!(error.contains("twice"), "{error}");
    let error = said(x.layer_norm(&[4], None, None, 1e-5));
    assert!(error.contains("[2, 3]") && error.contains("[4]"), "{error}");
    let error = said(x.batch_norm(None, None, None, false, 0.1, 1e-5));
    assert!(error.contains("running averages"), "{error}");
    let error = said(Tensor::zeros(&[0], DType::F32, Device::CPU).unwrap().max_all());
    assert!(error.contains("no element"), "{error}");
}

/// Returns a view's elements: small whole numbers, whose sums are exact in any of these dtypes.
fn whole_numbers(view: &View, dtype: DType) -> (Tensor, Vec<f64>) {
    let number = |place: usize| (place * 7 % 9) as f64 - 4.0;
    let number = |place| if dtype == DType::Bool { f64::from(number(place) > 0.0) } else { number(place) };
    let base: Vec<f64> = (0..view.layout().extent().end).map(number).collect();
    let base = Tensor::from_slice(&base, &[base.len()]).unwrap().to_dtype(dtype).unwrap();
    let tensor = Tensor::from_storage(base.storage().clone(), view.layout(), dtype).unwrap();
    let elements = (0..tensor.numel()).map(|at| number(view.place(at, &view.sizes))).collect();
    (tensor, elements)
}

/// Returns the output that an element belongs to, if the dimensions in `is_reduced` are reduced.
fn output(mut at: usize, sizes: &[usize], is_reduced: &[bool]) -> usize {
    let (mut output, mut stride) = (0, 1);
    for (size, is_reduced) in sizes.iter().zip(is_reduced).rev() {
        if !is_reduced {
            output += at % size * stride;
            stride *= size;
        }
        at /= size;
    }
    output
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Returns the numbers as the dtype holds them.
fn rounded(numbers: &[f64], dtype: DType) -> Vec<f64> {
    self::numbers(&Tensor::from_slice(numbers, &[numbers.len()]).unwrap().to_dtype(dtype).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_any_layout_and_dtype_they_are_those_of_a_plain_loop(
        (_, views) in views(1),
        is_reduced in prop::collection::vec(any::<bool>(), 5),
        dtype in prop::sample::select(vec![DType::Bool, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64]),
    ) {
        let sizes = &views[0].sizes;
        let mut is_reduced = is_reduced[..sizes.len()].to_vec();
        if !is_reduced.contains(&true) {
            is_reduced.fill(true);
        }
        let dims: Vec<isize> = (0..sizes.len()).filter(|dim| is_reduced[*dim]).map(|dim| dim as isize).collect();
        let (x, elements) = whole_numbers(&views[0], dtype);
        let kept: usize = (0..sizes.len()).filter(|dim| !is_reduced[*dim]).map(|dim| sizes[dim]).product();
        let mut sums = vec![0.0; kept];
        let mut largest = vec![f64::NEG_INFINITY; kept];
        for (at, element) in elements.iter().enumerate() {
            let output = output(at, sizes, &is_reduced);
            sums[output] += element;
            largest[output] = largest[output].max(*element);
        }
        let found = x.sum(&dims, false).unwrap();
        prop_assert_eq!(numbers(&found), rounded(&sums, found.dtype()));
        if x.numel() > 0 {
            prop_assert_eq!(numbers(&x.amax(&dims, false).unwrap()), &largest[..]);
        }

        // This is the first of the largest along one dimension.
        let Some(along) = dims.first().filter(|_| x.numel() > 0).map(|dim| *dim as usize) else { return Ok(()) };
        let is_along: Vec<bool> = (0..sizes.len()).map(|dim| dim == along).collect();
        let inner: usize = sizes[along + 1..].iter().product();
        let mut first = vec![(f64::NEG_INFINITY, 0); x.numel() / sizes[along]];
        for (at, element) in elements.iter().enumerate() {
            let first = &mut first[output(at, sizes, &is_along)];
            if *element > first.0 {
                *first = (*element, at / inner % sizes[along]);
            }
        }
        let (values, places) = x.max(along as isize, false).unwrap();
        prop_assert_eq!(numbers(&values), first.iter().map(|(value, _)| *value).collect::<Vec<_>>());
        prop_assert_eq!(numbers(&places), first.iter().map(|(_, place)| *place as f64).collect::<Vec<_>>());
    }
}
