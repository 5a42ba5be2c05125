//! Workers: processes that compute for a server, so that what a network does to its process happens to no other.
//!
//! A server keeps the weights, in sealed memory, and decides; it never runs a network. An active worker computes one batch after
//! the other, and maps the images that it needs: nothing is copied. Another one stands by, for when the first one dies. A batch
//! that had not begun is run again then, once; one that had is answered with an error.
//!
//! A program whose workers are itself calls [`run`] when it is started as one, before all else, and has the same architectures
//! then:
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
//! **Between them** is a pair of Unix sockets, a worker's standard input. `message` has what they say. The server sends an
//! image's descriptor, and later which of its groups are there; a worker waits for a group where it is used first, and reports
//! when that was. A socket that closes ends a worker, whatever it does, so that none outlives its server.
//!
//! On a CUDA device the memory is the server's too: it lends a model, whose chunks the worker maps for reading, and a worker's work
//! waits on the device for each group. Before chunks become another model's the worker unmaps them and says so, or is gone.
//!
//! PyTorch modules are computed by one more process for each device, of Python, which is started when there is such a model. It has
//! their weights itself: it loads and frees them as it is told. Its messages are JSON.

mod link;
mod loans;
mod message;
mod pool;
mod process;
mod python;
mod remote;
mod socket;
mod subprocess;
mod weights;

use std::ffi::OsString;
use std::path::PathBuf;

pub use process::run;

pub(crate) use pool::Workers;
pub(crate) use python::Python;
pub(crate) use weights::LentWeights;

/// A variable of a worker's environment: whoever has it starts no others, for they would start others in turn.
const IS_WORKER: &str = "TENURE_WORKER";

/// How a worker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program, which calls [`run`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// A program that is Python, for PyTorch modules: the package `tenure` with PyTorch must be installed for it.
    pub fn python(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: vec!["-m".into(), "tenure.serving.worker".into()] }
    }

    /// The program that runs now, as it was when it was started, with other arguments.
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        // A path would lead to a newer one when the program is installed again.
        Self { program: "/proc/self/exe".into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }
}
