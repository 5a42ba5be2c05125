//! Activation checkpoints, like PyTorch's `torch.utils.checkpoint(use_reentrant=False)`: tensors saved for backward are
//! computed again instead of kept.
//!
//! Each tensor that the function saves is replaced by an empty slot. When backward needs the first of them, the
//! function runs again, and the tensors that it saves fill the slots in the same order, up to the last slot that is
//! still in use. A slot is freed with the node that saved it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::device_stream::DeviceStream;
use super::hooks::{SavedHooks, SavedId};
use super::mode::{is_grad_enabled, with_grad};
use super::saved::SavedTensor;
use crate::autocast::{self, Autocast};
use crate::error::AutogradError;
use crate::random::DefaultStates;
use crate::{DType, Result, Tensor};

/// Runs `function` on `inputs`, and keeps the inputs instead of the tensors that it saves for backward. Backward runs
/// the function again. The second run draws the same random numbers from the default generators, leaves the generators
/// as they were, and has the same autocast dtype. Checkpoints can be nested.
///
/// The function must do the same every time. If it has side effects, such as updates of running statistics, it must
/// skip them [when it is run again](is_recomputing). If a graph is retained, the tensors that were computed again are
/// kept with it.
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
    let run = Arc::new(CheckpointRun::new(&given, Box::new(function))?);
    let packing = Arc::clone(&run);
    let unpacking = Arc::clone(&run);
    let _hooks = SavedHooks::enter(
        move |_, id| Ok(packing.new_slot(id)),
        move |slot: &Arc<SavedSlot>| match slot.filled.get() {
            Some(filled) => wait_for(filled),
            None => unpacking.fill(slot),
        },
    );
    (run.function)(&given)
}

/// Returns whether this thread runs a checkpoint's function again, or [rehearses](rehearse) one.
pub fn is_recomputing() -> bool {
    RECOMPUTING.get() || REHEARSING.get()
}

/// Runs `function` without side effects: during it [`is_recomputing`] returns `true`, so that modules skip theirs, and
/// afterwards the default generators are set back.
pub fn rehearse<R>(function: impl FnOnce() -> R) -> R {
    struct Rehearsal {
        random: DefaultStates,
        rehearsing: bool,
    }
    impl Drop for Rehearsal {
        fn drop(&mut self) {
            self.random.restore();
            REHEARSING.set(self.rehearsing);
        }
    }
    let _rehearsal = Rehearsal { random: DefaultStates::now([]), rehearsing: REHEARSING.replace(true) };
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

/// A tensor that the function saved.
struct SavedSlot {
    id: SavedId,
    /// The tensor and the stream that computed it, once the function has run again.
    filled: OnceLock<(SavedTensor, DeviceStream)>,
}

type CheckpointFunction = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// Returns a recomputed tensor, after making the calling thread's stream wait for the stream that computed it.
fn wait_for((saved, stream): &(SavedTensor, DeviceStream)) -> Result<Tensor> {
    stream.make_current_wait()?;
    // Autograd adds the name of the node to an error.
    saved.unpack("", None)
}

/// One call of [`checkpoint`].
struct CheckpointRun {
    function: CheckpointFunction,
    /// The inputs, and whether each requires a gradient. They go through saved-tensor hooks themselves: inputs of a
    /// checkpoint inside another are computed again too.
    inputs: Vec<(SavedTensor, bool)>,
    /// The states of the default generators before the first run.
    random: DefaultStates,
    autocast: Option<DType>,
    /// The slots, in the order in which the function saved their tensors.
    slots: Mutex<Vec<Weak<SavedSlot>>>,
    /// Locked while the function runs again, so that one thread at a time fills slots.
    running: Mutex<()>,
}

impl CheckpointRun {
    fn new(inputs: &[Tensor], function: CheckpointFunction) -> Result<Self> {
        let saved = inputs.iter().map(|input| Ok((SavedTensor::input(&input.detach())?, input.requires_grad())));
        Ok(Self {
            function,
            inputs: saved.collect::<Result<_>>()?,
            random: DefaultStates::now(inputs.iter().map(Tensor::device)),
            autocast: autocast::dtype(),
            slots: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// Returns a new, empty slot.
    fn new_slot(&self, id: SavedId) -> Arc<SavedSlot> {
        let slot = Arc::new(SavedSlot { id, filled: OnceLock::new() });
        self.slots.lock().push(Arc::downgrade(&slot));
        slot
    }

    /// Returns the tensor of a slot, and runs the function again if the slot is empty.
    fn fill(&self, slot: &SavedSlot) -> Result<Tensor> {
        let _running = self.running.lock();
        if slot.filled.get().is_none() {
            self.run_again()?;
        }
        slot.filled.get().map(wait_for).transpose()?.ok_or_else(|| {
            let reason = "the function saved fewer tensors when it ran again: it must do the same every time";
            AutogradError::Other { node: "checkpoint".into(), reason: reason.into() }.into()
        })
    }

    /// Runs the function again and fills the empty slots. Stops the function, by an error, once the last empty slot is
    /// filled.
    fn run_again(&self) -> Result<()> {
        let slots = self.slots.lock().clone();
        let Some(last) = slots.iter().rposition(|slot| slot.upgrade().is_some_and(|slot| slot.filled.get().is_none()))
        else {
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
                    let saved = SavedTensor::again(tensor, slot.id);
                    let _already_full = slot.filled.set((saved, DeviceStream::current(tensor.device())));
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
        let _replay = RecomputeScope::enter(&self.random);
        let _autocast = Autocast::enter(self.autocast);
        let result = with_grad(|| (self.function)(&inputs));
        if is_done.load(Ordering::Relaxed) { Ok(()) } else { result.map(drop) }
    }
}

/// A scope in which [`is_recomputing`] returns `true` and the default generators continue from earlier states. The end
/// of the scope restores the generators.
struct RecomputeScope {
    random: DefaultStates,
    recomputing: bool,
}

impl RecomputeScope {
    fn enter(states: &DefaultStates) -> Self {
        let random = DefaultStates::now([]);
        states.restore();
        Self { random, recomputing: RECOMPUTING.replace(true) }
    }
}

impl Drop for RecomputeScope {
    fn drop(&mut self) {
        self.random.restore();
        RECOMPUTING.set(self.recomputing);
    }
}
