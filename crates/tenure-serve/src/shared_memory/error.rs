//! The errors of shared memory.

use std::io;

use axum::http::StatusCode;
use tenure_tensor::{Device, TensorError};

use super::regions::REGIONS;

/// The reason why a region of shared memory cannot be registered or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The client registers memory of a CUDA device, but the server computes on the CPU.
    #[error(
        "memory of CUDA devices cannot be registered here, where the CPU computes: register system shared memory, or send tensors as \
         binary data"
    )]
    Cuda,
    /// The server does not compute on this CUDA device.
    #[error(
        "memory of CUDA device {device_id} cannot be registered: the server computes on {}, by its own numbers",
        .served.iter().map(Device::to_string).collect::<Vec<_>>().join(", ")
    )]
    OtherDevice {
        /// The device's number.
        device_id: i64,
        /// The server's devices.
        served: Vec<Device>,
    },
    /// The bytes are not a handle.
    #[error("raw_handle must be the 64 bytes of a cudaIpcMemHandle_t, over HTTP as {{\"b64\": BASE64}}")]
    Handle,
    /// The driver cannot open the handle.
    #[error(
        "the handle names no memory that can be opened ({source}): make it by cudaIpcGetMemHandle, of memory of cudaMalloc on {device}, \
         in another process of the server's host that still holds the memory"
    )]
    NotOpened {
        /// The device.
        device: Device,
        /// The driver's error.
        source: Box<TensorError>,
    },
    /// The key cannot be the name of an object.
    #[error("{0:?} is not a key of shared memory: it is 1 to 255 bytes without '/', but for one at its start")]
    Key(String),
    /// The system cannot open the object.
    #[error("shared memory {key:?} cannot be opened: {source}")]
    Open {
        /// The object's name.
        key: String,
        /// The system's error.
        source: io::Error,
    },
    /// The object is a folder, a socket, or another thing without bytes.
    #[error("{0:?} is not shared memory, although it is where that is")]
    NotMemory(String),
    /// The object is shorter than its region.
    #[error("shared memory {key:?} has {found} bytes, and the region would end at {end}")]
    Short {
        /// The object's name; for memory of a device, the region's name.
        key: String,
        /// The end of the region, or of the part that is used.
        end: u64,
        /// The object's size in bytes.
        found: u64,
    },
    /// The object became shorter while it was read.
    #[error("shared memory {0:?} became shorter while it was read")]
    Changed(String),
    /// No memory can have this size or offset.
    #[error("no region begins at {offset} and has {byte_size} bytes: it has at least one, and ends before 2^63")]
    Size {
        /// The offset of the region in bytes.
        offset: u64,
        /// The size of the region in bytes.
        byte_size: u64,
    },
    /// The name is taken.
    #[error("there is a region {0:?} already: unregister it first, or choose another name")]
    Twice(String),
    /// There are too many regions.
    #[error("there are {REGIONS} regions, which is the most: unregister one")]
    Full,
    /// There is no region with this name.
    #[error(
        "unknown region {0:?} of shared memory: GET v2/systemsharedmemory/status and v2/cudasharedmemory/status list regions"
    )]
    Unknown(String),
    /// A part exceeds its region.
    #[error("region {region:?} has {region_bytes} bytes, and has no {byte_size} from {offset} on")]
    Outside {
        /// The region's name.
        region: String,
        /// The region's size in bytes.
        region_bytes: u64,
        /// The offset of the part in bytes.
        offset: u64,
        /// The size of the part in bytes.
        byte_size: u64,
    },
    /// An output is larger than its part of the region.
    #[error("output {output:?} has {bytes} bytes, and its shared_memory_byte_size is {room}")]
    Room {
        /// The output's name.
        output: String,
        /// The output's size in bytes.
        bytes: usize,
        /// The size of its part in bytes.
        room: u64,
    },
    /// The inputs are too large.
    #[error("the inputs in shared memory have more than {0} bytes, which is the server's limit")]
    TooLarge(usize),
    /// The system could not read or write the region.
    #[error("region {region:?} could not be used: {source}")]
    Failed {
        /// The region's name.
        region: String,
        /// The system's error.
        source: io::Error,
    },
}

impl SharedMemoryError {
    /// Returns the HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Twice(_) | Self::Full => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}
