//! Mappings: in which tier each tensor of a program lives. `docs/mapping-format.md` has them as files.

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

/// Where the tensors of a program live, by their keys: never by their order, which another tensor changes.
///
/// Every mapping has been validated: it has a tier, no two have one name, and each place is one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mapping {
    program: String,
    tiers: Vec<String>,
    /// The number of each key's tier.
    places: BTreeMap<String, usize>,
}

/// Why a mapping could not be read or made. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// Any of the others, with the file it happened in.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: Box<MappingError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not JSON, or of another form.
    #[error("no mapping: {}", one_line(.0))]
    Json(#[from] serde_json::Error),
    /// Another kind of file.
    #[error("no mapping: its format is {found:?}, not {FORMAT:?}")]
    Format {
        /// What it says that it is.
        found: String,
    },
    /// A mapping of a later version.
    #[error("version {found} of the format is not known: this program reads version {VERSION}")]
    Version {
        /// The file's.
        found: u64,
    },
    /// Tiers that cannot be.
    #[error("a mapping has one tier at least, each with a name of its own, got {tiers:?}")]
    Tiers {
        /// Their names.
        tiers: Vec<String>,
    },
    /// A number too large.
    #[error("{key:?} is to live in tier {tier}: there are {tiers}")]
    Place {
        /// The tensor's key.
        key: String,
        /// Its tier.
        tier: usize,
        /// How many there are.
        tiers: usize,
    },
    /// A plan of another problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that a mapping cannot say.
    #[error(
        "{key:?} does not stay where it is: a mapping is made of a plan in which no tensor moves, as for the score"
    )]
    Moves {
        /// The tensor's key.
        key: String,
    },
}

/// What is looked at first: what it says that it is.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
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
struct Written<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    mapping: &'a Mapping,
}

impl Mapping {
    /// A mapping of `places`, by key the number of a tier. What has no place lives in the first.
    ///
    /// # Errors
    /// No tiers, two of one name, or a place in none of them.
    pub fn new(
        program: impl Into<String>,
        tiers: Vec<String>,
        places: BTreeMap<String, usize>,
    ) -> Result<Self, MappingError> {
        let is_named = |tier: &String| !tier.is_empty() && tiers.iter().filter(|other| *other == tier).count() == 1;
        if tiers.is_empty() || !tiers.iter().all(is_named) {
            return Err(MappingError::Tiers { tiers });
        }
        if let Some((key, tier)) = places.iter().find(|(_, tier)| **tier >= tiers.len()) {
            return Err(MappingError::Place { key: key.clone(), tier: *tier, tiers: tiers.len() });
        }
        Ok(Self { program: program.into(), tiers, places })
    }

    /// The mapping of a plan in which all tensors stay where they come to be.
    ///
    /// # Errors
    /// A plan of another problem, or one in which a tensor moves or is given up.
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

    /// What the program is called.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The names of all tiers. What has no place lives in the first.
    pub fn tiers(&self) -> &[String] {
        &self.tiers
    }

    /// The number of the tier where a key lives; none if it has no place.
    pub fn place(&self, key: &str) -> Option<usize> {
        self.places.get(key).copied()
    }

    /// All keys that have a place, in their order, with the numbers of their tiers.
    pub fn places(&self) -> impl Iterator<Item = (&str, usize)> {
        self.places.iter().map(|(key, tier)| (&**key, *tier))
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// One line that names the file, and what is wrong with it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, MappingError> {
        let path = path.as_ref();
        let read = || Self::from_json(&read_text(path)?);
        read().map_err(|error| error.in_file(path))
    }

    /// The mapping that a text of JSON says.
    ///
    /// # Errors
    /// As of [`read`](Self::read), without the file's name.
    pub fn from_json(text: &str) -> Result<Self, MappingError> {
        let text = text_without_mark(text);
        let Head { format, version } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(MappingError::Format { found: format });
        }
        if version != VERSION {
            return Err(MappingError::Version { found: version });
        }
        let Read { program, tiers, places, .. } = serde_json::from_str(text)?;
        Self::new(program, tiers, places)
    }

    /// Writes the mapping as JSON. The file appears whole or not at all, so that whoever reads it meanwhile has the one
    /// before or this one.
    ///
    /// # Errors
    /// What the file system said, with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), MappingError> {
        let path = path.as_ref();
        let all = Written { format: FORMAT, version: VERSION, mapping: self };
        write_json(path, &all).map_err(|error| MappingError::Io(error).in_file(path))
    }
}

impl MappingError {
    fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile { path: path.into(), source: Box::new(self) }
    }
}

/// Places of which no key is there twice.
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
