//! The configuration of a model, and its validation.

use std::collections::BTreeSet;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use super::RepositoryError;
use super::files::{Folder, is_inside};
use super::positions::max_tokens;
use crate::protocol::Datatype;

const CONFIG: &str = "config.toml";
/// The architecture name of models that PyTorch computes.
pub(super) const PYTORCH: &str = "pytorch";
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The largest JSON file in bytes: an index has a line for each tensor.
pub(super) const MAX_JSON_BYTES: u64 = 64 << 20;

/// The configuration of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The registered name of the architecture that builds the model; `pytorch` if a Python function does.
    pub architecture: String,
    /// The function that loads the model, if it is a PyTorch module.
    pub python: Option<PythonFunction>,
    /// The options of the architecture: the table `options`, or the contents of the file `config`.
    pub options: Map<String, Value>,
    /// The file or index of the weights, inside the folder; `None` if only the model's code knows it.
    pub weights: Option<String>,
    /// The dtype of the weights; `None`: as they are stored, which is the only dtype that is served yet.
    pub dtype: Option<WeightDtype>,
    /// The inputs of a request.
    pub inputs: Vec<TensorSpec>,
    /// The outputs of an answer.
    pub outputs: Vec<TensorSpec>,
    /// The batching of requests.
    pub batching: Batching,
    /// The priority of the model's requests, from -10 to 10; the highest go first.
    pub priority: i32,
    /// Whether the weights stay on a device.
    pub is_pinned: bool,
    /// The longest time of a request. A request may state a shorter one.
    pub timeout: Option<Duration>,
    /// The most tokens of a row: the positions that the model knows.
    pub max_tokens: Option<u64>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// The name; no two inputs have the same, nor two outputs.
    #[serde(deserialize_with = "not_empty")]
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// The shape, whose first dimension is the batch.
    pub shape: Vec<Dimension>,
}

/// The dtypes that weights may be converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "their names say all")]
pub enum WeightDtype {
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

/// One size of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub enum Dimension {
    /// Any size.
    Free,
    /// This size.
    Fixed(u64),
}

impl fmt::Display for Dimension {
    /// Writes the size as in a configuration.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => formatter.write_str("-1"),
            Self::Fixed(size) => size.fmt(formatter),
        }
    }
}

impl TryFrom<i64> for Dimension {
    type Error = &'static str;

    fn try_from(size: i64) -> Result<Self, Self::Error> {
        match size {
            -1 => Ok(Self::Free),
            1.. => Ok(Self::Fixed(size.unsigned_abs())),
            _ => Err("a size is -1, which is any, or at least 1"),
        }
    }
}

/// The batching of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batching {
    /// The most rows of a batch.
    pub max_rows: NonZeroU32,
    /// The longest time that a request waits for others.
    #[serde(rename = "max_delay_ms", deserialize_with = "delay")]
    pub max_delay: Duration,
}

impl Default for Batching {
    fn default() -> Self {
        Self { max_rows: NonZeroU32::MIN, max_delay: Duration::ZERO }
    }
}

/// The configuration as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, deserialize_with = "some_not_empty")]
    architecture: Option<String>,
    python: Option<String>,
    options: Option<Map<String, Value>>,
    config: Option<String>,
    weights: Option<String>,
    dtype: Option<WeightDtype>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    #[serde(default)]
    batching: Batching,
    #[serde(default, deserialize_with = "priority")]
    priority: i32,
    #[serde(default)]
    pinned: bool,
    timeout_ms: Option<NonZeroU64>,
    max_tokens: Option<NonZeroU64>,
}

impl Config {
    /// Returns whether a folder has the file of a configuration.
    pub(super) fn is_in(folder: &Folder) -> bool {
        folder.path(CONFIG).exists()
    }

    /// Reads the file of a folder's configuration.
    pub(super) fn read(folder: &Folder) -> Result<Self, RepositoryError> {
        let text = folder.text(CONFIG, MAX_CONFIG_BYTES)?;
        let written: Written = toml::from_str(&text).map_err(|error| at_line(folder, &text, &error))?;
        let value = |key: &str, given: String, allowed| {
            let path = folder.path(CONFIG);
            let key = key.into();
            RepositoryError::Value { path, key, given, allowed }
        };
        let inside = |key: &str, name: String| match is_inside(&name) {
            true => Ok(name),
            false => Err(value(key, format!("is {name:?}"), "it must be a path inside the model's folder")),
        };
        let without = |key: &str, is_there: bool| match is_there {
            true => Err(value(key, "is there".into(), "it goes with no python: leave one of them out")),
            false => Ok(()),
        };
        if written.python.is_some() {
            without("architecture", written.architecture.is_some())?;
            without("options", written.options.is_some())?;
            without("config", written.config.is_some())?;
            without("dtype", written.dtype.is_some())?;
        }
        let python = written.python.map(|python| {
            let allowed = "it must be \"FILE.py:FUNCTION\", a file inside the model's folder, or \"MODULE:FUNCTION\"";
            python.parse().map_err(|()| value("python", format!("is {python:?}"), allowed))
        });
        let python: Option<PythonFunction> = python.transpose()?;
        let architecture = match (written.architecture, &python) {
            (Some(architecture), _) => architecture,
            (None, Some(_)) => PYTORCH.into(),
            (None, None) => {
                return Err(value("architecture", "is not there".into(), "name one, or a function as python"));
            }
        };
        let options = match (written.options, written.config) {
            (Some(_), Some(_)) => {
                let allowed = "it goes with no [options]: leave one of them out";
                return Err(value("config", "is there".into(), allowed));
            }
            (None, Some(name)) => json(folder, &inside("config", name)?)?,
            (options, None) => options.unwrap_or_default(),
        };
        let weights = match written.weights {
            Some(weights) => Some(inside("weights", weights)?),
            None if python.is_some() => None,
            None => Some("model.safetensors".into()),
        };
        for (key, tensors) in [("inputs", &written.inputs), ("outputs", &written.outputs)] {
            if tensors.is_empty() {
                return Err(value(key, "is empty".into(), "a model has at least one"));
            }
            let mut names = BTreeSet::new();
            if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
                return Err(value(key, format!("has {:?} twice", twice.name), "names must differ"));
            }
            let fixed = tensors.iter().find(|tensor| tensor.shape.first() != Some(&Dimension::Free));
            if let Some(tensor) = fixed.filter(|_| written.batching.max_rows > NonZeroU32::MIN) {
                let given = format!("has {:?} of a first size that is not -1", tensor.name);
                return Err(value(key, given, "it must be, or max_rows 1, for rows are batched along it"));
            }
        }
        let max_tokens = written.max_tokens.map(NonZeroU64::get).or_else(|| max_tokens(&options));
        Ok(Self {
            architecture,
            python,
            max_tokens,
            options,
            weights,
            dtype: written.dtype,
            inputs: written.inputs,
            outputs: written.outputs,
            batching: written.batching,
            priority: written.priority,
            is_pinned: written.pinned,
            timeout: written.timeout_ms.map(|ms| Duration::from_millis(ms.get())),
        })
    }
}

/// Reads a JSON file that has one object and is not too long.
pub(super) fn json<T: de::DeserializeOwned>(folder: &Folder, name: &str) -> Result<T, RepositoryError> {
    let text = folder.text(name, MAX_JSON_BYTES)?;
    serde_json::from_str(&text)
        .map_err(|error| RepositoryError::Json { path: folder.path(name), message: error.to_string() })
}

fn at_line(folder: &Folder, text: &str, error: &toml::de::Error) -> RepositoryError {
    // An error without a span, such as a missing key of the whole file, is shown at the file's start.
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
    let shown = text.lines().nth(line).unwrap_or_default().trim().chars().take(80).collect();
    let message = error.message().replace('\n', ", ");
    RepositoryError::Toml { path: folder.path(CONFIG), line: line + 1, message, text: shown }
}

fn not_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() { Err(de::Error::custom("it must not be empty")) } else { Ok(text) }
}

fn some_not_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    not_empty(from).map(Some)
}

fn priority<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    let priority = i64::deserialize(from)?;
    let in_range = i32::try_from(priority).ok().filter(|priority| (-10..=10).contains(priority));
    in_range.ok_or_else(|| de::Error::custom(format!("a priority is from -10 to 10, not {priority}")))
}

fn delay<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

/// A Python function that loads a PyTorch module: called with the model's folder, it returns a `torch.nn.Module` on the
/// CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFunction {
    /// A file inside the model's folder whose name ends with `.py`, or else the name of an importable Python module.
    pub source: String,
    /// The function's name.
    pub function: String,
}

impl PythonFunction {
    /// Returns the file inside the model's folder, if the source is one.
    pub fn file(&self) -> Option<&str> {
        self.source.ends_with(".py").then_some(&self.source)
    }
}

impl FromStr for PythonFunction {
    type Err = ();

    /// Reads `FILE.py:FUNCTION` or `MODULE:FUNCTION`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (source, function) = text.rsplit_once(':').ok_or(())?;
        let is_source = if source.ends_with(".py") { is_inside(source) } else { source.split('.').all(is_identifier) };
        let python = Self { source: source.into(), function: function.into() };
        if is_source && is_identifier(function) { Ok(python) } else { Err(()) }
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|letter| letter == '_' || letter.is_alphanumeric())
        && !name.starts_with(|first: char| first.is_ascii_digit())
}
