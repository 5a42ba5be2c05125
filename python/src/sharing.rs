//! The shared cache of `tenure.torch.shared_cache`: device memory under PyTorch that several processes share.
//!
//! On each device, a process owns at most one cache and works in at most one. Both stay until the process exits,
//! because tensors may lie in them.
#![expect(clippy::disallowed_methods, reason = "a limit on how long another process is waited for")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use pyo3::prelude::*;
use tenure::core::StreamId;

use tenure_device::memory::{self, DeviceMemory, MAX_DEVICES};
use tenure_device::share::{
    CacheWaits, DaemonClient, ProcessCaches, ShareError, SharedCacheConfig, WorkerCache, default_socket,
};
use tenure_device::{AccessMode, Priority};

use crate::errors::{complaint, device_complaint};
use crate::memory::not_open;
use crate::torch::without_lock;

/// The time between two attempts to connect to a daemon that has not started yet.
const RETRY: Duration = Duration::from_millis(20);

/// The streams on which modules are placed, by device. Nothing else allocates on them.
static MODULE_STREAMS: Mutex<[Option<StreamId>; MAX_DEVICES]> = Mutex::new([None; MAX_DEVICES]);

/// Returns the default socket of a device's cache.
#[pyfunction]
pub(crate) fn shared_cache_socket(device: u8) -> PathBuf {
    default_socket(device)
}

/// Allocates the memory of a cache.
#[pyfunction]
pub(crate) fn allocate_shared_cache(
    py: Python<'_>,
    device: u8,
    pool_bytes: u64,
    parameter_bytes: u64,
    computation_bytes: u64,
) -> PyResult<()> {
    py.detach(|| {
        let config = SharedCacheConfig { pool_bytes, parameter_bytes, computation_bytes };
        caches(device)?.allocate(opened(device)?, &config).map_err(exception)
    })
}

/// Serves the owned cache at a socket.
#[pyfunction]
pub(crate) fn send_shared_cache(py: Python<'_>, device: u8, socket: PathBuf) -> PyResult<()> {
    py.detach(|| caches(device)?.send(&socket).map_err(exception))
}

/// Returns whether this process works in its own cache.
#[pyfunction]
pub(crate) fn owns_shared_cache(py: Python<'_>, device: u8) -> PyResult<bool> {
    py.detach(|| Ok(caches(device)?.is_own()))
}

/// Maps this process's own cache into the process, if it has one and has joined none yet. First serves it at `socket`,
/// unless it is served already. `wait_s` is as in [`recv_shared_cache`].
#[pyfunction]
pub(crate) fn join_own_shared_cache(py: Python<'_>, device: u8, socket: PathBuf, wait_s: f64) -> PyResult<()> {
    let waits = waits(wait_s)?;
    py.detach(|| caches(device)?.join_own(opened(device)?, &socket, waits).map_err(exception))
}

/// Maps the cache that is served at `socket`. Waits up to `wait_s` seconds for it to be served, and later as long for
/// other processes that compute in it. Sizes default to those that the cache was made with.
#[pyfunction]
pub(crate) fn recv_shared_cache(
    py: Python<'_>,
    device: u8,
    socket: PathBuf,
    wait_s: f64,
    parameter_bytes: Option<u64>,
    computation_bytes: Option<u64>,
) -> PyResult<()> {
    let waits = waits(wait_s)?;
    let client = connect(py, &socket, waits.patience)?;
    py.detach(|| {
        let joined = caches(device)?.join(opened(device)?, client, parameter_bytes, computation_bytes, waits);
        joined.map_err(exception)
    })
}

/// Allows a stream to allocate parameters in the cache.
#[pyfunction]
pub(crate) fn insert_shared_parameters(py: Python<'_>, device: u8, stream: u64, purpose: &str) -> PyResult<()> {
    let stream = StreamId(stream);
    with_cache(py, device, |cache| match purpose {
        "read" => cache.insert_shared_cache_for_parameter(stream, AccessMode::Read),
        "write" => cache.insert_shared_cache_for_parameter(stream, AccessMode::ReadWrite),
        "transfer" => cache.transfer_parameters(stream),
        _ => cache.place_parameters(stream),
    })?;
    Ok(())
}

/// Allows a stream to read the published parameters, if their description equals `about`. Otherwise inserts nothing and
/// returns the description of the published ones.
#[pyfunction]
pub(crate) fn attach_shared_parameters(
    py: Python<'_>,
    device: u8,
    stream: u64,
    about: &[u8],
) -> PyResult<Option<Vec<u8>>> {
    with_cache(py, device, |cache| match cache.attach_parameters(StreamId(stream), about) {
        Ok(_) => Ok(None),
        Err(ShareError::OtherParameters { published }) => Ok(Some(published)),
        Err(error) => Err(error),
    })
}

/// Fails unless blocks of these sizes, and their list, fit into the range for parameters.
#[pyfunction]
pub(crate) fn check_room_for_parameters(py: Python<'_>, device: u8, requests: Vec<u64>, about: &[u8]) -> PyResult<()> {
    with_cache(py, device, |cache| cache.check_room(&requests, about))
}

/// Returns the stream on which modules are placed. Allocations of other threads do not run on it, so they are not taken
/// for parameters.
#[pyfunction]
pub(crate) fn module_stream(py: Python<'_>, device: u8) -> PyResult<u64> {
    py.detach(|| {
        let driver = opened(device)?.driver();
        let mut streams = MODULE_STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match streams[usize::from(device)] {
            Some(stream) => stream,
            None => driver.create_stream(Priority::Default).map_err(|error| exception(error.into()))?,
        };
        streams[usize::from(device)] = Some(stream);
        Ok(stream.0)
    })
}

/// Returns the address of the range for parameters and its size in bytes.
#[pyfunction]
pub(crate) fn shared_parameter_range(py: Python<'_>, device: u8) -> PyResult<(u64, u64)> {
    with_cache(py, device, |cache| Ok(cache.parameters()))
}

/// Allows a stream to compute in the cache.
#[pyfunction]
pub(crate) fn insert_shared_computation(py: Python<'_>, device: u8, stream: u64) -> PyResult<()> {
    with_cache(py, device, |cache| cache.insert_shared_cache_for_computation(StreamId(stream)).map(drop))
}

/// Publishes the parameters that were allocated, with a description, so that other processes can read them.
#[pyfunction]
pub(crate) fn publish_shared_parameters(py: Python<'_>, device: u8, about: &[u8]) -> PyResult<()> {
    with_cache(py, device, |cache| cache.publish_parameters(about))
}

/// Returns the description of the parameters that are inserted.
#[pyfunction]
pub(crate) fn about_shared_parameters(py: Python<'_>, device: u8) -> PyResult<Option<Vec<u8>>> {
    with_cache(py, device, |cache| Ok(cache.about_parameters()))
}

/// Fails unless all parameters to be read have been allocated.
#[pyfunction]
pub(crate) fn check_shared_parameters(py: Python<'_>, device: u8) -> PyResult<()> {
    with_cache(py, device, WorkerCache::check_parameters)
}

/// Removes the range for parameters.
#[pyfunction]
pub(crate) fn clear_shared_parameters(py: Python<'_>, device: u8) -> PyResult<()> {
    with_cache(py, device, WorkerCache::clear_parameters)
}

/// Removes everything that was inserted.
#[pyfunction]
pub(crate) fn clear_shared_cache(py: Python<'_>, device: u8) -> PyResult<()> {
    py.detach(|| caches(device)?.clear().map_err(exception))
}

/// Returns the physical bytes that this process itself got from a device, without shared ones.
#[pyfunction]
pub(crate) fn own_bytes(device: u8) -> PyResult<u64> {
    Ok(opened(device)?.backing().held_bytes())
}

fn with_cache<T: Send>(
    py: Python<'_>,
    device: u8,
    action: impl FnOnce(&WorkerCache) -> Result<T, ShareError> + Send,
) -> PyResult<T> {
    py.detach(|| {
        let caches = caches(device)?;
        caches.joined().and_then(action).map_err(exception)
    })
}

/// Connects to the daemon at `socket`. Waits up to `wait` for it to start.
fn connect(py: Python<'_>, socket: &Path, wait: Duration) -> PyResult<DaemonClient> {
    let start = Instant::now();
    loop {
        match py.detach(|| DaemonClient::connect(socket)) {
            Err(ShareError::NoDaemon { .. }) if start.elapsed() < wait => {
                py.check_signals()?;
                py.detach(|| std::thread::sleep(RETRY));
            }
            connected => return connected.map_err(exception),
        }
    }
}

fn waits(wait_s: f64) -> PyResult<CacheWaits> {
    let patience = Duration::try_from_secs_f64(wait_s);
    let patience = patience.map_err(|_| complaint(format!("wait = {wait_s}: expected a number of seconds")))?;
    Ok(CacheWaits { patience, around: without_lock })
}

fn caches(device: u8) -> PyResult<MutexGuard<'static, ProcessCaches>> {
    Ok(ProcessCaches::of(opened(device)?))
}

fn opened(device: u8) -> PyResult<&'static DeviceMemory> {
    memory::installed(device.into()).ok_or_else(|| not_open(device.into()))
}

fn exception(error: ShareError) -> PyErr {
    match error {
        ShareError::Driver(error) => device_complaint(error.to_string()),
        error => complaint(error.to_string()),
    }
}
