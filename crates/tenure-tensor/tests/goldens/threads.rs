//! Determinism over threads: operations on large inputs give the same bits for any number of threads.

use std::collections::BTreeSet;

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Result, Tensor, threads};

use crate::coverage::{apart, calls, operations};
use crate::harness::{Family, Function, Sample};

/// The size of the largest input or output: enough for elementwise operations to be split into parts.
const ELEMENTS: usize = 70_000;

/// The sizes of a case that grow: all, the first of each input, or the first of the first input. The first way that the
/// closure accepts is used.
const GROWTHS: [Growth; 3] = [|_, _| true, |_, dim| dim == 0, |input, dim| input == 0 && dim == 0];

type Growth = fn(usize, usize) -> bool;

/// Operations whose sizes are fixed in the cases.
const FIXED: &[&str] = &["arange", "eye", "full", "linspace", "logspace", "ones"];

#[test]
fn threads_do_not_change_a_bit() {
    // Each operation runs once: a case whose operations have all run is left out.
    let mut left: BTreeSet<String> = operations().difference(&apart()).cloned().collect();
    for cases in crate::FAMILIES {
        let golden = Family::open(cases.family);
        let calls = calls(cases);
        for (name, function) in cases.cases {
            if calls[name].is_disjoint(&left) {
                continue;
            }
            let mut samples = golden.samples.iter();
            let sample = samples.find(|sample| sample.case == *name && sample.dtype == "f32");
            let Some(sample) = sample else { continue };
            let grown = GROWTHS.iter().find_map(|growth| large(&golden, sample, *function, *growth));
            let Some(inputs) = grown else { continue };
            let results = [1, 2, 3, 8].map(|count| {
                threads::set_threads(count).unwrap();
                bits(*function, &inputs).unwrap()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{}: {name} differs", cases.family);
            left.retain(|operation| !calls[name].contains(operation));
        }
    }
    left.retain(|operation| !FIXED.contains(&&operation[..]));
    assert!(left.is_empty(), "no case of these grew: {left:?}");
}

fn ratio(now: usize, then: usize) -> f64 {
    now as f64 / then.max(1) as f64
}

/// Multiplies some sizes of a sample's inputs until they are large. Returns `None` if the function does not accept
/// them.
fn large(golden: &Family, sample: &Sample, function: Function, growth: Growth) -> Option<Vec<Tensor>> {
    let mut factor = 2;
    let mut before: Option<(usize, usize)> = None;
    loop {
        let inputs =
            golden.grown(sample, |input, dim, size| if size > 1 && growth(input, dim) { size * factor } else { size });
        let outputs = function(&inputs).ok()?;
        let elements = inputs.iter().chain(&outputs).map(Tensor::numel).max()?;
        if elements >= ELEMENTS {
            return Some(inputs);
        }
        // Four sizes are assumed to grow at first; later steps infer the number from the step before.
        let power = before.map_or(4.0, |(then, had)| ratio(elements, had).ln() / ratio(factor, then).ln());
        let further = ratio(ELEMENTS, elements).powf(1.0 / power.max(1.0)).min(8.0);
        let next = ((factor as f64 * further).ceil() as usize).max(factor + 1);
        if next > ELEMENTS {
            return None;
        }
        before = Some((factor, elements));
        factor = next;
    }
}

/// Returns the bits of outputs and gradients.
fn bits(function: Function, inputs: &[Tensor]) -> Result<Vec<Vec<u8>>> {
    let outputs = function(inputs)?;
    let leaves: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
    let roots: Vec<&Tensor> = outputs.iter().filter(|output| output.requires_grad()).collect();
    let mut all = outputs.clone();
    if !roots.is_empty() && !leaves.is_empty() {
        let ones = roots.iter().map(|root| upstream(root)).collect::<Result<Vec<_>>>()?;
        let ones: Vec<Option<&Tensor>> = ones.iter().map(Some).collect();
        let options = BackwardOptions { allow_unused: true, ..BackwardOptions::default() };
        all.extend(autograd::grad(&roots, &leaves, &ones, options)?.into_iter().flatten());
    }
    all.iter().map(|tensor| tensor.detach().contiguous()?.to_bytes()).collect()
}

/// Returns a gradient of different numbers from -1 to 1.
fn upstream(output: &Tensor) -> Result<Tensor> {
    let values: Vec<f64> = (1..=output.numel()).map(|at| (at as f64 * 0.618_034).fract() * 2.0 - 1.0).collect();
    Tensor::from_slice(&values, output.sizes())?.to_dtype(output.dtype())
}
