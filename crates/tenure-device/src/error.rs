//! Errors of driver calls.

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use tenure_alloc::{Address, BackingError, ChunkId};
use tenure_core::{Device, StreamId};

use crate::{Call, EventKind};

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{call}: error {}: {kind}", .kind.code())]
pub struct CallError {
    /// The failed call.
    pub call: Call,
    /// The reason.
    pub kind: ErrorKind,
}

/// A [`CallError`] and the place in the source that made the call.
///
/// `?` on a [`CallError`] adds the place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{error} (called at {at})")]
pub struct DriverError {
    /// The failed call.
    pub error: CallError,
    /// The place of the call in the source.
    pub at: &'static Location<'static>,
}

impl DriverError {
    /// Makes the error of a call that would have failed and so was not made. It has the call's name and the caller's
    /// place.
    #[track_caller]
    pub(crate) fn new(call: Call, kind: ErrorKind) -> Self {
        CallError { call, kind }.into()
    }
}

impl From<CallError> for DriverError {
    #[track_caller]
    fn from(error: CallError) -> Self {
        Self { error, at: Location::caller() }
    }
}

impl From<DriverError> for BackingError {
    fn from(error: DriverError) -> Self {
        let call = error.error.call.name();
        match error.error.kind {
            ErrorKind::OutOfMemory { requested, free } => Self::OutOfMemory { call, requested, free },
            ref kind => {
                Self::Failed { call, reason: format!("error {}: {kind} (called at {})", kind.code(), error.at) }
            }
        }
    }
}

impl From<CallError> for BackingError {
    #[track_caller]
    fn from(error: CallError) -> Self {
        DriverError::from(error).into()
    }
}

/// The reason why a driver call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no driver library to load.
    #[error("no CUDA driver was found ({reason}): everything that needs no GPU works")]
    NoDriver {
        /// The attempts made to load it.
        reason: String,
    },
    /// The driver found no device.
    #[error("the CUDA driver found no device: check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver serves an older CUDA than is needed. Versions are as CUDA writes them: 13000 is 13.0.
    #[error(
        "the NVIDIA driver is too old: it serves CUDA {}.{}, and {}.{} is needed: update the driver",
        .serves / 1000, .serves % 1000 / 10, .needed / 1000, .needed % 1000 / 10
    )]
    DriverTooOld {
        /// The version that the driver serves.
        serves: u32,
        /// The version needed.
        needed: u32,
    },
    /// The driver is there, but did not start.
    #[error("the CUDA driver failed to start ({reason}): check `nvidia-smi`, and the device's permissions")]
    StartFailed {
        /// The driver's error text.
        reason: String,
    },
    /// Counting the devices failed, with an error that does not say that it concerns the count.
    #[error(
        "the devices could not be counted, for an unknown error ({0}): check `nvidia-smi`, and that \
         CUDA_VISIBLE_DEVICES was not changed after the program started"
    )]
    CountFailed(Box<ErrorKind>),
    /// The driver found more than [`MAX_DEVICES`](crate::memory::MAX_DEVICES) devices.
    #[error("the driver found {0} devices, more than Tenure can number: please report this to its developers")]
    TooManyDevices(u32),
    /// A device's index is out of range.
    #[error("device {device} does not exist: there are {count}, numbered from 0")]
    NoSuchDevice {
        /// The index given.
        device: u8,
        /// The number of devices.
        count: u8,
    },
    /// Peer access was requested between a device and itself.
    #[error("device {0} cannot be its own peer: it always reaches its own memory")]
    PeerOfItself(u8),
    /// Peer access was requested between devices that do not support it.
    #[error("device {peer} cannot reach the memory of device {device} in place: copy it over instead")]
    NoPeerAccess {
        /// The device whose memory it is.
        device: u8,
        /// The device that should reach the memory.
        peer: u8,
    },
    /// An event is recorded on a stream of another device, or a simulated stream waits for an event of another device.
    #[error("an event of {event} cannot be used on a stream of {stream}: make one for that device")]
    OtherDevice {
        /// The event's device.
        event: Device,
        /// The stream's device.
        stream: Device,
    },
    /// Any other error of a real driver.
    #[error("{name}: {description}{}", suspects(.in_flight))]
    Device {
        /// The driver's error number.
        code: u32,
        /// The driver's name of the error, such as `CUDA_ERROR_LAUNCH_FAILED`.
        name: String,
        /// The driver's description.
        description: String,
        /// The kernels launched last, the newest first, if the error comes from earlier work.
        in_flight: Vec<Launch>,
    },
    /// A CUDA library is missing.
    #[error(
        "{library} was not found: put its folder into LD_LIBRARY_PATH; the CUDA toolkit and PyTorch's packages have it"
    )]
    NoLibrary {
        /// The library's file name, such as `libcublasLt.so`.
        library: &'static str,
    },
    /// A CUDA library failed, or does not support the request.
    #[error("{name}")]
    Library {
        /// The library's error number.
        code: u32,
        /// The library's name of the error, such as `CUBLAS_STATUS_NOT_SUPPORTED`.
        name: String,
    },
    /// Not enough physical memory.
    #[error("out of device memory: asked for {requested} bytes, {free} are free")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free on the device.
        free: u64,
    },
    /// An address or size that is zero, or not a multiple of the granularity.
    #[error("{what} {value:#x} is zero or not a multiple of the granularity, {granularity:#x}")]
    Misaligned {
        /// The wrong quantity: `size` or `address`.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The granularity in bytes, of which the value must be a multiple.
        granularity: u64,
    },
    /// The handle was freed or destroyed before, or was never made by this driver.
    #[error("{what} {handle:#x} does not exist: it was given back before, or came from elsewhere")]
    UnknownHandle {
        /// The kind of handle: `chunk`, `segment`, `reservation`, `stream`, `event` or `graph`.
        what: &'static str,
        /// The handle or address.
        handle: u64,
    },
    /// A chunk of another process is imported with a wrong size. A real driver would not notice.
    #[error("the shared chunk has {actual} bytes, not {given}: import it with the size it was created with")]
    SharedSize {
        /// The size given.
        given: u64,
        /// The chunk's size.
        actual: u64,
    },
    /// A mapping lies outside reserved address space.
    #[error("{} is not inside one reservation", hex(.0))]
    NotReserved(Range<Address>),
    /// These addresses are already in use.
    #[error("{} overlaps {}, which is in use", hex(.range), hex(.existing))]
    Overlap {
        /// The range asked for.
        range: Range<Address>,
        /// The range in use.
        existing: Range<Address>,
    },
    /// No chunk is mapped in a part of the range.
    #[error("nothing is mapped in {}", hex(.0))]
    NotMapped(Range<Address>),
    /// The range cuts through a mapped chunk.
    #[error("{} covers only a part of the chunk mapped at {}", hex(.range), hex(.mapping))]
    PartialChunk {
        /// The range asked for.
        range: Range<Address>,
        /// The mapping that it cuts.
        mapping: Range<Address>,
    },
    /// A mapped chunk is released. A real driver would keep it until the last unmap.
    #[error("chunk {:#x} is still mapped at {count} addresses: unmap it first", .chunk.0)]
    ChunkMapped {
        /// The chunk.
        chunk: ChunkId,
        /// The number of addresses at which it is mapped.
        count: usize,
    },
    /// A reservation is freed in which a chunk is mapped.
    #[error("a chunk is still mapped at {}: unmap it first", hex(.0))]
    RangeMapped(Range<Address>),
    /// A part of the host memory is registered already.
    #[error("host memory {} overlaps {}, which is registered already", hex(.range), hex(.existing))]
    HostRegistered {
        /// The range asked for.
        range: Range<u64>,
        /// The registered range.
        existing: Range<u64>,
    },
    /// No registered host memory begins at the address.
    #[error("no host memory is registered at {0:#x}: give the address that it was registered with")]
    HostNotRegistered(u64),
    /// Host memory is unregistered while the host cannot know that copies from or to it have completed.
    #[error(
        "host memory {} is unregistered while {launch} may still use it: wait for an event recorded after it first",
        hex(.range)
    )]
    UnregisteredInUse {
        /// The registered range.
        range: Range<u64>,
        /// The copy that uses it.
        launch: Arc<Launch>,
    },
    /// Work writes through a read-only mapping.
    #[error("illegal address: {launch} writes {}, which is mapped for reading only", hex(.range))]
    ReadOnly {
        /// The work.
        launch: Arc<Launch>,
        /// The mapping.
        range: Range<Address>,
    },
    /// The event is not of the kind that the call needs.
    #[error("event {event:#x} was created for {actual:?}, not for {needed:?}")]
    WrongEventKind {
        /// The event.
        event: u64,
        /// The kind it was created for.
        actual: EventKind,
        /// The kind that the call needs.
        needed: EventKind,
    },
    /// An event of this process is opened as if it were another process's.
    #[error("the event was made by this process: use it as it is, without opening it")]
    OwnEvent,
    /// Memory of this process is opened as if it were another process's.
    #[error("the memory was allocated by this process: use it as it is, without opening it")]
    OwnMemory,
    /// An access goes beyond opened memory.
    #[error("the memory has {bytes} bytes, and has no {len} from {offset} on")]
    OutsideMemory {
        /// The first byte of the access.
        offset: u64,
        /// The number of bytes accessed.
        len: u64,
        /// The memory's size.
        bytes: u64,
    },
    /// A time was requested of an event that was not recorded, or not passed.
    #[error("event {0:#x} was not passed yet")]
    NotPassed(u64),
    /// A capture of a stream was begun, used or ended wrongly. A real driver reports it in its own words.
    #[error("stream capture: {reason}")]
    Capture {
        /// The mistake.
        reason: &'static str,
    },
    /// The driver was called from work that runs on a stream.
    #[error("called from a host function or kernel, which must not call the driver")]
    CalledFromWork,
    /// A test injected the failure.
    #[error("injected failure")]
    Injected,
    /// Work touches an address where nothing is mapped.
    #[error("illegal address: {launch} touches {}, where nothing is mapped", hex(.range))]
    IllegalAddress {
        /// The work.
        launch: Arc<Launch>,
        /// The first part of its range that is not mapped.
        range: Range<Address>,
    },
    /// Work touches a mapped chunk that was not made accessible.
    #[error("illegal address: {launch} touches {}, which is mapped but not accessible: set access first", hex(.range))]
    NoAccess {
        /// The work.
        launch: Arc<Launch>,
        /// The mapping.
        range: Range<Address>,
    },
    /// A kernel touched memory that it did not declare.
    #[error("{launch} touched {}, which it did not declare", hex(.range))]
    Undeclared {
        /// The kernel.
        launch: Arc<Launch>,
        /// The memory touched.
        range: Range<Address>,
    },
    /// A range is unmapped while the host cannot know that work which uses it has completed.
    #[error("{} is unmapped while {launch} may still use it: wait for an event recorded after it first", hex(.range))]
    UnmappedInUse {
        /// The mapping.
        range: Range<Address>,
        /// The work that uses it.
        launch: Arc<Launch>,
    },
    /// Two pieces of work touch the same physical bytes, at least one of them writes, and nothing orders them.
    #[error(
        "race: {first} and {second} both touch the memory at {}, at least one writes it, and neither waits for the \
         other: wait on an event, or record the second stream on the block",
        hex(.range)
    )]
    Race {
        /// The earlier work.
        first: Arc<Launch>,
        /// The later work.
        second: Arc<Launch>,
        /// The bytes that both touch, at the addresses that the later work uses.
        range: Range<Address>,
    },
    /// An earlier error lost the context.
    #[error("the context was lost before, by {0}")]
    ContextLost(Arc<CallError>),
}

impl ErrorKind {
    /// Returns the CUDA driver's number for the error.
    pub fn code(&self) -> u32 {
        match self {
            Self::Device { code, .. } | Self::Library { code, .. } => *code,
            Self::OutOfMemory { .. } => 2,
            Self::NoDriver { .. } | Self::StartFailed { .. } => 3,
            Self::DriverTooOld { .. } => 35,
            Self::NoDevice => 100,
            Self::NoSuchDevice { .. } | Self::PeerOfItself(_) => 101,
            Self::CountFailed(unknown) => unknown.code(),
            Self::OwnEvent | Self::OwnMemory => 201,
            Self::OutsideMemory { .. } => 1,
            Self::Overlap { .. } => 208,
            Self::UnknownHandle { .. } | Self::WrongEventKind { .. } | Self::OtherDevice { .. } => 400,
            Self::NoPeerAccess { .. } => 217,
            Self::NotPassed(_) => 600,
            Self::IllegalAddress { .. }
            | Self::NoAccess { .. }
            | Self::ReadOnly { .. }
            | Self::UnmappedInUse { .. }
            | Self::UnregisteredInUse { .. } => 700,
            Self::HostRegistered { .. } => 712,
            Self::HostNotRegistered(_) => 713,
            Self::Undeclared { .. } | Self::Race { .. } => 719,
            Self::CalledFromWork => 800,
            Self::Capture { .. } => 900,
            Self::Injected => 999,
            Self::ContextLost(first) => first.kind.code(),
            _ => 1,
        }
    }

    /// Returns whether a CUDA library is missing or does not support the request, so that another library may serve it.
    pub fn is_unsupported(&self) -> bool {
        // cuBLAS: a value that it does not take (7), an unsupported request (15). cuDNN: all errors of these two kinds.
        matches!(self, Self::NoLibrary { .. } | Self::Library { code: 7 | 15 | 2000..=3999, .. })
    }

    /// Returns whether every later call fails too, as after an illegal address on a real device.
    pub fn loses_context(&self) -> bool {
        if let Self::Device { code, .. } = self {
            // The driver shuts down (4); errors of memory and links; faults of kernels, among them `assert` (710) and
            // tensor memory that was kept (721); the context was destroyed (709), or its MPS server was (810).
            return matches!(code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810);
        }
        matches!(
            self,
            Self::IllegalAddress { .. }
                | Self::NoAccess { .. }
                | Self::ReadOnly { .. }
                | Self::UnmappedInUse { .. }
                | Self::UnregisteredInUse { .. }
                | Self::Undeclared { .. }
                | Self::Race { .. }
        )
    }
}

/// The piece of work that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The name of the kernel or driver call.
    pub name: &'static str,
    /// The stream of the work.
    pub stream: StreamId,
    /// The work's number, which grows from one piece of work of a device to the next.
    pub number: u64,
    /// The number of blocks in each direction, for a kernel that has any.
    pub grid: Option<[u32; 3]>,
    /// The number of threads of a block in each direction, for a kernel that has any.
    pub block: Option<[u32; 3]>,
    /// The place in the source where a kernel was made; `None` for copies and fills.
    pub at: Option<&'static Location<'static>>,
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (launch {} on stream {}", self.name, self.number, self.stream)?;
        for (what, size) in [("grid", self.grid), ("block", self.block)] {
            if let Some([x, y, z]) = size {
                write!(f, ", {what} {x}x{y}x{z}")?;
            }
        }
        if let Some(at) = self.at {
            write!(f, ", {at}")?;
        }
        f.write_str(")")
    }
}

/// Returns the end of a message: the launches that the error may come from.
fn suspects(launches: &[Launch]) -> String {
    if launches.is_empty() {
        return String::new();
    }
    let list: Vec<String> = launches.iter().map(ToString::to_string).collect();
    format!("; it may come from any of the last launches: {}", list.join(", "))
}

fn hex(range: &Range<Address>) -> String {
    format!("{:#x}..{:#x}", range.start, range.end)
}
