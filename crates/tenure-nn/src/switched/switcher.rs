//! The switcher: all models of a device, and the choice of those that are in its memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_device::graph::GraphPool;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Event, EventKind, Executor};
use tenure_switch::groups::Grouping;
use tenure_switch::{OrderKey, Orders, Switch, SwitchError, SwitchOptions};
use tenure_tensor::{Device, Tensor};

use super::host_images::HostImages;
use super::managed::{ManagedModel, ModelDefinition};
use super::model::SwitchedModel;
use super::{LentModel, StoredTensors, SwitchedError, WeightOrder};
use crate::Result;
use crate::networks::Network;

/// The settings of a [`Switcher`]: its memory, and how it divides and orders models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitcherOptions {
    /// The device memory in bytes for the weights of all models together. The memory that models compute in comes on
    /// top.
    pub device_bytes: u64,
    /// The pinned host memory in bytes for the images of all models together, on any devices. On the CPU it is unused:
    /// images are in `device_bytes`.
    pub host_bytes: u64,
    /// The size in bytes of the chunks in which device memory is mapped and unmapped, a multiple of the device's
    /// granularity. Unused on the CPU.
    pub chunk_bytes: u64,
    /// The way in which layers are divided into groups that are loaded together.
    pub grouping: Grouping,
    /// The place where learned orders are kept, also for switchers of other processes. With `None`, each switcher
    /// learns them anew.
    pub orders: Option<Orders>,
    /// Whether models may be [lent](SwitchedModel::lend) to processes that compute them while their weights arrive.
    /// Unused on the CPU.
    pub is_lending: bool,
}

impl SwitcherOptions {
    /// The device memory in bytes from which on [`new`](Self::new) makes chunks large. Of large chunks, more of each
    /// model's last one may be unused.
    const MANY_BYTES: u64 = 4 << 30;

    /// Makes settings with these sizes in bytes, the groups that let the last layer end soonest, and orders in the
    /// user's cache. Chunks have 16 MiB, or 64 MiB if `device_bytes` is 4 GiB or more: mapping a chunk takes the host
    /// some 25 µs regardless of its size, and a captured model is launched after all of them are mapped.
    pub fn new(device_bytes: u64, host_bytes: u64) -> Self {
        let chunk_bytes = if device_bytes < Self::MANY_BYTES { 16 << 20 } else { 64 << 20 };
        let grouping = Grouping::default();
        let orders = Orders::of_user();
        Self { device_bytes, host_bytes, chunk_bytes, grouping, orders, is_lending: false }
    }
}

/// Keeps many models for one device, which need not have room for all of them. It is a handle: clones share the models.
///
/// A call of a model that is not on the device loads it, and evicts the models that are worth least: those that are
/// called seldom, can be loaded quickly and have a low [priority](SwitchedModel::set_priority). Of equals, the last
/// added goes first, so that a loop over more models than fit finds most of them in memory. Calls of all threads take
/// turns. The outputs are the model's own, bit for bit.
///
/// The first two calls of a model learn: the first prepares kernels, and the second measures the order in which layers
/// are used and how long each computes. The switcher [keeps](SwitcherOptions::orders) the order for the next process.
/// Afterwards groups are loaded in that order. On a CUDA device, a call with known input shapes is then captured, and
/// launched as one from then on.
#[derive(Clone)]
pub struct Switcher {
    shared: Arc<SwitcherShared>,
}

/// Statistics of a [`Switcher`]: its work so far, and its memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitcherReport {
    /// The number of models.
    pub models: usize,
    /// The number of models that are wholly on the device.
    pub resident_models: usize,
    /// The size in bytes of the weights on the device; on a CUDA device in whole chunks.
    pub resident_bytes: u64,
    /// The largest size in bytes that weights had on the device.
    pub peak_bytes: u64,
    /// The size in bytes of the images in the host's memory, for all devices that share them.
    pub image_bytes: u64,
    /// The number of calls and loads that found their model on the device.
    pub hits: u64,
    /// The number of calls and loads that did not find it there.
    pub switches: u64,
}

/// The part of a switcher that its clones and the handles of its models share.
pub(super) struct SwitcherShared {
    pub(super) device: Device,
    pub(super) grouping: Grouping,
    orders: Option<Orders>,
    /// The images in the host's memory, which switchers made together share.
    pub(super) images: Arc<HostImages>,
    /// The memory in bytes for weights. On the CPU it is the images' limit.
    device_bytes: u64,
    /// The CUDA device; `None` on the CPU, where models compute with their images.
    pub(super) cuda: Option<Cuda>,
    state: Mutex<SwitcherState>,
}

/// A CUDA device of a switcher.
pub(super) struct Cuda {
    pub(super) memory: &'static DeviceMemory,
    pub(super) switch: Switch,
    /// The memory pool of captured calls.
    pub(super) pool: GraphPool,
}

/// The models and counts of a switcher. Its lock is held during a call, so that calls take turns.
#[derive(Default)]
struct SwitcherState {
    /// The models by name.
    models: BTreeMap<String, ManagedModel>,
    /// The number of models added, calls and loads so far. Each takes the next number.
    uses: u64,
    hits: u64,
    switches: u64,
    /// The event after the last call's work on the device.
    done: Option<Event>,
}

impl Switcher {
    /// Makes a switcher for a device. It takes no memory yet.
    ///
    /// # Errors
    /// The device cannot be used; no threads to read files.
    ///
    /// # Panics
    /// `chunk_bytes` is not a multiple of the device's granularity.
    pub fn new(device: Device, options: SwitcherOptions) -> Result<Self> {
        if device.is_cpu() {
            let images = HostImages::new(options.device_bytes, None, Vec::new())?;
            return Ok(Self::with_images(device, None, &Arc::new(images), options));
        }
        Ok(Self::on_devices(&[device], options)?.swap_remove(0))
    }

    /// Makes a switcher with these options for each of several CUDA devices. All copy from the same images, so
    /// `host_bytes` is for all of them. A model is added to each switcher; if all are given the same [`StoredTensors`],
    /// it has one image.
    ///
    /// A device's memory goes back to its driver when the last of these switchers is dropped, or by
    /// [`trim`](Self::trim).
    ///
    /// # Errors
    /// A device cannot be used; no threads to read files.
    ///
    /// # Panics
    /// `chunk_bytes` is not a multiple of a device's granularity; a device is the CPU.
    pub fn on_devices(devices: &[Device], options: SwitcherOptions) -> Result<Vec<Self>> {
        let opened = devices.iter().map(|device| Cuda::new(*device, &options)).collect::<Result<Vec<_>>>()?;
        let driver = opened.first().map(|cuda| Arc::clone(cuda.memory.driver()));
        let switches = opened.iter().map(|cuda| cuda.switch.clone()).collect();
        let images = Arc::new(HostImages::new(options.host_bytes, driver, switches)?);
        Ok(devices
            .iter()
            .copied()
            .zip(opened)
            .map(|(device, cuda)| Self::with_images(device, Some(cuda), &images, options.clone()))
            .collect())
    }

    fn with_images(device: Device, cuda: Option<Cuda>, images: &Arc<HostImages>, options: SwitcherOptions) -> Self {
        let SwitcherOptions { device_bytes, grouping, orders, .. } = options;
        let images = Arc::clone(images);
        let state = Mutex::default();
        Self { shared: Arc::new(SwitcherShared { device, grouping, orders, images, device_bytes, cuda, state }) }
    }

    /// Adds a network without values, as [`Architectures::build`](crate::networks::Architectures::build) or any code
    /// with [`Scope::shapes`](crate::Scope::shapes) makes it. Its weights are in safetensors files, under their names
    /// or all under one prefix. They are located now, and read later. They keep the dtypes of the files.
    ///
    /// # Errors
    /// Another model has the name; a file cannot be read; a tensor is missing or has other sizes; the model is larger
    /// than the device's budget.
    pub fn add<P: AsRef<Path>>(&self, name: &str, network: Box<dyn Network>, paths: &[P]) -> Result<SwitchedModel> {
        let stored = StoredTensors::find(paths, &network.state())?;
        self.add_stored(name, network, Arc::new(stored))
    }

    /// Adds a network with tensors that were located before, without reading the files' headers again.
    ///
    /// # Errors
    /// Another model has the name; the model is larger than the device's budget.
    pub fn add_stored(
        &self,
        name: &str,
        mut network: Box<dyn Network>,
        stored: Arc<StoredTensors>,
    ) -> Result<SwitchedModel> {
        network.eval();
        network.set_requires_grad(false)?;
        let state = &mut *self.shared.state.lock();
        if state.models.contains_key(name) {
            return Err(SwitchedError::Known { name: name.into() }.into());
        }
        state.uses += 1;
        let model = ManagedModel::new(&self.shared, state.uses, name, network, stored)?;
        state.models.insert(name.into(), model);
        Ok(SwitchedModel::new(&self.shared, name, state.uses))
    }

    /// Returns the statistics so far.
    pub fn report(&self) -> SwitcherReport {
        let state = self.shared.state.lock();
        let images = self.shared.images.statistics();
        SwitcherReport {
            models: state.models.len(),
            resident_models: state.models.values().filter(|model| model.missing_bytes() == 0).count(),
            resident_bytes: state.models.values().map(ManagedModel::resident_bytes).sum(),
            peak_bytes: self.shared.cuda.as_ref().map_or(images.peak_bytes, |cuda| cuda.switch.statistics().peak_bytes),
            image_bytes: images.bytes,
            hits: state.hits,
            switches: state.switches,
        }
    }

    /// Returns the size in bytes of the images in the host's memory, for all devices that share them. It does not wait
    /// for a running call.
    pub fn image_bytes(&self) -> u64 {
        self.shared.images.statistics().bytes
    }

    /// Returns the size in bytes of the chunks in which weights are loaded and evicted. It is 1 on the CPU, where
    /// models are loaded and evicted whole.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.cuda.as_ref().map_or(1, |cuda| cuda.switch.chunk_bytes())
    }

    /// Returns device memory that no model uses to the driver, after waiting for its last uses.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn trim(&self) -> Result<()> {
        if let Some(Cuda { switch, .. }) = &self.shared.cuda {
            switch.settle()?;
            switch.trim()?;
        }
        Ok(())
    }
}

impl Cuda {
    /// Opens a CUDA device for the weights of a switcher.
    fn new(device: Device, options: &SwitcherOptions) -> Result<Self> {
        assert!(!device.is_cpu(), "devices that share images are CUDA devices");
        let SwitcherOptions { device_bytes: budget_bytes, chunk_bytes, is_lending, .. } = *options;
        let memory = memory::device(device.index()).map_err(SwitchError::from)?;
        let switch = Switch::new(memory, SwitchOptions { budget_bytes, chunk_bytes, is_lending })?;
        let pool = GraphPool::new(memory).map_err(SwitchError::from)?;
        Ok(Self { memory, switch, pool })
    }
}

impl SwitcherState {
    /// Returns the model with this name and number, or the error that it was removed.
    fn model(&mut self, name: &str, number: u64) -> Result<&mut ManagedModel> {
        let model = self.models.get_mut(name).filter(|model| model.number() == number);
        Ok(model.ok_or_else(|| SwitchedError::Removed { name: name.into() })?)
    }
}

impl SwitcherShared {
    /// Calls `work` with a model, under the switcher's lock.
    pub(super) fn with<T>(&self, name: &str, number: u64, work: impl FnOnce(&mut ManagedModel) -> T) -> Result<T> {
        Ok(work(self.state.lock().model(name, number)?))
    }

    /// Removes a model: evicts and drops it.
    pub(super) fn remove(&self, name: &str, number: u64) -> Result<()> {
        let state = &mut *self.state.lock();
        state.model(name, number)?;
        if let Some(mut model) = state.models.remove(name) {
            model.prepare_drop(self);
        }
        Ok(())
    }

    /// Loads a model. On a CUDA device, its copies may still be running on return.
    pub(super) fn load(&self, name: &str, number: u64) -> Result<()> {
        self.ensure_loaded(&mut self.state.lock(), name, number)
    }

    /// Loads a model, and lends it to another process.
    pub(super) fn lend(&self, name: &str, number: u64) -> Result<LentModel> {
        let state = &mut *self.state.lock();
        self.ensure_loaded(state, name, number)?;
        state.model(name, number)?.lend()
    }

    /// Loads a model, and computes its outputs. On a CUDA device its work comes after that of the call before.
    pub(super) fn forward(&self, name: &str, number: u64, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let state = &mut *self.state.lock();
        self.ensure_loaded(state, name, number)?;
        let Some(Cuda { memory, .. }) = &self.cuda else { return state.model(name, number)?.compute(self, inputs) };
        let stream = memory.streams().current();
        if let Some(done) = &state.done {
            // Memory of another model may become this one's, and all models compute in the same pool.
            done.wait(&stream).map_err(SwitchError::from)?;
        }
        let answers = state.model(name, number)?.compute(self, inputs);
        let done = state.done.get_or_insert_with(|| Event::new(Arc::clone(memory.driver()), EventKind::Order));
        done.record(&stream).map_err(SwitchError::from)?;
        answers
    }

    /// Loads the missing weights of a model, if any. To make room, evicts the models of least worth. Counts the use.
    fn ensure_loaded(&self, state: &mut SwitcherState, name: &str, number: u64) -> Result<()> {
        state.uses += 1;
        let uses = state.uses;
        let model = state.model(name, number)?;
        model.demand.used(uses);
        model.forget_failure(self);
        model.adopt_order(self)?;
        let missing = model.missing_bytes();
        if missing == 0 {
            state.hits += 1;
            return Ok(());
        }
        while let Some(lacking) = missing.checked_sub(self.free_bytes()).filter(|lacking| *lacking > 0) {
            let others = state.models.values_mut().filter(|other| other.number() != number && other.is_evictable());
            // If there is no such model, `load` below returns the error.
            let least = others.min_by_key(|other| (other.worth(self, uses), Reverse(other.number())));
            let Some(other) = least else { break };
            other.evict(self, lacking);
        }
        state.model(name, number)?.load(self)?;
        state.switches += 1;
        Ok(())
    }

    /// Returns the order of use that an earlier switcher kept for a model, if there is one.
    pub(super) fn kept_order(&self, definition: &ModelDefinition) -> Option<WeightOrder> {
        self.orders.as_ref()?.find(&self.order_key(definition)).map(WeightOrder::from_record)
    }

    /// Keeps the learned order of a model for later switchers, if the settings say where.
    pub(super) fn keep_order(&self, definition: &ModelDefinition) {
        if let Some(orders) = &self.orders {
            orders.keep(&self.order_key(definition), definition.arrangement.order.as_known());
        }
    }

    /// Returns the key of a model's order: orders are kept per kind of device, grouping and tensors.
    fn order_key(&self, definition: &ModelDefinition) -> OrderKey {
        let device = match self.cuda.as_ref().map(|cuda| cuda.memory.driver().executor()) {
            None => "cpu".into(),
            Some(Executor::Cuda(driver)) => driver.properties().name.clone(),
            Some(Executor::Sim(_)) => "simulated".into(),
        };
        definition.stored.order_key(&device, self.grouping)
    }

    /// Returns the number of bytes that more weights can take without evicting a model.
    fn free_bytes(&self) -> u64 {
        match &self.cuda {
            Some(Cuda { switch, .. }) => switch.free_bytes(),
            None => self.device_bytes - self.images.statistics().bytes,
        }
    }
}
