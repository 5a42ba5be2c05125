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
    /// The call.
    pub call: Call,
    /// Why it failed.
    pub kind: ErrorKind,
}

/// A [`CallError`] and the place in the source that made the call.
///
/// `?` on a [`CallError`] fills the place in.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{error} (called at {at})")]
pub struct DriverError {
    /// The failed call.
    pub error: CallError,
    /// Where it was made.
    pub at: &'static Location<'static>,
}

impl DriverError {
    /// Of a call that was not made, since it would have failed: named after it, and made at the caller's place.
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

/// Why a driver call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no driver library to load.
    #[error("no CUDA driver was found ({reason}): everything that needs no GPU works")]
    NoDriver {
        /// What was tried.
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
        /// The version it serves.
        serves: u32,
        /// The version needed.
        needed: u32,
    },
    /// The driver is there and did not start.
    #[error("the CUDA driver failed to start ({reason}): check `nvidia-smi`, and the device's permissions")]
    StartFailed {
        /// The driver's words.
        reason: String,
    },
    /// Counting the devices failed with an error that does not speak of it.
    #[error(
        "the devices could not be counted, for an unknown error ({0}): check `nvidia-smi`, and that \
         CUDA_VISIBLE_DEVICES was not changed after the program started"
    )]
    CountFailed(Box<ErrorKind>),
    /// More than [`MAX_DEVICES`](crate::memory::MAX_DEVICES) devices.
    #[error("the driver found {0} devices, more than Tenure can number: please report this to its developers")]
    TooManyDevices(u32),
    /// A device's index is out of range.
    #[error("there is no device {device}: there are {count}, numbered from 0")]
    NoSuchDevice {
        /// The index given.
        device: u8,
        /// How many devices there are.
        count: u8,
    },
    /// Peer access was asked of a device and itself.
    #[error("device {0} is no peer of its own: its memory is in its own reach always")]
    PeerOfItself(u8),
    /// Peer access was asked for devices between which there is no way for it.
    #[error("device {peer} cannot reach the memory of device {device} in place: copy it over instead")]
    NoPeerAccess {
        /// The device that has the memory.
        device: u8,
        /// The device that was to reach it.
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
        /// The driver's number for it.
        code: u32,
        /// The driver's name for it, such as `CUDA_ERROR_LAUNCH_FAILED`.
        name: String,
        /// The driver's words.
        description: String,
        /// Kernels launched last, the newest first, if it came from work launched before.
        in_flight: Vec<Launch>,
    },
    /// A library of CUDA's is not there.
    #[error(
        "{library} was not found: put its folder into LD_LIBRARY_PATH; the CUDA toolkit and PyTorch's packages have it"
    )]
    NoLibrary {
        /// Its file, such as `libcublasLt.so`.
        library: &'static str,
    },
    /// A library of CUDA's failed, or does not do what it was asked for.
    #[error("{name}")]
    Library {
        /// The library's number for it.
        code: u32,
        /// The library's name for it, such as `CUBLAS_STATUS_NOT_SUPPORTED`.
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
        /// What is wrong: `size` or `address`.
        what: &'static str,
        /// The value given.
        value: u64,
        /// What it must be a multiple of.
        granularity: u64,
    },
    /// Freed or destroyed before, or never made by this driver.
    #[error("{what} {handle:#x} does not exist: it was given back before, or came from elsewhere")]
    UnknownHandle {
        /// What kind of thing: `chunk`, `segment`, `reservation`, `stream`, `event` or `graph`.
        what: &'static str,
        /// Its handle or address.
        handle: u64,
    },
    /// A chunk of another process is imported under a size that it does not have. A real driver would not notice.
    #[error("the shared chunk has {actual} bytes, not {given}: import it with the size it was created with")]
    SharedSize {
        /// The size given.
        given: u64,
        /// Its size.
        actual: u64,
    },
    /// A mapping outside reserved address space.
    #[error("{} is not inside one reservation", hex(.0))]
    NotReserved(Range<Address>),
    /// Something is at these addresses already.
    #[error("{} overlaps {}, which is in use", hex(.range), hex(.existing))]
    Overlap {
        /// The range asked for.
        range: Range<Address>,
        /// What is there.
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
    /// A chunk is released that is mapped. A real driver would keep it until the last unmap.
    #[error("chunk {:#x} is still mapped at {count} addresses: unmap it first", .chunk.0)]
    ChunkMapped {
        /// The chunk.
        chunk: ChunkId,
        /// At how many addresses.
        count: usize,
    },
    /// A reservation is given back in which a chunk is mapped.
    #[error("a chunk is still mapped at {}: unmap it first", hex(.0))]
    RangeMapped(Range<Address>),
    /// Host memory is registered of which a part is registered already.
    #[error("host memory {} overlaps {}, which is registered already", hex(.range), hex(.existing))]
    HostRegistered {
        /// The range asked for.
        range: Range<u64>,
        /// The registered one.
        existing: Range<u64>,
    },
    /// No host memory is registered that begins at the address.
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
    /// Work writes through a mapping made for reading only.
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
        /// What it was created for.
        actual: EventKind,
        /// What the call needs.
        needed: EventKind,
    },
    /// An event of this process is opened as if it were another's.
    #[error("the event was made by this process: use it as it is, without opening it")]
    OwnEvent,
    /// Memory of this process is opened as if it were another's.
    #[error("the memory was allocated by this process: use it as it is, without opening it")]
    OwnMemory,
    /// Bytes that are not in opened memory.
    #[error("the memory has {bytes} bytes, and has no {len} from {offset} on")]
    OutsideMemory {
        /// Where they are to begin.
        offset: u64,
        /// How many they are.
        len: u64,
        /// The memory's size.
        bytes: u64,
    },
    /// Time was asked of an event that was not recorded, or not passed.
    #[error("event {0:#x} was not passed yet")]
    NotPassed(u64),
    /// A capture of a stream was begun, used or ended in a way that it cannot be. A real driver has its own words for it.
    #[error("stream capture: {reason}")]
    Capture {
        /// What was wrong.
        reason: &'static str,
    },
    /// The driver was called from work that runs on a stream.
    #[error("called from a host function or kernel, which must not call the driver")]
    CalledFromWork,
    /// A failure asked for by a test.
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
        /// What it touched.
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
    /// Two pieces of work touch the same physical bytes, one of them writes, and nothing orders them.
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
        /// What both touch, at the addresses that the later one uses.
        range: Range<Address>,
    },
    /// An earlier error lost the context.
    #[error("the context was lost before, by {0}")]
    ContextLost(Arc<CallError>),
}

impl ErrorKind {
    /// The CUDA driver's number for it.
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

    /// Whether a library of CUDA's is not there, or does not compute what it was asked for, so that another may.
    pub fn is_unsupported(&self) -> bool {
        // Of cuBLAS, a value that it does not take and what is not supported; of cuDNN, all such.
        matches!(self, Self::NoLibrary { .. } | Self::Library { code: 7 | 15 | 2000..=3999, .. })
    }

    /// Whether every later call fails too, as after an illegal address on a real device.
    pub fn loses_context(&self) -> bool {
        if let Self::Device { code, .. } = self {
            // The driver shuts down; errors of memory and links; faults of kernels, among them `assert` (710) and tensor
            // memory that was kept (721); the context was destroyed (709), or its MPS server was (810).
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

/// Which piece of work an error speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name, or the driver call's.
    pub name: &'static str,
    /// The stream it was put on.
    pub stream: StreamId,
    /// Grows from one piece of work of a device to the next.
    pub number: u64,
    /// Blocks in each direction, of a kernel that has any.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block in each direction, of a kernel that has any.
    pub block: Option<[u32; 3]>,
    /// Where a kernel was made; copies and fills do not know.
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

/// The end of a message: which launches the error may come from.
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
