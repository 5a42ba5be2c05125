//! Devices, daemons and clients for the tests.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;
use tenure_alloc::{Address, Backing, PagedAllocator, PagedConfig};
use tenure_core::StreamId;
use tenure_device::share::wire::{self, DaemonReply, DaemonRequest, FRAME_BYTES};
use tenure_device::share::{DaemonClient, DaemonConfig, DaemonStatus, MemoryDaemon, SharedPool};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Driver, Platform, cuda};

use crate::process::DRIVER;

/// The granularity of every device in these tests, in bytes.
pub(crate) const GRANULE: u64 = 2 << 20;

/// A limit that keeps tests from waiting for ever: the awaited event comes much sooner, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A simulated H200.
pub(crate) fn sim() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(SimConfig::default()))
}

pub(crate) fn is_cuda() -> bool {
    std::env::var(DRIVER).is_ok_and(|driver| driver == "cuda")
}

/// Returns the device as this process sees it.
pub(crate) fn driver() -> Arc<dyn Driver> {
    if is_cuda() { cuda::platform().driver(0).unwrap() } else { sim() }
}

/// Keeps other tests away from a real device until this process ends.
pub(crate) fn alone() {
    static LOCK: OnceLock<File> = OnceLock::new();
    if is_cuda() {
        LOCK.get_or_init(|| {
            let file = File::create(std::env::temp_dir().join("tenure-cuda-tests.lock")).unwrap();
            file.lock().unwrap();
            file
        });
    }
}

/// Creates a folder, and returns it with the path of a socket in it.
pub(crate) fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory.sock");
    (folder, path)
}

/// A daemon with a device of its own.
pub(crate) struct Daemon {
    pub(crate) driver: Arc<SimDriver>,
    pub(crate) daemon: MemoryDaemon,
    _folder: TempDir,
}

impl Daemon {
    pub(crate) fn with_pool(granules: &[u64]) -> Self {
        Self::new(DaemonConfig { pool: granules.iter().map(|count| count * GRANULE).collect(), ..quick() })
    }

    /// Starts a daemon. Ignores `config`'s socket.
    pub(crate) fn new(config: DaemonConfig) -> Self {
        let (driver, (folder, socket)) = (sim(), socket());
        let daemon = MemoryDaemon::start(Arc::<SimDriver>::clone(&driver), DaemonConfig { socket, ..config }).unwrap();
        Self { driver, daemon, _folder: folder }
    }

    pub(crate) fn client(&self) -> Arc<DaemonClient> {
        Arc::new(DaemonClient::connect(self.daemon.socket()).unwrap())
    }

    /// Returns the pool as a process with a device of its own sees it.
    pub(crate) fn attach(&self) -> (Arc<SharedPool>, Arc<SimDriver>) {
        let driver = sim();
        (SharedPool::attach(self.client(), Arc::<SimDriver>::clone(&driver)).unwrap(), driver)
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(self.daemon.socket())
    }

    pub(crate) fn status(&self) -> DaemonStatus {
        self.client().status().unwrap()
    }
}

/// Creates an allocator with chunks of one granule.
pub(crate) fn paged(backing: Arc<dyn Backing>) -> PagedAllocator {
    let config = PagedConfig { min_chunk_bytes: GRANULE, max_chunk_bytes: GRANULE, ..PagedConfig::default() };
    PagedAllocator::new(backing, config).unwrap()
}

/// Returns the settings of a daemon with a short grace period.
pub(crate) fn quick() -> DaemonConfig {
    DaemonConfig { grace: Duration::from_millis(100), ..DaemonConfig::default() }
}

/// A client that can send any frame.
pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let raw = Self(socket);
        assert!(matches!(raw.receive(), Some(DaemonReply::Welcome(_))));
        raw
    }

    pub(crate) fn ask(&self, request: &DaemonRequest) -> Option<DaemonReply> {
        self.send(&wire::encode(request).unwrap());
        self.receive()
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        net::send(&self.0, frame, SendFlags::NOSIGNAL).unwrap();
    }

    /// Returns the next reply; `None` if the daemon has closed the connection.
    pub(crate) fn receive(&self) -> Option<DaemonReply> {
        let mut frame = [MaybeUninit::uninit(); FRAME_BYTES];
        let received = net::recv(&self.0, &mut frame[..], RecvFlags::empty());
        match received {
            Ok(((frame, _), _)) if !frame.is_empty() => Some(wire::decode(frame).unwrap()),
            _ => None,
        }
    }
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the device has exactly `bytes` bytes of free memory. This may take a moment, because a process that
/// another test is starting briefly holds this process's descriptors.
pub(crate) fn becomes_free(driver: &dyn Driver, bytes: u64) {
    eventually("memory is free", || driver.memory_info().unwrap().free == bytes);
}

/// Returns after the daemon has acted on all messages sent before, and on the time of its clock.
pub(crate) fn settle(client: &DaemonClient) {
    // The daemon looks at its clock after it has answered, so the second answer comes after that.
    for _ in 0..2 {
        client.status().unwrap();
    }
}

/// Fills a range with bytes that depend on `seed`, and waits until they are written.
pub(crate) fn fill(driver: &dyn Driver, address: Address, bytes: u64, seed: u64) {
    let pattern: Vec<u8> = (0..bytes).map(|index| (index.wrapping_mul(2 * seed + 1) >> 3) as u8).collect();
    driver.copy_to_device(address, &pattern, StreamId::NULL).unwrap();
}

/// Returns a checksum of the 64-bit words of a range.
pub(crate) fn sum(driver: &dyn Driver, address: Address, bytes: u64) -> u64 {
    let mut copy = vec![0; bytes as usize];
    driver.copy_from_device(&mut copy, address, StreamId::NULL).unwrap();
    let words = copy.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.fold(0, |sum: u64, word| sum.rotate_left(1).wrapping_add(word))
}

/// The resources that this process and its device hold.
#[derive(Debug)]
pub(crate) struct Footprint {
    free_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    pub(crate) fn now(driver: &dyn Driver) -> Self {
        Self {
            free_bytes: driver.memory_info().unwrap().free,
            descriptors: count_files("/proc/self/fd"),
            threads: count_files("/proc/self/task"),
        }
    }

    pub(crate) fn is_no_more_than(&self, before: &Self) -> bool {
        // The driver of a real device keeps a little for itself.
        let tolerance = if is_cuda() { 16 << 20 } else { 0 };
        self.free_bytes + tolerance >= before.free_bytes
            && self.descriptors <= before.descriptors
            && self.threads <= before.threads
    }
}

fn count_files(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}
