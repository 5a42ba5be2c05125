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
//!
//! A mask is 1 where there is a token, and 0 where a text was filled up.

mod images;
mod texts;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_nn::layers::Layer;
use tenure_nn::{Module, Scope, module};
use tenure_tensor::{Result, Tensor};

/// A module that can be asked. It computes the same for the same inputs, and each row of a batch by itself.
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

/// Why a network is not built.
pub type BuildError = Box<dyn Error + Send + Sync>;

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

    /// What builds an architecture.
    pub fn find(&self, name: &str) -> Option<&Build> {
        self.builds.get(name).map(|build| &**build)
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
