//! A model whose weights have addresses on a CUDA device, with or without bytes there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_device::{Event, EventKind};
use tenure_switch::groups::Costs;
use tenure_switch::{DeviceUse, Image, Loaded, Model, SwitchError};
use tenure_tensor::cuda::CapturedCall;
use tenure_tensor::{DType, Tensor, autograd};

use super::bound::{self, Bound};
use super::model::Parts;
use super::switcher::{Cuda, Shared};
use super::weights::Order;
use crate::Result;

/// What a copy and a wait take on an H200 whatever their sizes, in µs.
const COPY_US: f64 = 3.0;
const WAIT_US: f64 = 1.0;

/// Sizes of inputs that a model is captured for; beyond them, those that were not used for longest go.
const MOST_CAPTURES: usize = 16;

/// A model on a CUDA device.
pub(super) struct OnCuda {
    model: Arc<Model>,
    bound: Bound,
    /// Those that were used last come last.
    shapes: Vec<Shape>,
    /// Around its last copies.
    copied: Option<[Event; 2]>,
}

/// Inputs of some sizes, which the model was called with.
struct Shape {
    inputs: Vec<(DType, Vec<usize>, Vec<usize>)>,
    call: Option<CapturedCall>,
    /// It was tried, and the network does what no capture can.
    cannot_be_captured: bool,
}

impl OnCuda {
    pub(super) fn new(cuda: &Cuda, parts: &mut Parts) -> Result<Self> {
        let model = Arc::new(cuda.switch.register(&parts.manifest)?);
        let placed = parts.stored.placed(&parts.order, &parts.manifest);
        let bound = Bound::bind(&mut *parts.network, placed, |group| model.storage(group))?;
        Ok(Self { model, bound, shapes: Vec::new(), copied: None })
    }

    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(super) fn captures(&self) -> usize {
        self.shapes.iter().filter(|shape| shape.call.is_some()).count()
    }

    /// Brings what is missing, for which there is room: copies are under way then.
    pub(super) fn load(&mut self, cuda: &Cuda, image: &Arc<Image>) -> Result<Loaded, SwitchError> {
        let mut around = [(); 2].map(|()| Event::new(Arc::clone(cuda.memory.driver()), EventKind::Timing));
        around[0].record(cuda.switch.copies())?;
        let loaded = self.model.load(image)?;
        around[1].record(cuda.switch.copies())?;
        self.copied = Some(around);
        Ok(loaded)
    }

    /// How long its last copies took, which are waited for.
    pub(super) fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        let Some([begun, ended]) = &self.copied else { return Ok(None) };
        ended.synchronize()?;
        Ok(Some(Duration::from_secs_f64(begun.elapsed_us(ended)? / 1e6)))
    }

    /// Lets others have so many bytes of its memory, or a little more.
    pub(super) fn evict(&self, shared: &Shared, bytes: u64) {
        let chunk_bytes = shared.cuda.as_ref().map_or(1, |cuda| cuda.switch.chunk_bytes());
        self.model.evict(usize::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(usize::MAX));
    }

    pub(super) fn compute(&mut self, parts: &mut Parts, shared: &Shared, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(cuda) = &shared.cuda else { unreachable!("it is on a CUDA device") };
        let is_known = self.note_shape(inputs);
        if is_known && parts.order.is_recorded() {
            self.capture(parts, cuda, inputs);
        }
        let shape = self.shapes.last_mut().filter(|shape| shape.call.is_some());
        let answers = match shape.and_then(|shape| shape.call.as_mut()) {
            Some(call) => call.call(inputs).map_err(crate::Error::from),
            // The second such call is measured: kernels are compiled in the first.
            None => return self.compute_plainly(parts, shared, cuda, inputs, is_known),
        };
        self.model.used_by(&cuda.memory.streams().current())?;
        answers
    }

    /// Notes of which sizes inputs are. Whether there were such ones before.
    fn note_shape(&mut self, inputs: &[Tensor]) -> bool {
        let of = |input: &Tensor| (input.dtype(), input.sizes().to_vec(), input.layout().strides().to_vec());
        let wanted: Vec<_> = inputs.iter().map(of).collect();
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

    /// Captures the model for inputs of the last sizes. If that fails it is computed one operation after the other, as before.
    fn capture(&mut self, parts: &Parts, cuda: &Cuda, inputs: &[Tensor]) {
        let Some(shape) = self.shapes.last_mut().filter(|shape| shape.call.is_none() && !shape.cannot_be_captured)
        else {
            return;
        };
        let model = &self.model;
        let captured = CapturedCall::new(&cuda.pool, inputs, |inputs| {
            let run = model.run(&cuda.memory.streams().current());
            let answers = parts.network.forward(inputs)?;
            run.end()?;
            Ok::<_, crate::Error>(answers)
        });
        shape.cannot_be_captured = captured.is_err();
        shape.call = captured.ok();
    }

    /// Computes one operation after the other. If it `can_be_measured`, and the order is not known, that is learned.
    fn compute_plainly(
        &mut self,
        parts: &mut Parts,
        shared: &Shared,
        cuda: &Cuda,
        inputs: &[Tensor],
        can_be_measured: bool,
    ) -> Result<Vec<Tensor>> {
        let stream = cuda.memory.streams().current();
        let is_measured = can_be_measured && !parts.order.is_recorded();
        let model = Arc::clone(&self.model);
        let run = if is_measured { model.measured_run(&stream) } else { model.run(&stream) };
        let forward = AssertUnwindSafe(|| autograd::no_grad(|| parts.network.forward(inputs)));
        let answers = catch_unwind(forward);
        model.used_by(&stream)?;
        let answers = answers.unwrap_or_else(|panic| resume_unwind(panic));
        let answers = bound::own(&self.bound, answers?)?;
        if is_measured {
            let uses = run.uses()?;
            self.learn(parts, shared, cuda, &uses)?;
        } else {
            run.end()?;
        }
        Ok(answers)
    }

    /// Arranges the model by the order in which its layers were used, at other addresses. It is not there then.
    fn learn(&mut self, parts: &mut Parts, shared: &Shared, cuda: &Cuda, uses: &[DeviceUse]) -> Result<()> {
        let costs = Costs { bytes_per_us: self.copy_speed(parts, shared, cuda)?, copy_us: COPY_US, wait_us: WAIT_US };
        // Each tensor is a group so far.
        let uses: Vec<(usize, f64)> = uses.iter().map(|used| (used.group, used.compute_us)).collect();
        let order = Order::recorded(&parts.stored, &uses, shared.grouping, &costs);
        let manifest = parts.stored.manifest(&parts.name, &order)?;
        let model = Arc::new(cuda.switch.register(&manifest)?);
        self.evict(shared, u64::MAX);
        // There may be room for one of the two images only.
        shared.images.forget(&parts.manifest);
        let bound = std::mem::take(&mut self.bound);
        bound.unbind(&mut *parts.network)?;
        (parts.order, parts.manifest) = (order, manifest);
        let placed = parts.stored.placed(&parts.order, &parts.manifest);
        self.bound = Bound::bind(&mut *parts.network, placed, |group| model.storage(group))?;
        self.model = model;
        Ok(())
    }

    /// Bytes that are copied in a µs, as all of the model is brought anew.
    fn copy_speed(&mut self, parts: &Parts, shared: &Shared, cuda: &Cuda) -> Result<f64> {
        let image = shared.image(&parts.manifest)?;
        image.wait_for_all()?;
        self.evict(shared, u64::MAX);
        let copied_bytes = self.load(cuda, &image)?.copied_bytes;
        let copied_us = self.copy_time()?.unwrap_or_default().as_secs_f64() * 1e6;
        Ok(copied_bytes as f64 / copied_us.max(1e-3))
    }
}
