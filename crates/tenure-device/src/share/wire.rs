//! What a daemon and its clients say to each other.
//!
//! A frame is one message of a `SOCK_SEQPACKET` socket: the version (two bytes, little endian), then the message in
//! postcard. The kernel keeps the frames apart, so half a frame never arrives, and descriptors belong to the frame
//! that they came with. The daemon speaks first, [`Reply::Welcome`] or [`Reply::Refused`]; after that each request has
//! one reply. A connection that asked for [`Request::Recalls`] is spoken to and says nothing more.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};

use super::{LeaseId, Refusal};
use crate::Access;

/// The version of every frame. There is one; a frame of another is refused.
pub const VERSION: u16 = 1;

/// The longest frame, in bytes.
pub const FRAME_BYTES: usize = 64 << 10;

/// The most descriptors that a frame carries.
pub const DESCRIPTORS: usize = 64;

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A descriptor of each chunk of the pool.
    Attach,
    /// The right to use a range of the pool.
    LeasePool {
        /// First byte, from the start of the pool.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// For which use.
        access: Access,
        /// Whether it is asked for again and again, until others have given it back: they get it after this client.
        waits: bool,
    },
    /// Whether somebody who is there may write some of a range of the pool.
    IsWritten {
        /// First byte, from the start of the pool.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A chunk of its own. If there is not enough memory, the answer does not wait, and others are asked for theirs.
    LeaseChunk {
        /// Its size.
        bytes: u64,
    },
    /// Waits until there is memory for chunks, which are not leased with it.
    Room {
        /// Their sizes together.
        bytes: u64,
        /// The longest to wait, in ms.
        wait_ms: u32,
    },
    /// Gives a lease back, after all work with its memory has completed.
    Release(LeaseId),
    /// Makes a lease for writing one for reading, after all writes have completed: others may read from now on, and
    /// nobody wrote in between.
    Lower(LeaseId),
    /// Sends [`Reply::Recall`]s over this connection from now on.
    Recalls,
    /// What is leased, and to whom.
    Status,
}

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The connection is accepted.
    Welcome(Terms),
    /// The pool's descriptors come with this, in order.
    Attached,
    /// Granted. A chunk's descriptor comes with this.
    Leased(LeaseId),
    /// Done.
    Done,
    /// Whether somebody may write.
    Written(bool),
    /// Memory runs short: clients are asked to give back about this many bytes of chunks that they can spare.
    Recall(u64),
    /// What is leased, and to whom.
    Status(Status),
    /// Nothing was changed.
    Refused(Refusal),
}

/// What a daemon offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The device, such as `cuda:0`, by the daemon's count.
    pub device: String,
    /// The same device, as every process knows it.
    pub uuid: [u8; 16],
    /// Sizes of the pool's chunks in bytes, in the order in which they lie in the pool; together less than 2^64. Empty
    /// without a pool.
    #[serde(deserialize_with = "pool")]
    pub pool: Vec<u64>,
}

impl Terms {
    /// The pool's size in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.iter().sum()
    }
}

/// Sizes that have a sum.
fn pool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let sizes = Vec::<u64>::deserialize(deserializer)?;
    let sum = sizes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes));
    sum.map(|_| sizes).ok_or_else(|| D::Error::custom("a pool of more than 2^64 bytes"))
}

/// What a daemon holds, and who leases it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What it offers.
    pub terms: Terms,
    /// The daemon's process.
    pub pid: u32,
    /// How long it has run, in ms.
    pub uptime_ms: u64,
    /// Open connections, the asking one included.
    pub connections: u32,
    /// Bytes of leased chunks, beside the pool.
    pub chunk_bytes: u64,
    /// The most that leased chunks may come to, in bytes, if that is limited.
    pub chunk_limit_bytes: Option<u64>,
    /// Chunks that the driver refused to take back so far; it is asked again.
    pub unreleased: u32,
    /// Requests that wait for others to give back chunks.
    pub waiting: u32,
    /// Processes that have mapped the pool, whatever they lease, and are connected; at most a thousand. Those that the
    /// daemon can not see are not among them.
    pub attached: Vec<u32>,
    /// Leases, of one process and one kind together.
    pub holdings: Vec<Holding>,
    /// How many more holdings there are than a frame has room for.
    pub left_out: u32,
}

impl Status {
    /// Bytes that the limit leaves for chunks; the device may have less.
    pub fn available_bytes(&self) -> u64 {
        self.chunk_limit_bytes.unwrap_or(u64::MAX).saturating_sub(self.chunk_bytes)
    }
}

/// Leases of one connection and one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The process, if the daemon can see it.
    pub pid: Option<u32>,
    /// What is leased.
    pub kind: LeaseKind,
    /// What for.
    pub access: Access,
    /// Whether its holder is still there.
    pub state: LeaseState,
    /// How many leases.
    pub leases: u32,
    /// Their bytes together.
    pub bytes: u64,
    /// Age of the oldest, in ms.
    pub oldest_ms: u64,
}

/// What is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// A range of the pool.
    Pool,
    /// A chunk of its own.
    Chunk,
}

/// Whether a lease's holder is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// It is connected.
    Held,
    /// Its connection or its process has ended, and its work on the device may still run.
    Orphaned,
}

/// Why bytes are no frame of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Too short to have a version.
    #[error("a frame of {0} bytes has no version")]
    Short(usize),
    /// The other side is of another release.
    #[error(
        "the other side speaks version {theirs} of the protocol, this one {VERSION}: use the same release for both"
    )]
    Version {
        /// The version in the frame.
        theirs: u16,
    },
    /// Not a message.
    #[error("not a message: {0}")]
    Malformed(postcard::Error),
    /// More bytes than the message has.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// Longer than [`FRAME_BYTES`].
    #[error("a frame is longer than {FRAME_BYTES} bytes")]
    TooLong,
    /// Descriptors that were not asked for, or for which the system had no room.
    #[error("descriptors came that were not asked for or could not be taken: check the limit on open files")]
    Descriptors,
}

/// `message` as a frame.
///
/// # Errors
/// It is longer than [`FRAME_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let frame = postcard::to_extend(message, VERSION.to_le_bytes().to_vec()).map_err(WireError::Malformed)?;
    if frame.len() > FRAME_BYTES { Err(WireError::TooLong) } else { Ok(frame) }
}

/// The message of a frame.
///
/// # Errors
/// It is of another version, or is not exactly one message.
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
