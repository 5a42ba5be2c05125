use std::sync::Arc;

use tenure_alloc::BackingError;
use tenure_device::memory::MemoryError;
use tenure_device::pinned::SealedError;
use tenure_device::{CallError, DriverError};
use tenure_tier::TierError;

/// Why a model's weights are not where they are wanted. Nothing is left of what was begun.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// More than memory can have.
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
        /// Its bytes.
        needed: u64,
        /// Bytes of all images together.
        budget: u64,
        /// Bytes of images that cannot go.
        held: u64,
    },
    /// The device's budget for weights is too small, for now or for good.
    #[error(
        "{model}: its weights need {needed} bytes of the device, and {free} of the {budget} bytes for weights are free: \
         evict other models first{}", if needed > budget { ", or allow more: it can never be there" } else { "" }
    )]
    NoDeviceRoom {
        /// The model.
        model: String,
        /// Bytes that are missing there, in whole chunks.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes of all weights together.
        budget: u64,
    },
    /// There is nobody to read weights.
    #[error("no threads to read weights: {source}")]
    Reader {
        /// Why.
        source: Arc<TierError>,
    },
    /// The weights cannot be read.
    #[error("{model}: its weights cannot be read: {source}")]
    Read {
        /// The model.
        model: String,
        /// Why.
        source: Arc<TierError>,
    },
    /// Another process was to bring the weights.
    #[error("{model}: its weights did not come: the process that brings them says why")]
    NotSent {
        /// The model.
        model: String,
    },
    /// A model is to be lent of which something is not on the device.
    #[error(
        "{model}: {missing} bytes of it are not on the device, and only what is there can be lent: load all of it first"
    )]
    NotWhole {
        /// The model.
        model: String,
        /// Bytes that are missing there, in whole chunks.
        missing: u64,
    },
    /// Another process lent something else than this model.
    #[error(
        "{model}: another process lent {what} {lent}, and here it is {known}: both must know the same tensors in the same \
         groups, on the same device"
    )]
    NotTheSame {
        /// The model.
        model: String,
        /// What differs.
        what: &'static str,
        /// As the other process has it.
        lent: String,
        /// As this one has it.
        known: String,
    },
    /// The host has no memory for an image.
    #[error(transparent)]
    Host(Arc<SealedError>),
    /// The device has no memory or addresses.
    #[error(transparent)]
    Memory(#[from] BackingError),
    /// The device's driver refused.
    #[error(transparent)]
    Device(Arc<MemoryError>),
}

impl SwitchError {
    /// Whether the device had no memory left, of which others may have given some back when it is tried again.
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
