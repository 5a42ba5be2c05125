//! The models of a switcher: each with its network, its tensors in files, and the state of its weights in memory.

use std::sync::Arc;
use std::time::Duration;

use tenure_switch::residency::Demand;
use tenure_switch::{Manifest, SwitchError};
use tenure_tensor::Tensor;

use super::on_cpu::OnCpu;
use super::on_cuda::OnCuda;
use super::switcher::SwitcherShared;
use super::weights::Arrangement;
use super::{LentModel, Measured, StoredTensors, SwitchedError, WeightOrder};
use crate::Result;
use crate::networks::Network;

/// A model of a switcher, and the switcher's data about it.
pub(super) struct ManagedModel {
    /// The number that tells the model from a later one of the same name. It is higher for models added later.
    number: u64,
    /// The record of the model's uses.
    pub(super) demand: Demand,
    /// See [`SwitchedModel::set_priority`](super::SwitchedModel::set_priority).
    pub(super) priority: i32,
    /// Whether other models may not evict it.
    pub(super) is_pinned: bool,
    /// Whether the files of learned orders have been searched for the model's.
    has_sought_order: bool,
    definition: ModelDefinition,
    weights: SwitchedWeights,
}

/// The data of a model that does not depend on the kind of device.
pub(super) struct ModelDefinition {
    pub(super) name: String,
    /// The network. Its tensors have values only while it is bound to weights.
    pub(super) network: Box<dyn Network>,
    /// The dtypes and the places in files of the network's tensors.
    pub(super) stored: Arc<StoredTensors>,
    /// The order and the groups in which the tensors are loaded at present.
    pub(super) arrangement: Arc<Arrangement>,
}

/// The state of a model's weights, by the kind of device that computes it.
enum SwitchedWeights {
    Cpu(OnCpu),
    Cuda(OnCuda),
}

impl ModelDefinition {
    /// Returns the manifest of the model's image in its current arrangement.
    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.arrangement.manifest
    }
}

impl ManagedModel {
    pub(super) fn new(
        shared: &SwitcherShared,
        number: u64,
        name: &str,
        network: Box<dyn Network>,
        stored: Arc<StoredTensors>,
    ) -> Result<Self> {
        let arrangement = match &shared.cuda {
            Some(_) => stored.arrangements.unknown(&stored, &shared.images, name)?,
            // On the CPU each model computes with an image of its own.
            None => Arrangement::new(&stored, &shared.images, name, WeightOrder::unknown(stored.tensors().len()))?,
        };
        let mut definition = ModelDefinition { name: name.into(), network, stored, arrangement };
        let weights = match &shared.cuda {
            Some(cuda) => SwitchedWeights::Cuda(OnCuda::new(cuda, &mut definition)?),
            None => SwitchedWeights::Cpu(OnCpu::default()),
        };
        Ok(Self {
            number,
            demand: Demand::new(),
            priority: 0,
            is_pinned: false,
            has_sought_order: false,
            definition,
            weights,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        self.definition.manifest()
    }

    /// Returns the size in bytes of the weights on the device or in transfer to it.
    pub(super) fn resident_bytes(&self) -> u64 {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.resident_bytes(&self.definition),
            SwitchedWeights::Cuda(weights) => weights.model().resident_bytes(),
        }
    }

    /// Returns the number of bytes that must be free on the device to load the missing weights.
    pub(super) fn missing_bytes(&self) -> u64 {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => {
                self.definition.manifest().bytes() - weights.resident_bytes(&self.definition)
            }
            SwitchedWeights::Cuda(weights) => weights.model().missing_bytes(),
        }
    }

    /// Returns how long each group is computed with, if this switcher has measured it.
    pub(super) fn compute_times(&self) -> Option<Vec<Duration>> {
        match &self.weights {
            SwitchedWeights::Cpu(_) => None,
            SwitchedWeights::Cuda(weights) => weights.compute_times(),
        }
    }

    /// Returns the number of input shapes for which calls are captured.
    pub(super) fn captures(&self) -> usize {
        match &self.weights {
            SwitchedWeights::Cpu(_) => 0,
            SwitchedWeights::Cuda(weights) => weights.captures(),
        }
    }

    /// Returns whether the model has device memory that may be freed for other models.
    pub(super) fn is_evictable(&self) -> bool {
        !self.is_pinned && !self.is_lent() && self.resident_bytes() > 0
    }

    /// Returns whether the model is lent to another process.
    fn is_lent(&self) -> bool {
        match &self.weights {
            SwitchedWeights::Cpu(_) => false,
            SwitchedWeights::Cuda(weights) => weights.model().is_lent(),
        }
    }

    /// Returns a function that waits until the weights in transfer have arrived. The caller can call it without the
    /// switcher's lock.
    pub(super) fn waiter(&self) -> Box<dyn FnOnce() -> Result<(), SwitchError>> {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.waiter(),
            SwitchedWeights::Cuda(weights) => {
                let model = Arc::clone(weights.model());
                Box::new(move || model.settle())
            }
        }
    }

    /// Lends the model, which must be loaded, to another process.
    pub(super) fn lend(&self) -> Result<LentModel> {
        match &self.weights {
            SwitchedWeights::Cpu(_) => Err(SwitchedError::OnCpu { name: self.definition.name.clone() }.into()),
            SwitchedWeights::Cuda(weights) => weights.lend(&self.definition),
        }
    }

    /// Sets the order and groups of the model's tensors from the uses and times that another process measured in a
    /// call. Does nothing if the order of use is known already, or on the CPU.
    pub(super) fn learn(&mut self, shared: &SwitcherShared, measured: &Measured) -> Result<()> {
        let Self { definition, weights, .. } = self;
        match (weights, &shared.cuda) {
            (SwitchedWeights::Cuda(weights), Some(cuda)) if !definition.arrangement.order.is_recorded() => {
                weights.learn(definition, shared, cuda, measured)
            }
            _ => Ok(()),
        }
    }

    /// Returns the worth of keeping the model on the device, after `uses` uses of all models. The models of least worth
    /// are evicted first.
    pub(super) fn worth(&self, shared: &SwitcherShared, uses: u64) -> i64 {
        let manifest = self.definition.manifest();
        self.demand.worth(uses, manifest.bytes(), shared.images.has(manifest), self.priority)
    }

    /// Changes the model to the order in which its tensors are used, if another device has learned that order or a file
    /// keeps it. Does nothing if the model has such an order already.
    pub(super) fn adopt_order(&mut self, shared: &SwitcherShared) -> Result<()> {
        // A process that borrows the model relies on its current arrangement.
        if self.definition.arrangement.order.is_recorded() || self.is_lent() {
            return Ok(());
        }
        let Self { definition, weights, has_sought_order, .. } = self;
        let learned = definition.stored.arrangements.recorded(&shared.images);
        let mut kept = None;
        if learned.is_none() && !*has_sought_order {
            *has_sought_order = true;
            kept = shared.kept_order(definition);
        }
        let ModelDefinition { name, stored, .. } = &*definition;
        match (weights, &shared.cuda) {
            (SwitchedWeights::Cuda(weights), Some(cuda)) => {
                let arrangement = match (learned, kept) {
                    (Some(arrangement), _) => arrangement,
                    (None, Some(order)) => stored.arrangements.record(stored, &shared.images, name, order)?,
                    (None, None) => return Ok(()),
                };
                weights.arrange(definition, shared, cuda, arrangement)?;
            }
            _ => {
                // There are no tables on the CPU.
                if let Some(order) = kept.filter(|order| !order.has_tables()) {
                    definition.arrangement = Arrangement::new(stored, &shared.images, name, order)?;
                }
            }
        }
        Ok(())
    }

    /// On the CPU, drops the model's image if it could not be read, so that the next load reads it again.
    pub(super) fn forget_failure(&mut self, shared: &SwitcherShared) {
        if let SwitchedWeights::Cpu(weights) = &mut self.weights
            && weights.has_failed()
        {
            weights.evict(&mut self.definition, shared);
        }
    }

    /// Loads the missing weights, for which there must be room on the device. Copies to a device may still be running
    /// on return.
    pub(super) fn load(&mut self, shared: &SwitcherShared) -> Result<()> {
        let Self { definition, weights, .. } = self;
        let manifest = Arc::clone(definition.manifest());
        shared.images.with(&manifest, |image| match weights {
            SwitchedWeights::Cpu(weights) => weights.bind(definition, Arc::clone(image)),
            SwitchedWeights::Cuda(weights) => {
                weights.model().load(image)?;
                Ok(())
            }
        })
    }

    /// See [`SwitchedModel::when_loaded`](super::SwitchedModel::when_loaded).
    pub(super) fn when_loaded(&self, shared: &SwitcherShared, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        match (&self.weights, &shared.cuda) {
            (SwitchedWeights::Cuda(_), Some(cuda)) => cuda.switch.when_copied(done),
            (SwitchedWeights::Cpu(weights), _) => weights.when_loaded(done),
            (SwitchedWeights::Cuda(_), None) => done(None),
        }
    }

    /// Waits for the last load, and returns how long its copy took.
    pub(super) fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.copy_time(),
            SwitchedWeights::Cuda(weights) => weights.model().copy_time(),
        }
    }

    /// Frees at least `bytes` bytes of the model's memory on the device, or all if it has fewer. On the CPU it frees
    /// all. A lent model keeps its memory.
    pub(super) fn evict(&mut self, shared: &SwitcherShared, bytes: u64) {
        match &mut self.weights {
            SwitchedWeights::Cpu(weights) => weights.evict(&mut self.definition, shared),
            SwitchedWeights::Cuda(weights) => weights.evict(shared, bytes),
        }
    }

    /// Evicts the model, and waits until its device no longer reads its tables. After that it may be dropped.
    pub(super) fn prepare_drop(&mut self, shared: &SwitcherShared) {
        self.evict(shared, u64::MAX);
        if let SwitchedWeights::Cuda(weights) = &mut self.weights {
            weights.wait_for_table_reads(shared);
        }
    }

    /// Returns the size in bytes of the model's tables: weights that stay in the host's memory, where the device reads
    /// single rows of them.
    pub(super) fn table_bytes(&self) -> u64 {
        match &self.weights {
            SwitchedWeights::Cpu(_) => 0,
            SwitchedWeights::Cuda(weights) => weights.table_bytes(),
        }
    }

    /// Computes the outputs for inputs, with weights in memory or in transfer.
    pub(super) fn compute(&mut self, shared: &SwitcherShared, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let inputs = inputs.iter().map(|input| input.to_device(shared.device));
        let inputs = inputs.collect::<tenure_tensor::Result<Vec<_>>>()?;
        match &mut self.weights {
            SwitchedWeights::Cpu(weights) => weights.compute(&mut self.definition, &inputs, shared.grouping),
            SwitchedWeights::Cuda(weights) => weights.compute(&mut self.definition, shared, &inputs),
        }
    }
}
