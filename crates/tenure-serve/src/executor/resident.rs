//! The weights of models on a CUDA device, whichever process computes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_nn::networks::Network;
use tenure_nn::switched::{SwitchedModel, Switcher, SwitcherOptions};
use tenure_tensor::Device;

use super::ModelError;
use super::callbacks::Callbacks;
use super::stored::{Files, Stored};
use crate::http::Tier;

/// A CUDA device above pinned memory of the host, which it may share with others.
pub(crate) struct DeviceWeights {
    /// Such as `cuda:0`.
    name: String,
    switcher: Switcher,
    device_bytes: u64,
    /// Bytes for images, of all devices. The first device tells of them.
    host_bytes: Option<u64>,
    resident: Arc<AtomicU64>,
    /// Numbers models, so that one may take the place of another with its name.
    models: AtomicU64,
    calls: Callbacks,
}

/// A model's weights on the device.
pub(super) struct ResidentModel {
    pub(super) model: SwitchedModel,
    files: Files,
    bytes: u64,
    /// Bytes of its weights that are on the device, and of all models' weights.
    resident: AtomicU64,
    all_resident: Arc<AtomicU64>,
    /// Weights were brought since it was computed last, and since the files were looked at.
    is_brought: AtomicBool,
    is_unchecked: AtomicBool,
    pub(super) calls: Callbacks,
}

impl DeviceWeights {
    /// Devices with so many bytes for weights on each, and for images in the host's memory, which they share. If they are
    /// lending, other processes compute.
    pub(crate) fn on_devices(
        devices: &[Device],
        device_bytes: u64,
        host_bytes: u64,
        is_lending: bool,
    ) -> Result<Vec<Self>, ModelError> {
        let options = SwitcherOptions { is_lending, ..SwitcherOptions::new(device_bytes, host_bytes) };
        let switchers = Switcher::on_devices(devices, options)?;
        let tells = std::iter::once(Some(host_bytes)).chain(std::iter::repeat(None));
        let each = devices.iter().zip(switchers).zip(tells);
        each.map(|((device, switcher), host_bytes)| Self::new(*device, switcher, device_bytes, host_bytes)).collect()
    }

    fn new(device: Device, switcher: Switcher, device_bytes: u64, host_bytes: Option<u64>) -> Result<Self, ModelError> {
        let calls = Callbacks::start("serve: copied");
        let calls = calls.map_err(|source| ModelError::Elsewhere(format!("no thread to wait for copies: {source}")))?;
        let (resident, models) = (Arc::default(), AtomicU64::default());
        Ok(Self { name: device.to_string(), switcher, device_bytes, host_bytes, resident, models, calls })
    }

    /// Bytes of the chunks in which weights come and go.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.switcher.chunk_bytes()
    }

    pub(super) fn open(&self, network: Box<dyn Network>, stored: &Stored) -> Result<ResidentModel, ModelError> {
        let Stored { files, tensors } = stored.clone();
        let name = format!("{}#{}", files.model().name, self.models.fetch_add(1, Ordering::Relaxed));
        let bytes = tensors.bytes();
        Ok(ResidentModel {
            model: self.switcher.add_stored(&name, network, tensors)?,
            files,
            bytes,
            resident: AtomicU64::default(),
            all_resident: Arc::clone(&self.resident),
            is_brought: AtomicBool::default(),
            is_unchecked: AtomicBool::default(),
            calls: self.calls.clone(),
        })
    }

    /// The name of the device's memory, and of the memory that weights come from.
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

    /// Gives memory of the device that no model has back to the driver.
    pub(super) fn trim(&self) {
        if let Err(error) = self.switcher.trim() {
            tracing::warn!("{}: memory is not given back: {error}", self.name);
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
            self.is_brought.store(true, Ordering::Relaxed);
            self.is_unchecked.store(true, Ordering::Relaxed);
        }
        self.model.load()?;
        self.count()
    }

    pub(super) fn loaded(&self) -> Result<(), ModelError> {
        if self.is_unchecked.swap(false, Ordering::Relaxed) {
            // Who writes a file again while it is read leaves some of both.
            self.files.check_unchanged().inspect_err(|_| {
                // One that was removed has no image.
                let _ = self.model.forget();
            })?;
        }
        Ok(())
    }

    pub(super) fn evict(&self, bytes: u64) {
        // One that was removed has no memory.
        if self.model.evict_bytes(bytes).is_ok() {
            let _ = self.count();
        }
    }

    /// How much of a call that took so long, and is over, was copying: computing begins before copies end, and what is left then
    /// counts as computing.
    pub(super) fn copy_time(&self, took: Duration) -> Result<Duration, ModelError> {
        Ok(match self.is_brought.swap(false, Ordering::Relaxed) {
            true => self.model.copy_time()?.unwrap_or_default().min(took),
            false => Duration::ZERO,
        })
    }

    /// Counts the bytes that are on the device.
    pub(super) fn count(&self) -> Result<(), ModelError> {
        let now = self.model.resident_bytes()?;
        let before = self.resident.swap(now, Ordering::Relaxed);
        // Wraps around where it falls.
        self.all_resident.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for ResidentModel {
    fn drop(&mut self) {
        self.evict(u64::MAX);
        // It is removed once.
        let _ = self.model.remove();
    }
}
