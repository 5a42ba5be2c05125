//! The agent as a process. A client asks it over a socket where the tensors of a program should live, and it answers
//! with a mapping in a file, which any number of processes may read. `docs/reference/agent-protocol.md` describes the protocol,
//! so that any other program can replace the agent.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::thread;
//! use tenure_agent::serve::{Address, AgentClient, AgentOptions, AgentRequest, AgentServer, ServerConfig};
//! use tenure_plan::{Problem, Rule};
//!
//! # let folder = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let text = r#"{"name": "small", "source": "by hand", "tensors": [{"id": 0, "bytes": 10, "role": "weight"}],
//! #     "kernels": [{"name": "k", "time_ns": 1, "inputs": [0], "outputs": []}]}"#;
//! let address = Address::Unix(folder.join("agent.sock"));
//! let server = AgentServer::bind(&address, ServerConfig::new(&folder), vec![Box::new(Rule::Density)])?;
//! let is_done = AtomicBool::new(false);
//! let going_on = |_: &_| if is_done.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
//! thread::scope(|scope| {
//!     scope.spawn(|| server.run(going_on));
//!     let options = AgentOptions { fast_bytes: Some(1 << 20), ..AgentOptions::default() };
//!     let request = AgentRequest::new(Problem::from_json(text)?, options)?;
//!     let answer = AgentClient::connect(&address).and_then(|mut client| client.ask(&request));
//!     is_done.store(true, Ordering::Relaxed);
//!     assert_eq!(answer?.score, 1.0); // all fits into the first tier
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod client;
mod connection;
mod error;
pub mod frame;
mod listener;
mod message;
mod server;

pub use address::Address;
pub use client::{AgentClient, Answer, plan_of};
pub use error::ServeError;
pub use message::{AgentOptions, AgentRefusal, AgentRequest, Learned, MAX_SECONDS, MessageError, Placed};
pub use server::{AgentServer, ServerConfig, Serving};
