//! The protocol between a daemon and its clients.
//!
//! A frame is one message of a `SOCK_SEQPACKET` socket: the version (two bytes, little endian), then the message in
//! postcard. The kernel keeps frames apart, so half a frame never arrives, and descriptors belong to the frame that
//! they came with. The daemon speaks first, with [`DaemonReply::Welcome`] or [`DaemonReply::Refused`]; after that each
//! request has one reply. After [`DaemonRequest::Recalls`] only the daemon sends on that connection.

use std::fmt;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};

use crate::AccessMode;

/// The version of every frame. A frame of any other version is refused.
pub const VERSION: u16 = 1;

/// The longest frame, in bytes.
pub const FRAME_BYTES: usize = 64 << 10;

/// The most descriptors that a frame carries.
pub const DESCRIPTORS: usize = 64;

/// A message from a client to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonRequest {
    /// Asks for a descriptor of each chunk of the pool.
    Attach,
    /// Leases a range of the pool.
    LeasePool {
        /// First byte, from the start of the pool.
        offset: u64,
        /// The size in bytes.
        bytes: u64,
        /// The use of the range: reading only, or also writing.
        access: AccessMode,
        /// Whether the client, if it is refused now, asks again soon. The daemon then keeps it in a queue, and leases
        /// the range to later clients only after this one.
        waits: bool,
    },
    /// Asks whether a client that is still connected may write a part of a range of the pool.
    IsWritten {
        /// First byte, from the start of the pool.
        offset: u64,
        /// The size in bytes.
        bytes: u64,
    },
    /// Leases a chunk. If there is not enough memory, the daemon refuses at once and asks other clients for theirs.
    LeaseChunk {
        /// The size in bytes.
        bytes: u64,
    },
    /// Waits until there is memory for chunks. Does not lease them.
    Room {
        /// The size of the chunks together, in bytes.
        bytes: u64,
        /// The longest to wait, in ms.
        wait_ms: u32,
    },
    /// Gives a lease back. All work with its memory must have completed.
    Release(LeaseId),
    /// Turns a lease for writing into one for reading. All writes must have completed. Other clients may read from now
    /// on, and none wrote in between.
    Lower(LeaseId),
    /// Sends [`DaemonReply::Recall`]s over this connection from now on.
    Recalls,
    /// Asks for a report of all leases and their holders.
    Status,
}

/// A message from the daemon to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonReply {
    /// The connection is accepted.
    Welcome(DaemonTerms),
    /// The pool's descriptors come with this, in order.
    Attached,
    /// The lease is granted. A chunk's descriptor comes with this.
    Leased(LeaseId),
    /// The request was carried out.
    Done,
    /// Whether a connected client may write a part of the range.
    Written(bool),
    /// Another client lacks this many bytes: the client is asked to give back as many bytes of chunks, if it can spare
    /// them.
    Recall(u64),
    /// A report of all leases and their holders.
    Status(DaemonStatus),
    /// The request was refused. Nothing was changed.
    Refused(DaemonRefusal),
}

/// The number of a lease. A daemon never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason for which a daemon refused a request. It is sent between processes, so it holds only words and numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DaemonRefusal {
    /// The daemon does not serve the user of the connecting process.
    #[error("it serves user {allowed} only, and this process belongs to user {uid}")]
    ForeignUser {
        /// The user of the connecting process.
        uid: u32,
        /// The user served.
        allowed: u32,
    },
    /// The exit of the connecting process cannot be watched.
    #[error("it cannot watch for this process's exit: {reason}; look at its limit on open files")]
    Unwatched {
        /// The system's error.
        reason: String,
    },
    /// The daemon has its limit of clients.
    #[error("it has {limit} clients, the most that it takes: close some, or raise its limit (`--clients`)")]
    TooManyClients {
        /// The limit on clients.
        limit: u32,
    },
    /// The daemon has given its limit of leases.
    #[error("it has given {limit} leases, the most that it gives: use larger chunks")]
    TooManyLeases {
        /// The limit on leases.
        limit: u32,
    },
    /// The message could not be read.
    #[error("it cannot read this message: {reason}")]
    Unreadable {
        /// The error in the message.
        reason: String,
    },
    /// There is no pool, or the range is not inside it.
    #[error("{bytes} bytes from {offset} are not a range of its pool, which has {pool_bytes} bytes")]
    OutsidePool {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the pool.
        pool_bytes: u64,
    },
    /// Another lease on a part of the range forbids it.
    #[error(
        "{bytes} bytes of the pool from {offset} are leased to {} for {}: wait until they are given back",
        holder(.pid), use_of(.access)
    )]
    Leased {
        /// First byte of the other lease, from the start of the pool.
        offset: u64,
        /// Size of the other lease, in bytes.
        bytes: u64,
        /// The process that holds the other lease, if the daemon can see it.
        pid: Option<u32>,
        /// The access that the other lease gives.
        access: AccessMode,
    },
    /// The connecting process may not write the pool, as its exit cannot be watched.
    #[error(
        "it cannot see this process, as in another container, and would not know when its writes to the pool end: \
         lease the range for reading or use chunks, or run both in one pid namespace (`docker run --pid`)"
    )]
    OutOfSight,
    /// There is not enough memory for a chunk.
    #[error("{requested} bytes were asked for and {available} are available: free memory here or in another worker")]
    Full {
        /// Bytes asked for.
        requested: u64,
        /// Bytes that were available.
        available: u64,
    },
    /// The lease was given back before, or belongs to another connection.
    #[error("lease {0} does not exist: it was given back before, or belongs to another connection")]
    UnknownLease(LeaseId),
    /// The daemon's driver failed.
    #[error("its driver failed: {0}")]
    Driver(String),
}

/// The device and the pool that a daemon offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonTerms {
    /// The device, such as `cuda:0`, as the daemon numbers it.
    pub device: String,
    /// The UUID of the device, the same in every process.
    pub uuid: [u8; 16],
    /// Sizes of the pool's chunks in bytes, in the order in which they lie in the pool; their sum is less than 2^64.
    /// Empty without a pool.
    #[serde(deserialize_with = "deserialize_pool")]
    pub pool: Vec<u64>,
}

impl DaemonTerms {
    /// Returns the pool's size in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.iter().sum()
    }
}

/// Deserializes chunk sizes, and refuses them if their sum overflows.
fn deserialize_pool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let sizes = Vec::<u64>::deserialize(deserializer)?;
    let sum = sizes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes));
    sum.map(|_| sizes).ok_or_else(|| D::Error::custom("a pool of more than 2^64 bytes"))
}

/// A report on a daemon: its memory, its leases and their holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The device and the pool that the daemon offers.
    pub terms: DaemonTerms,
    /// The number of the daemon's process.
    pub pid: u32,
    /// The time since the daemon started, in ms.
    pub uptime_ms: u64,
    /// The number of open connections, including the one that asks.
    pub connections: u32,
    /// The size of all leased chunks together, in bytes, without the pool.
    pub chunk_bytes: u64,
    /// The limit on the sum of all leased chunks, in bytes, if there is one.
    pub chunk_limit_bytes: Option<u64>,
    /// The number of chunks that the driver has refused to take back so far; the daemon asks it again.
    pub unreleased: u32,
    /// The number of requests that wait for other clients to give back chunks.
    pub waiting: u32,
    /// Connected processes that have mapped the pool, with or without leases; at most a thousand. Processes that the
    /// daemon cannot see are left out.
    pub attached: Vec<u32>,
    /// All leases, one entry for each connection, kind and access.
    pub holdings: Vec<Holding>,
    /// The number of holdings that did not fit into the frame.
    pub left_out: u32,
}

impl DaemonStatus {
    /// Returns how many bytes the limit leaves for chunks; the device may have less.
    pub fn available_bytes(&self) -> u64 {
        self.chunk_limit_bytes.unwrap_or(u64::MAX).saturating_sub(self.chunk_bytes)
    }
}

/// The leases of one connection that have the same kind and access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The process, if the daemon can see it.
    pub pid: Option<u32>,
    /// Whether these are ranges of the pool or chunks.
    pub kind: LeaseKind,
    /// The use of the memory: reading only, or also writing.
    pub access: AccessMode,
    /// Whether the connection is still open.
    pub state: LeaseState,
    /// The number of leases.
    pub leases: u32,
    /// The size of the leases together, in bytes.
    pub bytes: u64,
    /// The age of the oldest lease, in ms.
    pub oldest_ms: u64,
}

/// The kind of memory that a lease covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// A range of the pool.
    Pool,
    /// A chunk outside the pool.
    Chunk,
}

/// The state of a lease's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// The holder is connected.
    Held,
    /// The holder's connection or process has ended, but its work on the device may still run.
    Orphaned,
}

/// The reason why bytes are not a frame of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The frame is too short to hold a version.
    #[error("a frame of {0} bytes has no version")]
    Short(usize),
    /// The other side speaks another version of the protocol.
    #[error(
        "the other side speaks version {theirs} of the protocol, this one {VERSION}: use the same release for both"
    )]
    Version {
        /// The version in the frame.
        theirs: u16,
    },
    /// The body is not a message.
    #[error("not a message: {0}")]
    Malformed(postcard::Error),
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// The frame is longer than [`FRAME_BYTES`].
    #[error("a frame is longer than {FRAME_BYTES} bytes")]
    TooLong,
    /// Descriptors arrived that were not asked for, or the system had no room for them.
    #[error("descriptors came that were not asked for or could not be taken: check the limit on open files")]
    Descriptors,
}

/// Encodes `message` as a frame.
///
/// # Errors
/// The frame is longer than [`FRAME_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let frame = postcard::to_extend(message, VERSION.to_le_bytes().to_vec()).map_err(WireError::Malformed)?;
    if frame.len() > FRAME_BYTES { Err(WireError::TooLong) } else { Ok(frame) }
}

/// Decodes the message of a frame.
///
/// # Errors
/// The frame is of another version, or is not exactly one message.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, WireError> {
    if frame.len() > FRAME_BYTES {
        return Err(WireError::TooLong);
    }
    let (version, body) = frame.split_first_chunk().ok_or(WireError::Short(frame.len()))?;
    let theirs = u16::from_le_bytes(*version);
    if theirs != VERSION {
        return Err(WireError::Version { theirs });
    }
    let (message, rest) = postcard::take_from_bytes(body).map_err(WireError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(WireError::Trailing(rest.len())) }
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "a process out of sight".to_owned(), |pid| format!("process {pid}"))
}

fn use_of(access: &AccessMode) -> &'static str {
    match access {
        AccessMode::Read => "reading",
        AccessMode::ReadWrite => "writing",
    }
}
