//! Checkpoints: tensors are computed again instead of kept. PyTorch's `torch.utils.checkpoint(use_reentrant=False)`.
//!
//! Tensors that the function saves are not kept: each is an empty slot. When backward needs the first of them, the
//! function runs again and its saved tensors fill the slots in the same order, up to the last slot that is still
//! wanted. A slot is freed with the node that saved it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::hooks::SavedHooks;
use super::lane::DeviceStream;
use super::mode::{is_grad_enabled, with_grad};
use super::saved::SavedTensor;
use crate::autocast::{self, Autocast};
use crate::error::AutogradError;
use crate::{DType, Result, Tensor, random};

/// Runs `function` on `inputs`, and keeps the inputs instead of the tensors that it saves. Backward runs the function
/// again. The second run draws the same numbers from the default generator, leaves the generator as it was, and
/// autocasts the same. Checkpoints can be nested.
///
/// The function must do the same every time. If it has side effects, such as running statistics, it must leave them out
/// [while it is run again](is_recomputing). If a graph is retained, the tensors that were computed again are kept with
/// it.
///
/// ```
/// use tenure_tensor::{Tensor, autograd};
///
/// let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2])?.requires_grad_(true)?;
/// let y = autograd::checkpoint(&[&x], |x| Ok(vec![x[0].mul(&x[0])?.mul(&x[0])?]))?.remove(0);
/// y.sum_all()?.backward()?;
/// assert_eq!(x.grad().expect("a leaf").to_vec::<f32>()?, [3.0, 12.0]);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
///
/// # Errors
/// The errors of `function`. In backward also: inputs were modified in place, or the function saves other tensors when
/// it runs again.
pub fn checkpoint(
    inputs: &[&Tensor],
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    let given: Vec<Tensor> = inputs.iter().map(|input| (*input).clone()).collect();
    if !is_grad_enabled() {
        return function(&given);
    }
    let frame = Arc::new(CheckpointRun::new(&given, Box::new(function))?);
    let packing = Arc::clone(&frame);
    let unpacking = Arc::clone(&frame);
    let _hooks = SavedHooks::enter(
        move |_, _| Ok(packing.slot()),
        move |slot: &Arc<SavedSlot>| match slot.get() {
            Some(filled) => arrive(filled),
            None => unpacking.fill(slot),
        },
    );
    (frame.function)(&given)
}

/// Returns whether this thread runs a checkpoint's function again, or [rehearses](rehearse) one.
pub fn is_recomputing() -> bool {
    RECOMPUTING.get() || REHEARSING.get()
}

/// Runs `function` without side effects: modules leave out their [other changes](is_recomputing), and the default
/// generator is reset afterwards.
pub fn rehearse<R>(function: impl FnOnce() -> R) -> R {
    struct Rehearsal {
        random: random::GeneratorState,
        rehearsing: bool,
    }
    impl Drop for Rehearsal {
        fn drop(&mut self) {
            random::default_generator().set_state(self.random);
            REHEARSING.set(self.rehearsing);
        }
    }
    let random = random::default_generator().state();
    let _rehearsal = Rehearsal { random, rehearsing: REHEARSING.replace(true) };
    function()
}

/// Returns whether this thread runs a checkpoint's function again.
pub(super) fn is_running_again() -> bool {
    RECOMPUTING.get()
}

thread_local! {
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
    static REHEARSING: Cell<bool> = const { Cell::new(false) };
}

/// A tensor that the function saved. It is empty until the function has run again.
type SavedSlot = OnceLock<(Tensor, DeviceStream)>;
type CheckpointFunction = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// Returns the tensor after the thread's stream waits for the lane that computed it again.
fn arrive((tensor, lane): &(Tensor, DeviceStream)) -> Result<Tensor> {
    lane.lead_here()?;
    Ok(tensor.clone())
}

/// One run of a function.
struct CheckpointRun {
    function: CheckpointFunction,
    /// The inputs, and whether each requires a gradient. They go through saved-tensor hooks themselves: inputs of a
    /// checkpoint inside another are computed again too.
    inputs: Vec<(SavedTensor, bool)>,
    random: random::GeneratorState,
    autocast: Option<DType>,
    /// The slots, in the order in which they were saved.
    slots: Mutex<Vec<Weak<SavedSlot>>>,
    running: Mutex<()>,
}

impl CheckpointRun {
    fn new(inputs: &[Tensor], function: CheckpointFunction) -> Result<Self> {
        let saved = inputs.iter().map(|input| Ok((SavedTensor::input(&input.detach())?, input.requires_grad())));
        Ok(Self {
            function,
            inputs: saved.collect::<Result<_>>()?,
            random: random::default_generator().state(),
            autocast: autocast::dtype(),
            slots: Mutex::default(),
            running: Mutex::default(),
        })
    }

    fn slot(&self) -> Arc<SavedSlot> {
        let slot = Arc::default();
        self.slots.lock().push(Arc::downgrade(&slot));
        slot
    }

    /// Returns the tensor of a slot, and runs the function again if the slot is empty.
    fn fill(&self, slot: &SavedSlot) -> Result<Tensor> {
        let _one = self.running.lock();
        if slot.get().is_none() {
            self.run_again()?;
        }
        slot.get().map(arrive).transpose()?.ok_or_else(|| {
            let reason = "the function saved fewer tensors when it ran again: it must do the same every time";
            AutogradError::Other { node: "checkpoint".into(), reason: reason.into() }.into()
        })
    }

    fn run_again(&self) -> Result<()> {
        let slots = self.slots.lock().clone();
        let Some(last) = slots.iter().rposition(|slot| slot.upgrade().is_some_and(|slot| slot.get().is_none())) else {
            return Ok(());
        };
        let inputs = self
            .inputs
            .iter()
            .map(|(saved, requires_grad)| saved.unpack("checkpoint", None)?.detach().requires_grad_(*requires_grad))
            .collect::<Result<Vec<_>>>()?;
        let next = AtomicUsize::new(0);
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let _hooks = SavedHooks::enter(
            move |tensor: &Tensor, _| {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if let Some(slot) = slots.get(index).and_then(Weak::upgrade) {
                    // A slot that is full already has the same values.
                    let _full = slot.set((tensor.clone(), DeviceStream::current(tensor.device())));
                }
                if index < last {
                    return Ok(tensor.clone());
                }
                done.store(true, Ordering::Relaxed);
                let reason = "all that is wanted was computed again".to_owned();
                Err(AutogradError::Other { node: "checkpoint".into(), reason }.into())
            },
            |tensor: &Tensor| Ok(tensor.clone()),
        );
        let _replay = RecomputeScope::enter(self.random);
        let _autocast = Autocast::enter(self.autocast);
        let result = with_grad(|| (self.function)(&inputs));
        if is_done.load(Ordering::Relaxed) { Ok(()) } else { result.map(drop) }
    }
}

/// A scope that puts the default generator back to an earlier state.
struct RecomputeScope {
    random: random::GeneratorState,
    recomputing: bool,
}

impl RecomputeScope {
    fn enter(state: random::GeneratorState) -> Self {
        let random = random::default_generator().state();
        random::default_generator().set_state(state);
        Self { random, recomputing: RECOMPUTING.replace(true) }
    }
}

impl Drop for RecomputeScope {
    fn drop(&mut self) {
        random::default_generator().set_state(self.random);
        RECOMPUTING.set(self.recomputing);
    }
}
