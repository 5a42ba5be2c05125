//! PipeSwitch's five calls: device memory that processes share.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tenure_core::StreamId;
use tenure_device::AccessMode;
use tenure_device::share::{
    CacheWaits, DaemonClient, ProcessCaches, ShareError, SharedCacheConfig, WorkerCache, default_socket,
};

use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};
use crate::stream_id;

/// The time between two attempts to connect to a process that has not sent its cache yet.
const RETRY: Duration = Duration::from_millis(20);
/// The longest wait of a process in the cache that it owns, if it has not received it.
const PATIENCE: Duration = Duration::from_secs(60);

/// `tenure_shared_access` of `tenure.h`.
const READ: c_int = 0;
const WRITE: c_int = 1;
const PLACE: c_int = 2;
const TRANSFER: c_int = 3;

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_allocate_shared_cache(
    device: c_int,
    pool_bytes: usize,
    parameter_bytes: usize,
    computation_bytes: usize,
) -> Status {
    guarded(|| {
        let memory = OpenDevice::get(device)?.memory;
        let config = SharedCacheConfig {
            pool_bytes: pool_bytes as u64,
            parameter_bytes: parameter_bytes as u64,
            computation_bytes: computation_bytes as u64,
        };
        Ok(ProcessCaches::of(memory).allocate(memory, &config)?)
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `socket` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_send_shared_cache(device: c_int, socket: *const c_char) -> Status {
    guarded(|| {
        let memory = OpenDevice::get(device)?.memory;
        // SAFETY: by the function's contract.
        let socket = unsafe { path(socket, memory.device().index()) };
        Ok(ProcessCaches::of(memory).send(&socket)?)
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `socket` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_recv_shared_cache(
    device: c_int,
    socket: *const c_char,
    parameter_bytes: usize,
    computation_bytes: usize,
    wait_s: f64,
) -> Status {
    guarded(|| {
        let memory = OpenDevice::get(device)?.memory;
        // SAFETY: by the function's contract.
        let socket = unsafe { path(socket, memory.device().index()) };
        let patience = Duration::try_from_secs_f64(wait_s)
            .map_err(|_| Failure::Invalid(format!("wait_s = {wait_s}: expected a number of seconds")))?;
        let client = connect(&socket, patience)?;
        let size = |bytes: usize| (bytes > 0).then_some(bytes as u64);
        let waits = waits(patience);
        Ok(ProcessCaches::of(memory).join(memory, client, size(parameter_bytes), size(computation_bytes), waits)?)
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_insert_shared_cache(
    device: c_int,
    bytes: usize,
    offset: usize,
    stream: *mut c_void,
) -> Status {
    // SAFETY: by the function's contract.
    unsafe {
        on_stream(device, stream, |cache, stream| {
            Ok(cache.insert_shared_cache(bytes as u64, offset as u64, stream).map(drop)?)
        })
    }
}

/// See `tenure.h`.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_insert_shared_cache_for_parameter(
    device: c_int,
    stream: *mut c_void,
    access: c_int,
) -> Status {
    // SAFETY: by the function's contract.
    unsafe {
        on_stream(device, stream, |cache, stream| {
            let inserted = match access {
                READ => cache.insert_shared_cache_for_parameter(stream, AccessMode::Read),
                WRITE => cache.insert_shared_cache_for_parameter(stream, AccessMode::ReadWrite),
                PLACE => cache.place_parameters(stream),
                TRANSFER => cache.transfer_parameters(stream),
                _ => return Err(Failure::Invalid(format!("access = {access}: expected a tenure_shared_access"))),
            };
            Ok(inserted.map(drop)?)
        })
    }
}

/// See `tenure.h`.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_insert_shared_cache_for_computation(device: c_int, stream: *mut c_void) -> Status {
    // SAFETY: by the function's contract.
    unsafe {
        on_stream(device, stream, |cache, stream| Ok(cache.insert_shared_cache_for_computation(stream).map(drop)?))
    }
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_publish_shared_parameters(device: c_int) -> Status {
    guarded(|| {
        let caches = ProcessCaches::of(OpenDevice::get(device)?.memory);
        Ok(caches.joined()?.publish_parameters(&[])?)
    })
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_clear_shared_cache(device: c_int) -> Status {
    guarded(|| Ok(ProcessCaches::of(OpenDevice::get(device)?.memory).clear()?))
}

/// Calls `insert` with the cache that the process works in, which is its own if it has received none.
///
/// # Safety
/// `stream` is null or a stream of the device.
unsafe fn on_stream(
    device: c_int,
    stream: *mut c_void,
    insert: impl FnOnce(&WorkerCache, StreamId) -> Result<(), Failure>,
) -> Status {
    guarded(|| {
        let device = OpenDevice::get(device)?;
        let stream = stream_id(stream);
        // SAFETY: by the function's contract.
        unsafe { device.adopt(stream) };
        let memory = device.memory;
        let mut caches = ProcessCaches::of(memory);
        caches.join_own(memory, &default_socket(memory.device().index()), waits(PATIENCE))?;
        insert(caches.joined()?, stream)
    })
}

fn waits(patience: Duration) -> CacheWaits {
    CacheWaits { patience, around: |wait| wait() }
}

/// Connects to the process that sends its cache at `socket`. Waits up to `wait` until one does.
fn connect(socket: &Path, wait: Duration) -> Result<DaemonClient, ShareError> {
    let start = Instant::now();
    loop {
        match DaemonClient::connect(socket) {
            Err(ShareError::NoDaemon { .. }) if start.elapsed() < wait => thread::sleep(RETRY),
            connected => return connected,
        }
    }
}

/// Returns the path of a socket: the default one of a device if `socket` is null.
///
/// # Safety
/// `socket` is null or a C string.
unsafe fn path(socket: *const c_char, device: u8) -> PathBuf {
    if socket.is_null() {
        return default_socket(device);
    }
    // SAFETY: by the function's contract.
    PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes()))
}
