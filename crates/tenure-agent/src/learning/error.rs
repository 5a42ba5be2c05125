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
    #[error("another agent learns into it: name another file")]
    Locked,
    #[error("it cannot be read: {0}: name another file")]
    Read(io::Error),
    #[error("it cannot be written: {0}: name a file in a folder where files can be made")]
    Write(#[from] io::Error),
    #[error("nothing learned is here: {0}: name another file, or remove it to begin anew")]
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
    #[error("a step of 0 ns, or kernels that all take 0 ns, cannot be: report times in nanoseconds")]
    NoTime,
    /// The step is shorter than one of its kernels.
    #[error(
        "a step of {step_ns} ns with a kernel of {kernel_ns} ns cannot be: report both of the same step, in nanoseconds"
    )]
    ShortStep {
        /// The step's time, in ns.
        step_ns: u64,
        /// The longest kernel's time, in ns.
        kernel_ns: u64,
    },
    /// A time is longer than an hour.
    #[error("{ns} ns are longer than an hour, which is not believed: report nanoseconds of one step")]
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
