//! Networks for inference, by the names of their architectures.
//!
//! [`Architectures::default`] has those of `tenure-nn`; others are [registered](Architectures::register). A network is
//! built from the `options` of a model's configuration, or from the file that its `config` names:
//!
//! | architectures | inputs | outputs | options |
//! | --- | --- | --- | --- |
//! | `resnet18`, `resnet34`, `resnet50`, `resnet101`, `resnet152` | images | scores | `channels`, `classes`, `width` |
//! | `densenet121`, `densenet201` | images | scores | `channels`, `classes` |
//! | `inception_v3` | images | scores | `classes` |
//! | `r3d18` | videos | scores | `channels`, `classes`, `width` |
//! | `bert` | tokens, mask | a vector for each token | Hugging Face's `config.json` |
//! | `sentences` | tokens, mask | a vector of length 1 for each text | the same |
//! | `gpt2`, `llama` | tokens | scores of the next token after each | the same |
//! | `mlp` | rows of numbers | rows of numbers | `sizes` of a row before each layer, and after the last |
//!
//! A mask is 1 for a token and 0 for padding.

mod known;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use serde_json::{Map, Value};
use tenure_tensor::random::Generator;
use tenure_tensor::{Result, Tensor};

use crate::layers::Layer;
use crate::panics::caught;
use crate::{Module, Scope, module};

/// A module for inference. It computes the same for the same inputs, and no row of a batch affects another. In a batch
/// of another size, a row may differ in its last bits, because sums are added up in another order.
pub trait Network: Module {
    /// Returns the number of input tensors: one, if the network does not say otherwise.
    fn inputs(&self) -> usize {
        1
    }

    /// Returns the number of output tensors: one, if the network does not say otherwise.
    fn outputs(&self) -> usize {
        1
    }

    /// Computes the outputs for [`inputs`](Self::inputs) tensors.
    ///
    /// # Errors
    /// The sizes or dtypes do not fit together; no memory.
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// The reason why an architecture refuses its options.
pub type BuildError = Box<dyn Error + Send + Sync>;

/// The reason why a network is not built. The message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// There is no architecture of this name.
    #[error("unknown architecture {name:?}: there are {}", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of all architectures.
        known: Vec<String>,
    },
    /// The architecture refuses the options.
    #[error("{architecture} cannot be built of these options: {}", reason.to_string().replace('\n', " "))]
    Options {
        /// The architecture.
        architecture: String,
        /// The reason.
        reason: BuildError,
    },
    /// The architecture's code panicked.
    #[error("the network panicked: {0}")]
    Panic(String),
}

/// A function that builds a network from options.
pub type Build = dyn Fn(&Scope, Map<String, Value>) -> Result<Box<dyn Network>, BuildError> + Send + Sync;

/// The registered architectures, by name.
#[derive(Clone)]
pub struct Architectures {
    builds: BTreeMap<String, Arc<Build>>,
}

impl Default for Architectures {
    /// The architectures of `tenure-nn`.
    fn default() -> Self {
        let mut architectures = Self::none();
        known::register(&mut architectures);
        architectures
    }
}

impl Architectures {
    /// Makes an empty registry.
    pub fn none() -> Self {
        Self { builds: BTreeMap::new() }
    }

    /// Registers an architecture, and replaces an earlier one of the same name. `build` must take its parameters from
    /// the given scope and must not write to them, because they have no values yet.
    pub fn register(
        &mut self,
        name: &str,
        build: impl Fn(&Scope, Map<String, Value>) -> Result<Box<dyn Network>, BuildError> + Send + Sync + 'static,
    ) {
        self.builds.insert(name.into(), Arc::new(build));
    }

    /// Builds a network for inference whose parameters have shapes but neither values nor gradients.
    ///
    /// # Errors
    /// [`NetworkError`]; no memory.
    pub fn build(&self, architecture: &str, options: Map<String, Value>) -> crate::Result<Box<dyn Network>> {
        let unknown =
            || NetworkError::Unknown { name: architecture.into(), known: self.builds.keys().cloned().collect() };
        let build = self.builds.get(architecture).ok_or_else(unknown)?;
        let scope = Scope::new(&Generator::new(0)).shapes();
        let built = caught(|| build(&scope, options)).map_err(|panic| NetworkError::Panic(panic.replace('\n', " ")))?;
        let mut network =
            built.map_err(|reason| NetworkError::Options { architecture: architecture.into(), reason })?;
        network.eval();
        network.set_requires_grad(false)?;
        Ok(network)
    }

    /// Returns the names of all architectures.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.builds.keys().map(String::as_str)
    }
}

/// A network of one layer, with one input and one output.
struct OneToOne {
    layer: Box<dyn Layer>,
}
module!(OneToOne { layer });

impl Network for OneToOne {
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.layer.forward(&inputs[0])?])
    }
}

fn one_to_one(layer: impl Layer + 'static) -> Box<dyn Network> {
    Box::new(OneToOne { layer: Box::new(layer) })
}
