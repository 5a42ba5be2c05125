//! What models compute: networks, by the names of their architectures.
//!
//! [`Architectures::default`] has those of `tenure-nn`; others are [registered](Architectures::register). What a model's
//! configuration says as `options`, or as the file `config`, is what its network is built of:
//!
//! | architectures | take | answer | options |
//! | --- | --- | --- | --- |
//! | `resnet18`, `resnet34`, `resnet50`, `resnet101`, `resnet152` | images | scores | `channels`, `classes`, `width` |
//! | `densenet121`, `densenet201` | images | scores | `channels`, `classes` |
//! | `inception_v3` | images | scores | `classes` |
//! | `r3d18` | videos | scores | `channels`, `classes`, `width` |
//! | `bert` | tokens, mask | numbers of each token | Hugging Face's `config.json` |
//! | `sentences` | tokens, mask | a vector of length 1 for each text | the same |
//! | `gpt2`, `llama` | tokens | scores of what follows each token | the same |
//! | `mlp` | rows of numbers | rows of numbers | `sizes` of a row before each layer, and after the last |
//!
//! A mask is 1 where there is a token, and 0 where a text was filled up.

mod images;
mod rows;
mod texts;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_tensor::random::Generator;
use tenure_tensor::{Result, Tensor};

use crate::layers::Layer;
use crate::panics::caught;
use crate::{Module, Scope, module};

/// A module that can be asked. It computes the same for the same inputs, and no row of a batch affects another. In a batch of
/// another size, a row may differ in its last bits, as sums are added up in another order.
pub trait Network: Module {
    /// How many tensors it takes.
    fn inputs(&self) -> usize;

    /// How many it answers.
    fn outputs(&self) -> usize;

    /// What it answers to as many inputs as it takes.
    ///
    /// # Errors
    /// Sizes or dtypes that do not go together; no memory.
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// Why an architecture does not take its options.
pub type BuildError = Box<dyn Error + Send + Sync>;

/// Why a network is not built. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Nothing builds such networks.
    #[error("there is no architecture {name:?}: there are {}", known.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// All names.
        known: Vec<String>,
    },
    /// The architecture does not take the options.
    #[error("{architecture} cannot be built of these options: {}", reason.to_string().replace('\n', " "))]
    Options {
        /// The architecture.
        architecture: String,
        /// The reason.
        reason: BuildError,
    },
    /// The architecture's code gave up.
    #[error("the network panicked: {0}")]
    Panic(String),
}

/// Builds a network of options.
pub type Build = dyn Fn(&Scope, Map<String, Value>) -> Result<Box<dyn Network>, BuildError> + Send + Sync;

/// What builds networks, by the architecture's name.
#[derive(Clone)]
pub struct Architectures {
    builds: BTreeMap<String, Arc<Build>>,
}

impl Default for Architectures {
    /// Those of `tenure-nn`.
    fn default() -> Self {
        let mut architectures = Self::none();
        images::register(&mut architectures);
        rows::register(&mut architectures);
        texts::register(&mut architectures);
        architectures
    }
}

impl Architectures {
    /// None at all.
    pub fn none() -> Self {
        Self { builds: BTreeMap::new() }
    }

    /// Adds an architecture, or takes the place of the one that had the name. Its parameters come from the scope that `build`
    /// is given, and it writes none: they have no values yet.
    pub fn register(
        &mut self,
        name: &str,
        build: impl Fn(&Scope, Map<String, Value>) -> Result<Box<dyn Network>, BuildError> + Send + Sync + 'static,
    ) {
        self.builds.insert(name.into(), Arc::new(build));
    }

    /// A network for inference that has no values yet: shapes alone, and no gradients.
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

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.builds.keys().map(String::as_str)
    }
}

/// A layer as a network.
struct OneToOne {
    layer: Box<dyn Layer>,
}
module!(OneToOne { layer });

impl Network for OneToOne {
    fn inputs(&self) -> usize {
        1
    }

    fn outputs(&self) -> usize {
        1
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.layer.forward(&inputs[0])?])
    }
}

fn one_to_one(layer: impl Layer + 'static) -> Box<dyn Network> {
    Box::new(OneToOne { layer: Box::new(layer) })
}

fn parse<T: DeserializeOwned>(options: Map<String, Value>) -> serde_json::Result<T> {
    serde_json::from_value(Value::Object(options))
}
