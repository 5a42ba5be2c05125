//! What can be wrong with shared memory.

use std::io;

use axum::http::StatusCode;
use tenure_tensor::{Device, TensorError};

use super::regions::REGIONS;

/// Why a region of shared memory cannot be registered or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// Whoever is on another host shares no memory with the server.
    #[error("shared memory is for clients on the server's host, or with a token: send tensors as binary data")]
    Elsewhere,
    /// Memory of a client's CUDA device, on a server that computes on the CPU.
    #[error(
        "memory of CUDA devices cannot be registered here, where the CPU computes: register system shared memory, or send tensors as \
         binary data"
    )]
    Cuda,
    /// Memory of a CUDA device that the server does not compute on.
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
    /// Bytes that are no handle.
    #[error("raw_handle must be the 64 bytes of a cudaIpcMemHandle_t, over HTTP as {{\"b64\": BASE64}}")]
    Handle,
    /// A handle that the driver does not open.
    #[error(
        "the handle names no memory that can be opened ({source}): make it by cudaIpcGetMemHandle, of memory of cudaMalloc on {device}, \
         in another process of the server's host that still holds the memory"
    )]
    NotOpened {
        /// The device.
        device: Device,
        /// The driver's words.
        source: Box<TensorError>,
    },
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
        /// The object's name; the region's, where it is an allocation of a device.
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
    #[error(
        "there is no region {0:?} of shared memory: GET v2/systemsharedmemory/status and v2/cudasharedmemory/status list regions"
    )]
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
    pub(crate) fn status(&self) -> StatusCode {
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
