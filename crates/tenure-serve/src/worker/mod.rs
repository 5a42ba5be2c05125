//! Workers: processes that compute for a server, so that a failing network affects only its own process.
//!
//! A server keeps the weights, in sealed memory, and makes all decisions; it never runs a network. On the CPU each
//! model that is computed has a worker, which maps the images that it needs, so that nothing is copied. One more worker
//! stands by. If a worker dies, a batch that had not begun is run again, once; one that had begun is answered with an
//! error. A worker that gives no sign of life is killed. One whose batches take long yields the processors to the others.
//!
//! A program that starts itself as its workers must call [`run`] before all else when it is started as one, with the
//! same architectures:
//!
//! ```no_run
//! use std::env;
//! use std::process::ExitCode;
//!
//! use tenure_nn::networks::Architectures;
//! use tenure_serve::serving::{Serving, ServingOptions};
//! use tenure_serve::worker::{self, WorkerCommand};
//!
//! fn main() -> ExitCode {
//!     let mut architectures = Architectures::default();
//!     // architectures.register("mine", ...);
//!     if env::args().nth(1).as_deref() == Some("worker") {
//!         return worker::run(architectures);
//!     }
//!     let mut options = ServingOptions::new("models", 4 << 30);
//!     options.worker = Some(WorkerCommand::this_program(["worker"]));
//!     let serving = Serving::start(options, architectures);
//!     // ...
//! #   drop(serving);
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! **Communication.** A pair of Unix sockets connects server and worker; the worker's end is its standard input.
//! `message` has the messages. The server sends an image's descriptor, and later the groups of the image that are
//! loaded. A worker waits for a group at its first use, and reports when that was. When the socket closes, the worker
//! ends, whatever it does, so that no worker outlives its server.
//!
//! On a CUDA device the server manages the memory too: it lends a model, whose chunks the worker maps for reading, and
//! the worker's computation waits on the device for each group. Before chunks go to another model, the worker unmaps
//! them and reports it, or has ended.
//!
//! PyTorch modules are computed by further processes, Pythons, which are started when there is such a model: one for
//! each model on the CPU, and one for each CUDA device. They hold the weights themselves, and load and free them as the
//! server orders. Their messages are JSON.

mod life;
mod link;
mod loans;
mod message;
mod pool;
mod process;
mod python;
mod socket;
mod subprocess;
mod weights;
mod worker_model;
mod workers;

use std::ffi::OsString;
use std::path::PathBuf;

pub use process::run;

pub(crate) use python::{Python, Pythons};
pub(crate) use weights::LentWeights;
pub(crate) use workers::Workers;

/// The environment variable that marks a worker. A process that has it starts no workers, since these would start
/// others in turn.
const IS_WORKER: &str = "TENURE_WORKER";

/// The command that starts a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program, which calls [`run`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// Returns the command of a Python that computes PyTorch modules. It must have the package `tenure` and PyTorch
    /// installed.
    pub fn python(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: vec!["-m".into(), "tenure.serving.worker".into()] }
    }

    /// Returns the command that starts the running program again, with other arguments.
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        // The program's path would lead to a newer version after an upgrade.
        Self { program: "/proc/self/exe".into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }
}
