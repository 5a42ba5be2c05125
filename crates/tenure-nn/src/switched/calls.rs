//! Calls of a model on a CUDA device: operation by operation at first, and captured once the order of its weights is
//! known.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_core::Name;
use tenure_device::graph::GraphPool;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventKind};
use tenure_switch::{DeviceUse, Model};
use tenure_tensor::cuda::CapturedCall;
use tenure_tensor::{DType, Tensor, autograd};

use super::bound::{self, BoundTensors};
use crate::Result;
use crate::networks::Network;

/// The name of the operation that reads only some rows of its weight.
const READS_ROWS: Name = Name::of("embedding");

/// The most input shapes that a model remembers, with their captures. Beyond it, the least recently used one is
/// dropped.
const MOST_CAPTURES: usize = 16;

/// The input shapes that a model was called with, and the captures for them.
#[derive(Default)]
pub(super) struct CallHistory {
    /// The input shapes, the most recently used last.
    shapes: Vec<Shape>,
}

/// The input shapes of one kind of call, and its capture.
struct Shape {
    /// The dtype, sizes and strides of each input.
    inputs: Vec<(DType, Vec<usize>, Vec<usize>)>,
    /// The capture, if it was made.
    call: Option<CapturedCall>,
    /// Whether a capture has failed, because the network does something that cannot be captured.
    cannot_be_captured: bool,
}

/// A model to be called on a device, whose weights are there or in transfer to it.
pub(super) struct Callee<'a> {
    pub(super) network: &'a dyn Network,
    pub(super) bound: &'a BoundTensors,
    pub(super) model: &'a Arc<Model>,
    pub(super) memory: &'static DeviceMemory,
    pub(super) pool: &'a GraphPool,
    /// Whether the order in which its tensors are used is known.
    pub(super) is_recorded: bool,
}

/// The measured uses of weights in a run in which each tensor was a group of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The uses, in their order.
    pub(super) uses: Vec<MeasuredUse>,
    /// The time of the model's captured call divided by the time of the measured run, at most 1. It is 1 if the model
    /// cannot be captured.
    pub(super) share: f64,
}

/// The first use of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredUse {
    /// The number of the tensor among the stored ones.
    pub(super) tensor: usize,
    /// The compute time in µs of the module that uses it; 0 if the tensor used before it is of the same module.
    pub(super) compute_us: f64,
    /// Whether only rows of the tensor are used.
    pub(super) reads_rows: bool,
}

impl CallHistory {
    /// Returns the number of captured input shapes.
    pub(super) fn captures(&self) -> usize {
        self.shapes.iter().filter(|shape| shape.call.is_some()).count()
    }

    /// Drops all captures, since the model has other addresses now.
    pub(super) fn forget_captures(&mut self) {
        self.shapes.iter_mut().for_each(|shape| shape.call = None);
    }

    /// Computes the outputs for inputs on the device. The first call with these shapes compiles kernels. From the
    /// second on, if the order of use is known, launches a capture; if not, measures it and returns the measurements.
    pub(super) fn compute(
        &mut self,
        callee: &Callee<'_>,
        inputs: &[Tensor],
    ) -> Result<(Vec<Tensor>, Option<Measured>)> {
        let is_known = self.note_shape(inputs);
        if is_known && callee.is_recorded {
            self.capture(callee, inputs);
        }
        let Some(captured) = self.shapes.last_mut().and_then(|shape| shape.call.as_mut()) else {
            return callee.compute_plainly(inputs, is_known && !callee.is_recorded);
        };
        let answers = captured.call(inputs);
        callee.model.used_by(&callee.memory.streams().current())?;
        Ok((answers?, None))
    }

    /// Records the inputs' shapes as the most recently used. Returns whether there was a call with them before.
    fn note_shape(&mut self, inputs: &[Tensor]) -> bool {
        let wanted: Vec<_> = inputs
            .iter()
            .map(|input| (input.dtype(), input.sizes().to_vec(), input.layout().strides().to_vec()))
            .collect();
        if let Some(at) = self.shapes.iter().position(|shape| shape.inputs == wanted) {
            let shape = self.shapes.remove(at);
            self.shapes.push(shape);
            return true;
        }
        if self.shapes.len() == MOST_CAPTURES {
            self.shapes.remove(0);
        }
        self.shapes.push(Shape { inputs: wanted, call: None, cannot_be_captured: false });
        false
    }

    /// Captures the model for the most recent shapes. If that fails, the model is computed operation by operation, as
    /// before.
    fn capture(&mut self, callee: &Callee<'_>, inputs: &[Tensor]) {
        let Some(shape) = self.shapes.last_mut() else { return };
        if shape.call.is_some() || shape.cannot_be_captured {
            return;
        }
        let captured = CapturedCall::new(callee.pool, inputs, |inputs| {
            let run = callee.model.run(&callee.memory.streams().current());
            let answers = callee.network.forward(inputs)?;
            run.end()?;
            Ok::<_, crate::Error>(answers)
        });
        shape.cannot_be_captured = captured.is_err();
        shape.call = captured.ok();
    }
}

impl Callee<'_> {
    /// Computes operation by operation, without a capture. If `is_measured`, returns measurements too.
    fn compute_plainly(&self, inputs: &[Tensor], is_measured: bool) -> Result<(Vec<Tensor>, Option<Measured>)> {
        let stream = self.memory.streams().current();
        let run = if is_measured { self.model.measured_run(&stream)? } else { self.model.run(&stream) };
        let answers = catch_unwind(AssertUnwindSafe(|| {
            autograd::no_grad(|| bound::copy_weight_views(self.bound, self.network.forward(inputs)?))
        }));
        self.model.used_by(&stream)?;
        let answers = answers.unwrap_or_else(|panic| resume_unwind(panic))?;
        if !is_measured {
            run.end()?;
            return Ok((answers, None));
        }
        let uses = run.uses()?;
        let share = self.captured_share(&uses, inputs).unwrap_or(1.0);
        let uses = uses.iter().map(|used| MeasuredUse {
            tensor: used.group,
            compute_us: used.compute_us,
            reads_rows: used.operation == Some(READS_ROWS),
        });
        Ok((answers, Some(Measured { uses: uses.collect(), share })))
    }

    /// Returns the time of the model's captured call divided by that of the measured run `uses`, which ran operation by
    /// operation. Returns `None` if the model cannot be captured or that is no faster.
    fn captured_share(&self, uses: &[DeviceUse], inputs: &[Tensor]) -> Option<f64> {
        let stream = self.memory.streams().current();
        let captured = CapturedCall::new(self.pool, inputs, |inputs| {
            let run = self.model.run_behind_copies(&self.memory.streams().current());
            let answers = self.network.forward(inputs)?;
            run.end()?;
            Ok::<_, crate::Error>(answers)
        });
        let mut call = captured.ok()?;
        let mut begun = Event::new(Arc::clone(self.memory.driver()), EventKind::Timing);
        let mut ended = Event::new(Arc::clone(self.memory.driver()), EventKind::Timing);
        let mut call_twice = || {
            // The first launch of a graph prepares it.
            call.call(inputs).ok()?;
            begun.record(&stream).ok()?;
            call.call(inputs).ok()?;
            ended.record(&stream).ok()
        };
        let called = call_twice();
        // After an error too, calls may have been queued.
        self.model.used_by(&stream).ok()?;
        called?;
        ended.synchronize().ok()?;
        let plainly_us: f64 = uses.iter().map(|used| used.compute_us).sum();
        Some(begun.elapsed_us(&ended).ok()? / plainly_us.max(1e-3)).filter(|share| *share < 1.0)
    }
}
