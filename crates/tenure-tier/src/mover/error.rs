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
         it on disk, or give the mover more{}", said(.failed)
    )]
    NoRoom {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes that may be pinned.
        limit: u64,
        /// The last write to disk that failed: its bytes stay in memory and take room.
        failed: Option<Arc<DiskError>>,
    },
    /// The options give less memory than a mover needs.
    #[error("the mover has {given} bytes of memory to move bytes through: give it at least {least}")]
    TooLittle {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        least: usize,
    },
    /// The mover was opened without the place that the bytes are to go to.
    #[error("{name}: the mover has no {place}, which it was opened without")]
    NoPlace {
        /// The tensor.
        name: String,
        /// The missing place.
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
    /// The stream is being captured into a graph, to be launched later.
    #[error("{name}: it cannot be moved in a stream capture: store and fetch outside")]
    Captured {
        /// The tensor.
        name: String,
    },
    /// The target has another size.
    #[error("{name}: it has {bytes} bytes, and is fetched into {given}")]
    Size {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the target.
        given: u64,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] Arc<DiskError>),
    /// The driver refused.
    #[error("{name}: {source}")]
    Driver {
        /// The tensor.
        name: String,
        /// The driver's error.
        source: DriverError,
    },
    /// The device's memory refused.
    #[error("{name}: {source}")]
    Memory {
        /// The tensor.
        name: String,
        /// The error of the device's memory.
        source: Box<MemoryError>,
    },
    /// No memory could be pinned.
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

fn said(failed: &Option<Arc<DiskError>>) -> String {
    failed.as_ref().map(|error| format!(" (its disk failed: {error})")).unwrap_or_default()
}

impl MoverError {
    /// Returns whether the destination, memory or disk, has no room. The bytes can stay where they are.
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
