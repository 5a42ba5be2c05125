//! A model: its weights, and the requests that it answers.

use std::sync::Arc;
use std::time::Duration;

use tenure_nn::networks::{Architectures, Network};
use tokio::sync::oneshot;

use super::backend::{Backend, BackendWeights, TimedOutputs};
use super::batch_control::BatchControl;
use super::stored::StoredWeights;
use super::{ModelError, dtype_of, tensors};
use crate::protocol;
use crate::repository::{StoredModel, TensorSpec};
use crate::scheduler::DeviceId;

/// A model that answers requests. Dropping it frees everything that it held.
pub(crate) struct OpenModel {
    stored: Arc<StoredModel>,
    /// The weights on each device.
    weights: Vec<Box<dyn BackendWeights>>,
    /// Dropped last. This tells the receiver that the model is freed.
    _gone: oneshot::Sender<()>,
}

/// The answer to a batch.
pub(crate) struct BatchAnswer {
    /// The outputs of each request.
    pub(crate) outputs: Vec<Vec<protocol::Tensor>>,
    /// As in [`TimedOutputs`], and so are the times below.
    pub(crate) copy: Duration,
    pub(crate) wait: Duration,
    pub(crate) compute: Duration,
}

impl OpenModel {
    /// Builds the network for each device's backend, and finds its weights once without reading them. The receiver
    /// resolves when the model is dropped.
    pub(crate) fn open<'a>(
        stored: &Arc<StoredModel>,
        architectures: &Architectures,
        backends: impl Iterator<Item = &'a dyn Backend>,
    ) -> Result<(Self, oneshot::Receiver<()>), ModelError> {
        let mut found: Option<StoredWeights> = None;
        let weights = backends
            .map(|backend| {
                if stored.config.python.is_some() {
                    check_datatypes(&stored.config.inputs)?;
                    check_datatypes(&stored.config.outputs)?;
                    return backend.open_python(stored);
                }
                let network = build(stored, architectures)?;
                let tensors = match &found {
                    Some(tensors) => tensors,
                    None => found.insert(StoredWeights::find(stored, &network.state())?),
                };
                backend.open(network, tensors)
            })
            .collect::<Result<_, _>>()?;
        let (_gone, gone) = oneshot::channel();
        Ok((Self { stored: Arc::clone(stored), weights, _gone }, gone))
    }

    pub(crate) fn stored(&self) -> &Arc<StoredModel> {
        &self.stored
    }

    pub(crate) fn name(&self) -> &str {
        self.stored.name.as_str()
    }

    /// Returns the bytes of all weights on the device where they take most.
    pub(crate) fn bytes(&self) -> u64 {
        self.weights.iter().map(|weights| weights.bytes()).max().unwrap_or(0)
    }

    /// Returns the weights on a device.
    pub(crate) fn on(&self, device: DeviceId) -> &dyn BackendWeights {
        &*self.weights[device.index()]
    }

    /// Loads the weights: see [`BackendWeights::load`].
    pub(crate) fn load(&self, device: DeviceId, patience: Duration) -> Result<(), ModelError> {
        self.on(device).load(patience).map_err(|error| self.changed_or(error))
    }

    /// Waits for the weights: see [`BackendWeights::loaded`].
    pub(crate) fn loaded(&self, device: DeviceId) -> Result<(), ModelError> {
        self.on(device).loaded().map_err(|error| self.changed_or(error))
    }

    /// Returns why weights did not load: their files changed, or else `error`.
    fn changed_or(&self, error: ModelError) -> ModelError {
        self.stored.changed().map_or(error, |path| ModelError::Changed { path: path.to_owned() })
    }

    /// Answers requests on a device. Each request has the model's inputs in their order, and `rows` has its number of
    /// rows. Waits for weights.
    pub(crate) fn compute(
        &self,
        device: DeviceId,
        requests: &[Vec<protocol::Tensor>],
        rows: &[u32],
        control: &BatchControl,
    ) -> Result<BatchAnswer, ModelError> {
        let specs = &self.stored.config;
        let inputs = (0..specs.inputs.len())
            .map(|index| tensors::join(&requests.iter().map(|inputs| &inputs[index]).collect::<Vec<_>>()))
            .collect::<Result<Vec<_>, _>>()?;
        let TimedOutputs { outputs, copy, wait, compute } = self.on(device).compute(&inputs, control)?;
        let mut answers = vec![Vec::new(); requests.len()];
        for (output, spec) in outputs.iter().zip(&specs.outputs) {
            let parts = tensors::split(output, spec, rows)?;
            answers.iter_mut().zip(parts).for_each(|(answer, part)| answer.push(part));
        }
        Ok(BatchAnswer { outputs: answers, copy, wait, compute })
    }
}

/// Builds a model's network without weights, and checks that its inputs and outputs are as configured.
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
        check_datatypes(specs)?;
    }
    Ok(network)
}

/// Rejects datatypes that networks cannot compute with.
fn check_datatypes(specs: &[TensorSpec]) -> Result<(), ModelError> {
    match specs.iter().find(|spec| dtype_of(spec.datatype).is_none()) {
        Some(spec) => Err(ModelError::Datatype { name: spec.name.clone(), datatype: spec.datatype }),
        None => Ok(()),
    }
}
