use std::fmt;

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
    RegisterHost,
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
    Memset,
    HostFunction,
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

    /// The driver function's name.
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
            Self::RegisterHost => "cuMemHostRegister",
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
            Self::Memset => "cuMemsetD8Async",
            Self::HostFunction => "cuLaunchHostFunc",
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
