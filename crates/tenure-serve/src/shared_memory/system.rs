//! Regions of the system's shared memory: objects in `/dev/shm`.
//!
//! Nothing is mapped. An object that another process makes shorter is then an error of one request, not the end of the server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::SharedMemoryError;
use crate::protocol::Span;

/// Where the system has its objects of shared memory.
const FOLDER: &str = "/dev/shm";

/// The longest name of a file.
const KEY_BYTES: usize = 255;

/// What a region is to be.
#[derive(Deserialize)]
pub(crate) struct Registration {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// What a region is, as its status says it.
#[derive(Clone, Serialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// A part of an object of shared memory.
pub(super) struct Region {
    status: Status,
    file: File,
}

impl Region {
    pub(super) fn open(name: String, registration: Registration) -> Result<Self, SharedMemoryError> {
        let Registration { key, offset, byte_size } = registration;
        let end = offset.checked_add(byte_size).filter(|end| byte_size > 0 && i64::try_from(*end).is_ok());
        let end = end.ok_or(SharedMemoryError::Size { offset, byte_size })?;
        let region = Self { file: open(&key)?, status: Status { name, key, offset, byte_size } };
        region.reaches(end)?;
        Ok(region)
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
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
    /// The part of a region that a tensor is in.
    pub(super) fn new(region: Arc<Region>, span: &Span) -> Result<Self, SharedMemoryError> {
        let begin = region.begin(span.offset, span.byte_size)?;
        Ok(Self { region, begin, byte_size: span.byte_size })
    }

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
