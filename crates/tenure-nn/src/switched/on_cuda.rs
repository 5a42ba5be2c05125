//! Models whose weights have addresses on a CUDA device, whether or not they are in its memory.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Storage;
use tenure_switch::groups::Costs;
use tenure_switch::{Image, Model};
use tenure_tensor::Tensor;

use super::arrangement::Arrangement;
use super::bound::BoundTensors;
use super::calls::{CallHistory, Callee, Measured, MeasuredUse};
use super::known::Parts;
use super::lent::LentModel;
use super::switcher::{Cuda, SwitcherShared};
use super::weights::WeightOrder;
use crate::Result;

/// The fixed cost of a copy, and of a wait in a graph, in µs: estimated from cold starts with groups of 2 to 16 MiB.
const COPY_US: f64 = 8.0;
const WAIT_US: f64 = 2.0;

/// The factor by which the search for groups lengthens compute times, since computing begins late and copies may slow
/// it down. Without it, cold starts on an H100 took longer, because their first groups were large.
const BESIDE_COPIES: f64 = 1.25;

/// The size in bytes from which on a tensor becomes a table if only rows of it are used. Tables stay on the host, where
/// their rows are read in place.
const TABLE_BYTES: u64 = 1 << 20;

/// A model on a CUDA device.
pub(super) struct OnCuda {
    model: Arc<Model>,
    bound: BoundTensors,
    tables: Option<Arc<Image>>,
    /// The compute time of each group, if it was measured here.
    compute_times: Option<Vec<Duration>>,
    calls: CallHistory,
}

impl OnCuda {
    pub(super) fn new(cuda: &Cuda, parts: &mut Parts) -> Result<Self> {
        let model = Arc::new(cuda.switch.register(parts.manifest())?);
        let placed = parts.stored.placed(&parts.arrangement.order, &parts.arrangement.manifest);
        let bound = BoundTensors::bind(&mut *parts.network, placed, |group| model.storage(group))?;
        Ok(Self { model, bound, tables: None, compute_times: None, calls: CallHistory::default() })
    }

    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(super) fn compute_times(&self) -> Option<Vec<Duration>> {
        self.compute_times.clone()
    }

    pub(super) fn captures(&self) -> usize {
        self.calls.captures()
    }

    /// Returns the size in bytes of the tables, whose rows are read in place in the host's memory.
    pub(super) fn table_bytes(&self) -> u64 {
        self.tables.as_ref().map_or(0, |tables| tables.manifest().bytes())
    }

    /// Lends the model to a process that computes it.
    pub(super) fn lend(&self, parts: &Parts) -> Result<LentModel> {
        LentModel::new(self.model.lend_ahead()?, parts, self.tables.clone())
    }

    /// Waits until the device no longer reads the model's tables. There must be no further call.
    pub(super) fn leave(&self, shared: &SwitcherShared) {
        if let (Some(_), Some(cuda)) = (&self.tables, &shared.cuda) {
            // A device that does not answer reads nothing, so its error is ignored.
            let _ = cuda.memory.driver().synchronize();
        }
    }

    /// Frees `bytes` bytes of the model's device memory for others, or a little more.
    pub(super) fn evict(&self, shared: &SwitcherShared, bytes: u64) {
        let chunk_bytes = shared.cuda.as_ref().map_or(1, |cuda| cuda.switch.chunk_bytes());
        self.model.evict(usize::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(usize::MAX));
    }

    pub(super) fn compute(
        &mut self,
        parts: &mut Parts,
        shared: &SwitcherShared,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let Some(cuda) = &shared.cuda else { unreachable!("it is on a CUDA device") };
        let callee = Callee {
            network: &*parts.network,
            bound: &self.bound,
            model: &self.model,
            memory: cuda.memory,
            pool: &cuda.pool,
            is_recorded: parts.arrangement.order.is_recorded(),
        };
        let (answers, measured) = self.calls.compute(&callee, inputs)?;
        if let Some(measured) = measured {
            self.learn(parts, shared, cuda, &measured)?;
        }
        Ok(answers)
    }

    /// Arranges the model by the measured order of its tensors, or by one that another device has learned, and loads
    /// it.
    pub(super) fn learn(
        &mut self,
        parts: &mut Parts,
        shared: &SwitcherShared,
        cuda: &Cuda,
        measured: &Measured,
    ) -> Result<()> {
        let Measured { uses, share } = measured;
        let costs = Costs { bytes_per_us: self.copy_speed(parts, shared)?, copy_us: COPY_US, wait_us: WAIT_US };
        // Each tensor is a group until now.
        let is_table =
            |used: &&MeasuredUse| used.reads_rows && parts.stored.tensors()[used.tensor].entry.bytes >= TABLE_BYTES;
        let tables: Vec<usize> = uses.iter().filter(is_table).map(|used| used.tensor).collect();
        let others = uses.iter().filter(|used| !is_table(used));
        let used: Vec<(usize, f64)> = others.map(|used| (used.tensor, used.compute_us * share)).collect();
        let beside: Vec<(usize, f64)> = used.iter().map(|(tensor, us)| (*tensor, us * BESIDE_COPIES)).collect();
        let order = WeightOrder::recorded(&parts.stored, &beside, tables, shared.grouping, &costs);
        let arrangement = parts.stored.arrangements.record(&parts.stored, &shared.images, &parts.name, order)?;
        self.arrange(parts, shared, cuda, arrangement)?;
        let tensors = &parts.arrangement.order.as_known().tensors;
        let manifest = parts.manifest();
        let mut group_us = vec![0.0; manifest.groups().len()];
        for (tensor, us) in used {
            if let Some(place) = tensors.iter().position(|other| *other == tensor) {
                group_us[manifest.group_of(place)] += us;
            }
        }
        self.compute_times = Some(group_us.into_iter().map(|us| Duration::from_secs_f64(us / 1e6)).collect());
        shared.keep_order(parts);
        shared.images.with(parts.manifest(), |image| Ok(self.model.load(image)?))?;
        Ok(())
    }

    /// Arranges the model anew, at other addresses. Afterwards nothing of it is on the device.
    pub(super) fn arrange(
        &mut self,
        parts: &mut Parts,
        shared: &SwitcherShared,
        cuda: &Cuda,
        arrangement: Arc<Arrangement>,
    ) -> Result<()> {
        let Arrangement { order, manifest, tables, .. } = &*arrangement;
        let model = Arc::new(cuda.switch.register(manifest)?);
        self.evict(shared, u64::MAX);
        // The old image makes room: there may not be enough for both, and other devices will use the new order too.
        shared.images.forget(parts.manifest());
        let tables =
            tables.as_ref().map(|manifest| shared.images.with(manifest, |image| Ok(Arc::clone(image)))).transpose()?;
        let mut storages: Vec<Storage> = (0..manifest.groups().len()).map(|group| model.storage(group)).collect();
        if let Some(tables) = &tables {
            for table in 0..tables.manifest().groups().len() {
                storages.push(tables.storage_on_device(table, &**cuda.memory.driver())?);
            }
        }
        let bound = std::mem::take(&mut self.bound);
        bound.unbind(&mut *parts.network)?;
        self.bound = BoundTensors::bind(&mut *parts.network, parts.stored.placed(order, manifest), |group| {
            storages[group].clone()
        })?;
        parts.arrangement = arrangement;
        (self.model, self.tables) = (model, tables);
        Ok(())
    }

    /// Loads the whole model anew, and returns the copy's speed in bytes per µs.
    fn copy_speed(&self, parts: &Parts, shared: &SwitcherShared) -> Result<f64> {
        shared.images.with(parts.manifest(), |image| {
            image.wait_for_all()?;
            self.evict(shared, u64::MAX);
            let copied_bytes = self.model.load_at_once(image)?.copied_bytes;
            let copied_us = self.model.copy_time()?.unwrap_or_default().as_secs_f64() * 1e6;
            Ok(copied_bytes as f64 / copied_us.max(1e-3))
        })
    }
}
