//! Loss functions.

use tenure_core::DType;

use super::entered;
use super::pointwise::broadcast;
use super::reduce::floating;
use super::view::signed;
use crate::autocast::{raise, raises};
use crate::autograd::{Context, attach, is_grad_enabled, no_grad};
use crate::cpu;
use crate::cpu::loss::{CrossEntropyBackward, CrossEntropyKernel, Targets};
use crate::element::{computed, with_element};
use crate::observe::observed;
use crate::operation::{LossReduction, arguments, operations};
use crate::{Access, Element, Kernel, Layout, Result, Scalar, Tensor, TensorError, cuda, vectorized};

static CROSS_ENTROPY: Kernel<CrossEntropyKernel> =
    Kernel::new("cross_entropy", &[cpu::loss::CROSS_ENTROPY, cuda::loss::CROSS_ENTROPY]);
static CROSS_ENTROPY_BACKWARD: Kernel<CrossEntropyBackward> =
    Kernel::new("cross_entropy_backward", &[cpu::loss::CROSS_ENTROPY_BACKWARD, cuda::loss::CROSS_ENTROPY_BACKWARD]);

impl LossReduction {
    fn apply(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(losses),
            Self::Mean => losses.mean_all(),
            Self::Sum => losses.sum_all(),
        }
    }

    fn apply_weighted(self, losses: Tensor, weights: &Tensor) -> Result<Tensor> {
        match self {
            Self::Mean => losses.sum_all()?.div(&weights.sum_all()?),
            _ => self.apply(losses),
        }
    }
}

/// The options of [`Tensor::cross_entropy`].
#[derive(Clone, Copy)]
pub struct CrossEntropy<'a> {
    /// A weight for each class.
    pub weight: Option<&'a Tensor>,
    /// The class whose targets are ignored.
    pub ignore_index: i64,
    /// The fraction of each target that is spread over all classes.
    pub label_smoothing: f64,
    /// The reduction of the losses.
    pub reduction: LossReduction,
}

impl Default for CrossEntropy<'_> {
    fn default() -> Self {
        Self { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: LossReduction::Mean }
    }
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the negative log-likelihood of the target's classes, from logarithms of probabilities of sizes
        /// `[batch, classes, ...]` or `[classes]`. PyTorch's `nll_loss`.
        ///
        /// # Errors
        /// The errors of [`cross_entropy`](Self::cross_entropy).
        nll_loss(input: Tensor, target: Tensor, weight: Option<Tensor> = None, ignore_index: Int64 = -100, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes the squared differences to a target, and their mean or sum as `reduction` says.
        ///
        /// # Errors
        /// A target of other sizes, an integer dtype.
        mse_loss(input: Tensor, target: Tensor, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes the absolute differences to a target, and their mean or sum as `reduction` says.
        ///
        /// # Errors
        /// A target of other sizes, an integer dtype.
        l1_loss(input: Tensor, target: Tensor, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes the squared difference to a target divided by 2·`beta` where the absolute difference is below
        /// `beta`, else the absolute difference minus `beta` / 2.
        ///
        /// # Errors
        /// A target of other sizes, an integer dtype, a negative `beta`.
        smooth_l1_loss(input: Tensor, target: Tensor, beta: Float = 1.0, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes `delta` times [`smooth_l1_loss`](Self::smooth_l1_loss) with a `beta` of `delta`.
        ///
        /// # Errors
        /// A target of other sizes, an integer dtype, a `delta` that is not positive.
        huber_loss(input: Tensor, target: Tensor, delta: Float = 1.0, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes the cross entropy of probabilities and targets, both from 0 to 1. Logarithms are limited to at
        /// least -100, also in the gradient of the target.
        ///
        /// # Errors
        /// A target of other sizes, a weight that does not broadcast to them, an integer dtype, elements that are not
        /// from 0 to 1.
        binary_cross_entropy(input: Tensor, target: Tensor, weight: Option<Tensor> = None, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes [`binary_cross_entropy`](Self::binary_cross_entropy) of the sigmoid of this tensor, without limits
        /// on logarithms. `pos_weight` is the weight of targets of 1.
        ///
        /// # Errors
        /// The errors of [`binary_cross_entropy`](Self::binary_cross_entropy).
        binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Option<Tensor> = None, pos_weight: Option<Tensor> = None, reduction: Reduction = LossReduction::Mean) -> Tensor;

        /// Computes the terms of the Kullback-Leibler divergence of a target distribution from the distribution whose
        /// logarithms this tensor holds. If `log_target`, the target has logarithms too. PyTorch's `kl_div`; its
        /// `batchmean` is the sum over the size of the batch.
        ///
        /// # Errors
        /// A target of other sizes, an integer dtype.
        kl_div(input: Tensor, target: Tensor, log_target: Bool = false, reduction: Reduction = LossReduction::Mean) -> Tensor;
    }
    Function for front_ends {
        /// Computes the cross entropy of logits and classes, or of logits and probabilities: [`Tensor::cross_entropy`].
        ///
        /// # Errors
        /// Sizes that do not match, a class that does not exist, an integer dtype.
        cross_entropy(
            input: Tensor, target: Tensor, weight: Option<Tensor> = None, ignore_index: Int64 = -100,
            reduction: Reduction = LossReduction::Mean, label_smoothing: Float = 0.0
        ) -> Tensor = |input: &Tensor, target, weight, ignore_index, reduction, label_smoothing| {
            input.cross_entropy(target, &CrossEntropy { weight, ignore_index, label_smoothing, reduction })
        };
    }
}

fn nll_loss(
    input: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignore_index: i64,
    reduction: LossReduction,
) -> Result<Tensor> {
    let _op = entered("nll_loss");
    if raises(&[input]) {
        return raise(input)?.nll_loss(target, weight, ignore_index, reduction);
    }
    let op = "nll_loss";
    floating(op, input)?;
    class_sizes(op, input, weight)?;
    expect_classes(op, input, target, ignore_index)?;
    let dim = if input.rank() == 1 { 0 } else { 1 };
    let target = no_grad(|| target.to_dtype(DType::I64))?;
    let counts = target.ne(ignore_index)?;
    let places = target.masked_fill(&counts.logical_not()?, 0)?;
    let weights = match weight {
        Some(weight) => weight.detach().index_select(0, &places.reshape(&[-1])?)?.reshape(&signed(target.sizes()))?,
        None => Tensor::ones(&[], input.dtype(), input.device())?,
    };
    let weights = counts.where_(&weights, 0.0)?.to_dtype(input.dtype())?;
    let losses = input.gather(dim, &places.unsqueeze(dim)?)?.squeeze(dim)?.mul(&weights)?.neg()?;
    reduction.apply_weighted(losses, &weights)
}

fn mse_loss(input: &Tensor, target: &Tensor, reduction: LossReduction) -> Result<Tensor> {
    let _op = entered("mse_loss");
    if raises(&[input, target]) {
        return raise(input)?.mse_loss(&raise(target)?, reduction);
    }
    expect_same("mse_loss", input, target)?;
    reduction.apply(input.sub(target)?.square()?)
}

fn l1_loss(input: &Tensor, target: &Tensor, reduction: LossReduction) -> Result<Tensor> {
    let _op = entered("l1_loss");
    if raises(&[input, target]) {
        return raise(input)?.l1_loss(&raise(target)?, reduction);
    }
    expect_same("l1_loss", input, target)?;
    reduction.apply(input.sub(target)?.abs()?)
}

fn smooth_l1_loss(input: &Tensor, target: &Tensor, beta: f64, reduction: LossReduction) -> Result<Tensor> {
    let _op = entered("smooth_l1_loss");
    if raises(&[input, target]) {
        return raise(input)?.smooth_l1_loss(&raise(target)?, beta, reduction);
    }
    let op = "smooth_l1_loss";
    expect_same(op, input, target)?;
    if beta < 0.0 || beta.is_nan() {
        return Err(TensorError::argument(op, format!("beta must not be negative, got {beta}")));
    }
    if beta == 0.0 {
        return input.l1_loss(target, reduction);
    }
    let distance = input.sub(target)?.abs()?;
    let near = distance.square()?.mul(0.5 / beta)?;
    reduction.apply(distance.lt(beta)?.where_(&near, &distance.sub(0.5 * beta)?)?)
}

fn huber_loss(input: &Tensor, target: &Tensor, delta: f64, reduction: LossReduction) -> Result<Tensor> {
    let _op = entered("huber_loss");
    if delta <= 0.0 || delta.is_nan() {
        return Err(TensorError::argument("huber_loss", format!("delta must be positive, got {delta}")));
    }
    reduction.apply(input.smooth_l1_loss(target, delta, LossReduction::None)?.mul(delta)?)
}

fn binary_cross_entropy(
    tensor: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: LossReduction,
) -> Result<Tensor> {
    let _op = entered("binary_cross_entropy");
    if raises(&[tensor, target]) {
        return raise(tensor)?.binary_cross_entropy(&raise(target)?, weight, reduction);
    }
    let op = "binary_cross_entropy";
    expect_same(op, tensor, target)?;
    floating(op, target)?;
    expect_weight(op, tensor, "weight", weight)?;
    let advice = ": of scores, sigmoid() makes probabilities, and binary_cross_entropy_with_logits() takes them as \
                  they are";
    expect_probabilities(op, "input", tensor, advice)?;
    expect_probabilities(op, "target", target, "")?;
    let losses = no_grad(|| {
        let yes = limited_log(tensor)?;
        let no = limited_log(&tensor.neg()?.add(1.0)?)?;
        target.mul(&no.sub(&yes)?)?.sub(&no)
    })?;
    let mut losses = attach(losses, op, &[tensor, target], |saver| {
        let x = saver.save(tensor)?;
        let target = saver.save(target)?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let x = context.unpack(x)?;
            let rest = x.neg()?.add(1.0)?;
            let to_x = context.give(0, || {
                let slope = x.sub(&context.unpack(target)?)?.div(&rest.mul(&x)?.clamp_min(1e-12)?)?;
                grad.mul(&slope)
            })?;
            let to_target = context.give(1, || grad.mul(&limited_log(&rest)?.sub(&limited_log(&x)?)?))?;
            Ok([to_x, to_target].into_iter().collect())
        })
    })?;
    if let Some(weight) = weight {
        losses = losses.mul(weight)?;
    }
    reduction.apply(losses)
}

fn binary_cross_entropy_with_logits(
    input: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    pos_weight: Option<&Tensor>,
    reduction: LossReduction,
) -> Result<Tensor> {
    let _op = entered("binary_cross_entropy_with_logits");
    if raises(&[input, target]) {
        return raise(input)?.binary_cross_entropy_with_logits(&raise(target)?, weight, pos_weight, reduction);
    }
    let op = "binary_cross_entropy_with_logits";
    expect_same(op, input, target)?;
    floating(op, target)?;
    expect_weight(op, input, "weight", weight)?;
    expect_weight(op, input, "pos_weight", pos_weight)?;
    let mut log = input.logsigmoid()?;
    if let Some(pos_weight) = pos_weight {
        log = log.mul(&target.mul(&pos_weight.sub(1.0)?)?.add(1.0)?)?;
    }
    let mut losses = input.sub(&target.mul(input)?)?.sub(&log)?;
    if let Some(weight) = weight {
        losses = losses.mul(weight)?;
    }
    reduction.apply(losses)
}

fn kl_div(input: &Tensor, target: &Tensor, log_target: bool, reduction: LossReduction) -> Result<Tensor> {
    let _op = entered("kl_div");
    if raises(&[input, target]) {
        return raise(input)?.kl_div(&raise(target)?, log_target, reduction);
    }
    expect_same("kl_div", input, target)?;
    if log_target {
        return reduction.apply(target.exp()?.mul(&target.sub(input)?)?);
    }
    // A probability of zero adds nothing.
    let log = target.masked_fill(&target.le(0.0)?, 1.0)?.log()?;
    reduction.apply(target.mul(&log.sub(input)?)?)
}

impl Tensor {
    /// Computes the cross entropy of scores, `[batch, classes, ...]` or `[classes]`. The target has class indices,
    /// `int64` of sizes `[batch, ...]`, or the probability of each class, in the scores' sizes. PyTorch's
    /// `cross_entropy`.
    ///
    /// # Errors
    /// Scores of an integer dtype; a target or weight of other sizes; a class that does not exist; smoothing outside 0
    /// to 1.
    pub fn cross_entropy(&self, target: &Self, options: &CrossEntropy<'_>) -> Result<Self> {
        let CrossEntropy { weight, ignore_index, label_smoothing, reduction } = options;
        observed(
            "cross_entropy",
            || arguments![self, target, weight, ignore_index, reduction, label_smoothing],
            || self.cross_entropy_of(target, options),
        )
    }

    fn cross_entropy_of(&self, target: &Self, options: &CrossEntropy<'_>) -> Result<Self> {
        let _op = entered("cross_entropy");
        if raises(&[self, target]) {
            return raise(self)?.cross_entropy(&raise(target)?, options);
        }
        let op = "cross_entropy";
        floating(op, self)?;
        let classes = class_sizes(op, self, options.weight)?;
        if !(0.0..=1.0).contains(&options.label_smoothing) {
            let reason = format!("label_smoothing must be from 0 to 1, got {}", options.label_smoothing);
            return Err(TensorError::argument(op, reason));
        }
        if target.dtype().is_floating() {
            return self.cross_entropy_of_probabilities(target, classes, options);
        }
        expect_classes(op, self, target, options.ignore_index)?;
        // Classes come last, so that the kernel makes one pass over each row.
        let rows = if self.rank() > 2 { self.movedim(&[1], &[-1])? } else { self.clone() };
        let rows = rows.reshape(&signed(&[target.numel(), classes]))?;
        // On a device there may be gaps between rows.
        let has_rows = !rows.device().is_cpu() && rows.strides()[1] == 1 && rows.strides()[0] >= classes;
        let rows = if has_rows { rows } else { rows.contiguous()? };
        let target_rows = no_grad(|| target.to_dtype(DType::I64)?.reshape(&[-1])?.contiguous())?;
        let (losses, weights) = row_losses(&rows, &target_rows, options)?;
        let losses = losses.reshape(&signed(target.sizes()))?;
        options.reduction.apply_weighted(losses, &weights)?.to_dtype(self.dtype())
    }

    fn cross_entropy_of_probabilities(
        &self,
        target: &Self,
        classes: usize,
        options: &CrossEntropy<'_>,
    ) -> Result<Self> {
        if self.sizes() != target.sizes() {
            let reason = format!(
                "a target of {} is one of probabilities and needs the sizes of the scores, {:?}, got {:?}: convert \
                 classes with to_dtype(DType::I64)",
                target.dtype(),
                self.sizes(),
                target.sizes()
            );
            return Err(TensorError::shape("cross_entropy", reason));
        }
        let dim = if self.rank() == 1 { 0 } else { 1 };
        let smoothing = options.label_smoothing;
        let mut weights = target.clone();
        if smoothing > 0.0 {
            weights = weights.mul(1.0 - smoothing)?.add(smoothing / classes as f64)?;
        }
        if let Some(weight) = options.weight {
            let mut sizes = vec![1; self.rank()];
            sizes[dim as usize] = classes as isize;
            weights = weights.mul(&weight.reshape(&sizes)?)?;
        }
        let losses = self.log_softmax(dim)?.mul(&weights)?.sum(&[dim], false)?.neg()?;
        match options.reduction {
            LossReduction::Mean => {
                let count = losses.numel() as f64;
                losses.sum_all()?.div(count)
            }
            other => other.apply(losses),
        }
    }
}

/// Returns the loss and the weight of each row.
fn row_losses(rows: &Tensor, classes: &Tensor, options: &CrossEntropy<'_>) -> Result<(Tensor, Tensor)> {
    let compute = computed(rows.dtype());
    let weight = options.weight.map(|weight| weight.detach().to_dtype(compute)?.contiguous()).transpose()?;
    let ignored = options.ignore_index;
    let smoothing = options.label_smoothing;
    let losses = Tensor::empty(classes.sizes(), compute, rows.device())?;
    let logs = losses.empty_like()?;
    let weights = losses.empty_like()?;
    let scores = rows.detach();
    let targets = Targets { scores: &scores, classes, weight: weight.as_ref(), ignored, smoothing };
    CROSS_ENTROPY.find(rows.device().kind(), rows.dtype())?([&losses, &logs, &weights], targets)?;
    let losses = attach(losses, "cross_entropy", &[rows], |saver| {
        let rows = saver.save(rows)?;
        let classes = saver.save(classes)?;
        let logs = saver.save(&logs)?;
        let weight = weight.as_ref().map(|weight| saver.save(weight)).transpose()?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let scores = context.unpack(rows)?;
            let classes = context.unpack(classes)?;
            let logs = context.unpack(logs)?;
            let weight = weight.map(|weight| context.unpack(weight)).transpose()?;
            let targets = Targets { scores: &scores, classes: &classes, weight: weight.as_ref(), ignored, smoothing };
            let kernel = |grad: &Tensor| -> Result<Tensor> {
                let layout = Layout::strided(scores.sizes(), scores.strides(), 0)?;
                let out = Tensor::empty_strided(layout, scores.dtype(), scores.device())?;
                CROSS_ENTROPY_BACKWARD.find(out.device().kind(), out.dtype())?(&out, grad, &logs, targets)?;
                Ok(out)
            };
            let to_scores = if is_grad_enabled() {
                // The kernel's result for a gradient of 1. Only the softmax in it depends on the scores.
                let slope = kernel(&Tensor::ones(grad.sizes(), grad.dtype(), grad.device())?)?;
                let softmax = scores.softmax(1)?;
                let factor = softmax_factor(&targets)?.unsqueeze(1)?;
                let slope = softmax.sub(&softmax.detach())?.mul(&factor)?.add(&slope)?;
                slope.mul(&grad.unsqueeze(1)?)?
            } else {
                kernel(&grad.contiguous()?)?
            };
            Ok([Some(to_scores)].into_iter().collect())
        })
    })?;
    Ok((losses, weights))
}

/// Returns the factor of each row's softmax in the gradient.
fn softmax_factor(targets: &Targets<'_>) -> Result<Tensor> {
    no_grad(|| {
        let counts = targets.classes.ne(targets.ignored)?;
        let Some(weight) = targets.weight else { return counts.to_dtype(targets.scores.dtype()) };
        let places = targets.classes.masked_fill(&counts.logical_not()?, 0)?;
        let own = weight.index_select(0, &places)?.mul(1.0 - targets.smoothing)?;
        let shared = weight.mean_all()?.mul(targets.smoothing)?;
        counts.where_(&own.add(&shared)?, 0.0)
    })
}

/// Returns the number of classes, after checking the weight.
fn class_sizes(op: &'static str, scores: &Tensor, weight: Option<&Tensor>) -> Result<usize> {
    let classes = match scores.sizes() {
        [classes] | [_, classes, ..] => *classes,
        [] => {
            let reason = "scores need sizes [classes] or [batch, classes, ...], got none";
            return Err(TensorError::shape(op, reason));
        }
    };
    match weight {
        Some(weight) if weight.sizes() != [classes] => {
            let reason = format!("a weight for each of {classes} classes is needed, got sizes {:?}", weight.sizes());
            Err(TensorError::shape(op, reason))
        }
        _ => Ok(classes),
    }
}

/// Checks that the target has a class for each row of scores.
fn expect_classes(op: &'static str, scores: &Tensor, target: &Tensor, ignored: i64) -> Result<()> {
    let mut sizes = scores.sizes().to_vec();
    let dim = usize::from(sizes.len() > 1);
    let classes = sizes.remove(dim);
    if target.sizes() != sizes {
        let reason =
            format!("scores of sizes {:?} need a target of {sizes:?}, got {:?}", scores.sizes(), target.sizes());
        return Err(TensorError::shape(op, reason));
    }
    if target.dtype().is_floating() || target.dtype() == DType::Bool {
        let expected = "classes are integers: convert with to_dtype(DType::I64)".to_owned();
        return Err(TensorError::DType { op, found: target.dtype(), expected });
    }
    if !target.device().is_cpu() {
        return Ok(());
    }
    let target = no_grad(|| target.to_dtype(DType::I64)?.contiguous())?;
    let access = Access::new(op, &[], &[&target])?;
    match access.slice::<i64>(0)?.iter().find(|class| **class != ignored && !(0..classes as i64).contains(*class)) {
        Some(&class) => {
            let reason = format!(
                "the target has class {class}, but scores of sizes {:?} have classes 0 to {}, and what is ignored is \
                 {ignored} (ignore_index)",
                scores.sizes(),
                classes as i64 - 1
            );
            Err(TensorError::argument(op, reason))
        }
        None => Ok(()),
    }
}

fn expect_same(op: &'static str, input: &Tensor, target: &Tensor) -> Result<()> {
    floating(op, input)?;
    if input.sizes() == target.sizes() {
        return Ok(());
    }
    let reason = format!("sizes {:?} need a target of the same, got {:?}", input.sizes(), target.sizes());
    Err(TensorError::shape(op, reason))
}

/// Checks that a weight broadcasts to the sizes of the losses.
fn expect_weight(op: &'static str, losses: &Tensor, what: &str, weight: Option<&Tensor>) -> Result<()> {
    let Some(weight) = weight else { return Ok(()) };
    if broadcast(op, losses.sizes(), weight.sizes()).is_ok_and(|sizes| sizes[..] == *losses.sizes()) {
        return Ok(());
    }
    let reason =
        format!("a {what} of sizes {:?} does not broadcast to losses of sizes {:?}", weight.sizes(), losses.sizes());
    Err(TensorError::shape(op, reason))
}

/// Checks that all elements are from 0 to 1. Elements on a device are checked there, and a later use of the device
/// reports the error.
fn expect_probabilities(op: &'static str, what: &str, tensor: &Tensor, advice: &str) -> Result<()> {
    let dense = no_grad(|| tensor.contiguous())?;
    if !tensor.device().is_cpu() {
        return cuda::probabilities(op, &dense);
    }
    let access = Access::new(op, &[], &[&dense])?;
    let wrong = with_element!(dense.dtype(), T => {
        let elements = access.slice::<T>(0)?;
        first_outside(elements).map(|at| (at, elements[at].to_scalar()))
    });
    let Some((at, value)) = wrong else { return Ok(()) };
    let mut rest = at;
    let mut place: Vec<usize> = tensor.sizes().iter().rev().map(|size| (rest % size, rest /= size).0).collect();
    place.reverse();
    let reason = format!("all elements of the {what} must be between 0 and 1, but at {place:?} is {value}{advice}");
    Err(TensorError::argument(op, reason))
}

fn limited_log(x: &Tensor) -> Result<Tensor> {
    x.log()?.clamp_min(-100.0)
}

/// Returns the first element that is not from 0 to 1.
fn first_outside<T: Element>(elements: &[T]) -> Option<usize> {
    /// The elements that are checked before the loop may end: without an exit in between it is vectorized.
    const BLOCK: usize = 1024;
    let zero = T::from_scalar(Scalar::Int(0));
    let one = T::from_scalar(Scalar::Int(1));
    let is_outside = |element: &T| !((*element >= zero) & (*element <= one));
    let first = elements.chunks(BLOCK).position(|block| {
        vectorized(
            #[inline(always)]
            || block.iter().fold(false, |found, element| found | is_outside(element)),
        )
    })? * BLOCK;
    elements[first..].iter().position(is_outside).map(|at| first + at)
}
