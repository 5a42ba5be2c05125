//! Regions of the system's shared memory: objects in `/dev/shm`.
//!
//! The objects are not mapped. If another process shortens one, this is an error of one request and does not end the
//! server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::SharedMemoryError;

/// The folder of the system's shared-memory objects.
const FOLDER: &str = "/dev/shm";

/// The longest file name in bytes.
const KEY_BYTES: usize = 255;

/// A request to open a region.
#[derive(Deserialize)]
pub(crate) struct SystemRegistration {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// A region in the form of its status.
#[derive(Clone, Serialize)]
pub(crate) struct SystemStatus {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// A part of a shared-memory object.
pub(crate) struct SystemRegion {
    status: SystemStatus,
    file: File,
}

impl SystemRegion {
    pub(crate) fn open(name: String, registration: SystemRegistration) -> Result<Self, SharedMemoryError> {
        let SystemRegistration { key, offset, byte_size } = registration;
        let end = offset.checked_add(byte_size).filter(|end| byte_size > 0 && i64::try_from(*end).is_ok());
        let end = end.ok_or(SharedMemoryError::Size { offset, byte_size })?;
        let region = Self { file: open(&key)?, status: SystemStatus { name, key, offset, byte_size } };
        region.reaches(end)?;
        Ok(region)
    }

    pub(super) fn status(&self) -> &SystemStatus {
        &self.status
    }

    /// Returns bytes of the region as they are now.
    pub(super) fn read(&self, offset: u64, byte_size: u64) -> Result<Vec<u8>, SharedMemoryError> {
        // The caller checked that the part is inside the region, whose end does not overflow.
        let begin = self.status.offset + offset;
        self.reaches(begin + byte_size)?;
        let mut bytes = vec![0; usize::try_from(byte_size).unwrap_or(usize::MAX)];
        match self.file.read_exact_at(&mut bytes, begin) {
            Ok(()) => Ok(bytes),
            // The object became shorter meanwhile.
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(SharedMemoryError::Changed(self.status.key.clone()))
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        let begin = self.status.offset + offset;
        // Writing beyond the object's end would lengthen it.
        self.reaches(begin + bytes.len() as u64)?;
        self.file.write_all_at(bytes, begin).map_err(|source| self.failed(source))
    }

    /// Checks that the object is long enough for now.
    fn reaches(&self, end: u64) -> Result<(), SharedMemoryError> {
        let found = self.file.metadata().map_err(|source| self.failed(source))?.len();
        if found < end { Err(SharedMemoryError::Short { key: self.status.key.clone(), end, found }) } else { Ok(()) }
    }

    fn failed(&self, source: io::Error) -> SharedMemoryError {
        SharedMemoryError::Failed { region: self.status.name.clone(), source }
    }
}

/// Opens an existing object directly in the folder, without following links and without blocking.
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
