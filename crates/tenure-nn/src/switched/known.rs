//! A switcher's models: each with its network, its files, and the place of its weights.

use std::sync::Arc;
use std::time::Duration;

use tenure_switch::residency::Demand;
use tenure_switch::{Manifest, SwitchError};
use tenure_tensor::Tensor;

use super::arrangement::Arrangement;
use super::on_cpu::OnCpu;
use super::on_cuda::OnCuda;
use super::switcher::SwitcherShared;
use super::{LentModel, Measured, StoredTensors, SwitchedError, WeightOrder};
use crate::Result;
use crate::networks::Network;

/// A model of a switcher.
pub(super) struct KnownModel {
    number: u64,
    pub(super) demand: Demand,
    pub(super) priority: i32,
    pub(super) is_pinned: bool,
    /// Whether a kept order has been looked for.
    is_recalled: bool,
    parts: Parts,
    weights: SwitchedWeights,
}

/// The parts of a model.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) network: Box<dyn Network>,
    pub(super) stored: Arc<StoredTensors>,
    pub(super) arrangement: Arc<Arrangement>,
}

/// The state of a model's weights, by the kind of device that computes it.
enum SwitchedWeights {
    Cpu(OnCpu),
    Cuda(OnCuda),
}

impl Parts {
    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.arrangement.manifest
    }
}

impl KnownModel {
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
        let mut parts = Parts { name: name.into(), network, stored, arrangement };
        let weights = match &shared.cuda {
            Some(cuda) => SwitchedWeights::Cuda(OnCuda::new(cuda, &mut parts)?),
            None => SwitchedWeights::Cpu(OnCpu::default()),
        };
        Ok(Self { number, demand: Demand::new(), priority: 0, is_pinned: false, is_recalled: false, parts, weights })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        self.parts.manifest()
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.resident_bytes(&self.parts),
            SwitchedWeights::Cuda(weights) => weights.model().resident_bytes(),
        }
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => self.parts.manifest().bytes() - weights.resident_bytes(&self.parts),
            SwitchedWeights::Cuda(weights) => weights.model().missing_bytes(),
        }
    }

    pub(super) fn compute_times(&self) -> Option<Vec<Duration>> {
        match &self.weights {
            SwitchedWeights::Cpu(_) => None,
            SwitchedWeights::Cuda(weights) => weights.compute_times(),
        }
    }

    pub(super) fn captures(&self) -> usize {
        match &self.weights {
            SwitchedWeights::Cpu(_) => 0,
            SwitchedWeights::Cuda(weights) => weights.captures(),
        }
    }

    /// Returns whether the model holds memory that other models may take.
    pub(super) fn can_leave(&self) -> bool {
        let is_lent = match &self.weights {
            SwitchedWeights::Cpu(_) => false,
            SwitchedWeights::Cuda(weights) => weights.model().is_lent(),
        };
        !self.is_pinned && !is_lent && self.resident_bytes() > 0
    }

    /// Returns a function that waits for the weights in transfer.
    pub(super) fn arriving(&self) -> Box<dyn FnOnce() -> Result<(), SwitchError>> {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.arriving(),
            SwitchedWeights::Cuda(weights) => {
                let model = Arc::clone(weights.model());
                Box::new(move || model.settle())
            }
        }
    }

    /// Lends the model to another process.
    pub(super) fn lend(&self) -> Result<LentModel> {
        match &self.weights {
            SwitchedWeights::Cpu(_) => Err(SwitchedError::OnCpu { name: self.parts.name.clone() }.into()),
            SwitchedWeights::Cuda(weights) => weights.lend(&self.parts),
        }
    }

    /// Arranges the model by another process's measurements.
    pub(super) fn learn(&mut self, shared: &SwitcherShared, measured: &Measured) -> Result<()> {
        let Self { parts, weights, .. } = self;
        match (weights, &shared.cuda) {
            (SwitchedWeights::Cuda(weights), Some(cuda)) if !parts.arrangement.order.is_recorded() => {
                weights.learn(parts, shared, cuda, measured)
            }
            _ => Ok(()),
        }
    }

    /// Returns the worth of the model's bytes on the device, after `uses` uses of all models.
    pub(super) fn worth(&self, shared: &SwitcherShared, uses: u64) -> i64 {
        let manifest = self.parts.manifest();
        self.demand.worth(uses, manifest.bytes(), shared.images.has(manifest), self.priority)
    }

    /// Arranges the model by an order that another device learned, or that was kept for it, unless the model has
    /// learned one already.
    pub(super) fn recall(&mut self, shared: &SwitcherShared) -> Result<()> {
        let Self { parts, weights, is_recalled, .. } = self;
        if parts.arrangement.order.is_recorded() {
            return Ok(());
        }
        let learned = parts.stored.arrangements.recorded(&shared.images);
        let kept = match std::mem::replace(is_recalled, true) {
            false if learned.is_none() => shared.kept_order(parts),
            _ => None,
        };
        match (weights, &shared.cuda) {
            // The borrowing process relies on the current arrangement.
            (SwitchedWeights::Cuda(weights), Some(_)) if weights.model().is_lent() => {}
            (SwitchedWeights::Cuda(weights), Some(cuda)) => {
                let record =
                    |order| parts.stored.arrangements.record(&parts.stored, &shared.images, &parts.name, order);
                if let Some(arrangement) = learned.map_or_else(|| kept.map(record).transpose(), |it| Ok(Some(it)))? {
                    weights.arrange(parts, shared, cuda, arrangement)?;
                }
            }
            // There are no tables on the CPU.
            _ => {
                if let Some(order) = kept.filter(|order| !order.has_tables()) {
                    parts.arrangement = Arrangement::new(&parts.stored, &shared.images, &parts.name, order)?;
                }
            }
        }
        Ok(())
    }

    /// Drops an image that could not be read, so that it is read again.
    pub(super) fn forget_failure(&mut self, shared: &SwitcherShared) {
        if let SwitchedWeights::Cpu(weights) = &mut self.weights
            && weights.has_failed()
        {
            weights.evict(&mut self.parts, shared);
        }
    }

    /// Loads the missing weights, for which there must be room.
    pub(super) fn load(&mut self, shared: &SwitcherShared) -> Result<()> {
        let Self { parts, weights, .. } = self;
        let manifest = Arc::clone(parts.manifest());
        shared.images.with(&manifest, |image| match weights {
            SwitchedWeights::Cpu(weights) => weights.bind(parts, Arc::clone(image)),
            SwitchedWeights::Cuda(weights) => {
                weights.model().load(image)?;
                Ok(())
            }
        })
    }

    pub(super) fn when_loaded(&self, shared: &SwitcherShared, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        match (&self.weights, &shared.cuda) {
            (SwitchedWeights::Cuda(_), Some(cuda)) => cuda.switch.when_copied(done),
            (SwitchedWeights::Cpu(weights), _) => weights.when_loaded(done),
            (SwitchedWeights::Cuda(_), None) => done(None),
        }
    }

    pub(super) fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        match &self.weights {
            SwitchedWeights::Cpu(weights) => weights.copy_time(),
            SwitchedWeights::Cuda(weights) => weights.model().copy_time(),
        }
    }

    /// Frees at least `bytes` bytes of the model's memory for others.
    pub(super) fn evict(&mut self, shared: &SwitcherShared, bytes: u64) {
        match &mut self.weights {
            SwitchedWeights::Cpu(weights) => weights.evict(&mut self.parts, shared),
            SwitchedWeights::Cuda(weights) => weights.evict(shared, bytes),
        }
    }

    /// Prepares the model for being dropped.
    pub(super) fn leave(&mut self, shared: &SwitcherShared) {
        self.evict(shared, u64::MAX);
        if let SwitchedWeights::Cuda(weights) = &mut self.weights {
            weights.leave(shared);
        }
    }

    /// Returns the size in bytes of the tables that stay in the host's memory.
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
            SwitchedWeights::Cpu(weights) => weights.compute(&mut self.parts, &inputs, shared.grouping),
            SwitchedWeights::Cuda(weights) => weights.compute(&mut self.parts, shared, &inputs),
        }
    }
}
