//! A model: its weights where they are now, and what computes with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_nn::networks::{Architectures, Network};
use tenure_nn::switched::Order;
use tenure_switch::groups::Grouping;
use tenure_switch::{FirstUse, Image, Images, Manifest};
use tokio::sync::oneshot;

use super::network::{Computed, Placed};
use super::place::{Computer, Place};
use super::weights::Stored;
use super::{ModelError, dtype, tensors};
use crate::protocol;
use crate::repository::StoredModel;

/// A model that can be asked. Dropped, it gives back all that it held.
pub(crate) struct Model {
    stored: Arc<StoredModel>,
    images: Arc<Images>,
    bytes: u64,
    /// Of its weights that are in memory.
    resident: AtomicU64,
    state: Mutex<State>,
    /// Closed when all else is gone.
    _gone: oneshot::Sender<()>,
}

struct State {
    computer: Box<dyn Computer>,
    weights: Stored,
    /// Of the image that there is, or else of the next.
    order: Order,
    manifest: Arc<Manifest>,
    /// Its weights, if they are there.
    resident: Option<Arc<Image>>,
    /// They are all there, and of the files that were looked at.
    is_whole: bool,
    /// The first run, which tells the order, and when it ended.
    first_run: Option<(Vec<Option<FirstUse>>, Instant)>,
    /// Of all images after the first.
    recorded: Option<Order>,
}

/// What a batch was answered.
pub(crate) struct Answer {
    /// The outputs of each request.
    pub(crate) outputs: Vec<Vec<protocol::Tensor>>,
    /// What was waited for before the first weight was there, and after it.
    pub(crate) copy: Duration,
    pub(crate) wait: Duration,
    pub(crate) compute: Duration,
}

impl Model {
    /// Builds the network and finds its weights, none of which are read. It is computed in a place. The receiver's sender is gone
    /// when the model is.
    pub(crate) fn open(
        stored: &Arc<StoredModel>,
        architectures: &Architectures,
        images: &Arc<Images>,
        place: &dyn Place,
    ) -> Result<(Self, oneshot::Receiver<()>), ModelError> {
        let network = build(stored, architectures)?;
        let weights = Stored::find(stored, &network.state())?;
        let order = Order::unknown(weights.tensors.tensors().len());
        let manifest = weights.tensors.manifest(stored.name.as_str(), &order)?;
        let (_gone, gone) = oneshot::channel();
        let (bytes, resident) = (weights.tensors.bytes(), AtomicU64::new(0));
        let state = State {
            computer: place.open(network, stored),
            weights,
            order,
            manifest,
            resident: None,
            is_whole: false,
            first_run: None,
            recorded: None,
        };
        let (stored, images) = (Arc::clone(stored), Arc::clone(images));
        Ok((Self { stored, images, bytes, resident, state: Mutex::new(state), _gone }, gone))
    }

    pub(crate) fn stored(&self) -> &Arc<StoredModel> {
        &self.stored
    }

    pub(crate) fn name(&self) -> &str {
        self.stored.name.as_str()
    }

    /// Bytes of its weights in memory, whatever their order.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of its weights that are in memory now, or on their way.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Begins to bring its weights, if they are not there.
    pub(crate) fn load(&self) -> Result<(), ModelError> {
        let mut state = self.state.lock();
        // What could not be read is tried again.
        if state.resident.as_ref().is_some_and(|image| image.failure().is_some()) {
            state.unbind(&self.images);
        }
        if state.resident.is_none() {
            state.weights.check_unchanged()?;
            let image = self.images.acquire(&state.manifest)?;
            state.bind(image)?;
            self.resident.store(state.manifest.bytes(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Calls `done` when all its weights are there, or with nothing when they do not come.
    pub(crate) fn when_loaded(&self, done: impl FnOnce(Option<Duration>) + Send + 'static) {
        match &self.state.lock().resident {
            Some(image) => image.when_read(|outcome| done(outcome.ok())),
            None => done(None),
        }
    }

    /// Waits until all its weights are there, of the files that were looked at.
    pub(crate) fn loaded(&self) -> Result<(), ModelError> {
        let state = &mut *self.state.lock();
        let Some(image) = &state.resident else { return Ok(()) };
        if !state.is_whole {
            image.wait_for_all()?;
            // Who writes a file again while it is read leaves some of both.
            state.weights.check_unchanged()?;
            state.is_whole = true;
        }
        if let Some((uses, ended)) = state.first_run.take() {
            let read = image.read_time().unwrap_or_default();
            let tensors = &state.weights.tensors;
            state.recorded = Some(Order::of_host_run(tensors, &uses, ended, read, Grouping::Searched));
        }
        Ok(())
    }

    /// Frees the memory of its weights.
    pub(crate) fn evict(&self) {
        self.state.lock().unbind(&self.images);
        self.resident.store(0, Ordering::Relaxed);
    }

    /// Answers requests, each of which has the model's inputs in their order, and its rows. Their weights are waited for.
    pub(crate) fn compute(&self, requests: &[Vec<protocol::Tensor>], rows: &[u32]) -> Result<Answer, ModelError> {
        let mut state = self.state.lock();
        let input = |index: usize| tensors::join(&requests.iter().map(|inputs| &inputs[index]).collect::<Vec<_>>());
        let specs = &self.stored.config;
        let inputs = (0..specs.inputs.len()).map(input).collect::<Result<Vec<_>, _>>()?;
        let Computed { outputs, begun, ended, first_uses } = state.computer.compute(&inputs)?;
        let mut answers = vec![Vec::new(); requests.len()];
        for (output, spec) in outputs.iter().zip(&specs.outputs) {
            let parts = tensors::split(output, spec, rows)?;
            answers.iter_mut().zip(parts).for_each(|(answer, part)| answer.push(part));
        }
        let (copy, wait) = waited(&first_uses, begun);
        if state.is_first_run() {
            state.first_run = Some((first_uses, ended));
        }
        let compute = (ended - begun).saturating_sub(copy + wait);
        Ok(Answer { outputs: answers, copy, wait, compute })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.evict();
    }
}

impl State {
    /// Whether the order is still to be recorded.
    fn is_first_run(&self) -> bool {
        !self.order.is_recorded() && self.recorded.is_none()
    }

    /// Has an image computed with.
    fn bind(&mut self, image: Arc<Image>) -> Result<(), ModelError> {
        let placed = self.weights.tensors.placed(&self.order, &self.manifest);
        let placed = placed.map(|placed| Placed {
            name: placed.name.into(),
            dtype: placed.dtype,
            group: placed.group,
            begin: placed.begin,
        });
        self.computer.bind(&image, placed.collect())?;
        (self.resident, self.is_whole) = (Some(image), false);
        Ok(())
    }

    fn unbind(&mut self, images: &Images) {
        let Some(image) = self.resident.take() else { return };
        self.computer.unbind();
        drop(image);
        images.forget(&self.manifest);
        if let Some(order) = self.recorded.take()
            && let Ok(manifest) = self.weights.tensors.manifest(self.manifest.name(), &order)
        {
            (self.order, self.manifest) = (order, manifest);
        }
    }
}

/// What a run that began at a time waited for: the first group, and the others.
fn waited(uses: &[Option<FirstUse>], begun: Instant) -> (Duration, Duration) {
    let mut uses: Vec<_> = uses.iter().flatten().filter(|used| used.at >= begun).collect();
    uses.sort_by_key(|used| used.at);
    let mut waits = uses.into_iter().map(|used| used.waited);
    (waits.next().unwrap_or_default(), waits.sum())
}

fn build(stored: &StoredModel, architectures: &Architectures) -> Result<Box<dyn Network>, ModelError> {
    let config = &stored.config;
    let network = architectures.build(&config.architecture, config.options.clone())?;
    for (role, expected, specs) in
        [("inputs", network.inputs(), &config.inputs), ("outputs", network.outputs(), &config.outputs)]
    {
        let found = specs.len();
        if found != expected {
            return Err(ModelError::Arity { architecture: config.architecture.clone(), role, expected, found });
        }
        if let Some(spec) = specs.iter().find(|spec| dtype(spec.datatype).is_none()) {
            return Err(ModelError::Datatype { name: spec.name.clone(), datatype: spec.datatype });
        }
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;
    use crate::executor::place::Here;
    use crate::protocol::Datatype;
    use crate::repository::Repository;

    /// The example whose parameters are not registered in the order in which they are used.
    fn next_byte(folder: &std::path::Path) -> Model {
        examples::write(folder, None).unwrap();
        let mut repository = Repository::new(folder);
        repository.scan().unwrap();
        let images = Arc::new(Images::new(1 << 30, None).unwrap());
        let model = repository.model("next-byte").unwrap();
        Model::open(model, &Architectures::default(), &images, &Here).unwrap().0
    }

    fn ask(model: &Model, tokens: [i64; 2]) -> Result<Vec<Vec<protocol::Tensor>>, ModelError> {
        let bytes: Vec<u8> = tokens.into_iter().flat_map(i64::to_le_bytes).collect();
        let tokens = protocol::Tensor::new("tokens", Datatype::Int64, vec![1, 2], bytes).unwrap();
        model.load().unwrap();
        let answer = model.compute(&[vec![tokens]], &[1]);
        model.loaded().unwrap();
        answer.map(|answer| answer.outputs)
    }

    #[test]
    fn the_first_run_tells_the_order_of_all_later_images() {
        let folder = tempfile::tempdir().unwrap();
        let model = next_byte(folder.path());
        let names = |model: &Model| {
            let state = model.state.lock();
            state.manifest.entries().iter().map(|entry| entry.name.clone()).collect::<Vec<_>>()
        };
        let place = |names: &[String], name: &str| names.iter().position(|other| other.ends_with(name)).unwrap();
        let is_in_order = |names: &[String]| {
            let used = ["embed_tokens.weight", "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.weight"];
            used.map(|name| place(names, name)).is_sorted()
        };
        assert!(!is_in_order(&names(&model)));
        // One that ends early tells nothing of the rest.
        assert!(matches!(ask(&model, [72, 1000]), Err(ModelError::Compute(_))));
        let first = ask(&model, [72, 105]).unwrap();
        assert!(!is_in_order(&names(&model)), "the image that there is stays");
        model.evict();
        let recorded = names(&model);
        assert!(is_in_order(&recorded) && recorded.last().unwrap() == "lm_head.weight", "{recorded:?}");
        assert_eq!(ask(&model, [72, 105]).unwrap(), first);
        model.evict();
        assert_eq!((names(&model), model.resident_bytes(), model.images.statistics().bytes), (recorded, 0, 0));
    }
}
