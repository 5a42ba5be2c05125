use std::io;
use std::sync::Arc;

use tenure_core::Device;
use tenure_device::DriverError;
use tenure_device::memory::MemoryError;
use tenure_device::pinned::PinnedError;

use crate::DiskError;

/// Why bytes were not moved. Always one line, which names the tensor.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoverError {
    /// The mover's memory is full of what stays there.
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
        /// The last write that failed: what was to be written stays in memory.
        failed: Option<Arc<DiskError>>,
    },
    /// Less memory than can be worked with.
    #[error("the mover has {given} bytes of memory to move bytes through: give it at least {least}")]
    TooLittle {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        least: usize,
    },
    /// A place that there is not.
    #[error("{name}: the mover has no {place}, which it was opened without")]
    NoPlace {
        /// The tensor.
        name: String,
        /// What there is not.
        place: &'static str,
    },
    /// Bytes that are elsewhere.
    #[error("{name}: its bytes are on {given}, and the mover moves those on {device}")]
    OtherDevice {
        /// The tensor.
        name: String,
        /// Where they are.
        given: Device,
        /// The mover's device.
        device: Device,
    },
    /// A stream whose work is put together to be launched later.
    #[error("{name}: it cannot be moved in a stream capture: store and fetch outside")]
    Captured {
        /// The tensor.
        name: String,
    },
    /// Room of another size.
    #[error("{name}: it has {bytes} bytes, and is fetched into {given}")]
    Size {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes of what it is fetched into.
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
        /// Its words.
        source: DriverError,
    },
    /// The device's memory refused.
    #[error("{name}: {source}")]
    Memory {
        /// The tensor.
        name: String,
        /// Its words.
        source: Box<MemoryError>,
    },
    /// No memory could be pinned.
    #[error("{name}: {source}")]
    Pinned {
        /// The tensor.
        name: String,
        /// Why.
        source: PinnedError,
    },
    /// The system gave no thread.
    #[error("the mover's threads could not be started: {0}")]
    Threads(Arc<io::Error>),
}

fn said(failed: &Option<Arc<DiskError>>) -> String {
    failed.as_ref().map(|error| format!(" (its disk failed: {error})")).unwrap_or_default()
}

impl MoverError {
    /// Whether there is no room where it was to go, in memory or on the disk: it can stay where it is.
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
