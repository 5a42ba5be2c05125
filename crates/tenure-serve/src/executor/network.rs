//! A network, with weights or without, and what it answers.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::{Layout, Storage};
use tenure_nn::Scope;
use tenure_switch::{FirstUse, Image, Mapped, Stopped, SwitchError};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor, TensorError, autograd};

use super::tensors::RawTensor;
use super::{ModelError, text};
use crate::networks::{Architectures, Network};

/// Where a tensor of a network lies in its image, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placed {
    /// One of the network's.
    pub(crate) name: String,
    #[serde(with = "text")]
    pub(crate) dtype: DType,
    pub(crate) group: usize,
    /// Bytes from the group's first.
    pub(crate) begin: u64,
}

/// What a batch was answered, and when.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) outputs: Vec<RawTensor>,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// Of each group, in this run or before it.
    pub(crate) first_uses: Vec<Option<FirstUse>>,
}

/// Weights that are there or come, in groups.
pub(crate) trait Groups {
    fn storage(&self, group: usize) -> Storage;
    fn first_uses(&self) -> Vec<Option<FirstUse>>;
    fn failure(&self) -> Option<SwitchError>;
}

impl Groups for Arc<Image> {
    fn storage(&self, group: usize) -> Storage {
        Image::storage(self, group)
    }

    fn first_uses(&self) -> Vec<Option<FirstUse>> {
        Image::first_uses(self)
    }

    fn failure(&self) -> Option<SwitchError> {
        Image::failure(self)
    }
}

impl Groups for Arc<Mapped> {
    fn storage(&self, group: usize) -> Storage {
        Mapped::storage(self, group)
    }

    fn first_uses(&self) -> Vec<Option<FirstUse>> {
        Mapped::first_uses(self)
    }

    fn failure(&self) -> Option<SwitchError> {
        Mapped::failure(self)
    }
}

/// A network that is computed in this process.
pub(crate) struct Bound<G> {
    network: Box<dyn Network>,
    weights: Option<Weights<G>>,
}

struct Weights<G> {
    groups: G,
    /// The network's tensors without values, and what is in their places.
    tensors: Vec<(Tensor, Tensor)>,
}

/// Builds a network without values.
pub(crate) fn build(
    architecture: &str,
    options: Map<String, Value>,
    architectures: &Architectures,
) -> Result<Box<dyn Network>, ModelError> {
    let build = architectures.find(architecture).ok_or_else(|| ModelError::Architecture {
        name: architecture.into(),
        known: architectures.names().map(String::from).collect(),
    })?;
    let scope = Scope::new(&Generator::new(0)).shapes();
    let built = catch_unwind(AssertUnwindSafe(|| build(&scope, options)));
    let built = built.map_err(|panic| ModelError::Panic(message(&*panic)))?;
    let mut network = built.map_err(|reason| ModelError::Options { architecture: architecture.into(), reason })?;
    network.eval();
    network.set_requires_grad(false)?;
    Ok(network)
}

impl<G: Groups> Bound<G> {
    pub(crate) fn new(network: Box<dyn Network>) -> Self {
        Self { network, weights: None }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.weights.is_some()
    }

    /// Puts views of groups in the places of tensors that have no values.
    pub(crate) fn bind(&mut self, groups: G, placed: &[Placed]) -> Result<(), ModelError> {
        let storages: HashMap<usize, Storage> =
            placed.iter().map(|placed| (placed.group, groups.storage(placed.group))).collect();
        let shapes: HashMap<&str, &Tensor> = self.network.state().into_iter().collect();
        let mut tensors = Vec::new();
        for Placed { name, dtype, group, begin } in placed {
            let shape = *shapes.get(name.as_str()).ok_or(ModelError::NoWeights)?;
            let layout = Layout::contiguous(shape.sizes()).map_err(tenure_core::Error::from);
            let layout = layout.map_err(TensorError::from)?;
            let layout = Layout::strided(layout.sizes(), layout.strides(), *begin as usize / dtype.size());
            let layout = layout.map_err(tenure_core::Error::from).map_err(TensorError::from)?;
            tensors.push((shape.clone(), Tensor::from_storage(storages[group].clone(), layout, *dtype)?));
        }
        replace(&mut *self.network, tensors.iter().map(|(shape, view)| (shape, view)))?;
        self.weights = Some(Weights { groups, tensors });
        Ok(())
    }

    /// Lets go of the groups.
    pub(crate) fn unbind(&mut self) {
        let Some(Weights { tensors, .. }) = self.weights.take() else { return };
        if let Err(error) = replace(&mut *self.network, tensors.iter().map(|(shape, view)| (view, shape))) {
            tracing::error!("weights stay in memory: {error}");
        }
    }

    /// Answers inputs. Weights are waited for.
    pub(crate) fn compute(&self, inputs: &[RawTensor]) -> Result<Computed, ModelError> {
        let groups = &self.weights.as_ref().ok_or(ModelError::NoWeights)?.groups;
        let inputs = inputs.iter().map(RawTensor::to_tensor).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        // A network that panics is asked again: it has no state but its values, which it does not write.
        let forward = AssertUnwindSafe(|| autograd::no_grad(|| self.network.forward(&inputs)));
        let computed = catch_unwind(forward).map_err(|panic| match panic.is::<Stopped>() {
            true => ModelError::Abandoned,
            false => ModelError::Panic(message(&*panic)),
        })?;
        let ended = Instant::now();
        // What was computed of weights that did not come is nothing.
        if let Some(error) = groups.failure() {
            return Err(error.into());
        }
        let outputs = computed?.iter().map(RawTensor::of).collect::<Result<_, _>>()?;
        Ok(Computed { outputs, begun, ended, first_uses: groups.first_uses() })
    }
}

/// Puts tensors in the places of others.
fn replace<'a>(
    network: &mut dyn Network,
    pairs: impl Iterator<Item = (&'a Tensor, &'a Tensor)>,
) -> Result<(), ModelError> {
    let by_id: HashMap<usize, &Tensor> = pairs.map(|(from, to)| (from.id(), to)).collect();
    Ok(network.change(&|tensor| Ok(by_id.get(&tensor.id()).map_or(tensor, |to| to).clone()))?)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("it did not say why").replace('\n', " ")
}
