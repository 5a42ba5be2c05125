//! Problems as files: JSON, in a format of our own that has a version, or a kernel trace.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure_core::user_files::text_without_mark;

use super::{Kernel, Link, Parts, Problem, ProblemError, Tensor, Tier, kernel_trace};
use crate::file::{read_text, write_json};

const FORMAT: &str = "tenure-problem";
const VERSION: u64 = 1;

/// What is looked at first: what it says that it is.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    name: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    tiers: Vec<Tier>,
    #[serde(default)]
    links: Vec<Link>,
    tensors: Vec<Tensor>,
    kernels: Vec<Kernel>,
    backward: Option<usize>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    parts: &'a Parts,
}

impl Problem {
    /// Reads the file at `path`: a problem that [`write`](Self::write) wrote or that was written by hand, or a kernel
    /// trace, told apart by content.
    ///
    /// # Errors
    /// One line that names the file, and the line and column or the part that is wrong.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ProblemError> {
        let path = path.as_ref();
        let read = || Self::from_json(&read_text(path)?);
        read().map_err(|error| error.in_file(path))
    }

    /// The problem that a text of JSON says.
    ///
    /// # Errors
    /// As of [`read`](Self::read), without the file's name.
    pub fn from_json(text: &str) -> Result<Self, ProblemError> {
        let text = text_without_mark(text);
        let head: Head = serde_json::from_str(text)?;
        if head.format.as_deref() != Some(FORMAT) {
            return kernel_trace::from_json(text);
        }
        match head.version {
            Some(VERSION) => {}
            found => return Err(ProblemError::Version { found: found.unwrap_or(0), known: VERSION }),
        }
        let Read { name, source, tiers, links, tensors, kernels, backward, .. } = serde_json::from_str(text)?;
        Self::new(Parts { name, source, tiers, links, tensors, kernels, backward })
    }

    /// The problem as a text of JSON.
    ///
    /// # Errors
    /// None that is known of: all that a problem has, JSON can say.
    pub fn to_json(&self) -> Result<String, ProblemError> {
        Ok(serde_json::to_string(&Written { format: FORMAT, version: VERSION, parts: &self.parts })?)
    }

    /// Writes the problem as JSON. The file appears whole or not at all.
    ///
    /// # Errors
    /// What the file system said, with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ProblemError> {
        let path = path.as_ref();
        let all = Written { format: FORMAT, version: VERSION, parts: &self.parts };
        write_json(path, &all).map_err(|error| ProblemError::Io(error).in_file(path))
    }
}
