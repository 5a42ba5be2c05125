//! Models that are computed on the CPU, directly from their images in host memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_nn::networks::Network;
use tenure_nn::switched::WeightOrder;
use tenure_switch::groups::Grouping;
use tenure_switch::{FirstUse, Image, Images, Manifest, SwitchError};

use super::ModelError;
use super::backend::{Backend, BackendWeights, LoadedCallback, TimedOutputs};
use super::batch_control::BatchControl;
use super::compute_process::{ComputeProcess, ModelRunner};
use super::network::{Computed, Placed};
use super::stored::StoredWeights;
use super::tensors::RawTensor;
use crate::service::Tier;

/// Images of weights in host memory, read from disk, and the [`ComputeProcess`] that computes on them.
pub(crate) struct CpuBackend {
    images: Arc<Images>,
    memory_bytes: u64,
    process: Arc<dyn ComputeProcess>,
}

/// A model on the CPU, and its weights if they are in memory.
struct CpuModel {
    images: Arc<Images>,
    bytes: u64,
    /// Bytes of the model's weights that are in memory.
    resident: AtomicU64,
    runner: Box<dyn ModelRunner>,
    state: Mutex<CpuModelState>,
}

struct CpuModelState {
    weights: StoredWeights,
    /// The tensor order of the current image, or of the next one if there is none.
    order: WeightOrder,
    manifest: Arc<Manifest>,
    /// The weights, if they are in memory.
    resident: Option<Arc<Image>>,
    /// Whether all weights are in memory, and their files were found unchanged afterwards.
    is_whole: bool,
    /// The uses in the first run, which determine the order, and the time when that run ended.
    first_run: Option<(Vec<Option<FirstUse>>, Instant)>,
    /// The tensor order of all images after the first.
    recorded: Option<WeightOrder>,
}

impl CpuBackend {
    /// Creates a backend with this many bytes of memory for weights.
    pub(crate) fn new(memory_bytes: u64, process: Arc<dyn ComputeProcess>) -> Result<Self, SwitchError> {
        Ok(Self { images: Arc::new(Images::new(memory_bytes, None)?), memory_bytes, process })
    }

    /// Creates a model none of whose weights are in memory.
    fn model(&self, network: Box<dyn Network>, weights: StoredWeights) -> Result<CpuModel, ModelError> {
        let order = WeightOrder::unknown(weights.tensors.tensors().len());
        let stored = weights.files.model();
        let manifest = weights.tensors.manifest(stored.name.as_str(), &order)?;
        let bytes = weights.tensors.bytes();
        let runner = self.process.open(network, stored);
        let state = CpuModelState {
            weights,
            order,
            manifest,
            resident: None,
            is_whole: false,
            first_run: None,
            recorded: None,
        };
        let images = Arc::clone(&self.images);
        let resident = AtomicU64::new(0);
        Ok(CpuModel { images, bytes, resident, runner, state: Mutex::new(state) })
    }
}

impl Backend for CpuBackend {
    fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<Box<dyn BackendWeights>, ModelError> {
        Ok(Box::new(self.model(network, stored.clone())?))
    }

    fn tiers(&self) -> [&str; 2] {
        ["dram", "disk"]
    }

    fn usage(&self) -> Vec<Tier> {
        let [name, _] = self.tiers();
        let used_bytes = self.images.statistics().bytes;
        vec![Tier { name: name.into(), used_bytes, capacity_bytes: self.memory_bytes }]
    }

    fn max_batches(&self) -> usize {
        self.process.max_batches()
    }

    fn is_answering(&self) -> bool {
        self.process.is_answering()
    }

    fn end(&self) {
        self.process.end();
    }

    fn processes(&self) -> Vec<u32> {
        self.process.processes()
    }
}

impl BackendWeights for CpuModel {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    fn load(&self, patience: Duration) -> Result<(), ModelError> {
        let mut state = self.state.lock();
        // An image that could not be read is read again.
        if state.resident.as_ref().is_some_and(|image| image.failure().is_some()) {
            state.unbind(&*self.runner, &self.images);
        }
        if state.resident.is_none() {
            state.weights.files.check_unchanged()?;
            let image = self.images.acquire_within(&state.manifest, patience)?;
            state.bind(&*self.runner, image)?;
            self.resident.store(state.manifest.bytes(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn when_loaded(&self, done: LoadedCallback) {
        match &self.state.lock().resident {
            Some(image) => image.when_read(|outcome| done(outcome.ok())),
            None => done(None),
        }
    }

    fn loaded(&self) -> Result<(), ModelError> {
        let state = &mut *self.state.lock();
        let Some(image) = &state.resident else {
            // Another thread, which was to load the weights again, has released them since the computation.
            return state.weights.files.check_unchanged();
        };
        if !state.is_whole {
            image.wait_for_all()?;
            // A file that is rewritten while it is read yields a mix of both contents.
            state.weights.files.check_unchanged()?;
            state.is_whole = true;
        }
        if let Some((uses, ended)) = state.first_run.take() {
            let read = image.read_time().unwrap_or_default();
            let tensors = &state.weights.tensors;
            state.recorded = Some(WeightOrder::of_host_run(tensors, &uses, ended, read, Grouping::Searched));
        }
        Ok(())
    }

    fn evict(&self, _: u64) {
        self.state.lock().unbind(&*self.runner, &self.images);
        self.resident.store(0, Ordering::Relaxed);
    }

    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<TimedOutputs, ModelError> {
        let mut state = self.state.lock();
        let Computed { outputs, begun, ended, first_uses, .. } = self.runner.compute(inputs, control)?;
        let (copy, wait) = wait_times(&first_uses, begun);
        if state.is_first_run() {
            state.first_run = Some((first_uses, ended));
        }
        let compute = (ended - begun).saturating_sub(copy + wait);
        Ok(TimedOutputs { outputs, copy, wait, compute })
    }
}

impl Drop for CpuModel {
    fn drop(&mut self) {
        self.evict(u64::MAX);
    }
}

impl CpuModelState {
    /// Returns whether the order is still to be recorded.
    fn is_first_run(&self) -> bool {
        !self.order.is_recorded() && self.recorded.is_none()
    }

    /// Makes the model use the weights of an image.
    fn bind(&mut self, runner: &dyn ModelRunner, image: Arc<Image>) -> Result<(), ModelError> {
        let placed = self.weights.tensors.placed(&self.order, &self.manifest);
        let placed = placed.map(|placed| Placed {
            name: placed.name.into(),
            dtype: placed.dtype,
            group: placed.group,
            begin: placed.begin,
        });
        runner.bind(&image, placed.collect())?;
        self.resident = Some(image);
        self.is_whole = false;
        Ok(())
    }

    /// Releases the image, so that its memory is free. The next image has the order that was recorded, if any.
    fn unbind(&mut self, runner: &dyn ModelRunner, images: &Images) {
        let Some(image) = self.resident.take() else { return };
        runner.unbind();
        drop(image);
        images.forget(&self.manifest);
        if let Some(order) = self.recorded.take()
            && let Ok(manifest) = self.weights.tensors.manifest(self.manifest.name(), &order)
        {
            self.order = order;
            self.manifest = manifest;
        }
    }
}

/// Returns the time that a run which began at `begun` waited for the first group, and for all later ones.
fn wait_times(uses: &[Option<FirstUse>], begun: Instant) -> (Duration, Duration) {
    let mut uses: Vec<_> = uses.iter().flatten().filter(|used| used.at >= begun).collect();
    uses.sort_by_key(|used| used.at);
    let mut waits = uses.into_iter().map(|used| used.waited);
    (waits.next().unwrap_or_default(), waits.sum())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tenure_nn::networks::Architectures;
    use tenure_tensor::DType;

    use super::*;
    use crate::examples;
    use crate::executor::ThisProcess;
    use crate::repository::Repository;

    /// The example whose parameters are not registered in the order in which they are used.
    fn next_byte(folder: &std::path::Path) -> CpuModel {
        examples::write(folder, None).unwrap();
        let mut repository = Repository::new(folder);
        repository.scan().unwrap();
        let stored = repository.model("next-byte").unwrap();
        let network = Architectures::default().build(&stored.config.architecture, stored.config.options.clone());
        let network = network.unwrap();
        let weights = StoredWeights::find(stored, &network.state()).unwrap();
        CpuBackend::new(1 << 30, Arc::new(ThisProcess)).unwrap().model(network, weights).unwrap()
    }

    fn ask(model: &CpuModel, tokens: [i64; 2]) -> Result<Vec<RawTensor>, ModelError> {
        let bytes: Vec<u8> = tokens.into_iter().flat_map(i64::to_le_bytes).collect();
        let tokens = RawTensor { dtype: DType::I64, sizes: vec![1, 2], parts: vec![bytes.into()] };
        model.load(Duration::ZERO).unwrap();
        let answer = model.compute(&[tokens], &BatchControl::default());
        model.loaded().unwrap();
        answer.map(|answer| answer.outputs)
    }

    #[test]
    fn weights_of_a_changed_file_that_left_before_they_were_looked_at_are_no_weights() {
        let folder = tempfile::tempdir().unwrap();
        let model = next_byte(folder.path());
        model.load(Duration::ZERO).unwrap();
        model.evict(u64::MAX);
        model.loaded().unwrap();
        let file = fs::File::options().write(true).open(folder.path().join("next-byte/model.safetensors")).unwrap();
        file.set_len(17).unwrap();
        assert!(matches!(model.loaded(), Err(ModelError::Changed { .. })));
    }

    #[test]
    fn the_first_run_tells_the_order_of_all_later_images() {
        let folder = tempfile::tempdir().unwrap();
        let model = next_byte(folder.path());
        let names = |model: &CpuModel| {
            let state = model.state.lock();
            state.manifest.entries().iter().map(|entry| entry.name.clone()).collect::<Vec<_>>()
        };
        let is_in_order = |names: &[String]| {
            let used = ["embed_tokens.weight", "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.weight"];
            used.map(|name| names.iter().position(|other| other.ends_with(name)).unwrap()).is_sorted()
        };
        assert!(!is_in_order(&names(&model)));
        // A run that ends early does not determine the rest of the order.
        assert!(matches!(ask(&model, [72, 1000]), Err(ModelError::Compute(_))));
        let first = ask(&model, [72, 105]).unwrap();
        assert!(!is_in_order(&names(&model)), "the image that there is stays");
        model.evict(u64::MAX);
        let recorded = names(&model);
        assert!(is_in_order(&recorded) && recorded.last().unwrap() == "lm_head.weight", "{recorded:?}");
        assert_eq!(ask(&model, [72, 105]).unwrap(), first);
        model.evict(u64::MAX);
        assert_eq!((names(&model), model.resident_bytes(), model.images.statistics().bytes), (recorded, 0, 0));
    }
}
