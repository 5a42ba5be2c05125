//! A model whose weights have addresses on a CUDA device, with or without bytes there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Name, Storage};
use tenure_device::{Event, EventKind};
use tenure_switch::groups::Costs;
use tenure_switch::{DeviceUse, Image, Model};
use tenure_tensor::cuda::CapturedCall;
use tenure_tensor::{DType, Tensor, autograd};

use super::bound::{self, Bound};
use super::model::Parts;
use super::switcher::{Cuda, Shared};
use super::weights::Order;
use crate::Result;

/// The time of a copy beside its bytes, and of a wait in a graph, in µs: estimated from cold starts with groups of 2 to 16 MiB.
const COPY_US: f64 = 8.0;
const WAIT_US: f64 = 2.0;

/// The search takes computing to be longer than it is alone, since it begins late and copies may slow it down. Without this factor,
/// cold starts on an H100 took longer, as their first groups were large.
const BESIDE_COPIES: f64 = 1.25;

/// Tensors of at least so many bytes of which nothing but rows is used stay on the host, where rows are read in place.
const TABLE_BYTES: u64 = 1 << 20;

/// The operation that reads rows.
const READS_ROWS: Name = Name::of("embedding");

/// Sizes of inputs that a model is captured for; beyond them, those that were not used for longest go.
const MOST_CAPTURES: usize = 16;

/// A model on a CUDA device.
pub(super) struct OnCuda {
    model: Arc<Model>,
    bound: Bound,
    tables: Option<Arc<Image>>,
    /// How long what uses each group computes, if it was measured here.
    compute_times: Option<Vec<Duration>>,
    /// The shapes that were used last come last.
    shapes: Vec<Shape>,
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
        Ok(Self { model, bound, tables: None, compute_times: None, shapes: Vec::new() })
    }

    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(super) fn compute_times(&self) -> Option<Vec<Duration>> {
        self.compute_times.clone()
    }

    pub(super) fn captures(&self) -> usize {
        self.shapes.iter().filter(|shape| shape.call.is_some()).count()
    }

    /// Bytes of tables whose rows are read in place, in the host's memory.
    pub(super) fn table_bytes(&self) -> u64 {
        self.tables.as_ref().map_or(0, |tables| tables.manifest().bytes())
    }

    /// Lets go of its tables, when nothing reads them. It is not called any more.
    pub(super) fn leave(&mut self, shared: &Shared) {
        if let (Some(tables), Some(cuda)) = (&self.tables, &shared.cuda) {
            // A device that does not answer reads nothing.
            let _ = cuda.memory.driver().synchronize();
            shared.images.forget(tables.manifest());
        }
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
        let run = if is_measured { model.measured_run(&stream)? } else { model.run(&stream) };
        let forward = || autograd::no_grad(|| bound::own(&self.bound, parts.network.forward(inputs)?));
        let answers = catch_unwind(AssertUnwindSafe(forward));
        model.used_by(&stream)?;
        let answers = answers.unwrap_or_else(|panic| resume_unwind(panic))?;
        if is_measured {
            let uses = run.uses()?;
            self.learn(parts, shared, cuda, &uses, inputs)?;
        } else {
            run.end()?;
        }
        Ok(answers)
    }

    /// Arranges the model by the order in which its layers were used, and brings it.
    fn learn(
        &mut self,
        parts: &mut Parts,
        shared: &Shared,
        cuda: &Cuda,
        uses: &[DeviceUse],
        inputs: &[Tensor],
    ) -> Result<()> {
        let share = self.captured_share(parts, cuda, uses, inputs).unwrap_or(1.0);
        let costs = Costs { bytes_per_us: self.copy_speed(parts, shared)?, copy_us: COPY_US, wait_us: WAIT_US };
        // Each tensor is a group so far.
        let is_table = |used: &&DeviceUse| {
            let bytes = parts.stored.tensors()[used.group].entry.bytes;
            used.operation == Some(READS_ROWS) && bytes >= TABLE_BYTES
        };
        let tables: Vec<usize> = uses.iter().filter(is_table).map(|used| used.group).collect();
        let others = uses.iter().filter(|used| !is_table(used));
        let used: Vec<(usize, f64)> = others.map(|used| (used.group, used.compute_us * share)).collect();
        let beside: Vec<(usize, f64)> = used.iter().map(|(tensor, us)| (*tensor, us * BESIDE_COPIES)).collect();
        let order = Order::recorded(&parts.stored, &beside, tables, shared.grouping, &costs);
        self.arrange(parts, shared, cuda, order)?;
        let mut group_us = vec![0.0; parts.manifest.groups().len()];
        for (place, (_, us)) in used.iter().enumerate() {
            group_us[parts.manifest.group_of(place)] += us;
        }
        self.compute_times = Some(group_us.into_iter().map(|us| Duration::from_secs_f64(us / 1e6)).collect());
        shared.keep_order(parts);
        self.model.load(&shared.image(&parts.manifest)?)?;
        Ok(())
    }

    /// Arranges the model by an order, at other addresses. Nothing of it is on the device then.
    pub(super) fn arrange(&mut self, parts: &mut Parts, shared: &Shared, cuda: &Cuda, order: Order) -> Result<()> {
        let manifest = parts.stored.manifest(&parts.name, &order)?;
        let model = Arc::new(cuda.switch.register(&manifest)?);
        self.evict(shared, u64::MAX);
        // There may be room for one of the two images only.
        shared.images.forget(&parts.manifest);
        let tables = match order.has_tables() {
            true => Some(shared.image(&parts.stored.tables(&parts.name, &order)?)?),
            false => None,
        };
        let mut storages: Vec<Storage> = (0..manifest.groups().len()).map(|group| model.storage(group)).collect();
        if let Some(tables) = &tables {
            for table in 0..tables.manifest().groups().len() {
                storages.push(tables.storage_on_device(table)?);
            }
        }
        let bound = std::mem::take(&mut self.bound);
        bound.unbind(&mut *parts.network)?;
        let storage = |group: usize| storages[group].clone();
        self.bound = Bound::bind(&mut *parts.network, parts.stored.placed(&order, &manifest), storage)?;
        (parts.order, parts.manifest) = (order, manifest);
        (self.model, self.tables) = (model, tables);
        Ok(())
    }

    /// The time of the captured model as a share of a run one operation after the other; nothing if it cannot be captured.
    fn captured_share(&self, parts: &Parts, cuda: &Cuda, uses: &[DeviceUse], inputs: &[Tensor]) -> Option<f64> {
        let stream = cuda.memory.streams().current();
        let captured = CapturedCall::new(&cuda.pool, inputs, |inputs| {
            let run = self.model.run_behind_copies(&cuda.memory.streams().current());
            let answers = parts.network.forward(inputs)?;
            run.end()?;
            Ok::<_, crate::Error>(answers)
        });
        let mut call = captured.ok()?;
        let [mut begun, mut ended] = [(); 2].map(|()| Event::new(Arc::clone(cuda.memory.driver()), EventKind::Timing));
        let mut called = || {
            // The first launch of a graph prepares it.
            call.call(inputs).ok()?;
            begun.record(&stream).ok()?;
            call.call(inputs).ok()?;
            ended.record(&stream).ok()
        };
        let called = called();
        self.model.used_by(&stream).ok()?;
        called?;
        ended.synchronize().ok()?;
        let plainly_us: f64 = uses.iter().map(|used| used.compute_us).sum();
        Some(begun.elapsed_us(&ended).ok()? / plainly_us.max(1e-3)).filter(|share| *share < 1.0)
    }

    /// Bytes that are copied in a µs, as all of the model is brought anew.
    fn copy_speed(&self, parts: &Parts, shared: &Shared) -> Result<f64> {
        let image = shared.image(&parts.manifest)?;
        image.wait_for_all()?;
        self.evict(shared, u64::MAX);
        let copied_bytes = self.model.load_at_once(&image)?.copied_bytes;
        let copied_us = self.model.copy_time()?.unwrap_or_default().as_secs_f64() * 1e6;
        Ok(copied_bytes as f64 / copied_us.max(1e-3))
    }
}
