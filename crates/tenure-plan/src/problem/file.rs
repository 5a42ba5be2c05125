//! Reads and writes problems: JSON in Tenure's versioned format, or a kernel trace.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure_core::user_files::text_without_mark;

use super::{
    Problem, ProblemError, ProblemKernel, ProblemLink, ProblemParts, ProblemTensor, ProblemTier, kernel_trace,
};
use crate::file::{read_text, write_json};

const FORMAT: &str = "tenure-problem";
const VERSION: u64 = 1;

/// The fields that are read first: the file's format and version.
#[derive(Deserialize)]
struct ProblemHead {
    format: Option<String>,
    version: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadProblem {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    name: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    tiers: Vec<ProblemTier>,
    #[serde(default)]
    links: Vec<ProblemLink>,
    tensors: Vec<ProblemTensor>,
    kernels: Vec<ProblemKernel>,
    backward: Option<usize>,
}

#[derive(Serialize)]
struct WrittenProblem<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    parts: &'a ProblemParts,
}

impl Problem {
    /// Reads the file at `path`: a problem written by [`write`](Self::write) or by hand, or a kernel trace. The content
    /// tells which.
    ///
    /// # Errors
    /// One line that names the file, and the line and column or the part that is wrong.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ProblemError> {
        let path = path.as_ref();
        let read = || Self::from_json(&read_text(path)?);
        read().map_err(|error| error.in_file(path))
    }

    /// Reads a problem from JSON text.
    ///
    /// # Errors
    /// The same as of [`read`](Self::read), without the file's name.
    pub fn from_json(text: &str) -> Result<Self, ProblemError> {
        let text = text_without_mark(text);
        let head: ProblemHead = serde_json::from_str(text)?;
        if head.format.as_deref() != Some(FORMAT) {
            return kernel_trace::from_json(text);
        }
        match head.version {
            Some(VERSION) => {}
            found => return Err(ProblemError::Version { found: found.unwrap_or(0), known: VERSION }),
        }
        let ReadProblem { name, source, tiers, links, tensors, kernels, backward, .. } = serde_json::from_str(text)?;
        Self::new(ProblemParts { name, source, tiers, links, tensors, kernels, backward })
    }

    /// Returns the problem as JSON text.
    ///
    /// # Errors
    /// No known case: JSON can express every problem.
    pub fn to_json(&self) -> Result<String, ProblemError> {
        Ok(serde_json::to_string(&WrittenProblem { format: FORMAT, version: VERSION, parts: &self.parts })?)
    }

    /// Writes the problem as JSON. The file is replaced atomically.
    ///
    /// # Errors
    /// The file system's error, with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ProblemError> {
        let path = path.as_ref();
        let all = WrittenProblem { format: FORMAT, version: VERSION, parts: &self.parts };
        write_json(path, &all).map_err(|error| ProblemError::Io(error).in_file(path))
    }
}
