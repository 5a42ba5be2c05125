//! Device memory shared between processes.
//!
//! A [`MemoryDaemon`] owns memory of one device, in *chunks*: pieces of physical memory that a process maps as a whole.
//! It leases them to other processes over a Unix socket, as file descriptors of the chunks, and never reads the bytes.
//! A process connects with a [`DaemonClient`] and gets memory in one of two ways:
//!
//! - the **pool**: a few large chunks that the daemon takes when it starts. [`SharedPool::attach`] maps all of it for
//!   reading, at an address of the process's own choosing, in less than a millisecond; [`SharedPool::lease`] gives the
//!   right to use a range, to any number of readers or to one writer;
//! - **chunks** on demand: [`LeasedBacking`] lets an allocator of `tenure-alloc` draw its chunks from the daemon
//!   instead of the driver, so that all workers share one budget. [`LeasedBacking::serve`] lets the allocator wait for
//!   memory that others return, and return what it can spare.
//!
//! [`SharedCache`] and [`WorkerCache`] offer PipeSwitch's five calls, under their names, on top of the pool.
//!
//! ```
//! # use std::sync::Arc;
//! # use tenure_device::sim::{SimConfig, SimDriver};
//! use tenure_device::share::{DaemonClient, DaemonConfig, MemoryDaemon, SharedPool};
//! use tenure_device::{AccessMode, Driver};
//!
//! # let folder = tempfile::tempdir()?;
//! # let socket = folder.path().join("memory.sock");
//! # let device = || -> Arc<dyn Driver> { Arc::new(SimDriver::new(SimConfig::default())) };
//! // In one process, or with `tenure memory daemon --pool-bytes 16GiB`:
//! let config = DaemonConfig { socket, pool: vec![16 << 30], ..DaemonConfig::default() };
//! let daemon = MemoryDaemon::start(device(), config)?;
//!
//! // In any other process of the same user:
//! let client = Arc::new(DaemonClient::connect(daemon.socket())?);
//! let pool = SharedPool::attach(client, device())?;
//! let lease = pool.lease(0, 2 << 20, AccessMode::ReadWrite)?;
//! assert!(pool.lease(0, 2 << 20, AccessMode::Read).is_err(), "a writer is alone");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Access guards against mistakes, not against malice.** A process that maps memory for reading cannot write it by
//! mistake; but CUDA lets an importer change its own access. The daemon therefore serves one user only, and a client
//! trusts a daemon only if it runs as the client's own user or as root.
//!
//! **A worker that dies** keeps its leases until its work on the device cannot run any more; a closed socket does not
//! prove that. The pidfd of the process tells when it has exited, and the driver's list of processes tells when its
//! context is gone. A process that the daemon cannot see, as in another container, is not given ranges to write. A
//! leased chunk is never given to another process: the driver keeps its memory until the last mapping is gone.
//!
//! **A daemon that dies** leaves all mapped memory valid. The next request fails with [`ShareError::DaemonGone`]. A
//! restarted daemon has a new pool and does not know the old leases.

mod backing;
mod cache;
mod client;
mod config;
mod daemon;
mod error;
mod export;
mod handle;
mod import;
mod lease;
mod listener;
mod manifest;
mod owner;
mod pool;
mod process;
mod server_thread;
mod service;
mod socket;
mod store;
mod tenancy;
pub mod wire;

pub use backing::LeasedBacking;
pub use cache::WorkerCache;
pub use client::{DaemonClient, Recalls};
pub use config::{DaemonConfig, SharedCacheConfig};
pub use daemon::MemoryDaemon;
pub use error::{RangeUse, ShareError};
pub(crate) use export::Exports;
pub(crate) use handle::BlockHandle;
pub use handle::HandleError;
pub(crate) use import::Imports;
pub use listener::default_socket;
pub use owner::SharedCache;
pub use pool::{PoolLease, SharedPool};
pub use process::{CacheWaits, ProcessCaches};
pub use wire::{DaemonRefusal, DaemonStatus, DaemonTerms, Holding, LeaseId, LeaseKind, LeaseState};
