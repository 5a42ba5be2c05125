//! Mappings: the tier in which each tensor of a program lives. `docs/reference/mapping-format.md` documents
//! their file format.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tenure_core::user_files::text_without_mark;

use crate::file::{one_line, read_text, write_json};
use crate::{Plan, PlanError, Problem};

const FORMAT: &str = "tenure-mapping";
const VERSION: u64 = 1;

/// The tiers in which the tensors of a program live, by the tensors' keys. Keys, not indices: another tensor would
/// shift the indices.
///
/// Every mapping has been validated: it has at least one tier, tier names are unique, and each place is one of the
/// tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mapping {
    program: String,
    tiers: Vec<String>,
    /// The tier's number for each key.
    places: BTreeMap<String, usize>,
}

/// Why a mapping could not be read or made. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// Any of the other errors, with the file in which it happened.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<MappingError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not JSON, or has another structure.
    #[error("not a mapping: {}", one_line(.0))]
    Json(#[from] serde_json::Error),
    /// The file is of another kind.
    #[error("not a mapping: its format is {found:?}, not {FORMAT:?}")]
    Format {
        /// The format that the file names.
        found: String,
    },
    /// The mapping is of a later version.
    #[error("version {found} of the format is not known: this program reads version {VERSION}")]
    Version {
        /// The file's version.
        found: u64,
    },
    /// The tiers are not valid.
    #[error("a mapping needs at least one tier, each with a name of its own, got {tiers:?}")]
    Tiers {
        /// Their names.
        tiers: Vec<String>,
    },
    /// A tier number is too large.
    #[error("{key:?} is mapped to tier {tier}, but the mapping has only {tiers} tiers")]
    Place {
        /// The tensor's key.
        key: String,
        /// The tier's number.
        tier: usize,
        /// The number of tiers.
        tiers: usize,
    },
    /// The plan belongs to another problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be expressed as a mapping.
    #[error(
        "{key:?} does not stay where it is: a mapping is made of a plan in which no tensor moves, as for the score"
    )]
    Moves {
        /// The tensor's key.
        key: String,
    },
}

/// The fields that are read first: the file's format and version.
#[derive(Deserialize)]
struct MappingHead {
    format: String,
    version: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadMapping {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    #[serde(default)]
    program: String,
    tiers: Vec<String>,
    #[serde(deserialize_with = "places")]
    places: BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct WrittenMapping<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    mapping: &'a Mapping,
}

impl Mapping {
    /// Makes a mapping of `places`, which holds the tier's number for each key. A tensor without a place lives in the
    /// first tier.
    ///
    /// # Errors
    /// There are no tiers, two tiers have one name, or a place is in none of them.
    pub fn new(
        program: impl Into<String>,
        tiers: Vec<String>,
        places: BTreeMap<String, usize>,
    ) -> Result<Self, MappingError> {
        if tiers.is_empty()
            || !tiers.iter().all(|tier| !tier.is_empty() && tiers.iter().filter(|other| *other == tier).count() == 1)
        {
            return Err(MappingError::Tiers { tiers });
        }
        if let Some((key, tier)) = places.iter().find(|(_, tier)| **tier >= tiers.len()) {
            return Err(MappingError::Place { key: key.clone(), tier: *tier, tiers: tiers.len() });
        }
        Ok(Self { program: program.into(), tiers, places })
    }

    /// Makes the mapping of a plan in which every tensor stays in the tier where it is created.
    ///
    /// # Errors
    /// The plan belongs to another problem, or a tensor moves or is dropped.
    pub fn of_plan(problem: &Problem, plan: &Plan) -> Result<Self, MappingError> {
        let tensors = problem.tensors();
        if plan.places.len() != tensors.len() {
            return Err(PlanError::Places { found: plan.places.len(), tensors: tensors.len() }.into());
        }
        if let Some(step) = plan.steps.first() {
            let key = tensors.get(step.tensor).map_or_else(String::new, |tensor| tensor.key.clone());
            return Err(MappingError::Moves { key });
        }
        let places = tensors.iter().zip(&plan.places).map(|(tensor, tier)| (tensor.key.clone(), *tier)).collect();
        Self::new(problem.name(), problem.tiers().iter().map(|tier| tier.name.clone()).collect(), places)
    }

    /// Returns the program's name.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the names of all tiers. A tensor without a place lives in the first.
    pub fn tiers(&self) -> &[String] {
        &self.tiers
    }

    /// Returns the number of the tier where a key's tensor lives; `None` if it has no place.
    pub fn place(&self, key: &str) -> Option<usize> {
        self.places.get(key).copied()
    }

    /// Returns all keys that have a place, sorted, with the numbers of their tiers.
    pub fn places(&self) -> impl Iterator<Item = (&str, usize)> {
        self.places.iter().map(|(key, tier)| (&**key, *tier))
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// One line that names the file and says what is wrong with it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, MappingError> {
        let path = path.as_ref();
        let read = || Self::from_json(&read_text(path)?);
        read().map_err(|error| error.in_file(path))
    }

    /// Reads a mapping from JSON text.
    ///
    /// # Errors
    /// The same as of [`read`](Self::read), without the file's name.
    pub fn from_json(text: &str) -> Result<Self, MappingError> {
        let text = text_without_mark(text);
        let MappingHead { format, version } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(MappingError::Format { found: format });
        }
        if version != VERSION {
            return Err(MappingError::Version { found: version });
        }
        let ReadMapping { program, tiers, places, .. } = serde_json::from_str(text)?;
        Self::new(program, tiers, places)
    }

    /// Writes the mapping as JSON. The file is replaced atomically: a concurrent reader sees either the old or the new
    /// content.
    ///
    /// # Errors
    /// The file system's error, with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), MappingError> {
        let path = path.as_ref();
        let all = WrittenMapping { format: FORMAT, version: VERSION, mapping: self };
        write_json(path, &all).map_err(|error| MappingError::Io(error).in_file(path))
    }
}

impl MappingError {
    fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile { path: path.into(), source: Box::new(self) }
    }
}

/// Reads the places; refuses a key that occurs twice.
fn places<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, usize>, D::Error> {
    struct Places;

    impl<'de> Visitor<'de> for Places {
        type Value = BTreeMap<String, usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the number of a tier for each key")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut places = BTreeMap::new();
            while let Some((key, tier)) = map.next_entry::<String, usize>()? {
                if places.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("{key:?} has two places")));
                }
                places.insert(key, tier);
            }
            Ok(places)
        }
    }
    deserializer.deserialize_map(Places)
}
