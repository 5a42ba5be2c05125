//! All models of a device, and which of them are there.

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
use super::known::{Known, Parts};
use super::model::SwitchedModel;
use super::{LentModel, Order, StoredTensors, SwitchedError};
use crate::Result;
use crate::networks::Network;

/// The memory that a [`Switcher`] may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitcherOptions {
    /// Bytes for weights on the device, of all models together. What models compute has its place beside them.
    pub device_bytes: u64,
    /// Bytes of the host's memory for images, pinned, of all models together, whichever devices they are on. On the CPU there are
    /// none beside the device's.
    pub host_bytes: u64,
    /// The device's memory comes and goes in pieces of so many bytes, a multiple of its granularity. Nothing on the CPU.
    pub chunk_bytes: u64,
    /// How layers are divided into groups that come together.
    pub grouping: Grouping,
    /// Where the orders that are learned are kept, for switchers of other processes too; if nowhere, each learns them anew.
    pub orders: Option<Orders>,
    /// Models may be [lent](SwitchedModel::lend) to processes that compute them while their weights come. Nothing on the CPU.
    pub is_lending: bool,
}

impl SwitcherOptions {
    /// From so many bytes on, a larger part of the last chunk of each model may be lost.
    const MANY_BYTES: u64 = 4 << 30;

    /// So many bytes, the groups that let the last layer end soonest, and orders in the user's cache. Chunks have 16 MiB, and 64 MiB where the device's bytes
    /// are 4 GiB or more: mapping one takes the host some 25 µs, whatever its size, and a captured model is launched when all are
    /// mapped.
    pub fn new(device_bytes: u64, host_bytes: u64) -> Self {
        let chunk_bytes = if device_bytes < Self::MANY_BYTES { 16 << 20 } else { 64 << 20 };
        let (grouping, orders) = (Grouping::default(), Orders::of_user());
        Self { device_bytes, host_bytes, chunk_bytes, grouping, orders, is_lending: false }
    }
}

/// Keeps many models for one device, which need not have room for all of them. A handle: clones are one.
///
/// A call of a model that is not there brings it, and has those leave that are worth least: those that are called seldom, can be brought
/// soon and have a low [priority](SwitchedModel::set_priority); of equals, those that were added last, so that a loop over more models than
/// fit finds most of them. Calls of all threads take turns. Answers are the model's own, bit for bit.
///
/// The first two calls of a model learn: one prepares kernels, the next measures in which order layers are used and how long each
/// computes. What was learned is [kept](SwitcherOptions::orders) for the next process. Afterwards its groups come in that order, and on a CUDA device a call with inputs of sizes that were there before is
/// captured, and launched as one from then on.
#[derive(Clone)]
pub struct Switcher {
    shared: Arc<Shared>,
}

/// The figures of a [`Switcher`]: its work so far, and its memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitcherReport {
    /// How many models there are.
    pub models: usize,
    /// How many of them are on the device, whole.
    pub resident_models: usize,
    /// Bytes of weights that are on the device; on a CUDA device in whole chunks.
    pub resident_bytes: u64,
    /// The most that weights took of the device.
    pub peak_bytes: u64,
    /// Bytes of images in the host's memory, for all devices that share them.
    pub image_bytes: u64,
    /// Calls and loads that found their model there.
    pub hits: u64,
    /// Those that did not.
    pub switches: u64,
}

pub(super) struct Shared {
    pub(super) device: Device,
    pub(super) grouping: Grouping,
    orders: Option<Orders>,
    pub(super) images: Arc<HostImages>,
    device_bytes: u64,
    /// Nothing on the CPU, where images are what is computed with.
    pub(super) cuda: Option<Cuda>,
    turn: Mutex<Turn>,
}

/// A CUDA device.
pub(super) struct Cuda {
    pub(super) memory: &'static DeviceMemory,
    pub(super) switch: Switch,
    /// What captured calls compute in.
    pub(super) pool: GraphPool,
}

#[derive(Default)]
struct Turn {
    models: BTreeMap<String, Known>,
    /// Calls and loads, which number them.
    uses: u64,
    hits: u64,
    switches: u64,
    /// When the device has done what it was asked last.
    done: Option<Event>,
}

impl Switcher {
    /// Keeps models for a device. Nothing is taken yet.
    ///
    /// # Errors
    /// The device cannot be used; no threads to read files.
    ///
    /// # Panics
    /// Chunks are no multiple of the device's granularity.
    pub fn new(device: Device, options: SwitcherOptions) -> Result<Self> {
        if device.is_cpu() {
            let images = HostImages::new(options.device_bytes, None, Vec::new())?;
            return Ok(Self::with_images(device, None, &Arc::new(images), options));
        }
        Ok(Self::on_devices(&[device], options)?.swap_remove(0))
    }

    /// Keeps models for several CUDA devices, each of which has a switcher of its own with these options, and all of which copy from
    /// the same images: `host_bytes` are for all of them. A model is added to each switcher; if they are given the same
    /// [`StoredTensors`], it has one image.
    ///
    /// Memory of a device goes back to its driver when the last of these switchers is dropped, or by [`trim`](Self::trim).
    ///
    /// # Errors
    /// A device cannot be used; no threads to read files.
    ///
    /// # Panics
    /// Chunks are no multiple of a device's granularity; a device is the CPU.
    pub fn on_devices(devices: &[Device], options: SwitcherOptions) -> Result<Vec<Self>> {
        let of_device = |device: &Device| Cuda::new(*device, &options);
        let opened = devices.iter().map(of_device).collect::<Result<Vec<_>>>()?;
        let driver = opened.first().map(|cuda| Arc::clone(cuda.memory.driver()));
        let switches = opened.iter().map(|cuda| cuda.switch.clone()).collect();
        let images = Arc::new(HostImages::new(options.host_bytes, driver, switches)?);
        let switcher = |(device, cuda)| Self::with_images(device, Some(cuda), &images, options.clone());
        Ok(devices.iter().copied().zip(opened).map(switcher).collect())
    }

    fn with_images(device: Device, cuda: Option<Cuda>, images: &Arc<HostImages>, options: SwitcherOptions) -> Self {
        let SwitcherOptions { device_bytes, grouping, orders, .. } = options;
        let (images, turn) = (Arc::clone(images), Mutex::default());
        Self { shared: Arc::new(Shared { device, grouping, orders, images, device_bytes, cuda, turn }) }
    }

    /// Takes a network without values, such as [`Architectures::build`](crate::networks::Architectures::build) makes, or any that was
    /// made in [`Scope::shapes`](crate::Scope::shapes). Files of safetensors have its weights, under their names or all under one
    /// prefix. They are found, and not read yet. Weights keep the dtypes that they have there.
    ///
    /// # Errors
    /// The name is another model's; a file cannot be read; a tensor is not there, or of other sizes; the model is larger than the
    /// device's budget.
    pub fn add<P: AsRef<Path>>(&self, name: &str, network: Box<dyn Network>, paths: &[P]) -> Result<SwitchedModel> {
        let stored = StoredTensors::find(paths, &network.state())?;
        self.add_stored(name, network, Arc::new(stored))
    }

    /// The same, of tensors that were found before: the headers of files are not read again.
    ///
    /// # Errors
    /// The name is another model's; the model is larger than the device's budget.
    pub fn add_stored(
        &self,
        name: &str,
        mut network: Box<dyn Network>,
        stored: Arc<StoredTensors>,
    ) -> Result<SwitchedModel> {
        network.eval();
        network.set_requires_grad(false)?;
        let turn = &mut *self.shared.turn.lock();
        if turn.models.contains_key(name) {
            return Err(SwitchedError::Known { name: name.into() }.into());
        }
        turn.uses += 1;
        let known = Known::new(&self.shared, turn.uses, name, network, stored)?;
        turn.models.insert(name.into(), known);
        Ok(SwitchedModel::new(&self.shared, name, turn.uses))
    }

    /// What it did so far.
    pub fn report(&self) -> SwitcherReport {
        let (turn, images) = (self.shared.turn.lock(), self.shared.images.statistics());
        SwitcherReport {
            models: turn.models.len(),
            resident_models: turn.models.values().filter(|known| known.missing_bytes() == 0).count(),
            resident_bytes: turn.models.values().map(Known::resident_bytes).sum(),
            peak_bytes: self.shared.cuda.as_ref().map_or(images.peak_bytes, |cuda| cuda.switch.statistics().peak_bytes),
            image_bytes: images.bytes,
            hits: turn.hits,
            switches: turn.switches,
        }
    }

    /// Bytes of images in the host's memory, for all devices that share them; without waiting for a call that goes on.
    pub fn image_bytes(&self) -> u64 {
        self.shared.images.statistics().bytes
    }

    /// Bytes of the pieces in which weights come to the device and leave; on the CPU models come and leave whole.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.cuda.as_ref().map_or(1, |cuda| cuda.switch.chunk_bytes())
    }

    /// Gives memory of the device that no model has back to the driver; waits for what used it.
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
    fn new(device: Device, options: &SwitcherOptions) -> Result<Self> {
        assert!(!device.is_cpu(), "devices that share images are CUDA devices");
        let SwitcherOptions { device_bytes: budget_bytes, chunk_bytes, is_lending, .. } = *options;
        let memory = memory::device(device.index()).map_err(SwitchError::from)?;
        let switch = Switch::new(memory, SwitchOptions { budget_bytes, chunk_bytes, is_lending })?;
        let pool = GraphPool::new(memory).map_err(SwitchError::from)?;
        Ok(Self { memory, switch, pool })
    }
}

impl Turn {
    fn known(&mut self, name: &str, number: u64) -> Result<&mut Known> {
        let known = self.models.get_mut(name).filter(|known| known.number() == number);
        Ok(known.ok_or_else(|| SwitchedError::Removed { name: name.into() })?)
    }
}

impl Shared {
    /// Looks at a model, or changes it.
    pub(super) fn with<T>(&self, name: &str, number: u64, work: impl FnOnce(&mut Known) -> T) -> Result<T> {
        Ok(work(self.turn.lock().known(name, number)?))
    }

    /// Lets go of a model.
    pub(super) fn remove(&self, name: &str, number: u64) -> Result<()> {
        let turn = &mut *self.turn.lock();
        turn.known(name, number)?;
        if let Some(mut known) = turn.models.remove(name) {
            known.leave(self);
        }
        Ok(())
    }

    /// Brings a model: on a CUDA device, copies are under way then.
    pub(super) fn load(&self, name: &str, number: u64) -> Result<()> {
        self.bring(&mut self.turn.lock(), name, number)
    }

    /// Brings a model, and lends it.
    pub(super) fn lend(&self, name: &str, number: u64) -> Result<LentModel> {
        let turn = &mut *self.turn.lock();
        self.bring(turn, name, number)?;
        turn.known(name, number)?.lend()
    }

    /// Calls a model.
    pub(super) fn forward(&self, name: &str, number: u64, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let turn = &mut *self.turn.lock();
        self.bring(turn, name, number)?;
        let Some(Cuda { memory, .. }) = &self.cuda else { return turn.known(name, number)?.compute(self, inputs) };
        let stream = memory.streams().current();
        if let Some(done) = &turn.done {
            // Another model's memory becomes this one's, and both compute in the same pool.
            done.wait(&stream).map_err(SwitchError::from)?;
        }
        let answers = turn.known(name, number)?.compute(self, inputs);
        let done = turn.done.get_or_insert_with(|| Event::new(Arc::clone(memory.driver()), EventKind::Order));
        done.record(&stream).map_err(SwitchError::from)?;
        answers
    }

    fn bring(&self, turn: &mut Turn, name: &str, number: u64) -> Result<()> {
        turn.uses += 1;
        let uses = turn.uses;
        let known = turn.known(name, number)?;
        known.demand.used(uses);
        known.forget_failure(self);
        known.recall(self)?;
        let missing = known.missing_bytes();
        if missing == 0 {
            turn.hits += 1;
            return Ok(());
        }
        while let Some(lacking) = missing.checked_sub(self.free_bytes()).filter(|lacking| *lacking > 0) {
            let others = turn.models.values_mut().filter(|other| other.number() != number && other.can_leave());
            // If there is none, loading says what is missing.
            let least = others.min_by_key(|other| (other.worth(self, uses), Reverse(other.number())));
            let Some(other) = least else { break };
            other.evict(self, lacking);
        }
        turn.known(name, number)?.load(self)?;
        turn.switches += 1;
        Ok(())
    }

    /// The order that was kept for a model.
    pub(super) fn kept_order(&self, parts: &Parts) -> Option<Order> {
        self.orders.as_ref()?.find(&self.order_key(parts)).map(Order::known)
    }

    /// Keeps a model's order, which was learned.
    pub(super) fn keep_order(&self, parts: &Parts) {
        if let Some(orders) = &self.orders {
            orders.keep(&self.order_key(parts), parts.arrangement.order.as_known());
        }
    }

    fn order_key(&self, parts: &Parts) -> OrderKey {
        let device = match self.cuda.as_ref().map(|cuda| cuda.memory.driver().executor()) {
            None => "cpu".into(),
            Some(Executor::Cuda(driver)) => driver.properties().name.clone(),
            Some(Executor::Sim(_)) => "simulated".into(),
        };
        parts.stored.order_key(&device, self.grouping)
    }

    /// Bytes that weights can have without anyone's eviction.
    fn free_bytes(&self) -> u64 {
        match &self.cuda {
            Some(Cuda { switch, .. }) => switch.free_bytes(),
            None => self.device_bytes - self.images.statistics().bytes,
        }
    }
}
