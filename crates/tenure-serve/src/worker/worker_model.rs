//! A model that workers compute on the CPU.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_switch::Image;

use super::link::Worker;
use super::message::{Description, Map, MessageError, WorkerOrder};
use super::pool::WorkerPool;
use crate::executor::{BatchControl, Computed, ModelError, ModelRunner, Placed, RawTensor};
use crate::repository::StoredModel;

/// The server's handle of a model that a worker computes.
pub(super) struct WorkerModel {
    pool: Arc<WorkerPool>,
    model: u64,
    network: Description,
    image: Mutex<Option<Arc<NumberedImage>>>,
    /// The worker that computes the model or computed it last, which may have mapped the image.
    worker: Mutex<Weak<Worker>>,
}

/// An image with the number that workers know it by, and the positions of the network's tensors in it.
struct NumberedImage {
    number: u64,
    image: Arc<Image>,
    placed: Vec<Placed>,
}

impl WorkerModel {
    pub(super) fn new(pool: Arc<WorkerPool>, stored: &StoredModel) -> Self {
        let model = pool.next_number();
        let network = Description::of(stored);
        Self { pool, model, network, image: Mutex::default(), worker: Mutex::default() }
    }

    fn last_worker(&self) -> Option<Arc<Worker>> {
        self.worker.lock().upgrade()
    }

    /// Makes a worker map the image. From now on, the worker gets a message about each loaded group.
    fn map(&self, worker: &Arc<Worker>, bound: &NumberedImage) -> Result<(), ModelError> {
        let NumberedImage { number, image, placed } = bound;
        let map = Map {
            image: *number,
            model: self.model,
            network: self.network.clone(),
            groups: image.manifest().groups().iter().map(|group| (group.start, group.end)).collect(),
            tensors: placed.clone(),
        };
        let memory = image.sealed().as_fd().try_clone_to_owned();
        let memory = memory.map_err(|error| ModelError::Elsewhere(format!("the weights cannot be sent: {error}")))?;
        worker.map(*number, &WorkerOrder::Map(map), Some(memory))?;
        let listener = Arc::downgrade(worker);
        let number = *number;
        image.watch(move |arrived| {
            let groups = arrived.iter().map(|arrived| (arrived.group as u32, arrived.is_there)).collect();
            if let Some(worker) = listener.upgrade() {
                // This message is shorter than the one that mapped the image.
                let _ = worker.send(&WorkerOrder::Arrived { image: number, groups }, Vec::new(), None);
            }
        });
        Ok(())
    }
}

impl ModelRunner for WorkerModel {
    fn bind(&self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError> {
        let bound = NumberedImage { number: self.pool.next_number(), image: Arc::clone(image), placed };
        *self.image.lock() = Some(Arc::new(bound));
        Ok(())
    }

    fn unbind(&self) {
        let bound = self.image.lock().take();
        if let (Some(bound), Some(worker)) = (bound, self.last_worker()) {
            worker.unmap(bound.number);
        }
        self.pool.give_back(self.model);
    }

    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<Computed, ModelError> {
        let bound = self.image.lock().clone().ok_or(ModelError::NoWeights)?;
        self.pool.compute(self.model, inputs, control, |worker| {
            // A worker that the model had before may have been given to another, and still maps the image.
            if let Some(before) = self.last_worker().filter(|before| !Arc::ptr_eq(before, worker)) {
                before.unmap(bound.number);
            }
            *self.worker.lock() = Arc::downgrade(worker);
            if !worker.has_mapped(bound.number) {
                self.map(worker, &bound)?;
            }
            Ok(bound.number)
        })
    }
}

impl Drop for WorkerModel {
    fn drop(&mut self) {
        self.pool.give_back(self.model);
        if let Some(worker) = self.last_worker() {
            // A few bytes never exceed the limit.
            let _ = worker.send(&WorkerOrder::Forget { model: self.model }, Vec::new(), None);
        }
    }
}

impl Description {
    pub(super) fn of(stored: &StoredModel) -> Self {
        Self {
            name: stored.name.to_string(),
            architecture: stored.config.architecture.clone(),
            options: serde_json::Value::Object(stored.config.options.clone()).to_string(),
        }
    }
}

impl From<MessageError> for ModelError {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::PayloadLength(_) => Self::Asked(error.to_string()),
            error => Self::Elsewhere(error.to_string()),
        }
    }
}
