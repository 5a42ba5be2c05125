//! Cross entropy, and the check that elements are probabilities.

use tenure_device::cuda::KernelName;

use super::iteration_space::{linear, unit};
use super::lines::{self, Lines, RowAlignment};
use super::queue::{self, Queue};
use super::softmax::EXPONENTIALS;
use super::{async_errors, on_cpu, stored};
use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::loss::{CrossEntropyBackward, CrossEntropyKernel, Targets};
use crate::kernel::on_cuda;
use crate::{Access, DType, Entry, Result, Tensor, TensorError};

const TEMPLATE: &str = include_str!("source/loss.cu");

pub(crate) const CROSS_ENTROPY: &[Entry<CrossEntropyKernel>] = on_cuda!(floats: cross_entropy);
pub(crate) const CROSS_ENTROPY_BACKWARD: &[Entry<CrossEntropyBackward>] = on_cuda!(floats: cross_entropy_backward);

/// Computes the cross entropy. A class out of range is an error that the device reports later, and its row does not
/// count.
fn cross_entropy(out: [&Tensor; 3], targets: Targets<'_>) -> Result<()> {
    let reads: Vec<&Tensor> = [targets.scores, targets.classes].into_iter().chain(targets.weight).collect();
    let mut access = Access::new("cross_entropy", &out, &reads)?;
    let [losses, logs, weights] = [0, 1, 2].map(|index| access.write_word(index));
    let weight = targets.weight.map_or(0, |_| access.read_word(2));
    let places = [losses, access.read_word(0), access.read_word(1), weight, logs, weights, 0];
    let (dtype, Targets { ignored, smoothing, .. }) = (targets.scores.dtype(), targets);
    queue::submit(
        &access,
        |queue| launch(queue, "cross_entropy", &targets, places, &[places[1]]),
        move |writes, reads| {
            let scores = reads[0].contiguous()?;
            let targets = Targets { scores: &scores, classes: &reads[1], weight: reads.get(2), ignored, smoothing };
            expect_classes(&targets)?;
            let host = on_cpu("cross_entropy", &[cpu::loss::CROSS_ENTROPY], dtype)?;
            host([&writes[0], &writes[1], &writes[2]], targets)
        },
    )
}

fn cross_entropy_backward(out: &Tensor, grad: &Tensor, logs: &Tensor, targets: Targets<'_>) -> Result<()> {
    let reads: Vec<&Tensor> = [targets.scores, targets.classes, grad, logs].into_iter().chain(targets.weight).collect();
    let mut access = Access::new("cross_entropy_backward", &[out], &reads)?;
    let out = access.write_word(0);
    let weight = targets.weight.map_or(0, |_| access.read_word(4));
    let places = [out, access.read_word(0), access.read_word(1), weight, access.read_word(3), 0, access.read_word(2)];
    let (dtype, Targets { ignored, smoothing, .. }) = (targets.scores.dtype(), targets);
    queue::submit(
        &access,
        |queue| launch(queue, "cross_entropy_backward", &targets, places, &[out, places[1]]),
        move |writes, reads| {
            let scores = reads[0].contiguous()?;
            let targets = Targets { scores: &scores, classes: &reads[1], weight: reads.get(4), ignored, smoothing };
            // The forward pass has reported the error.
            if expect_classes(&targets).is_err() {
                return Ok(());
            }
            let dense = Tensor::empty(scores.sizes(), scores.dtype(), scores.device())?;
            let host = on_cpu("cross_entropy_backward", &[cpu::loss::CROSS_ENTROPY_BACKWARD], dtype)?;
            host(&dense, &reads[2], &reads[3], targets)?;
            writes[0].copy_raw(&dense)
        },
    )
}

/// Launches the kernel. `aligned` are the addresses that vectors read and write.
fn launch(queue: &Queue, op: &'static str, targets: &Targets<'_>, places: [u64; 7], aligned: &[u64]) -> Result<()> {
    let rows = targets.classes.numel();
    let n = targets.scores.sizes()[1];
    if rows == 0 {
        return Ok(());
    }
    let lines = Lines::new(targets.scores.dtype(), aligned, 1, rows, n, RowAlignment::Any);
    let flags = [aligned.len() == 2, targets.weight.is_some(), targets.smoothing != 0.0].map(u64::from);
    let variant = flags.into_iter().fold(lines.variant(), |variant, flag| variant << 1 | flag);
    let mut words = lines::words(&places, []);
    words.extend([targets.smoothing / n as f64, 1.0 - targets.smoothing].map(f64::to_bits));
    words.push(targets.ignored as u64);
    words.extend([n, targets.scores.strides()[0].max(n), rows, lines.lanes].map(|number| number as u64));
    words.extend(queue.fault(async_errors::INDEX)?);
    queue.launch(
        KernelName { op, variant },
        || {
            let defines = [("BACKWARD", flags[0]), ("WEIGHTED", flags[1]), ("SMOOTH", flags[2])];
            lines.source(&defines, &[EXPONENTIALS, TEMPLATE].concat())
        },
        lines.config(rows),
        &mut words,
    )
}

/// Checks that all classes are in range.
fn expect_classes(targets: &Targets<'_>) -> Result<()> {
    let op = "cross_entropy";
    let size = targets.scores.sizes()[1];
    let access = Access::new(op, &[], &[targets.classes])?;
    match access.slice::<i64>(0)?.iter().find(|class| **class != targets.ignored && !(0..size as i64).contains(*class))
    {
        Some(&index) => Err(TensorError::Index { op, index, dim: 1, size }),
        None => Ok(()),
    }
}

const CHECK: &str = include_str!("source/check.cu");

/// Checks on the device that all elements of a contiguous tensor are from 0 to 1.
pub(crate) fn probabilities(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.numel() == 0 {
        return Ok(());
    }
    let access = Access::new(op, &[], &[tensor])?;
    let from = access.read_ptr(0).addr();
    let dtype = tensor.dtype();
    let count = tensor.numel();
    let width = unit([from, count * dtype.size()]) / dtype.size();
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let [fault, code] = queue.fault(async_errors::PROBABILITY)?;
            let mut words = [from as u64, (count / width) as u64, fault, code];
            let name = KernelName { op: "check_probabilities", variant: (width << 4) as u64 | dtype as u64 };
            queue.launch(
                name,
                || format!("#define V {width}\ntypedef {} T;\n{CHECK}", stored(dtype)),
                linear(count / width),
                &mut words,
            )
        },
        move |_, reads| {
            let elements = no_grad(|| reads[0].to_dtype(DType::F64))?.to_vec::<f64>()?;
            match elements.iter().find(|element| !(0.0..=1.0).contains(*element)) {
                Some(wrong) => {
                    Err(TensorError::argument(op, format!("probabilities are between 0 and 1, got {wrong}")))
                }
                None => Ok(()),
            }
        },
    )
}
