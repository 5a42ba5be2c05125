//! The error of a mover.

use std::io;
use std::sync::Arc;

use tenure_core::Device;
use tenure_device::DriverError;
use tenure_device::memory::MemoryError;
use tenure_device::pinned::PinnedError;

use crate::DiskError;

/// The reason why bytes were not moved. Its message is one line, which names the tensor.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoverError {
    /// The mover's memory is full of bytes that stay there.
    #[error(
        "{name}: {bytes} bytes find no room in the mover's {limit} bytes of pinned memory: leave it where it is, store \
         it on disk, or give the mover more{}", disk_failure(.failed)
    )]
    NoRoom {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// The mover's memory in bytes.
        limit: u64,
        /// The last write to disk that failed: its bytes stay in memory and take room.
        failed: Option<Arc<DiskError>>,
    },
    /// [`MoverOptions`](super::MoverOptions) give less memory than a mover needs.
    #[error("the mover has {given} bytes of memory to move bytes through: give it at least {least}")]
    TooLittle {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        least: usize,
    },
    /// The mover was created without the tier that the bytes are to be stored to.
    #[error("{name}: the mover has no {place}, which it was opened without")]
    NoPlace {
        /// The tensor.
        name: String,
        /// The missing tier: pinned memory or a disk.
        place: &'static str,
    },
    /// The bytes are not on the mover's device.
    #[error("{name}: its bytes are on {given}, and the mover moves those on {device}")]
    OtherDevice {
        /// The tensor.
        name: String,
        /// The device that they are on.
        given: Device,
        /// The mover's device.
        device: Device,
    },
    /// The bytes' stream is being captured into a graph, in which a transfer cannot be recorded.
    #[error("{name}: it cannot be moved in a stream capture: store and fetch outside")]
    Captured {
        /// The tensor.
        name: String,
    },
    /// The target of a fetch has another size than the stored bytes.
    #[error("{name}: it has {bytes} bytes, and is fetched into {given}")]
    Size {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the target.
        given: u64,
    },
    /// The disk returned an error.
    #[error(transparent)]
    Disk(#[from] Arc<DiskError>),
    /// The driver returned an error.
    #[error("{name}: {source}")]
    Driver {
        /// The tensor.
        name: String,
        /// The driver's error.
        source: DriverError,
    },
    /// Scratch memory on the device could not be allocated.
    #[error("{name}: {source}")]
    Memory {
        /// The tensor.
        name: String,
        /// The error of the device's memory.
        source: Box<MemoryError>,
    },
    /// Host memory could not be pinned.
    #[error("{name}: {source}")]
    Pinned {
        /// The tensor.
        name: String,
        /// The reason.
        source: PinnedError,
    },
    /// The system could not start a thread.
    #[error("the mover's threads could not be started: {0}")]
    Threads(Arc<io::Error>),
}

/// Returns the part of a message that says why a write to disk failed, if one did.
fn disk_failure(failed: &Option<Arc<DiskError>>) -> String {
    failed.as_ref().map(|error| format!(" (its disk failed: {error})")).unwrap_or_default()
}

impl MoverError {
    /// Returns whether the destination, memory or disk, has no room. Nothing was moved then, and the caller can keep
    /// the bytes where they are.
    pub fn is_no_room(&self) -> bool {
        match self {
            Self::NoRoom { .. } => true,
            Self::Disk(error) => matches!(**error, DiskError::Full { .. }),
            _ => false,
        }
    }

    pub(super) fn driver(name: &str) -> impl FnOnce(DriverError) -> Self + '_ {
        move |source| Self::Driver { name: name.into(), source }
    }

    pub(super) fn disk(error: DiskError) -> Self {
        Self::Disk(Arc::new(error))
    }
}
