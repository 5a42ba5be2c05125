//! The calls of drivers and platforms by name, and the types of their arguments.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A call of a [`Driver`](crate::Driver) or [`Platform`](crate::Platform), named after the CUDA driver function it
/// stands for, or the function of one of CUDA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the driver function that `name` gives")]
pub enum Call {
    Start,
    DriverVersion,
    DeviceCount,
    Properties,
    CanAccessPeer,
    RetainContext,
    MemoryInfo,
    Malloc,
    Free,
    Reserve,
    Unreserve,
    Create,
    Release,
    Map,
    SetAccess,
    EnablePeer,
    Unmap,
    Export,
    Import,
    ExportMemory,
    OpenMemory,
    CloseMemory,
    RegisterHost,
    HostOnDevice,
    UnregisterHost,
    CreateStream,
    DestroyStream,
    QueryStream,
    SynchronizeStream,
    Synchronize,
    CreateEvent,
    ExportEvent,
    OpenEvent,
    DestroyEvent,
    RecordEvent,
    QueryEvent,
    WaitEvent,
    SynchronizeEvent,
    Elapsed,
    CopyToDevice,
    CopyFromDevice,
    CopyToDeviceAsync,
    CopyFromDeviceAsync,
    CopyOnDevice,
    CopyToPeer,
    Memset,
    HostFunction,
    BeginCapture,
    EndCapture,
    IsCapturing,
    LaunchGraph,
    DestroyGraph,
    Collective,
    LoadModule,
    Function,
    Launch,
    PlanProduct,
    Multiply,
    PlanGraph,
    RunGraph,
}

impl Call {
    pub(crate) const COUNT: usize = Self::RunGraph as usize + 1;

    /// Returns the driver function's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "cuInit",
            Self::DriverVersion => "cuDriverGetVersion",
            Self::DeviceCount => "cuDeviceGetCount",
            Self::Properties => "cuDeviceGetAttribute",
            Self::CanAccessPeer => "cuDeviceCanAccessPeer",
            Self::RetainContext => "cuDevicePrimaryCtxRetain",
            Self::MemoryInfo => "cuMemGetInfo",
            Self::Malloc => "cuMemAlloc",
            Self::Free => "cuMemFree",
            Self::Reserve => "cuMemAddressReserve",
            Self::Unreserve => "cuMemAddressFree",
            Self::Create => "cuMemCreate",
            Self::Release => "cuMemRelease",
            Self::Map => "cuMemMap",
            Self::SetAccess => "cuMemSetAccess",
            Self::EnablePeer => "cuCtxEnablePeerAccess",
            Self::Unmap => "cuMemUnmap",
            Self::Export => "cuMemExportToShareableHandle",
            Self::Import => "cuMemImportFromShareableHandle",
            Self::ExportMemory => "cuIpcGetMemHandle",
            Self::OpenMemory => "cuIpcOpenMemHandle",
            Self::CloseMemory => "cuIpcCloseMemHandle",
            Self::RegisterHost => "cuMemHostRegister",
            Self::HostOnDevice => "cuMemHostGetDevicePointer",
            Self::UnregisterHost => "cuMemHostUnregister",
            Self::CreateStream => "cuStreamCreate",
            Self::DestroyStream => "cuStreamDestroy",
            Self::QueryStream => "cuStreamQuery",
            Self::SynchronizeStream => "cuStreamSynchronize",
            Self::Synchronize => "cuCtxSynchronize",
            Self::CreateEvent => "cuEventCreate",
            Self::ExportEvent => "cuIpcGetEventHandle",
            Self::OpenEvent => "cuIpcOpenEventHandle",
            Self::DestroyEvent => "cuEventDestroy",
            Self::RecordEvent => "cuEventRecord",
            Self::QueryEvent => "cuEventQuery",
            Self::WaitEvent => "cuStreamWaitEvent",
            Self::SynchronizeEvent => "cuEventSynchronize",
            Self::Elapsed => "cuEventElapsedTime",
            Self::CopyToDevice => "cuMemcpyHtoD",
            Self::CopyFromDevice => "cuMemcpyDtoH",
            Self::CopyToDeviceAsync => "cuMemcpyHtoDAsync",
            Self::CopyFromDeviceAsync => "cuMemcpyDtoHAsync",
            Self::CopyOnDevice => "cuMemcpyDtoDAsync",
            Self::CopyToPeer => "cuMemcpyPeerAsync",
            Self::Memset => "cuMemsetD8Async",
            Self::HostFunction => "cuLaunchHostFunc",
            Self::BeginCapture => "cuStreamBeginCapture",
            Self::EndCapture => "cuStreamEndCapture",
            Self::IsCapturing => "cuStreamIsCapturing",
            Self::LaunchGraph => "cuGraphLaunch",
            Self::DestroyGraph => "cuGraphExecDestroy",
            Self::Collective => "NCCL",
            Self::LoadModule => "cuModuleLoadData",
            Self::Function => "cuModuleGetFunction",
            Self::Launch => "cuLaunchKernel",
            Self::PlanProduct => "cublasLtMatmulAlgoGetHeuristic",
            Self::Multiply => "cublasLtMatmul",
            Self::PlanGraph => "cudnnBackendFinalize",
            Self::RunGraph => "cudnnBackendExecute",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An event of a driver: a point in a stream that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub u64);

/// Work of a driver that was recorded once, to be launched any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphId(pub u64);

/// The use of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Order alone, the cheapest.
    #[default]
    Order,
    /// Order, and the time between two events.
    Timing,
    /// Order, between processes too; keeps no time.
    Interprocess,
}

/// A handle of an event of [`EventKind::Interprocess`], to send to another process. CUDA's `CUipcEventHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub [u8; 64]);

/// A handle of memory of [`malloc`](crate::MemoryCalls::malloc), to send to another process. CUDA's `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub [u8; 64]);

/// The rank of a stream's work when the device has more work than it can run at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The lowest priority. On today's NVIDIA devices it is the same as [`Default`](Self::Default).
    Low,
    /// The priority of the null stream, and of a stream created without a priority, such as PyTorch's: CUDA's 0.
    #[default]
    Default,
    /// The highest priority.
    High,
}

impl Priority {
    /// Every priority, the lowest first: `Priority::ALL[priority as usize] == priority`.
    pub const ALL: [Self; 3] = [Self::Low, Self::Default, Self::High];
}

/// The accesses that a mapping allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessMode {
    /// Reads; a write loses the context.
    Read,
    /// Reads and writes.
    #[default]
    ReadWrite,
}

/// A process that holds memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceProcess {
    /// The process's number in this process's namespace.
    pub pid: u32,
    /// Bytes of device memory that it holds, its context included; `None` where the driver does not say.
    pub bytes: Option<u64>,
}

/// A function that runs on the host in a stream's order. It must not call the driver.
pub type HostFunction = Box<dyn FnOnce() + Send>;
