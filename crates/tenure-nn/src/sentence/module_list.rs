//! The files of sentence-transformers that describe an encoder's modules: the list of them, and the `config.json` of a
//! Pooling.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The file that lists a folder's modules. Only folders of sentence-transformers have it.
pub const MODULES: &str = "modules.json";

/// A module that [`MODULES`] lists.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedModule {
    /// The module's folder, relative to the encoder's.
    pub path: String,
    /// The module's class in Python, after its package.
    #[serde(rename = "type")]
    pub class: String,
}

impl ListedModule {
    /// Returns the class without its package, since releases renamed the packages.
    pub fn kind(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }
}

/// Returns the model's folder among an encoder's modules, relative to the encoder's folder. It is empty if it is that
/// folder.
pub fn model_path(modules: &[ListedModule]) -> &str {
    modules.first().filter(|first| first.kind() == "Transformer").map_or("", |first| &first.path)
}

/// A way to pool the vectors of a text's tokens into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolingMode {
    /// The first token's vector.
    Cls,
    /// The largest value of each element.
    Max,
    /// The average.
    Mean,
    /// The sum, divided by the root of the number of tokens.
    MeanSqrtLenTokens,
    /// The average in which the second token counts twice, the third three times, and so on.
    WeightedMean,
    /// The last token's vector.
    LastToken,
}

impl PoolingMode {
    /// The modes with their names, and with their keys in older releases, in the order of their vectors.
    const ALL: [(Self, &str, &str); 6] = [
        (Self::Cls, "cls", "pooling_mode_cls_token"),
        (Self::Max, "max", "pooling_mode_max_tokens"),
        (Self::Mean, "mean", "pooling_mode_mean_tokens"),
        (Self::MeanSqrtLenTokens, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
        (Self::WeightedMean, "weightedmean", "pooling_mode_weightedmean_tokens"),
        (Self::LastToken, "lasttoken", "pooling_mode_lasttoken"),
    ];

    /// Reads the modes from the `config.json` of a Pooling. Their vectors are joined in this order. If no mode is
    /// given, or all keys of older releases are false, the mode is [`Self::Mean`], as in sentence-transformers.
    ///
    /// # Errors
    /// The name or the key of a mode is unknown.
    pub fn read(config: &Map<String, Value>) -> Result<Vec<Self>, String> {
        match config.get("pooling_mode") {
            Some(Value::Array(modes)) if !modes.is_empty() => modes.iter().map(Self::named).collect(),
            Some(mode) => Ok(vec![Self::named(mode)?]),
            None => Self::of_older_release(config),
        }
    }

    fn named(name: &Value) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, known, _)| name == known);
        found.map(|(mode, ..)| mode).ok_or_else(|| name.as_str().map_or_else(|| name.to_string(), String::from))
    }

    fn of_older_release(config: &Map<String, Value>) -> Result<Vec<Self>, String> {
        let is_on = |key: &str| config.get(key) == Some(&Value::Bool(true));
        let mut given = config.keys().filter(|key| key.starts_with("pooling_mode_") && is_on(key));
        if let Some(unknown) = given.find(|key| Self::ALL.iter().all(|(.., known)| key != known)) {
            return Err(unknown.clone());
        }
        let modes: Vec<Self> = Self::ALL.into_iter().filter(|(.., key)| is_on(key)).map(|(mode, ..)| mode).collect();
        Ok(if modes.is_empty() { vec![Self::Mean] } else { modes })
    }
}

/// Formats a mode by its name.
impl fmt::Display for PoolingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(mode, ..)| mode == self).map_or("", |(_, name, _)| *name);
        f.write_str(name)
    }
}

/// Returns the size of a token's vector that the `config.json` of a Pooling states, with the key that states it, if one
/// does.
pub fn token_width(config: &Map<String, Value>) -> Option<(&str, &Value)> {
    let keys = ["word_embedding_dimension", "embedding_dimension"];
    keys.into_iter().find_map(|key| config.get_key_value(key)).map(|(key, width)| (&**key, width))
}
