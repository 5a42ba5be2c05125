//! What `config.json` of Hugging Face says. A key that changes what a model computes is either a field of its
//! configuration, or has one value that models here can have, and files with others are refused.

use std::fmt::Debug;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_tensor::{Result, Tensor, TensorError};

use crate::layers::{Activation, Embedding};
use crate::{Init, Scope};

/// The keys of one file. One that is null is as good as missing, but where null is a value.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct ConfigFile(Map<String, Value>);

/// Why a file is not taken.
pub(super) type Refusal = String;

impl ConfigFile {
    /// The value of a key that must be there.
    pub(super) fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T, Refusal> {
        self.optional(key)?.ok_or_else(|| format!("missing field `{key}`"))
    }

    /// The value of a key, if it is there.
    pub(super) fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let value = self.0.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| format!("{key}: {error}"))
    }

    /// The value of a key, or else what Hugging Face takes.
    pub(super) fn or<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<T, Refusal> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// The value of a key that may be null, or else what Hugging Face takes.
    pub(super) fn nullable<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<Option<T>, Refusal> {
        if self.0.contains_key(key) { self.optional(key) } else { Ok(Some(default)) }
    }

    /// Refuses a key with another value than the one that models here can have, which is Hugging Face's default too.
    pub(super) fn only<T: DeserializeOwned + PartialEq + Debug>(&self, key: &str, known: T) -> Result<(), Refusal> {
        match self.optional::<T>(key)? {
            Some(found) if found != known => {
                Err(format!("{key} is {found:?}: only models with {known:?} can be loaded"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a model some of whose heads were taken out.
    pub(super) fn no_heads_are_pruned(&self) -> Result<(), Refusal> {
        self.only("pruned_heads", Map::new())
    }

    /// The function that a key names as Transformers does.
    pub(super) fn activation(&self, key: &str, default: Activation) -> Result<Activation, Refusal> {
        let Some(name) = self.optional::<String>(key)? else { return Ok(default) };
        Ok(match &*name {
            "gelu" | "gelu_python" => Activation::Gelu,
            // One formula, written in several ways.
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
                Activation::GeluTanh
            }
            "relu" => Activation::Relu,
            "relu6" => Activation::Relu6,
            "leaky_relu" => Activation::LeakyRelu { slope: 0.01 },
            "silu" | "swish" => Activation::Silu,
            "mish" => Activation::Mish,
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            _ => {
                let known = "gelu, gelu_new, relu, relu6, leaky_relu, silu, mish, sigmoid, tanh";
                return Err(format!("{key} is {name:?}: only models with one of {known} can be loaded"));
            }
        })
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same file with another value of a key.
    pub(super) fn with(mut self, key: &str, value: String) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// What else reads the file.
    pub(super) fn all<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_value(Value::Object(self.0.clone())).map_err(|error| error.to_string())
    }
}

/// Refuses heads that do not divide `size`.
pub(super) fn check_heads(model: &'static str, heads: usize, size: usize) -> Result<()> {
    if heads > 0 && size.is_multiple_of(heads) {
        return Ok(());
    }
    Err(TensorError::argument(model, format!("{heads} attention heads do not divide a hidden size of {size}")))
}

/// The length of texts `[batch, length]`. `positions` says how long they can be, and what of the configuration says so.
pub(super) fn text_length(
    model: &'static str,
    tokens: &Tensor,
    positions: Option<(usize, &'static str)>,
) -> Result<usize> {
    let [_, length] = *tokens.sizes() else {
        let reason = format!("tokens of sizes [batch, length] are expected, got {:?}", tokens.sizes());
        return Err(TensorError::shape(model, reason));
    };
    match positions {
        Some((most, name)) if length > most => {
            let reason = format!("a text of {length} tokens; the model has {most} positions ({name})");
            Err(TensorError::shape(model, reason))
        }
        _ => Ok(length),
    }
}

/// A table of tokens. That of `padding`, counted from the end if it is negative, stands for nothing.
pub(super) fn token_table(
    scope: &Scope,
    count: usize,
    size: usize,
    init: Init,
    padding: Option<isize>,
) -> Result<Embedding> {
    match padding {
        Some(padding) => Embedding::padded(scope, count, size, init, padding),
        None => Embedding::with_init(scope, count, size, init),
    }
}
