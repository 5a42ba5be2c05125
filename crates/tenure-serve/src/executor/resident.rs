//! The weights of models on a CUDA device, for any process that computes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_nn::networks::Network;
use tenure_nn::switched::{SwitchedModel, Switcher, SwitcherOptions};
use tenure_tensor::Device;

use super::ModelError;
use super::backend::Callbacks;
use super::stored::{ModelFiles, StoredWeights};
use crate::service::Tier;

/// The weights of all models on a CUDA device, loaded from images in pinned host memory that several devices may share.
pub(crate) struct DeviceWeights {
    /// The device's name, such as `cuda:0`.
    name: String,
    switcher: Switcher,
    device_bytes: u64,
    /// The size in bytes of pinned host memory for images, on the first device. `None` on the others, so that the
    /// shared memory is reported once.
    host_bytes: Option<u64>,
    /// The bytes of weights on the device.
    resident: Arc<AtomicU64>,
    /// The next number of a model, which distinguishes models that replace each other under one name.
    models: AtomicU64,
    /// The thread that reports loaded weights.
    calls: Callbacks,
}

/// A model's weights on the device.
pub(super) struct ResidentModel {
    pub(super) model: SwitchedModel,
    files: ModelFiles,
    bytes: u64,
    /// The bytes of this model's weights on the device.
    resident: AtomicU64,
    /// The bytes of all models' weights on the device.
    all_resident: Arc<AtomicU64>,
    /// Whether weights were loaded since the last computation.
    was_loaded: AtomicBool,
    /// Whether weights were loaded since the files were last checked.
    is_unchecked: AtomicBool,
    pub(super) calls: Callbacks,
}

impl DeviceWeights {
    /// Creates one for each device, with `device_bytes` for weights on each, and `host_bytes` for images in host
    /// memory, which the devices share. If `is_lending` is set, other processes compute.
    pub(crate) fn on_devices(
        devices: &[Device],
        device_bytes: u64,
        host_bytes: u64,
        is_lending: bool,
    ) -> Result<Vec<Self>, ModelError> {
        let options = SwitcherOptions { is_lending, ..SwitcherOptions::new(device_bytes, host_bytes) };
        let switchers = Switcher::on_devices(devices, options)?;
        let reported_host_bytes = std::iter::once(Some(host_bytes)).chain(std::iter::repeat(None));
        let each = devices.iter().zip(switchers).zip(reported_host_bytes);
        each.map(|((device, switcher), host_bytes)| Self::new(*device, switcher, device_bytes, host_bytes)).collect()
    }

    fn new(device: Device, switcher: Switcher, device_bytes: u64, host_bytes: Option<u64>) -> Result<Self, ModelError> {
        let calls = Callbacks::start("serve: copied");
        let calls = calls.map_err(|source| ModelError::Elsewhere(format!("no thread to wait for copies: {source}")))?;
        let resident = Arc::default();
        let models = AtomicU64::default();
        Ok(Self { name: device.to_string(), switcher, device_bytes, host_bytes, resident, models, calls })
    }

    /// Returns the size in bytes of the chunks in which weights are loaded and evicted.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.switcher.chunk_bytes()
    }

    pub(super) fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<ResidentModel, ModelError> {
        let StoredWeights { files, tensors } = stored.clone();
        let name = format!("{}#{}", files.model().name, self.models.fetch_add(1, Ordering::Relaxed));
        let bytes = tensors.bytes();
        Ok(ResidentModel {
            model: self.switcher.add_stored(&name, network, tensors)?,
            files,
            bytes,
            resident: AtomicU64::default(),
            all_resident: Arc::clone(&self.resident),
            was_loaded: AtomicBool::default(),
            is_unchecked: AtomicBool::default(),
            calls: self.calls.clone(),
        })
    }

    /// Returns the names of the device's memory and of the memory that weights come from.
    pub(super) fn tiers(&self) -> [&str; 2] {
        [&self.name, "pinned"]
    }

    pub(super) fn usage(&self) -> Vec<Tier> {
        let [device, host] = self.tiers().map(String::from);
        let resident = self.resident.load(Ordering::Relaxed);
        let images = self.host_bytes.map_or(0, |_| self.switcher.image_bytes());
        vec![
            Tier { name: device, used_bytes: resident, capacity_bytes: self.device_bytes },
            Tier { name: host, used_bytes: images, capacity_bytes: self.host_bytes.unwrap_or(0) },
        ]
    }

    /// Returns device memory that no model uses to the driver.
    pub(super) fn trim(&self) {
        if let Err(error) = self.switcher.trim() {
            tracing::warn!("{}: unused memory cannot be returned to the driver: {error}", self.name);
        }
    }
}

impl ResidentModel {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    pub(super) fn load(&self) -> Result<(), ModelError> {
        if !self.model.is_resident()? {
            self.files.check_unchanged()?;
            self.was_loaded.store(true, Ordering::Relaxed);
            self.is_unchecked.store(true, Ordering::Relaxed);
        }
        self.model.load()?;
        self.update_resident_bytes()
    }

    pub(super) fn loaded(&self) -> Result<(), ModelError> {
        if self.is_unchecked.swap(false, Ordering::Relaxed) {
            // A file that is rewritten while it is read yields a mix of both contents.
            self.files.check_unchanged().inspect_err(|_| {
                // A removed model has no image.
                let _ = self.model.forget();
            })?;
        }
        Ok(())
    }

    pub(super) fn evict(&self, bytes: u64) {
        // A removed model has no memory.
        if self.model.evict_bytes(bytes).is_ok() {
            let _ = self.update_resident_bytes();
        }
    }

    /// Returns the part of a finished call's time `took` that was copying. Computation begins before the copies end;
    /// the time after them counts as computing.
    pub(super) fn copy_time(&self, took: Duration) -> Result<Duration, ModelError> {
        Ok(match self.was_loaded.swap(false, Ordering::Relaxed) {
            true => self.model.copy_time()?.unwrap_or_default().min(took),
            false => Duration::ZERO,
        })
    }

    /// Updates the numbers of bytes that are on the device.
    pub(super) fn update_resident_bytes(&self) -> Result<(), ModelError> {
        let now = self.model.resident_bytes()?;
        let before = self.resident.swap(now, Ordering::Relaxed);
        // The sum wraps around if the number fell.
        self.all_resident.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for ResidentModel {
    fn drop(&mut self) {
        self.evict(u64::MAX);
        // The model is removed only once.
        let _ = self.model.remove();
    }
}
