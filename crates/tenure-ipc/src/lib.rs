//! Unix sockets between processes of one machine, whatever protocol they speak.
//!
//! - A [`Listener`] serves its path alone: it takes a lock beside it, replaces the socket of a dead process, and refuses
//!   the path of a live one. A [`Lock`] can also guard a file.
//! - A [`Peer`] is the process at the other end of a connection, and [`credentials`] names its user.
//! - [`send`] and [`receive`] pass file descriptors along with bytes.
//! - [`connect`] and [`wait`] take no longer than they are allowed.
//! - An [`Unforked`] descriptor is closed in forked children.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::Duration;
//! use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, accept_with};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("example.sock");
//! let listener = tenure_ipc::Listener::bind(&path, SocketType::STREAM)?;
//! assert!(tenure_ipc::Listener::bind(&path, SocketType::STREAM).is_err(), "it is served");
//! let client = tenure_ipc::connect(&SocketAddrUnix::new(&path)?, SocketType::STREAM, Duration::from_secs(1))?;
//! let server = accept_with(&listener, SocketFlags::CLOEXEC)?;
//! tenure_ipc::send(&client, &[IoSlice::new(b"hello")], &[])?;
//! let mut bytes = [0; 16];
//! assert_eq!(tenure_ipc::receive(&server, &mut bytes, 0)?.bytes, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod listener;
mod lock;
mod peer;
mod socket;
mod unforked;

pub use listener::{Listener, listen};
pub use lock::{ClaimError, Lock};
pub use peer::{Peer, credentials};
pub use socket::{MAX_DESCRIPTORS, Received, connect, receive, send, set_timeout, wait};
pub use unforked::Unforked;
