//! The errors of learning.

use std::io;
use std::path::PathBuf;

use tenure_plan::ProblemError;

/// The reason why a learner's file cannot be read or written. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct LearnedError {
    /// The file.
    pub(super) path: PathBuf,
    pub(super) reason: FileProblem,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum FileProblem {
    #[error("another agent writes this file: name another one")]
    Locked,
    #[error("it cannot be read: {0}: name another file")]
    Read(io::Error),
    #[error("it cannot be written: {0}: name a file in a folder that you may write to")]
    Write(#[from] io::Error),
    #[error("the file does not hold learned costs: {0}: name another file, or remove this one to begin anew")]
    Other(String),
}

impl From<serde_json::Error> for FileProblem {
    fn from(error: serde_json::Error) -> Self {
        Self::Other(error.to_string().replace(['\n', '\r'], " "))
    }
}

impl From<ProblemError> for FileProblem {
    fn from(error: ProblemError) -> Self {
        Self::Other(format!("a problem in it: {}", error.to_string().replace(['\n', '\r'], " ")))
    }
}

/// The reason why measured times are not learned from. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The mapping is not of this agent, or too old.
    #[error("{:?} is not a mapping that this agent remembers: ask it again, and report times of the new one", .0.display().to_string())]
    Mapping(PathBuf),
    /// The times are of another problem.
    #[error("times of {found} kernel{}: the mapping's problem has {kernels}: report a time for each", plural(*found as u64))]
    Kernels {
        /// The number of times that were reported.
        found: usize,
        /// The number of kernels of the problem.
        kernels: usize,
    },
    /// The step, or every kernel, has a time of 0.
    #[error("the step, or all of its kernels, take 0 ns: report times in nanoseconds")]
    NoTime,
    /// The step is shorter than one of its kernels.
    #[error(
        "a kernel takes {kernel_ns} ns, longer than its step of {step_ns} ns: report both of the same step, in nanoseconds"
    )]
    ShortStep {
        /// The step's time, in ns.
        step_ns: u64,
        /// The longest kernel's time, in ns.
        kernel_ns: u64,
    },
    /// A time is longer than an hour.
    #[error("{ns} ns are longer than an hour: report nanoseconds of one step")]
    TooLong {
        /// The longest time, in ns.
        ns: u64,
    },
    /// The learner's file cannot be written.
    #[error(transparent)]
    File(#[from] LearnedError),
}

/// Returns the plural ending of a noun after `number`.
pub(crate) fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}
