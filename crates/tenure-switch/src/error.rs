//! Errors of loading, lending and borrowing models.

use std::sync::Arc;

use tenure_alloc::BackingError;
use tenure_device::memory::MemoryError;
use tenure_device::pinned::SealedError;
use tenure_device::{CallError, DriverError};
use tenure_tier::TierError;

/// An error of loading, evicting, lending or borrowing a model's weights. The failed call undoes all that it began.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The tensors have more bytes than any memory.
    #[error("{model}: its tensors have more bytes than any memory: its description is wrong")]
    TooLarge {
        /// The model.
        model: String,
    },
    /// The host's budget for images is too small.
    #[error(
        "{model}: an image of {needed} bytes is needed, and of the {budget} bytes for images {held} are in use by models \
         that run or load: allow more, or unload models"
    )]
    NoHostRoom {
        /// The model.
        model: String,
        /// The bytes of the image.
        needed: u64,
        /// The budget for all images together, in bytes.
        budget: u64,
        /// The bytes of images that are in use and cannot leave.
        held: u64,
    },
    /// The device's budget for weights is too small, for now or altogether.
    #[error(
        "{model}: its weights need {needed} bytes of the device, and {free} of the {budget} bytes for weights are free: \
         evict other models first{}", if needed > budget { ", or allow more: it can never be there" } else { "" }
    )]
    NoDeviceRoom {
        /// The model.
        model: String,
        /// The missing bytes, in whole chunks.
        needed: u64,
        /// The free bytes.
        free: u64,
        /// The budget for all weights together, in bytes.
        budget: u64,
    },
    /// No threads could be started to read weights.
    #[error("no threads to read weights: {source}")]
    Reader {
        /// The cause.
        source: Arc<TierError>,
    },
    /// The weights cannot be read.
    #[error("{model}: its weights cannot be read: {source}")]
    Read {
        /// The model.
        model: String,
        /// The cause.
        source: Arc<TierError>,
    },
    /// The process that loads the weights reported that it could not.
    #[error("{model}: its weights did not come: the process that brings them says why")]
    NotSent {
        /// The model.
        model: String,
    },
    /// A model cannot be lent while some of it is not on the device.
    #[error(
        "{model}: {missing} bytes of it are not on the device, and only what is there can be lent: load all of it first"
    )]
    NotWhole {
        /// The model.
        model: String,
        /// The missing bytes, in whole chunks.
        missing: u64,
    },
    /// Another process lent something other than this model.
    #[error(
        "{model}: another process lent {what} {lent}, and here it is {known}: both must know the same tensors in the same \
         groups, on the same device"
    )]
    NotTheSame {
        /// The model.
        model: String,
        /// The property that differs.
        what: &'static str,
        /// Its value in the other process.
        lent: String,
        /// Its value in this process.
        known: String,
    },
    /// The host has no memory for an image.
    #[error(transparent)]
    Host(Arc<SealedError>),
    /// The device has no memory or address space left.
    #[error(transparent)]
    Memory(#[from] BackingError),
    /// The device's driver refused.
    #[error(transparent)]
    Device(Arc<MemoryError>),
}

impl SwitchError {
    /// Returns whether the device had no memory left. A later attempt may succeed, if other models or processes gave
    /// some back.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Memory(BackingError::OutOfMemory { .. }))
    }
}

impl From<SealedError> for SwitchError {
    fn from(error: SealedError) -> Self {
        Self::Host(Arc::new(error))
    }
}

impl From<MemoryError> for SwitchError {
    fn from(error: MemoryError) -> Self {
        Self::Device(Arc::new(error))
    }
}

impl From<DriverError> for SwitchError {
    #[track_caller]
    fn from(error: DriverError) -> Self {
        MemoryError::from(error).into()
    }
}

impl From<CallError> for SwitchError {
    #[track_caller]
    fn from(error: CallError) -> Self {
        MemoryError::from(error).into()
    }
}
