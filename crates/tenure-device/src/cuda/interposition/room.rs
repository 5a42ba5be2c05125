//! Wrappers of the driver's functions that take memory of a device and do not say how much: pools, the code of kernels
//! (which may be loaded at a first launch), graphs, streams, events.
//!
//! Each takes the arguments of the function that it wraps, in the order of `cuda.h`, and calls it once more if there was
//! no room.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{self, CUresult};

use super::hooks::{Code, Hook, NullStream};
use super::make_room;

const OUT_OF_MEMORY: Code = 2;

/// Makes a call that allocates on a device. If there is no room, makes room and tries once more.
#[inline]
pub(super) fn with_room(device: impl Fn() -> c_int, call: impl Fn() -> Code) -> Code {
    let code = call();
    if code != OUT_OF_MEMORY {
        return code;
    }
    make_room(device());
    call()
}

/// Returns the device of the calling thread's context, or -1 if it has none.
pub(super) fn device_of_context() -> c_int {
    let mut device = -1;
    // SAFETY: `device` is writable.
    match unsafe { sys::cuCtxGetDevice(&mut device) } {
        CUresult::CUDA_SUCCESS => device,
        _ => -1,
    }
}

/// Defines hooks and their wrappers.
macro_rules! hooks {
    ($($hook:ident = $symbol:literal ($name:literal, $streams:ident):
       fn $wrapper:ident($($argument:ident: $type:ty),*);)*) => {
        /// The functions that are wrapped here.
        pub(super) static HOOKS: &[&Hook] = &[$(&$hook),*];
        $(
            static $hook: Hook = Hook::new($symbol, $name, NullStream::$streams, || $wrapper as *const c_void);
            unsafe extern "C" fn $wrapper($($argument: $type),*) -> Code {
                // SAFETY: the type is that of `cuda.h`, and only `Hook` hands this wrapper out.
                let real: unsafe extern "C" fn($($type),*) -> Code = unsafe { $hook.real() };
                with_room(device_of_context, || {
                    // SAFETY: the caller's arguments.
                    unsafe { real($($argument),*) }
                })
            }
        )*
    };
}

/// Any pointer or handle.
type P = *mut c_void;
/// Any number of 32 bits, such as the dimension of a grid.
type U = c_uint;

hooks! {
    MEM_ALLOC_ASYNC = c"cuMemAllocAsync" (c"cuMemAllocAsync", Legacy): fn mem_alloc_async(a: P, b: usize, c: P);
    MEM_ALLOC_ASYNC_PER_THREAD = c"cuMemAllocAsync_ptsz" (c"cuMemAllocAsync", PerThread):
    fn mem_alloc_async_per_thread(a: P, b: usize, c: P);
    MEM_ALLOC_FROM_POOL = c"cuMemAllocFromPoolAsync" (c"cuMemAllocFromPoolAsync", Legacy):
    fn mem_alloc_from_pool(a: P, b: usize, c: P, d: P);
    MEM_ALLOC_FROM_POOL_PER_THREAD = c"cuMemAllocFromPoolAsync_ptsz" (c"cuMemAllocFromPoolAsync", PerThread):
    fn mem_alloc_from_pool_per_thread(a: P, b: usize, c: P, d: P);
    MEM_ALLOC_MANAGED = c"cuMemAllocManaged" (c"cuMemAllocManaged", None): fn mem_alloc_managed(a: P, b: usize, c: U);
    MEM_SET_ACCESS = c"cuMemSetAccess" (c"cuMemSetAccess", None): fn mem_set_access(a: u64, b: usize, c: P, d: usize);
    ARRAY_CREATE = c"cuArrayCreate_v2" (c"cuArrayCreate", None): fn array_create(a: P, b: P);
    ARRAY_3D_CREATE = c"cuArray3DCreate_v2" (c"cuArray3DCreate", None): fn array_3d_create(a: P, b: P);
    MIPMAPPED_ARRAY_CREATE = c"cuMipmappedArrayCreate" (c"cuMipmappedArrayCreate", None):
    fn mipmapped_array_create(a: P, b: P, c: U);
    MODULE_LOAD = c"cuModuleLoad" (c"cuModuleLoad", None): fn module_load(a: P, b: P);
    MODULE_LOAD_DATA = c"cuModuleLoadData" (c"cuModuleLoadData", None): fn module_load_data(a: P, b: P);
    MODULE_LOAD_DATA_EX = c"cuModuleLoadDataEx" (c"cuModuleLoadDataEx", None):
    fn module_load_data_ex(a: P, b: P, c: U, d: P, e: P);
    MODULE_LOAD_FAT_BINARY = c"cuModuleLoadFatBinary" (c"cuModuleLoadFatBinary", None):
    fn module_load_fat_binary(a: P, b: P);
    MODULE_GET_FUNCTION = c"cuModuleGetFunction" (c"cuModuleGetFunction", None):
    fn module_get_function(a: P, b: P, c: P);
    MODULE_GET_GLOBAL = c"cuModuleGetGlobal_v2" (c"cuModuleGetGlobal", None):
    fn module_get_global(a: P, b: P, c: P, d: P);
    LIBRARY_LOAD_DATA = c"cuLibraryLoadData" (c"cuLibraryLoadData", None):
    fn library_load_data(a: P, b: P, c: P, d: P, e: U, f: P, g: P, h: U);
    LIBRARY_LOAD_FROM_FILE = c"cuLibraryLoadFromFile" (c"cuLibraryLoadFromFile", None):
    fn library_load_from_file(a: P, b: P, c: P, d: P, e: U, f: P, g: P, h: U);
    LIBRARY_GET_KERNEL = c"cuLibraryGetKernel" (c"cuLibraryGetKernel", None): fn library_get_kernel(a: P, b: P, c: P);
    LIBRARY_GET_MODULE = c"cuLibraryGetModule" (c"cuLibraryGetModule", None): fn library_get_module(a: P, b: P);
    LIBRARY_GET_GLOBAL = c"cuLibraryGetGlobal" (c"cuLibraryGetGlobal", None):
    fn library_get_global(a: P, b: P, c: P, d: P);
    KERNEL_GET_FUNCTION = c"cuKernelGetFunction" (c"cuKernelGetFunction", None): fn kernel_get_function(a: P, b: P);
    FUNCTION_LOAD = c"cuFuncLoad" (c"cuFuncLoad", None): fn function_load(a: P);
    LAUNCH_KERNEL = c"cuLaunchKernel" (c"cuLaunchKernel", Legacy):
    fn launch_kernel(a: P, b: U, c: U, d: U, e: U, f: U, g: U, h: U, i: P, j: P, k: P);
    LAUNCH_KERNEL_PER_THREAD = c"cuLaunchKernel_ptsz" (c"cuLaunchKernel", PerThread):
    fn launch_kernel_per_thread(a: P, b: U, c: U, d: U, e: U, f: U, g: U, h: U, i: P, j: P, k: P);
    LAUNCH_KERNEL_EX = c"cuLaunchKernelEx" (c"cuLaunchKernelEx", Legacy): fn launch_kernel_ex(a: P, b: P, c: P, d: P);
    LAUNCH_KERNEL_EX_PER_THREAD = c"cuLaunchKernelEx_ptsz" (c"cuLaunchKernelEx", PerThread):
    fn launch_kernel_ex_per_thread(a: P, b: P, c: P, d: P);
    LAUNCH_COOPERATIVE_KERNEL = c"cuLaunchCooperativeKernel" (c"cuLaunchCooperativeKernel", Legacy):
    fn launch_cooperative_kernel(a: P, b: U, c: U, d: U, e: U, f: U, g: U, h: U, i: P, j: P);
    LAUNCH_COOPERATIVE_KERNEL_PER_THREAD = c"cuLaunchCooperativeKernel_ptsz" (c"cuLaunchCooperativeKernel", PerThread):
    fn launch_cooperative_kernel_per_thread(a: P, b: U, c: U, d: U, e: U, f: U, g: U, h: U, i: P, j: P);
    GRAPH_INSTANTIATE_WITH_FLAGS = c"cuGraphInstantiateWithFlags" (c"cuGraphInstantiateWithFlags", None):
    fn graph_instantiate_with_flags(a: P, b: P, c: u64);
    GRAPH_INSTANTIATE_WITH_PARAMS = c"cuGraphInstantiateWithParams" (c"cuGraphInstantiateWithParams", Legacy):
    fn graph_instantiate_with_params(a: P, b: P, c: P);
    GRAPH_INSTANTIATE_WITH_PARAMS_PER_THREAD = c"cuGraphInstantiateWithParams_ptsz"
    (c"cuGraphInstantiateWithParams", PerThread):
    fn graph_instantiate_with_params_per_thread(a: P, b: P, c: P);
    GRAPH_LAUNCH = c"cuGraphLaunch" (c"cuGraphLaunch", Legacy): fn graph_launch(a: P, b: P);
    GRAPH_LAUNCH_PER_THREAD = c"cuGraphLaunch_ptsz" (c"cuGraphLaunch", PerThread):
    fn graph_launch_per_thread(a: P, b: P);
    GRAPH_UPLOAD = c"cuGraphUpload" (c"cuGraphUpload", Legacy): fn graph_upload(a: P, b: P);
    GRAPH_UPLOAD_PER_THREAD = c"cuGraphUpload_ptsz" (c"cuGraphUpload", PerThread):
    fn graph_upload_per_thread(a: P, b: P);
    STREAM_CREATE = c"cuStreamCreate" (c"cuStreamCreate", None): fn stream_create(a: P, b: U);
    STREAM_CREATE_WITH_PRIORITY = c"cuStreamCreateWithPriority" (c"cuStreamCreateWithPriority", None):
    fn stream_create_with_priority(a: P, b: U, c: c_int);
    EVENT_CREATE = c"cuEventCreate" (c"cuEventCreate", None): fn event_create(a: P, b: U);
    CONTEXT_SET_LIMIT = c"cuCtxSetLimit" (c"cuCtxSetLimit", None): fn context_set_limit(a: U, b: usize);
}
