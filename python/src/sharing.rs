//! The shared cache of `tenure.torch.shared_cache`: device memory under PyTorch that several processes share.
//!
//! On each device, a process owns at most one cache and works in at most one. Both stay until the process exits,
//! because tensors may lie in them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tenure::core::StreamId;

use tenure_device::memory::{self, DeviceMemory, MAX_DEVICES};
use tenure_device::share::{
    DaemonClient, DaemonConfig, ShareError, SharedCache, SharedCacheConfig, WorkerCache, default_socket,
};
use tenure_device::{AccessMode, Priority};

use crate::errors::{complaint, device_complaint};
use crate::memory::not_open;
use crate::torch::without_lock;

/// The time between two attempts to connect to a daemon that has not started yet.
const RETRY: Duration = Duration::from_millis(20);

static CACHES: [Mutex<Caches>; MAX_DEVICES] =
    [const { Mutex::new(Caches { owned: None, joined: None, is_own: false, stream: None }) }; MAX_DEVICES];

/// A process's shared caches on a device.
struct Caches {
    owned: Option<SharedCache>,
    joined: Option<WorkerCache>,
    /// Whether the joined cache is the owned one.
    is_own: bool,
    /// The stream on which modules are placed. Nothing else allocates on it.
    stream: Option<StreamId>,
}

impl Caches {
    /// Maps the cache that `client` is connected to. It replaces a cache joined before if nothing is inserted in that
    /// one.
    fn join(
        &mut self,
        device: u8,
        client: DaemonClient,
        parameter_bytes: Option<u64>,
        computation_bytes: Option<u64>,
        patience: Duration,
    ) -> PyResult<()> {
        if self.joined.as_ref().is_some_and(|joined| !joined.streams().is_empty()) {
            let text = "ranges of another shared cache are inserted in this process: call clear_shared_cache() first";
            return Err(complaint(text.to_owned()));
        }
        let is_own = self.owned.as_ref().and_then(SharedCache::socket) == Some(client.path());
        let pool = &client.terms().pool;
        let size = |given: Option<u64>, part: usize| given.or_else(|| pool.get(part).copied()).unwrap_or(0);
        let config = SharedCacheConfig {
            pool_bytes: client.terms().pool_bytes(),
            parameter_bytes: size(parameter_bytes, 0),
            computation_bytes: size(computation_bytes, 1),
        };
        let cache = WorkerCache::recv_shared_cache(Arc::new(client), opened(device)?, config);
        self.joined = Some(cache.map_err(exception)?.with_patience(patience).with_waits_in(without_lock));
        self.is_own = is_own;
        Ok(())
    }
}

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
        let mut caches = caches(device)?;
        if caches.owned.is_some() {
            return Err(complaint("this process has allocated a shared cache of this device already".to_owned()));
        }
        let config = SharedCacheConfig { pool_bytes, parameter_bytes, computation_bytes };
        let cache = SharedCache::allocate_shared_cache(Arc::clone(opened(device)?.driver()), &config);
        caches.owned = Some(cache.map_err(exception)?);
        Ok(())
    })
}

/// Serves the owned cache at a socket.
#[pyfunction]
pub(crate) fn send_shared_cache(py: Python<'_>, device: u8, socket: PathBuf) -> PyResult<()> {
    py.detach(|| {
        let mut caches = caches(device)?;
        let owned = caches.owned.as_mut();
        let owned = owned.ok_or_else(|| {
            complaint("there is no shared cache to send: call allocate_shared_cache() first".to_owned())
        })?;
        owned.send_shared_cache(DaemonConfig { socket, ..DaemonConfig::default() }).map_err(exception)
    })
}

/// Returns whether this process works in its own cache.
#[pyfunction]
pub(crate) fn owns_shared_cache(py: Python<'_>, device: u8) -> PyResult<bool> {
    py.detach(|| Ok(caches(device)?.is_own))
}

/// Maps this process's own cache into the process, if it has one and has joined none yet. First serves it at `socket`,
/// unless it is served already. `wait_s` is as in [`recv_shared_cache`].
#[pyfunction]
pub(crate) fn join_own_shared_cache(py: Python<'_>, device: u8, socket: PathBuf, wait_s: f64) -> PyResult<()> {
    let patience = seconds(wait_s)?;
    py.detach(|| {
        let caches = &mut *caches(device)?;
        let (Some(owned), None) = (&mut caches.owned, &caches.joined) else { return Ok(()) };
        let socket = owned.socket().map_or(socket, Path::to_path_buf);
        owned
            .send_shared_cache(DaemonConfig { socket: socket.clone(), ..DaemonConfig::default() })
            .map_err(exception)?;
        caches.join(device, DaemonClient::connect(&socket).map_err(exception)?, None, None, patience)
    })
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
    let wait = seconds(wait_s)?;
    let client = connect(py, &socket, wait)?;
    py.detach(|| caches(device)?.join(device, client, parameter_bytes, computation_bytes, wait))
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
        let caches = &mut *caches(device)?;
        let stream = match caches.stream {
            Some(stream) => stream,
            None => {
                opened(device)?.driver().create_stream(Priority::Default).map_err(|error| exception(error.into()))?
            }
        };
        caches.stream = Some(stream);
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
    with_cache(py, device, |cache| {
        // The first error is returned; the remaining streams are cleared all the same.
        cache.streams().into_iter().map(|stream| cache.clear_shared_cache(stream)).fold(Ok(()), Result::and)
    })
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
        let joined = caches.joined.as_ref();
        let cache = joined
            .ok_or_else(|| complaint("there is no shared cache here: call recv_shared_cache() first".to_owned()))?;
        action(cache).map_err(exception)
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

fn seconds(wait_s: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(wait_s).map_err(|_| complaint(format!("wait = {wait_s}: expected a number of seconds")))
}

fn caches(device: u8) -> PyResult<MutexGuard<'static, Caches>> {
    let caches = CACHES.get(usize::from(device)).ok_or_else(|| complaint(format!("there is no device {device}")))?;
    Ok(caches.lock().unwrap_or_else(PoisonError::into_inner))
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
