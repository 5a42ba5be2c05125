//! Shared memory of clients: which regions they registered, and the bytes of those.
//!
//! Nothing is mapped. An object that another process makes shorter is then an error of one request, not the end of the server.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use parking_lot::RwLock;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::protocol::Span;

/// Where the system has its objects of shared memory.
const FOLDER: &str = "/dev/shm";

/// The longest name of a file.
const KEY_BYTES: usize = 255;

/// The most regions, each of which holds a descriptor.
const REGIONS: usize = 256;

/// Why a region of shared memory cannot be registered or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// Whoever is on another host shares no memory with the server.
    #[error("shared memory is for clients on the server's host, or with a token: send tensors as binary data")]
    Elsewhere,
    /// Not the name of an object.
    #[error("{0:?} is no key of shared memory: it is 1 to 255 bytes without '/', but for one at its start")]
    Key(String),
    /// The system refused.
    #[error("shared memory {key:?} cannot be opened: {source}")]
    Open {
        /// The object's name.
        key: String,
        /// The system's words.
        source: io::Error,
    },
    /// A folder, a socket, or another thing that has no bytes.
    #[error("{0:?} is no shared memory, although it is where that is")]
    NotMemory(String),
    /// An object that is shorter than its region.
    #[error("shared memory {key:?} has {found} bytes, and the region would end at {end}")]
    Short {
        /// The object's name.
        key: String,
        /// Where the region, or what is used of it, ends.
        end: u64,
        /// The object's size.
        found: u64,
    },
    /// An object that became shorter while it was read.
    #[error("shared memory {0:?} became shorter while it was read")]
    Changed(String),
    /// A size or an offset that no memory has.
    #[error("no region begins at {offset} and has {byte_size} bytes: it has at least one, and ends before 2^63")]
    Size {
        /// Where it is to begin.
        offset: u64,
        /// How many bytes it is to have.
        byte_size: u64,
    },
    /// A name that is taken.
    #[error("there is a region {0:?} already: unregister it first, or choose another name")]
    Twice(String),
    /// No more regions.
    #[error("there are {REGIONS} regions, which is the most: unregister one")]
    Full,
    /// No region of the name.
    #[error("there is no region {0:?} of shared memory: GET v2/systemsharedmemory/status lists regions")]
    Unknown(String),
    /// A part that is not in its region.
    #[error("region {region:?} has {region_bytes} bytes, and has no {byte_size} from {offset} on")]
    Outside {
        /// The region's name.
        region: String,
        /// Its size.
        region_bytes: u64,
        /// Where the part is to begin.
        offset: u64,
        /// How many bytes it is to have.
        byte_size: u64,
    },
    /// An output that is larger than its place.
    #[error("output {output:?} has {bytes} bytes, and its shared_memory_byte_size is {room}")]
    Room {
        /// The output's name.
        output: String,
        /// Its size.
        bytes: usize,
        /// Its place's.
        room: u64,
    },
    /// Inputs that are too large.
    #[error("the inputs in shared memory have more than {0} bytes, which is the server's limit")]
    TooLarge(usize),
    /// The system could not read or write.
    #[error("region {region:?} could not be used: {source}")]
    Failed {
        /// The region's name.
        region: String,
        /// The system's words.
        source: io::Error,
    },
}

impl SharedMemoryError {
    /// The status of HTTP.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Elsewhere => StatusCode::FORBIDDEN,
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Twice(_) | Self::Full => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// What a region is to be.
#[derive(Deserialize)]
pub(super) struct Registration {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

/// What a region is, as its status says it.
#[derive(Clone, Serialize)]
pub(super) struct Status {
    name: String,
    key: String,
    offset: u64,
    byte_size: u64,
}

/// A part of an object of shared memory.
pub(super) struct Region {
    status: Status,
    file: File,
}

impl Region {
    fn open(name: String, registration: Registration) -> Result<Self, SharedMemoryError> {
        let Registration { key, offset, byte_size } = registration;
        let end = offset.checked_add(byte_size).filter(|end| byte_size > 0 && i64::try_from(*end).is_ok());
        let end = end.ok_or(SharedMemoryError::Size { offset, byte_size })?;
        let region = Self { file: open(&key)?, status: Status { name, key, offset, byte_size } };
        region.reaches(end)?;
        Ok(region)
    }

    /// Where a part of it begins in its object.
    fn begin(&self, offset: u64, byte_size: u64) -> Result<u64, SharedMemoryError> {
        let end = offset.checked_add(byte_size);
        if end.is_some_and(|end| end <= self.status.byte_size) {
            // It is in the region, whose end has no overflow.
            return Ok(self.status.offset + offset);
        }
        let (region, region_bytes) = (self.status.name.clone(), self.status.byte_size);
        Err(SharedMemoryError::Outside { region, region_bytes, offset, byte_size })
    }

    /// The object is long enough, for now.
    fn reaches(&self, end: u64) -> Result<(), SharedMemoryError> {
        let found = self.file.metadata().map_err(|source| self.failed(source))?.len();
        if found < end { Err(SharedMemoryError::Short { key: self.status.key.clone(), end, found }) } else { Ok(()) }
    }

    fn failed(&self, source: io::Error) -> SharedMemoryError {
        SharedMemoryError::Failed { region: self.status.name.clone(), source }
    }
}

/// Opens an object that is there. It is one of the folder's own: no link is followed, and nothing is waited for.
fn open(key: &str) -> Result<File, SharedMemoryError> {
    let name = key.strip_prefix('/').unwrap_or(key);
    if name.is_empty() || name.len() > KEY_BYTES || name.contains(['/', '\0']) || [".", ".."].contains(&name) {
        return Err(SharedMemoryError::Key(key.into()));
    }
    let error = |source| SharedMemoryError::Open { key: key.into(), source };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(Path::new(FOLDER).join(name)).map_err(error)?;
    if file.metadata().map_err(error)?.is_file() { Ok(file) } else { Err(SharedMemoryError::NotMemory(key.into())) }
}

/// A part of a region that a request uses. The region stays, even if it is unregistered meanwhile.
#[derive(Clone)]
pub(super) struct Part {
    region: Arc<Region>,
    begin: u64,
    byte_size: u64,
}

impl Part {
    pub(super) fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// Its bytes as they are now.
    pub(super) fn read(&self) -> Result<Vec<u8>, SharedMemoryError> {
        let end = self.begin + self.byte_size;
        self.region.reaches(end)?;
        let mut bytes = vec![0; usize::try_from(self.byte_size).unwrap_or(usize::MAX)];
        match self.region.file.read_exact_at(&mut bytes, self.begin) {
            Ok(()) => Ok(bytes),
            // It became shorter meanwhile.
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(SharedMemoryError::Changed(self.region.status.key.clone()))
            }
            Err(source) => Err(self.region.failed(source)),
        }
    }

    /// Makes an output's bytes its first ones.
    pub(super) fn write(&self, output: &str, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        if bytes.len() as u64 > self.byte_size {
            let (output, bytes, room) = (output.into(), bytes.len(), self.byte_size);
            return Err(SharedMemoryError::Room { output, bytes, room });
        }
        // What is written behind the object's end would make it longer.
        self.region.reaches(self.begin + bytes.len() as u64)?;
        self.region.file.write_all_at(bytes, self.begin).map_err(|source| self.region.failed(source))
    }
}

/// The regions that clients registered.
#[derive(Default)]
pub(super) struct Regions(RwLock<BTreeMap<String, Arc<Region>>>);

impl Regions {
    /// Opens a region of a name that no other has.
    pub(super) fn register(&self, name: String, registration: Registration) -> Result<(), SharedMemoryError> {
        let region = Region::open(name.clone(), registration)?;
        let mut regions = self.0.write();
        if regions.contains_key(&name) {
            return Err(SharedMemoryError::Twice(name));
        }
        if regions.len() >= REGIONS {
            return Err(SharedMemoryError::Full);
        }
        regions.insert(name, Arc::new(region));
        Ok(())
    }

    /// Forgets a region, if there is one of the name.
    pub(super) fn unregister(&self, name: &str) {
        self.0.write().remove(name);
    }

    /// Forgets all regions.
    pub(super) fn clear(&self) {
        self.0.write().clear();
    }

    /// What a region is.
    pub(super) fn status(&self, name: &str) -> Result<Status, SharedMemoryError> {
        Ok(self.get(name)?.status.clone())
    }

    /// What all regions are, by name.
    pub(super) fn all(&self) -> Vec<Status> {
        self.0.read().values().map(|region| region.status.clone()).collect()
    }

    /// The part of a region that a tensor is in.
    pub(super) fn part(&self, span: &Span) -> Result<Part, SharedMemoryError> {
        let region = self.get(&span.region)?;
        let begin = region.begin(span.offset, span.byte_size)?;
        Ok(Part { region, begin, byte_size: span.byte_size })
    }

    fn get(&self, name: &str) -> Result<Arc<Region>, SharedMemoryError> {
        self.0.read().get(name).cloned().ok_or_else(|| SharedMemoryError::Unknown(name.into()))
    }
}
