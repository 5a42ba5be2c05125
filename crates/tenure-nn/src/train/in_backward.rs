//! Updates of parameters during backward, to save memory. Each gradient is used as soon as it is complete, and then
//! freed. Clipping needs all gradients first: for it they are offloaded until the end of backward.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Layout, Tag};
use tenure_offload::{Engine, OffloadError, SavedHandle};
use tenure_tensor::autograd::{HookHandle, no_grad};
use tenure_tensor::{DType, Device, Tensor, TensorError};

use crate::offload::{self, stream};
use crate::optim::{self, Clip, Optimizer, ParameterPlace, Sgd};
use crate::{Parameter, Result, purpose};

/// Runs backward from a loss and updates the parameters. Each gradient is freed after its use.
pub(super) fn step(optimizer: &mut Optimizer, engine: &Engine, clip_norm: Option<f64>, loss: &Tensor) -> Result<()> {
    let Some(max_norm) = clip_norm else {
        let engine = engine.clone();
        let _lent = LentOptimizer::new(optimizer, move |optimizer, place, parameter| {
            let stream = stream(parameter.device());
            engine.before_write(parameter.storage(), parameter.version(), stream.as_ref()).map_err(tensor_error)?;
            optimizer.step_at(place)?;
            parameter.set_grad(None)?;
            Ok(())
        })?;
        return Ok(purpose::backward(loss)?);
    };
    let offloaded = Arc::new(Mutex::new(BTreeMap::new()));
    let collected = Arc::clone(&offloaded);
    let engine_of_hooks = engine.clone();
    let lent = LentOptimizer::new(optimizer, move |_, place, parameter| {
        let grad = SpilledGradient::take(&engine_of_hooks, parameter)?;
        collected.lock().extend(grad.map(|grad| (place, grad)));
        Ok(())
    })?;
    purpose::backward(loss)?;
    drop(lent);
    let offloaded = std::mem::take(&mut *offloaded.lock());
    step_clipped(optimizer, engine, max_norm, offloaded)
}

/// Updates all parameters after backward, with gradients clipped to the common norm `max_norm`.
fn step_clipped(
    optimizer: &mut Optimizer,
    engine: &Engine,
    max_norm: f64,
    mut gradients: BTreeMap<ParameterPlace, SpilledGradient>,
) -> Result<()> {
    let mut squares: Vec<_> = gradients.values().map(|grad| (grad.kind, grad.squares.clone())).collect();
    // The sums are added in the same order as without offloading.
    squares.sort_by_key(|(kind, _)| *kind);
    let squares: Vec<Tensor> = squares.into_iter().map(|(_, squares)| squares).collect();
    let clip = Clip::new(&no_grad(|| optim::total_of(&squares))?, max_norm)?;
    let places: Vec<_> = optimizer.places().map(|(place, parameter)| (place, parameter.clone())).collect();
    // Backward computed the first parameters' gradients last, so these are still in memory.
    for (place, parameter) in places {
        let Some(grad) = gradients.remove(&place) else { continue };
        grad.restore(engine, &parameter)?;
        clip.scale([&parameter])?;
        optimizer.step_at(place)?;
        parameter.set_grad(None)?;
    }
    Ok(())
}

/// A parameter's gradient after backward.
struct SpilledGradient {
    /// The sum of the gradient's squares.
    squares: Tensor,
    kind: optim::LaunchKind,
    /// The offloaded gradient; `None` if the parameter still has it.
    saved: Option<(Arc<SavedHandle>, Layout, DType, Device)>,
}

impl SpilledGradient {
    /// Offloads the gradient of a parameter, unless it is small.
    fn take(engine: &Engine, parameter: &Parameter) -> tenure_tensor::Result<Option<Self>> {
        let Some(grad) = parameter.grad() else { return Ok(None) };
        let dense = no_grad(|| grad.contiguous())?;
        let squares = no_grad(|| optim::squares_of_each(std::slice::from_ref(&dense)))?;
        drop(dense);
        let kind = optim::kind(&grad);
        let device = grad.device();
        let dtype = grad.dtype();
        let layout = grad.layout().clone();
        let _purpose = purpose::enter(Tag::Gradient, parameter.name(), "");
        let saved = engine
            .save(grad.storage(), grad.version(), dtype, stream(device).as_ref(), None, || {
                format!("the gradient of {}", parameter.name())
            })
            .map_err(tensor_error)?;
        let saved = saved.map(|saved| (saved, layout, dtype, device));
        if saved.is_some() {
            parameter.set_grad(None)?;
        }
        Ok(Some(Self { squares, kind, saved }))
    }

    /// Makes this the parameter's gradient again, if it was offloaded.
    fn restore(self, engine: &Engine, parameter: &Parameter) -> tenure_tensor::Result<()> {
        let Some((saved, layout, dtype, device)) = self.saved else { return Ok(()) };
        let storage = engine.need(&saved, stream(device).as_ref()).map_err(tensor_error)?;
        parameter.set_grad(Some(Tensor::from_storage(storage, layout, dtype)?))?;
        Ok(())
    }
}

/// An optimizer that is lent to hooks of its parameters as long as this value lives.
struct LentOptimizer<'a> {
    owner: &'a mut Optimizer,
    /// The optimizer; `None` once it is given back.
    optimizer: Arc<Mutex<Option<Optimizer>>>,
    hooks: Vec<HookHandle>,
}

impl<'a> LentOptimizer<'a> {
    /// Lends the optimizer. Calls `then` with it during backward, whenever the gradient of a parameter is complete.
    fn new(
        owner: &'a mut Optimizer,
        then: impl Fn(&mut Optimizer, ParameterPlace, &Parameter) -> tenure_tensor::Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let places: Vec<_> = owner.places().map(|(place, parameter)| (place, parameter.clone())).collect();
        let optimizer = std::mem::replace(owner, Optimizer::new(Vec::new(), 0.0, Sgd::default()));
        let mut lent = Self { owner, optimizer: Arc::new(Mutex::new(Some(optimizer))), hooks: Vec::new() };
        let then = Arc::new(then);
        for (place, parameter) in places.into_iter().filter(|(_, parameter)| parameter.requires_grad()) {
            let optimizer = Arc::clone(&lent.optimizer);
            let then = Arc::clone(&then);
            let own = parameter.clone();
            lent.hooks.push(parameter.register_post_accumulate_grad_hook(move |_| {
                optimizer.lock().as_mut().map_or(Ok(()), |lent| then(lent, place, &own))
            })?);
        }
        Ok(lent)
    }
}

impl Drop for LentOptimizer<'_> {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
        if let Some(optimizer) = self.optimizer.lock().take() {
            *self.owner = optimizer;
        }
    }
}

fn tensor_error(error: OffloadError) -> TensorError {
    offload::told("a gradient", error)
}
