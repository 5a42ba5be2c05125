//! Reader of Hugging Face's `config.json`. A key that changes a model's computation is either a field of its
//! configuration, or has a single value that our models support; files with other values are refused.

use std::fmt::Debug;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_tensor::{Result, Tensor, TensorError};

use crate::layers::{Activation, Embedding};
use crate::{Init, Scope};

/// The keys of one file. A null value counts as missing, except where null has a meaning.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct ConfigFile(Map<String, Value>);

/// The reason why a file is refused.
pub(super) type Refusal = String;

impl ConfigFile {
    /// Returns the value of a required key.
    pub(super) fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T, Refusal> {
        self.optional(key)?.ok_or_else(|| format!("missing field `{key}`"))
    }

    /// Returns the value of a key, if present.
    pub(super) fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let value = self.0.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| format!("{key}: {error}"))
    }

    /// Returns the value of a key, or Hugging Face's default.
    pub(super) fn or<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<T, Refusal> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// Returns the value of a key that may be null, or Hugging Face's default.
    pub(super) fn nullable<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<Option<T>, Refusal> {
        if self.0.contains_key(key) { self.optional(key) } else { Ok(Some(default)) }
    }

    /// Refuses a file in which `key` has another value than `known`. `known` is the only value that our models support,
    /// and Hugging Face's default.
    pub(super) fn only<T: DeserializeOwned + PartialEq + Debug>(&self, key: &str, known: T) -> Result<(), Refusal> {
        match self.optional::<T>(key)? {
            Some(found) if found != known => {
                Err(format!("{key} is {found:?}: only models with {known:?} can be loaded"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a model with pruned heads.
    pub(super) fn no_heads_are_pruned(&self) -> Result<(), Refusal> {
        self.only("pruned_heads", Map::new())
    }

    /// Returns the activation that a key names, with Transformers' names.
    pub(super) fn activation(&self, key: &str, default: Activation) -> Result<Activation, Refusal> {
        let Some(name) = self.optional::<String>(key)? else { return Ok(default) };
        Ok(match &*name {
            "gelu" | "gelu_python" => Activation::Gelu,
            // All five are one formula, written in different ways.
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

    /// Returns whether the file has no key.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the value of a key.
    pub(super) fn with(mut self, key: &str, value: String) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Deserializes the whole file as another type.
    pub(super) fn all<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_value(Value::Object(self.0.clone())).map_err(|error| error.to_string())
    }
}

/// Fails unless `heads` divides `size`.
pub(super) fn check_heads(model: &'static str, heads: usize, size: usize) -> Result<()> {
    if heads > 0 && size.is_multiple_of(heads) {
        return Ok(());
    }
    Err(TensorError::argument(model, format!("{heads} attention heads do not divide a hidden size of {size}")))
}

/// Divides vectors `[batch, length, size]` among heads: `[batch, heads, length, size / heads]`.
pub(super) fn split_heads(vectors: &Tensor, heads: usize) -> Result<Tensor> {
    vectors.unflatten(-1, &[heads as isize, -1])?.transpose(1, 2)
}

/// Returns the length of texts `[batch, length]`. `positions` is the longest length and the name of the key that sets
/// it.
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

/// Makes a table of tokens. The row `padding`, counted from the end if negative, is for padding.
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
