//! A model of a switcher.

use std::sync::Arc;
use std::time::Duration;

use tenure_switch::residency::Demand;
use tenure_switch::{Manifest, SwitchError};
use tenure_tensor::Tensor;

use super::on_cpu::OnCpu;
use super::on_cuda::OnCuda;
use super::switcher::Shared;
use super::{LentModel, Measured, Order, StoredTensors, SwitchedError};
use crate::Result;
use crate::networks::Network;

/// A model of a [`Switcher`](super::Switcher). A handle: the model stays when it is dropped, until it is [removed](Self::remove).
#[derive(Clone)]
pub struct SwitchedModel {
    shared: Arc<Shared>,
    name: Arc<str>,
    number: u64,
}

impl SwitchedModel {
    pub(super) fn new(shared: &Arc<Shared>, name: &str, number: u64) -> Self {
        Self { shared: Arc::clone(shared), name: name.into(), number }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Brings what is missing of the model, and computes its answers to inputs. Inputs are brought to the device. On a CUDA device, the
    /// answers are computed when the thread's current stream has passed what is on it then.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; what the network says of its inputs; it was removed. The next call is
    /// right.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.shared.forward(&self.name, self.number, inputs)
    }

    /// Brings it, as a call would.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; it was removed.
    pub fn load(&self) -> Result<()> {
        self.shared.load(&self.name, self.number)
    }

    /// Waits until what is on its way to the device is there. Other calls go on meanwhile.
    ///
    /// # Errors
    /// Its files cannot be read; a driver call failed; it was removed.
    pub fn settle(&self) -> Result<()> {
        let wait = self.shared.with(&self.name, self.number, |known| known.arriving())?;
        Ok(wait()?)
    }

    /// Brings it, as a call would, and lends it to a process that computes it, which may begin before its weights are there.
    /// It stays on the device as long as it is lent.
    ///
    /// # Errors
    /// [`SwitchedError::OnCpu`]; those of [`load`](Self::load).
    pub fn lend(&self) -> Result<LentModel> {
        self.shared.lend(&self.name, self.number)
    }

    /// Arranges it by what a process measured that computed it, and brings it, as the second call does where it is computed in
    /// this process. Nothing happens if its order is known already. It must not be lent.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; a driver call failed; it was removed.
    pub fn learn(&self, measured: &Measured) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.learn(&self.shared, measured))?
    }

    /// Has it leave the device. It comes back when it is called. One that is [lent](Self::lend) stays.
    ///
    /// # Errors
    /// It was removed.
    pub fn evict(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.evict(&self.shared, u64::MAX))
    }

    /// Has so many bytes of it leave the device, or a little more: its end, which is needed last when it comes back. On the CPU all
    /// of it leaves.
    ///
    /// # Errors
    /// It was removed.
    pub fn evict_bytes(&self, bytes: u64) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.evict(&self.shared, bytes))
    }

    /// Calls `done` when what is on its way to the device is there, with the time from now until then; with nothing where it does not
    /// come. It is called on a thread of the driver's or of the reader's, which must not wait, and must not use the device.
    pub fn when_loaded(&self, done: impl FnOnce(Option<Duration>) + Send + 'static) {
        let mut done = Some(done);
        // What is not called by then never is.
        let told = self.shared.with(&self.name, self.number, |known| {
            if let Some(done) = done.take() {
                known.when_loaded(&self.shared, Box::new(done));
            }
        });
        if let (Err(_), Some(done)) = (told, done) {
            done(None);
        }
    }

    /// Has its image leave the host's memory too, so that it comes from its files.
    ///
    /// # Errors
    /// It was removed.
    pub fn forget(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| {
            known.evict(&self.shared, u64::MAX);
            self.shared.images.forget(known.manifest());
        })
    }

    /// Says how much its calls matter beside those of other models: each unit, up to 10 and down to -10, doubles what it is worth to keep it on
    /// the device. 0 at first.
    ///
    /// # Errors
    /// It was removed.
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.priority = priority.clamp(-10, 10))
    }

    /// Says whether it stays on the device once it is there.
    ///
    /// # Errors
    /// It was removed.
    pub fn set_pinned(&self, is_pinned: bool) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.is_pinned = is_pinned)
    }

    /// Whether all of it is on the device, or on its way there.
    ///
    /// # Errors
    /// It was removed.
    pub fn is_resident(&self) -> Result<bool> {
        self.shared.with(&self.name, self.number, |known| known.missing_bytes() == 0)
    }

    /// Bytes of it that are on the device now; on a CUDA device in whole chunks.
    ///
    /// # Errors
    /// It was removed.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |known| known.resident_bytes())
    }

    /// Bytes of the groups in which it comes, in their order: each tensor by itself until their order is learned.
    ///
    /// # Errors
    /// It was removed.
    pub fn group_bytes(&self) -> Result<Vec<u64>> {
        self.shared.with(&self.name, self.number, |known| {
            known.manifest().groups().iter().map(|group| group.end - group.start).collect()
        })
    }

    /// Bytes of tables such as those of words: on a CUDA device they stay in the host's memory, where a call reads the rows that it
    /// needs in place. They are in no group.
    ///
    /// # Errors
    /// It was removed.
    pub fn table_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |known| known.table_bytes())
    }

    /// How long it took to copy what was missing when it was brought last: to the device, or on the CPU from its files. It is
    /// waited for. Nothing before it was brought.
    ///
    /// # Errors
    /// Its files cannot be read; a driver call failed; it was removed.
    pub fn copy_time(&self) -> Result<Option<Duration>> {
        Ok(self.shared.with(&self.name, self.number, |known| known.copy_time())??)
    }

    /// How long what uses each group computes, alone: on a CUDA device, if this switcher has measured it.
    ///
    /// # Errors
    /// It was removed.
    pub fn compute_times(&self) -> Result<Option<Vec<Duration>>> {
        self.shared.with(&self.name, self.number, |known| known.compute_times())
    }

    /// For how many sizes of inputs its calls are captured.
    ///
    /// # Errors
    /// It was removed.
    pub fn captures(&self) -> Result<usize> {
        self.shared.with(&self.name, self.number, |known| known.captures())
    }

    /// Lets go of the model, its image and its memory. The name is free then.
    ///
    /// # Errors
    /// It was removed before.
    pub fn remove(&self) -> Result<()> {
        self.shared.remove(&self.name, self.number)
    }
}

/// A model as its switcher knows it.
pub(super) struct Known {
    number: u64,
    pub(super) demand: Demand,
    priority: i32,
    pub(super) is_pinned: bool,
    /// Whether an order that was kept has been looked for.
    is_recalled: bool,
    parts: Parts,
    weights: Weights,
}

/// The parts of a model.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) network: Box<dyn Network>,
    pub(super) stored: StoredTensors,
    /// The order of the manifest.
    pub(super) order: Order,
    pub(super) manifest: Arc<Manifest>,
}

/// Where a model's weights are when it is computed.
enum Weights {
    Cpu(OnCpu),
    Cuda(OnCuda),
}

impl Known {
    pub(super) fn new(
        shared: &Shared,
        number: u64,
        name: &str,
        network: Box<dyn Network>,
        stored: StoredTensors,
    ) -> Result<Self> {
        let order = Order::unknown(stored.tensors().len());
        let manifest = stored.manifest(name, &order)?;
        let mut parts = Parts { name: name.into(), network, stored, order, manifest };
        let weights = match &shared.cuda {
            Some(cuda) => Weights::Cuda(OnCuda::new(cuda, &mut parts)?),
            None => Weights::Cpu(OnCpu::default()),
        };
        Ok(Self { number, demand: Demand::new(), priority: 0, is_pinned: false, is_recalled: false, parts, weights })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.parts.manifest
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        match &self.weights {
            Weights::Cpu(weights) => weights.resident_bytes(&self.parts),
            Weights::Cuda(weights) => weights.model().resident_bytes(),
        }
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        match &self.weights {
            Weights::Cpu(weights) => self.parts.manifest.bytes() - weights.resident_bytes(&self.parts),
            Weights::Cuda(weights) => weights.model().missing_bytes(),
        }
    }

    pub(super) fn compute_times(&self) -> Option<Vec<Duration>> {
        match &self.weights {
            Weights::Cpu(_) => None,
            Weights::Cuda(weights) => weights.compute_times(),
        }
    }

    pub(super) fn captures(&self) -> usize {
        match &self.weights {
            Weights::Cpu(_) => 0,
            Weights::Cuda(weights) => weights.captures(),
        }
    }

    /// Whether it has memory that others may have.
    pub(super) fn can_leave(&self) -> bool {
        let is_lent = match &self.weights {
            Weights::Cpu(_) => false,
            Weights::Cuda(weights) => weights.model().is_lent(),
        };
        !self.is_pinned && !is_lent && self.resident_bytes() > 0
    }

    /// A function that waits for what is on its way.
    pub(super) fn arriving(&self) -> Box<dyn FnOnce() -> Result<(), SwitchError>> {
        match &self.weights {
            Weights::Cpu(weights) => weights.arriving(),
            Weights::Cuda(weights) => {
                let model = Arc::clone(weights.model());
                Box::new(move || model.settle())
            }
        }
    }

    /// Lends it.
    pub(super) fn lend(&self) -> Result<LentModel> {
        match &self.weights {
            Weights::Cpu(_) => Err(SwitchedError::OnCpu { name: self.parts.name.clone() }.into()),
            Weights::Cuda(weights) => weights.lend(&self.parts),
        }
    }

    /// Arranges it by what another process measured.
    pub(super) fn learn(&mut self, shared: &Shared, measured: &Measured) -> Result<()> {
        let Self { parts, weights, .. } = self;
        match (weights, &shared.cuda) {
            (Weights::Cuda(weights), Some(cuda)) if !parts.order.is_recorded() => {
                weights.learn(parts, shared, cuda, measured)
            }
            _ => Ok(()),
        }
    }

    /// The worth of its bytes on the device, after so many uses of all models.
    pub(super) fn worth(&self, shared: &Shared, uses: u64) -> i64 {
        let manifest = &self.parts.manifest;
        self.demand.worth(uses, manifest.bytes(), shared.images.has(manifest), self.priority)
    }

    /// Arranges the model by the order that was kept for it, if there is one and it has not been learned yet.
    pub(super) fn recall(&mut self, shared: &Shared) -> Result<()> {
        let Self { parts, weights, is_recalled, .. } = self;
        if std::mem::replace(is_recalled, true) || parts.order.is_recorded() {
            return Ok(());
        }
        let Some(order) = shared.kept_order(parts) else { return Ok(()) };
        match (weights, &shared.cuda) {
            (Weights::Cuda(weights), Some(cuda)) => weights.arrange(parts, shared, cuda, order)?,
            // On the CPU there are no tables.
            _ if order.has_tables() => {}
            _ => (parts.manifest, parts.order) = (parts.stored.manifest(&parts.name, &order)?, order),
        }
        Ok(())
    }

    /// Lets go of an image that could not be read, so that it is tried again.
    pub(super) fn forget_failure(&mut self, shared: &Shared) {
        if let Weights::Cpu(weights) = &mut self.weights
            && weights.has_failed()
        {
            weights.evict(&mut self.parts, shared);
        }
    }

    /// Brings what is missing, for which there is room.
    pub(super) fn load(&mut self, shared: &Shared) -> Result<()> {
        let image = shared.image(&self.parts.manifest)?;
        match &mut self.weights {
            Weights::Cpu(weights) => weights.bind(&mut self.parts, image),
            Weights::Cuda(weights) => {
                weights.model().load(&image).inspect_err(|error| {
                    // It is read again when it is asked for again.
                    if matches!(error, SwitchError::Read { .. }) {
                        shared.images.forget(&self.parts.manifest);
                    }
                })?;
                Ok(())
            }
        }
    }

    pub(super) fn when_loaded(&self, shared: &Shared, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        match (&self.weights, &shared.cuda) {
            (Weights::Cuda(_), Some(cuda)) => cuda.switch.when_copied(done),
            (Weights::Cpu(weights), _) => weights.when_loaded(done),
            (Weights::Cuda(_), None) => done(None),
        }
    }

    pub(super) fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        match &self.weights {
            Weights::Cpu(weights) => weights.copy_time(),
            Weights::Cuda(weights) => weights.model().copy_time(),
        }
    }

    /// Lets others have so many bytes of its memory, or more.
    pub(super) fn evict(&mut self, shared: &Shared, bytes: u64) {
        match &mut self.weights {
            Weights::Cpu(weights) => weights.evict(&mut self.parts, shared),
            Weights::Cuda(weights) => weights.evict(shared, bytes),
        }
    }

    /// Lets go of everything.
    pub(super) fn leave(&mut self, shared: &Shared) {
        self.evict(shared, u64::MAX);
        shared.images.forget(&self.parts.manifest);
        if let Weights::Cuda(weights) = &mut self.weights {
            weights.leave(shared);
        }
    }

    /// Bytes of tables that stay in the host's memory.
    pub(super) fn table_bytes(&self) -> u64 {
        match &self.weights {
            Weights::Cpu(_) => 0,
            Weights::Cuda(weights) => weights.table_bytes(),
        }
    }

    /// Answers inputs with weights that are there or on their way.
    pub(super) fn compute(&mut self, shared: &Shared, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let inputs = inputs.iter().map(|input| input.to_device(shared.device));
        let inputs = inputs.collect::<tenure_tensor::Result<Vec<_>>>()?;
        match &mut self.weights {
            Weights::Cpu(weights) => weights.compute(&mut self.parts, &inputs, shared.grouping),
            Weights::Cuda(weights) => weights.compute(&mut self.parts, shared, &inputs),
        }
    }
}
