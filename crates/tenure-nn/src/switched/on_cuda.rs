//! The weights of models on a CUDA device. They keep their addresses there while they are evicted.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Storage;
use tenure_switch::groups::Costs;
use tenure_switch::{Image, Model};
use tenure_tensor::Tensor;

use super::bound::BoundTensors;
use super::calls::{CallHistory, Callee, Measured, MeasuredUse};
use super::lent::LentModel;
use super::managed::ModelDefinition;
use super::switcher::{Cuda, SwitcherShared};
use super::weights::Arrangement;
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

/// The state of a model's weights on a CUDA device.
pub(super) struct OnCuda {
    /// The model's addresses and the memory mapped there.
    model: Arc<Model>,
    /// The network's binding to these addresses.
    bound: BoundTensors,
    /// The image of the tables, if there are any.
    tables: Option<Arc<Image>>,
    /// The compute time of each group, if this process has measured it.
    compute_times: Option<Vec<Duration>>,
    calls: CallHistory,
}

impl OnCuda {
    pub(super) fn new(cuda: &Cuda, definition: &mut ModelDefinition) -> Result<Self> {
        let model = Arc::new(cuda.switch.register(definition.manifest())?);
        let placed = definition.stored.placed(&definition.arrangement.order, &definition.arrangement.manifest);
        let bound = BoundTensors::bind(&mut *definition.network, placed, |group| model.storage(group))?;
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

    /// Lends the model to another process, which computes it.
    pub(super) fn lend(&self, definition: &ModelDefinition) -> Result<LentModel> {
        LentModel::new(self.model.lend_ahead()?, definition, self.tables.clone())
    }

    /// Waits until the device no longer reads the model's tables, if it has any. No call may follow.
    pub(super) fn wait_for_table_reads(&self, shared: &SwitcherShared) {
        if let (Some(_), Some(cuda)) = (&self.tables, &shared.cuda) {
            // A device that does not answer reads nothing, so its error is ignored.
            let _ = cuda.memory.driver().synchronize();
        }
    }

    /// Frees `bytes` bytes of the model's device memory for other models, rounded up to whole chunks. Frees nothing
    /// while the model is lent.
    pub(super) fn evict(&self, shared: &SwitcherShared, bytes: u64) {
        let chunk_bytes = shared.cuda.as_ref().map_or(1, |cuda| cuda.switch.chunk_bytes());
        self.model.evict(usize::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(usize::MAX));
    }

    /// Computes the outputs for inputs on the device. If the call has measured the order of use, changes the model to
    /// it.
    pub(super) fn compute(
        &mut self,
        definition: &mut ModelDefinition,
        shared: &SwitcherShared,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let Some(cuda) = &shared.cuda else { unreachable!("it is on a CUDA device") };
        let callee = Callee {
            network: &*definition.network,
            bound: &self.bound,
            model: &self.model,
            memory: cuda.memory,
            pool: &cuda.pool,
            is_recorded: definition.arrangement.order.is_recorded(),
        };
        let (answers, measured) = self.calls.compute(&callee, inputs)?;
        if let Some(measured) = measured {
            self.learn(definition, shared, cuda, &measured)?;
        }
        Ok(answers)
    }

    /// Changes the model to the measured order of use, or to that which another device learned first, and loads it.
    /// Keeps the order for later processes.
    pub(super) fn learn(
        &mut self,
        definition: &mut ModelDefinition,
        shared: &SwitcherShared,
        cuda: &Cuda,
        measured: &Measured,
    ) -> Result<()> {
        let Measured { uses, share } = measured;
        let costs = Costs { bytes_per_us: self.copy_speed(definition, shared)?, copy_us: COPY_US, wait_us: WAIT_US };
        // Each tensor is a group until now.
        let (tables, others): (Vec<&MeasuredUse>, Vec<&MeasuredUse>) = uses
            .iter()
            .partition(|used| used.reads_rows && definition.stored.tensors()[used.tensor].entry.bytes >= TABLE_BYTES);
        let tables = tables.iter().map(|used| used.tensor).collect();
        let used: Vec<(usize, f64)> = others.iter().map(|used| (used.tensor, used.compute_us * share)).collect();
        let beside: Vec<(usize, f64)> = used.iter().map(|(tensor, us)| (*tensor, us * BESIDE_COPIES)).collect();
        let order = WeightOrder::recorded(&definition.stored, &beside, tables, shared.grouping, &costs);
        let arrangement =
            definition.stored.arrangements.record(&definition.stored, &shared.images, &definition.name, order)?;
        self.arrange(definition, shared, cuda, arrangement)?;
        let tensors = &definition.arrangement.order.as_known().tensors;
        let manifest = definition.manifest();
        let mut group_us = vec![0.0; manifest.groups().len()];
        for (tensor, us) in used {
            if let Some(place) = tensors.iter().position(|other| *other == tensor) {
                group_us[manifest.group_of(place)] += us;
            }
        }
        self.compute_times = Some(group_us.into_iter().map(|us| Duration::from_secs_f64(us / 1e6)).collect());
        shared.keep_order(definition);
        shared.images.with(definition.manifest(), |image| Ok(self.model.load(image)?))?;
        Ok(())
    }

    /// Changes the model to another arrangement, at new addresses. None of its weights are on the device afterwards.
    pub(super) fn arrange(
        &mut self,
        definition: &mut ModelDefinition,
        shared: &SwitcherShared,
        cuda: &Cuda,
        arrangement: Arc<Arrangement>,
    ) -> Result<()> {
        let Arrangement { order, manifest, tables, .. } = &*arrangement;
        let model = Arc::new(cuda.switch.register(manifest)?);
        self.evict(shared, u64::MAX);
        // The old image makes room: there may not be enough for both, and other devices will use the new order too.
        shared.images.forget(definition.manifest());
        let tables =
            tables.as_ref().map(|manifest| shared.images.with(manifest, |image| Ok(Arc::clone(image)))).transpose()?;
        let mut storages: Vec<Storage> = (0..manifest.groups().len()).map(|group| model.storage(group)).collect();
        if let Some(tables) = &tables {
            for table in 0..tables.manifest().groups().len() {
                storages.push(tables.storage_on_device(table, &**cuda.memory.driver())?);
            }
        }
        let bound = std::mem::take(&mut self.bound);
        bound.unbind(&mut *definition.network)?;
        self.bound =
            BoundTensors::bind(&mut *definition.network, definition.stored.placed(order, manifest), |group| {
                storages[group].clone()
            })?;
        definition.arrangement = arrangement;
        (self.model, self.tables) = (model, tables);
        Ok(())
    }

    /// Evicts the model, loads all of it, and returns the speed of the copy in bytes per µs.
    fn copy_speed(&self, definition: &ModelDefinition, shared: &SwitcherShared) -> Result<f64> {
        shared.images.with(definition.manifest(), |image| {
            image.wait_for_all()?;
            self.evict(shared, u64::MAX);
            let copied_bytes = self.model.load_at_once(image)?.copied_bytes;
            let copied_us = self.model.copy_time()?.unwrap_or_default().as_secs_f64() * 1e6;
            Ok(copied_bytes as f64 / copied_us.max(1e-3))
        })
    }
}
