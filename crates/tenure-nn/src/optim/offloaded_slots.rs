//! Optimizer slots that an offload engine moves out of memory between their uses, in pieces.

use std::ops::Range;

use tenure_core::{Layout, Storage, Tag};
use tenure_offload::{Engine, OffloadError, Resident};
use tenure_tensor::{DType, Device, Result, Tensor, TensorError};

use super::{Numbers, StepKernel, Stepped};
use crate::offload::{self, stream};
use crate::{Parameter, purpose};

/// The slots of one parameter, managed by an offload engine.
pub(super) struct OffloadedSlots {
    engine: Engine,
    dtype: DType,
    device: Device,
    /// The number of slots for each element.
    slots: usize,
    /// The largest size of a piece in bytes.
    piece_bytes: usize,
    pieces: Vec<SlotRange>,
}

/// A piece: a range of elements of all slots, slot after slot, in the order of the parameter's memory.
struct SlotRange {
    elements: Range<usize>,
    resident: Resident,
}

impl OffloadedSlots {
    /// Makes pieces of at most `piece_bytes`. `fill(slot, elements)` returns a slot's values.
    pub(super) fn new(
        engine: &Engine,
        parameter: &Parameter,
        slots: usize,
        piece_bytes: usize,
        fill: impl Fn(usize, Range<usize>) -> Result<Tensor>,
    ) -> Result<Self> {
        let dtype = parameter.dtype();
        let device = parameter.device();
        let step = (piece_bytes / (slots * dtype.size())).max(1);
        let mut offloaded = Self { engine: engine.clone(), dtype, device, slots, piece_bytes, pieces: Vec::new() };
        for start in (0..parameter.numel()).step_by(step) {
            let elements = start..parameter.numel().min(start + step);
            let _purpose = purpose::enter(Tag::OptimizerState, parameter.name(), "state");
            let piece = Tensor::empty(&[slots, elements.len()], dtype, device)?;
            for slot in 0..slots {
                piece.select(0, slot as isize)?.copy_(&fill(slot, elements.clone())?)?;
            }
            let name = format!("{}'s optimizer state", parameter.name());
            let storage = piece.storage().clone();
            drop(piece);
            let resident = engine.keep(storage, dtype, stream(device).as_ref(), name).map_err(tensor_error)?;
            offloaded.pieces.push(SlotRange { elements, resident });
        }
        Ok(offloaded)
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the limit in bytes of a piece.
    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Updates a parameter piece by piece. Without a kernel, the pieces are only moved in and out.
    pub(super) fn step(&self, kernel: Option<(StepKernel, &Numbers)>, parameter: &Tensor, grad: &Tensor) -> Result<()> {
        let parameter = parameter.reshape(&[-1])?;
        let grad = grad.reshape(&[-1])?;
        let stream = stream(self.device);
        for SlotRange { elements, resident } in &self.pieces {
            let storage = self.engine.lend(resident, stream.as_ref()).map_err(tensor_error)?;
            let stepped = kernel.map_or(Ok(()), |(kernel, numbers)| {
                let parameter = parameter.narrow(0, elements.start, elements.len())?;
                let grad = grad.narrow(0, elements.start, elements.len())?;
                let slots = self.views(&storage, elements.len())?;
                kernel(numbers, &[Stepped { parameter: &parameter, grad: &grad, slots: &slots }])
            });
            self.engine.give_back(resident, storage, stream.as_ref()).map_err(tensor_error)?;
            stepped?;
        }
        Ok(())
    }

    /// Copies all elements of a slot into one tensor, in the order of the parameter's memory.
    pub(super) fn whole(&self, slot: usize) -> Result<Tensor> {
        let count = self.pieces.last().map_or(0, |last| last.elements.end);
        let whole = Tensor::empty(&[count], self.dtype, self.device)?;
        for SlotRange { elements, resident } in &self.pieces {
            let storage = self.engine.look_at(resident, stream(self.device).as_ref()).map_err(tensor_error)?;
            let to = whole.narrow(0, elements.start, elements.len())?;
            to.copy_(&self.views(&storage, elements.len())?[slot])?;
        }
        Ok(whole)
    }

    /// Returns a view of each slot in a piece.
    fn views(&self, storage: &Storage, elements: usize) -> Result<Vec<Tensor>> {
        let piece = Tensor::from_storage(storage.clone(), Layout::contiguous(&[self.slots, elements])?, self.dtype)?;
        (0..self.slots).map(|slot| piece.select(0, slot as isize)).collect()
    }
}

/// Converts an offload error into an error of tensors.
fn tensor_error(error: OffloadError) -> TensorError {
    offload::told("an optimizer's state", error)
}
