//! Errors of problems, and the checks that find them.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use super::{ProblemAccess, ProblemParts};
use crate::file::one_line;

/// The reason why a problem could not be read or made. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// Any of the other errors, with the file in which it happened.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<ProblemError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not JSON, or has another structure.
    #[error("neither a problem nor a kernel trace: {}", one_line(.0))]
    Json(#[from] serde_json::Error),
    /// The problem is of a later version.
    #[error("version {found} of the format is not known: this program reads version {known}")]
    Version {
        /// The file's version.
        found: u64,
        /// The version that this program reads.
        known: u64,
    },
    /// A part of the problem is not valid.
    #[error("{what}: {reason}")]
    Part {
        /// The part, such as `kernel 3, "matmul"`.
        what: String,
        /// The problem with it, and a valid value.
        reason: String,
    },
}

impl ProblemError {
    pub(super) fn part(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Part { what: what.into(), reason: reason.into() }
    }

    pub(super) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile { path: path.into(), source: Box::new(self) }
    }
}

/// Checks everything that [`Problem`](super::Problem) guarantees.
pub(super) fn check(parts: &ProblemParts) -> Result<(), ProblemError> {
    check_tensors(parts)?;
    check_kernels(parts)?;
    check_tiers(parts)
}

fn check_tensors(parts: &ProblemParts) -> Result<(), ProblemError> {
    let mut keys = HashSet::new();
    let mut bytes = 0_u64;
    for (number, tensor) in parts.tensors.iter().enumerate() {
        let error = |reason: String| ProblemError::part(format!("tensor {number}, {:?}", tensor.key), reason);
        if tensor.key.is_empty() || !keys.insert(&tensor.key) {
            return Err(error("its key must be a word that no other tensor has".into()));
        }
        bytes = bytes.checked_add(tensor.bytes).ok_or_else(|| error("bytes of all tensors pass 64 bits".into()))?;
        if let Some(ratio) = tensor.compression.filter(|ratio| !(ratio.is_finite() && *ratio > 1.0)) {
            return Err(error(format!("compression is {ratio}, and must be more than 1 or left out")));
        }
        if tensor.is_always_there() && tensor.recompute.is_some() {
            return Err(error("a tensor that exists throughout is not computed again: leave recompute out".into()));
        }
        let inputs = tensor.recompute.iter().flat_map(|recompute| &recompute.inputs);
        if let Some(input) = inputs.copied().find(|input| *input >= parts.tensors.len() || *input == number) {
            return Err(error(format!("it cannot be computed again from tensor {input}")));
        }
    }
    Ok(())
}

fn check_kernels(parts: &ProblemParts) -> Result<(), ProblemError> {
    let (mut time, mut bytes) = (0_u64, 0_u64);
    for (number, kernel) in parts.kernels.iter().enumerate() {
        let error = |reason: String| ProblemError::part(format!("kernel {number}, {:?}", kernel.name), reason);
        time = time.checked_add(kernel.time_ns).ok_or_else(|| error("times of all kernels pass 64 bits".into()))?;
        for ProblemAccess { tensor, bytes: accessed } in kernel.accesses() {
            if *tensor >= parts.tensors.len() {
                return Err(error(format!("tensor {tensor} does not exist: there are {}", parts.tensors.len())));
            }
            bytes = bytes
                .checked_add(*accessed)
                .ok_or_else(|| error("bytes that kernels read and write pass 64 bits".into()))?;
        }
    }
    if let Some(backward) = parts.backward.filter(|backward| *backward >= parts.kernels.len()) {
        let reason = format!("it begins with kernel {backward}, and there are {}", parts.kernels.len());
        return Err(ProblemError::part("the backward pass", reason));
    }
    Ok(())
}

fn check_tiers(parts: &ProblemParts) -> Result<(), ProblemError> {
    for (number, tier) in parts.tiers.iter().enumerate() {
        let error = |reason: &str| ProblemError::part(format!("tier {number}, {:?}", tier.name), reason);
        if tier.read_bandwidth == 0 || tier.write_bandwidth == 0 {
            return Err(error("a bandwidth is 0, and must be more"));
        }
        let is_rising = tier.loaded.windows(2).all(|pair| pair[0][0] < pair[1][0] && pair[0][1] <= pair[1][1]);
        if !is_rising
            || !tier
                .loaded
                .iter()
                .all(|[share, factor]| (0.0..=1.0).contains(share) && factor.is_finite() && *factor >= 1.0)
        {
            return Err(error("loaded must be pairs of a share, 0 to 1, and a factor from 1 on, both rising"));
        }
    }
    for (number, link) in parts.links.iter().enumerate() {
        let error = |reason: String| ProblemError::part(format!("link {number}"), reason);
        let tiers = parts.tiers.len();
        if link.from >= tiers || link.to >= tiers || link.from == link.to {
            return Err(error(format!("it goes from tier {} to {}, and there are {tiers}", link.from, link.to)));
        }
        if link.bandwidth == 0 {
            return Err(error("its bandwidth is 0, and must be more".into()));
        }
        if let Some(other) = link.shared_with.filter(|other| *other >= parts.links.len() || *other == number) {
            return Err(error(format!("it cannot share its bandwidth with link {other}")));
        }
    }
    Ok(())
}
