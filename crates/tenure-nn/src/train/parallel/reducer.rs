//! The exchange of gradients between devices, which begins as soon as they are complete.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_core::{KeyId, Purpose, Tag};
use tenure_tensor::autograd::{HookHandle, no_grad};
use tenure_tensor::collective::{Collective, ReduceOp};
use tenure_tensor::{Tensor, TensorError};

use crate::{Module, Parameter, Result};

/// The sizes in bytes of the buckets of gradients that are sent together: large enough for few calls, and small enough
/// to send early. The first is smaller, so that the exchange begins early. The sizes are PyTorch's.
const FIRST_BUCKET_BYTES: usize = 1 << 20;
pub(super) const BUCKET_BYTES: usize = 25 << 20;

/// Averages the gradients of a model over devices, bucket by bucket, in place. The `Reducer` of PyTorch's
/// `DistributedDataParallel`, without its copies: a bucket is not a buffer, but a set of gradients that are sent in one
/// call.
pub(super) struct Reducer {
    shared: Arc<ReducerShared>,
    hooks: Vec<HookHandle>,
}

struct ReducerShared {
    collective: Arc<Collective>,
    /// The parameters that require gradients, in the model's order.
    parameters: Vec<Parameter>,
    state: Mutex<ReducerState>,
}

struct ReducerState {
    /// The parameters' numbers in each bucket, in the order of sending, which is the same on all devices.
    buckets: Vec<Vec<usize>>,
    /// The number of each parameter's bucket.
    places: Vec<usize>,
    /// Whether the buckets follow the order in which gradients arrive.
    is_ordered: bool,
    /// The running backward pass, if there is one.
    pass: Option<BackwardPass>,
}

struct BackwardPass {
    /// The number of gradients that each bucket waits for.
    missing: Vec<usize>,
    is_early: bool,
    /// The number of buckets sent.
    gone: usize,
    /// The parameters in the order of their gradients' arrival.
    arrived: Vec<usize>,
}

impl Reducer {
    pub(super) fn new(model: &dyn Module, collective: Arc<Collective>) -> Result<Self> {
        let parameters: Vec<Parameter> =
            model.parameters().into_iter().filter(|parameter| parameter.requires_grad()).collect();
        // Backward begins with the layers that forward ended with.
        let order: Vec<usize> = (0..parameters.len()).rev().collect();
        let (buckets, places) = group(&parameters, &order);
        let state = Mutex::new(ReducerState { buckets, places, is_ordered: false, pass: None });
        let shared = Arc::new(ReducerShared { collective, parameters, state });
        let hooks = shared
            .parameters
            .iter()
            .enumerate()
            .map(|(index, parameter)| {
                let shared: Weak<ReducerShared> = Arc::downgrade(&shared);
                parameter.register_post_accumulate_grad_hook(move |_| {
                    shared.upgrade().map_or(Ok(()), |shared| shared.arrived(index))
                })
            })
            .collect::<tenure_tensor::Result<_>>()?;
        Ok(Self { shared, hooks })
    }

    /// Begins a backward pass. Gradients are sent early if `is_early`, otherwise at its end.
    pub(super) fn begin(&self, is_early: bool) {
        let state = &mut *self.shared.state.lock();
        let missing = state.buckets.iter().map(Vec::len).collect();
        state.pass = Some(BackwardPass { missing, is_early, gone: 0, arrived: Vec::new() });
    }

    /// Returns the parameters that got a gradient in the pass, in order.
    pub(super) fn arrived(&self) -> Vec<usize> {
        self.shared.state.lock().pass.as_mut().map(|pass| std::mem::take(&mut pass.arrived)).unwrap_or_default()
    }

    /// Sends the remaining buckets, when it is known which parameters got a gradient on each device. A parameter with a
    /// gradient on some devices has zeros on the others; one without any gets none.
    pub(super) fn finish(&self, arrived: &[Vec<usize>]) -> Result<()> {
        let state = &mut *self.shared.state.lock();
        let gone = state.pass.take().map_or(0, |pass| pass.gone);
        let mut has_grad = vec![false; self.shared.parameters.len()];
        arrived.iter().flatten().for_each(|index| has_grad[*index] = true);
        for bucket in &state.buckets[gone..] {
            let bucket: Vec<usize> = bucket.iter().copied().filter(|index| has_grad[*index]).collect();
            self.shared.send(&bucket)?;
        }
        if !state.is_ordered
            && let Some(order) = arrived.first().filter(|order| !order.is_empty())
        {
            let never = (0..has_grad.len()).rev().filter(|index| !order.contains(index));
            let order: Vec<usize> = order.iter().copied().chain(never).collect();
            (state.buckets, state.places) = group(&self.shared.parameters, &order);
            state.is_ordered = true;
        }
        Ok(())
    }

    /// Ends the pass without sending more.
    pub(super) fn give_up(&self) {
        self.shared.state.lock().pass = None;
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
    }
}

impl ReducerShared {
    /// Records that the gradient of a parameter is complete, and sends the buckets that are full.
    fn arrived(&self, index: usize) -> tenure_tensor::Result<()> {
        let ReducerState { buckets, places, pass, .. } = &mut *self.state.lock();
        let Some(pass) = pass else { return Ok(()) };
        pass.arrived.push(index);
        let missing = &mut pass.missing[places[index]];
        *missing = missing.checked_sub(1).ok_or_else(|| {
            let reason = "a step on several devices goes backward once: give larger batches to fewer steps instead";
            TensorError::argument("backward", reason)
        })?;
        // Buckets are sent in their order, which is the same on all devices.
        while pass.is_early && pass.missing.get(pass.gone) == Some(&0) {
            self.send(&buckets[pass.gone])?;
            pass.gone += 1;
        }
        Ok(())
    }

    fn send(&self, bucket: &[usize]) -> tenure_tensor::Result<()> {
        let _purpose = Purpose::enter(Tag::Gradient, KeyId::NONE);
        let grads = bucket.iter().map(|index| grad(&self.parameters[*index]));
        let grads = no_grad(|| grads.collect::<tenure_tensor::Result<Vec<_>>>())?;
        self.collective.all_reduce(&grads, ReduceOp::Average)
    }
}

/// Returns the gradient of a parameter in the parameter's own layout, which is the same on every device. It is zeros if
/// there is none.
fn grad(parameter: &Parameter) -> tenure_tensor::Result<Tensor> {
    let Some(grad) = parameter.grad() else {
        let zeros = parameter.zeros_like()?;
        parameter.set_grad(Some(zeros.clone()))?;
        return Ok(zeros);
    };
    let alike = |other: &Tensor| {
        let strides = grad.strides().iter().zip(other.strides());
        grad.sizes().iter().zip(strides).all(|(size, (left, right))| *size < 2 || left == right)
    };
    if alike(parameter) {
        return Ok(grad);
    }
    let dense = parameter.empty_like()?;
    if alike(&dense) {
        return Ok(grad);
    }
    dense.copy_(&grad)?;
    parameter.set_grad(Some(dense.clone()))?;
    Ok(dense)
}

/// Divides parameters into buckets, in this order. Returns them and the bucket of each parameter.
fn group(parameters: &[Parameter], order: &[usize]) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut buckets = Vec::new();
    let mut places = vec![0; parameters.len()];
    let mut bucket = Vec::new();
    let mut bytes = 0;
    for index in order {
        bucket.push(*index);
        places[*index] = buckets.len();
        bytes += parameters[*index].numel() * parameters[*index].dtype().size();
        if bytes >= if buckets.is_empty() { FIRST_BUCKET_BYTES } else { BUCKET_BYTES } {
            buckets.push(std::mem::take(&mut bucket));
            bytes = 0;
        }
    }
    if !bucket.is_empty() {
        buckets.push(bucket);
    }
    (buckets, places)
}
