//! Models that are computed on a CUDA device: a switcher brings their weights while they are computed with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_nn::networks::Network;
use tenure_nn::switched::{SwitchedModel, Switcher, SwitcherOptions};
use tenure_tensor::Device;

use super::ModelError;
use super::backend::{Backend, Done, Timed, Weights};
use super::callbacks::Callbacks;
use super::network::message;
use super::stored::Stored;
use super::tensors::RawTensor;
use crate::http::Tier;
use crate::repository::StoredModel;

/// A CUDA device above pinned memory of the host.
pub(crate) struct CudaBackend {
    /// Such as `cuda:0`.
    name: String,
    switcher: Switcher,
    device_bytes: u64,
    host_bytes: u64,
    resident: Arc<AtomicU64>,
    /// Numbers models, so that one may take the place of another with its name.
    models: AtomicU64,
    calls: Callbacks,
}

/// A model's weights on the device.
struct OnCuda {
    model: SwitchedModel,
    stored: Stored,
    bytes: u64,
    /// Bytes of its weights that are on the device, and of all models' weights.
    resident: AtomicU64,
    all_resident: Arc<AtomicU64>,
    /// Weights were brought since it was computed last, and since the files were looked at.
    is_brought: AtomicBool,
    is_unchecked: AtomicBool,
    calls: Callbacks,
}

impl CudaBackend {
    /// A device, with so many bytes for weights there and for images in the host's memory.
    pub(crate) fn new(device: Device, device_bytes: u64, host_bytes: u64) -> Result<Self, ModelError> {
        let switcher = Switcher::new(device, SwitcherOptions::new(device_bytes, host_bytes))?;
        let calls = Callbacks::start("serve: copied");
        let calls = calls.map_err(|source| ModelError::Elsewhere(format!("no thread to wait for copies: {source}")))?;
        let (resident, models) = (Arc::default(), AtomicU64::default());
        Ok(Self { name: device.to_string(), switcher, device_bytes, host_bytes, resident, models, calls })
    }

    /// Bytes of the chunks in which weights come and go.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.switcher.chunk_bytes()
    }
}

impl Backend for CudaBackend {
    fn open(&self, network: Box<dyn Network>, stored: &Arc<StoredModel>) -> Result<Box<dyn Weights>, ModelError> {
        let found = Stored::find(stored, &network.state())?;
        let name = format!("{}#{}", stored.name, self.models.fetch_add(1, Ordering::Relaxed));
        let paths: Vec<_> = stored.weights.iter().map(|file| &file.path).collect();
        let model = self.switcher.add(&name, network, &paths)?;
        Ok(Box::new(OnCuda {
            model,
            bytes: found.tensors.bytes(),
            stored: found,
            resident: AtomicU64::default(),
            all_resident: Arc::clone(&self.resident),
            is_brought: AtomicBool::default(),
            is_unchecked: AtomicBool::default(),
            calls: self.calls.clone(),
        }))
    }

    fn tiers(&self) -> [&str; 2] {
        [&self.name, "pinned"]
    }

    fn usage(&self) -> Vec<Tier> {
        let [device, host] = self.tiers().map(String::from);
        let (resident, images) = (self.resident.load(Ordering::Relaxed), self.switcher.image_bytes());
        vec![
            Tier { name: device, used_bytes: resident, capacity_bytes: self.device_bytes },
            Tier { name: host, used_bytes: images, capacity_bytes: self.host_bytes },
        ]
    }
}

impl OnCuda {
    fn count_resident(&self) -> Result<(), ModelError> {
        let now = self.model.resident_bytes()?;
        let before = self.resident.swap(now, Ordering::Relaxed);
        // Wraps around where it falls.
        self.all_resident.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }
}

impl Weights for OnCuda {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    fn load(&self, _: Duration) -> Result<(), ModelError> {
        if !self.model.is_resident()? {
            self.stored.check_unchanged()?;
            self.is_brought.store(true, Ordering::Relaxed);
            self.is_unchecked.store(true, Ordering::Relaxed);
        }
        self.model.load()?;
        self.count_resident()
    }

    fn when_loaded(&self, done: Done) {
        let calls = self.calls.clone();
        self.model.when_loaded(move |took| calls.call(move || done(took)));
    }

    fn loaded(&self) -> Result<(), ModelError> {
        if self.is_unchecked.swap(false, Ordering::Relaxed) {
            // Who writes a file again while it is read leaves some of both.
            self.stored.check_unchanged().inspect_err(|_| {
                // One that was removed has no image.
                let _ = self.model.forget();
            })?;
        }
        Ok(())
    }

    fn evict(&self, bytes: u64) {
        // One that was removed has no memory.
        if self.model.evict_bytes(bytes).is_ok() {
            let _ = self.count_resident();
        }
    }

    fn compute(&self, inputs: &[RawTensor]) -> Result<Timed, ModelError> {
        let inputs = inputs.iter().map(RawTensor::to_tensor).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let computed = catch_unwind(AssertUnwindSafe(|| self.model.forward(&inputs)));
        let answers = computed.map_err(|panic| ModelError::Panic(message(&*panic)))??;
        // Waits for the device.
        let outputs = answers.iter().map(RawTensor::of).collect::<Result<_, _>>()?;
        let took = begun.elapsed();
        self.count_resident()?;
        // Computing begins before copies end. What is left then counts as computing.
        let copy = match self.is_brought.swap(false, Ordering::Relaxed) {
            true => self.model.copy_time()?.unwrap_or_default().min(took),
            false => Duration::ZERO,
        };
        Ok(Timed { outputs, copy, wait: Duration::ZERO, compute: took - copy })
    }
}

impl Drop for OnCuda {
    fn drop(&mut self) {
        self.evict(u64::MAX);
        // It is removed once.
        let _ = self.model.remove();
    }
}
