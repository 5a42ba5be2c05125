//! The roles that other processes of the tests play.
#![expect(clippy::disallowed_methods, reason = "prints how long something took on a GPU, and asserts nothing of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use tenure_alloc::{Backing, CachingAllocator, Request, Resource};
use tenure_core::StreamId;
use tenure_device::share::{DaemonClient, DaemonConfig, LeasedBacking, MemoryDaemon, SharedPool};
use tenure_device::{AccessMode, Priority};

use crate::common::{GRANULE, driver, fill, paged, quick, sum};
use crate::process::{listen, tell};
use crate::{blocks, deaths, transfers};

/// The size of one worker's part of the pool, in bytes.
pub(crate) const SHARE: u64 = 4 * GRANULE;

/// Plays `role` until it is over or the parent has ended.
pub(crate) fn play(role: &str) {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["daemon", socket, chunk_bytes] => daemon(Path::new(socket), chunk_bytes.parse().unwrap()),
        ["attach", socket] => attach(Path::new(socket)),
        ["fork", socket] => deaths::serve_and_fork(Path::new(socket)),
        ["transfer", socket] => transfers::transfer_in_part(Path::new(socket)),
        ["sum", socket, index] => sums(Path::new(socket), index.parse().unwrap()),
        ["copy", socket, index] => copies(Path::new(socket), index.parse().unwrap()),
        ["trespass", socket] => trespasses(Path::new(socket)),
        ["hoard", socket, bytes] => hoards(Path::new(socket), bytes.parse().unwrap()),
        ["send", bytes] => sends(bytes.parse().unwrap()),
        ["receive", rounds] => blocks::receive(rounds.parse().unwrap()),
        ["supervise", rounds] => deaths::supervise(rounds.parse().unwrap()),
        _ => panic!("no role: {role}"),
    }
}

/// Serves a pool of two chunks.
fn daemon(socket: &Path, chunk_bytes: u64) {
    let config = DaemonConfig { socket: socket.into(), pool: vec![chunk_bytes; 2], ..quick() };
    let _daemon = MemoryDaemon::start(driver(), config).unwrap();
    tell("serving");
    listen();
}

/// Maps the pool a few times, sends the time of each in µs, and waits with the pool mapped.
fn attach(socket: &Path) {
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let mut pool = None;
    let times = [(); 3].map(|()| {
        drop(pool.take());
        let start = Instant::now();
        pool = Some(SharedPool::attach(Arc::clone(&client), Arc::clone(&driver)).unwrap());
        start.elapsed().as_micros().to_string()
    });
    tell(times.join(" "));
    listen();
}

/// Fills its part of the pool, and sends the part's sum at each request.
fn sums(socket: &Path, index: u64) {
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let pool = SharedPool::attach(client, Arc::clone(&driver)).unwrap();
    let lease = pool.lease(index * SHARE, SHARE, AccessMode::ReadWrite).unwrap();
    fill(&*driver, lease.address(), SHARE, index);
    tell(sum(&*driver, lease.address(), SHARE));
    while listen().is_some() {
        tell(sum(&*driver, lease.address(), SHARE));
    }
}

/// Copies to its part of the pool, and to chunks of its own, until it is killed.
fn copies(socket: &Path, index: u64) {
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let pool = SharedPool::attach(Arc::clone(&client), Arc::clone(&driver)).unwrap();
    let backing: Arc<dyn Backing> = Arc::new(LeasedBacking::new(client, Arc::clone(&driver), Duration::ZERO));
    let allocator = paged(backing);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let block = allocator.allocate(Request::new(SHARE, stream)).unwrap();
    let lease = pool.lease(index * SHARE, SHARE, AccessMode::ReadWrite).unwrap();
    let source = vec![0xa5; SHARE as usize];
    for round in 0u64.. {
        // SAFETY: `source` is never written, and the process is killed before it is freed.
        unsafe { driver.copy_to_device_async(lease.address(), source.as_ptr(), SHARE, stream).unwrap() };
        driver.copy_on_device(block.address, lease.address(), SHARE, stream).unwrap();
        if round == 0 {
            tell("copying");
        }
        // A few copies are always in flight.
        if round.is_multiple_of(4) {
            driver.synchronize_stream(stream).unwrap();
        }
    }
}

/// Writes to the pool without a lease for writing, and sends the result.
fn trespasses(socket: &Path) {
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let pool = SharedPool::attach(client, Arc::clone(&driver)).unwrap();
    let before = sum(&*driver, pool.address(), GRANULE);
    let lease = pool.lease(0, GRANULE, AccessMode::Read).unwrap();
    assert_eq!(sum(&*driver, lease.address(), GRANULE), before);
    let written = driver.memset(lease.address(), 1, GRANULE, StreamId::NULL).and_then(|()| driver.synchronize());
    tell(written.map_or_else(|error| format!("{}", error.kind.code()), |()| "written".into()));
}

/// Allocates and frees, which keeps memory cached, and gives that back when other processes are short of memory.
fn hoards(socket: &Path, bytes: u64) {
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let backing: Arc<dyn Backing> = Arc::new(LeasedBacking::new(Arc::clone(&client), driver, Duration::ZERO));
    let allocator = Arc::new(paged(backing));
    let block = allocator.allocate(Request::new(bytes, StreamId::NULL)).unwrap();
    allocator.free(block.address).unwrap();
    let hoard = Arc::clone(&allocator);
    let _recalls = client
        .on_recall(move |bytes| {
            hoard.release_cached().unwrap();
            tell(format!("gave back {bytes}"));
        })
        .unwrap();
    tell("hoarding");
    listen();
}

/// Shares a block, sends its sum and its handle, and then follows the parent's orders.
fn sends(bytes: u64) {
    let memory = blocks::memory(driver());
    let (address, block) = blocks::shared(&memory, bytes, 5);
    let sum = || sum(&**memory.driver(), address, bytes.min(GRANULE));
    blocks::tell_of(&block, sum());
    while let Some(line) = listen() {
        match line.as_str() {
            "sum" => tell(sum()),
            "free" => {
                memory.free(address).unwrap();
                memory.allocator().release_cached().unwrap();
                tell("freed");
            }
            _ => panic!("no order: {line}"),
        }
    }
}
