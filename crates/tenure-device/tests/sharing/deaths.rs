//! Tests of real processes that share a pool of 16 GiB and are killed.
#![expect(clippy::disallowed_methods, reason = "kills at any moment; polls a condition that no event tells of")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_alloc::Backing;
use tenure_device::share::{
    DaemonClient, DaemonConfig, LeaseState, LeasedBacking, MemoryDaemon, ShareError, SharedPool,
};
use tenure_device::sim::SimDriver;
use tenure_device::{AccessMode, Clock, DeviceProcess, Driver};

use crate::common::{
    Footprint, GRANULE, PATIENCE, alone, driver, eventually, fill, is_cuda, quick, settle, sim, socket, sum,
};
use crate::process::{Process, listen, tell};
use crate::roles::SHARE;

const CHUNK: u64 = 8 << 30;

/// The number of workers that are started and killed, unless the environment says otherwise.
const ROUNDS: u64 = 100;

/// The number of workers that run at the same time.
const AT_ONCE: u64 = 4;

fn serve(driver: Arc<dyn Driver>, socket: &Path) -> MemoryDaemon {
    serve_by(driver, socket, Clock::default())
}

fn serve_by(driver: Arc<dyn Driver>, socket: &Path, clock: Clock) -> MemoryDaemon {
    MemoryDaemon::start(driver, DaemonConfig { socket: socket.into(), pool: vec![CHUNK; 2], clock, ..quick() }).unwrap()
}

#[test]
fn two_workers_map_the_pool() {
    alone();
    let (_folder, socket) = socket();
    let _daemon = serve(driver(), &socket);
    // One after the other, because a driver maps for one process at a time.
    let workers = [(); 2].map(|()| {
        let mut worker = Process::start(&format!("attach {}", socket.display()));
        let said = worker.hear();
        eprintln!("a pool of {} bytes mapped in µs: {said}", 2 * CHUNK);
        let fastest_us = said.split(' ').map(|us| us.parse().unwrap()).min();
        assert!(!is_cuda() || fastest_us < Some(1000u64), "{said}");
        worker
    });
    workers.into_iter().for_each(Process::finish);
}

#[test]
fn a_write_through_a_mapping_for_reading_is_refused() {
    alone();
    let (_folder, socket) = socket();
    let driver = driver();
    let _daemon = serve(Arc::clone(&driver), &socket);
    let pool = SharedPool::attach(Arc::new(DaemonClient::connect(&socket).unwrap()), Arc::clone(&driver)).unwrap();
    let lease = pool.lease(GRANULE, GRANULE, AccessMode::ReadWrite).unwrap();
    fill(&*driver, lease.address(), GRANULE, 1);
    let before = sum(&*driver, pool.address(), 2 * GRANULE);
    let mut worker = Process::start(&format!("trespass {}", socket.display()));
    assert_ne!(worker.hear(), "written");
    worker.kill();
    assert_eq!(sum(&*driver, pool.address(), 2 * GRANULE), before);
}

/// Serves a pool in a process that then forks, and sends the process number of the child.
pub(crate) fn serve_and_fork(socket: &Path) {
    let _daemon = serve(sim(), socket);
    // SAFETY: the child calls only functions that are allowed after a fork.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: the call waits for a signal, and has no other conditions.
            unsafe { libc::pause() };
        },
        child => tell(child),
    }
    listen();
}

#[test]
fn a_daemon_whose_process_was_forked_dies_with_it() {
    let (_folder, socket) = socket();
    let mut daemon = Process::simulated(&format!("fork {}", socket.display()));
    let child = daemon.hear().parse().unwrap();
    let client = DaemonClient::connect(&socket).unwrap();
    daemon.kill();
    let status = client.status().map(drop);
    let mut next = Err(ShareError::Unexpected);
    let deadline = Instant::now() + PATIENCE;
    // The child may not have run yet.
    while next.is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
        next = MemoryDaemon::start(sim(), DaemonConfig { socket: socket.clone(), ..quick() }).map(drop);
    }
    // SAFETY: the call takes a number and a signal; the child was not waited for, so its number has not been reused.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(matches!(status, Err(ShareError::DaemonGone { .. })), "no answer is waited for: {status:?}");
    next.unwrap();
}

#[test]
fn a_worker_killed_in_mid_copy_loses_its_lease_and_others_lose_nothing() {
    alone();
    let (_folder, socket) = socket();
    let _daemon = serve(driver(), &socket);
    let client = DaemonClient::connect(&socket).unwrap();
    let mut other = Process::start(&format!("sum {} 1", socket.display()));
    let before = other.hear();
    let mut victim = Process::start(&format!("copy {} 0", socket.display()));
    assert_eq!(victim.hear(), "copying");
    let pid = victim.id();
    let holds = |pid| client.status().unwrap().holdings.iter().filter(|holding| holding.pid == Some(pid)).count();
    assert_eq!(holds(pid), 2, "a range of the pool and a chunk");
    victim.kill();
    let killed = Instant::now();
    eventually("its leases come back", || holds(pid) == 0);
    eprintln!("its leases are back after {:?}", killed.elapsed());
    assert_eq!(holds(other.id()), 1);
    other.say("again");
    assert_eq!(other.hear(), before);
    let mut heir = Process::start(&format!("sum {} 0", socket.display()));
    heir.hear();
    other.say("again");
    assert_eq!(other.hear(), before);
    heir.finish();
    other.finish();
    eventually("all is given back", || client.status().unwrap().holdings.is_empty());
}

#[test]
fn a_killed_worker_s_range_waits_until_the_driver_no_longer_lists_it() {
    let (_folder, socket) = socket();
    let driver = sim();
    let clock = Clock::manual();
    let _daemon = serve_by(Arc::<SimDriver>::clone(&driver), &socket, clock.clone());
    let client = DaemonClient::connect(&socket).unwrap();
    let mut victim = Process::simulated(&format!("copy {} 0", socket.display()));
    assert_eq!(victim.hear(), "copying");
    let process = |pid| DeviceProcess { pid, bytes: None };
    driver.set_processes(Some(vec![process(std::process::id()), process(victim.id())]));
    victim.kill();
    eventually("its chunk comes back", || client.status().unwrap().chunk_bytes == 0);
    clock.advance(1000 * quick().grace);
    settle(&client);
    let [left] = client.status().unwrap().holdings[..] else { panic!("its range is left") };
    assert_eq!((left.state, left.bytes), (LeaseState::Orphaned, SHARE));
    driver.set_processes(Some(vec![process(std::process::id())]));
    eventually("its range comes back", || client.status().unwrap().holdings.is_empty());
}

#[test]
fn memory_outlives_a_killed_daemon() {
    alone();
    let (_folder, socket) = socket();
    let mut daemon = Process::start(&format!("daemon {} {CHUNK}", socket.display()));
    assert_eq!(daemon.hear(), "serving");
    let driver = driver();
    let client = Arc::new(DaemonClient::connect(&socket).unwrap());
    let pool = SharedPool::attach(Arc::clone(&client), Arc::clone(&driver)).unwrap();
    let lease = pool.lease(CHUNK - SHARE, 2 * SHARE, AccessMode::ReadWrite).unwrap();
    fill(&*driver, lease.address(), 2 * SHARE, 1);
    let backing = LeasedBacking::new(Arc::clone(&client), Arc::clone(&driver), Duration::ZERO);
    let chunk = backing.create(GRANULE).unwrap();
    let before = sum(&*driver, lease.address(), 2 * SHARE);
    daemon.kill();

    assert_eq!(sum(&*driver, lease.address(), 2 * SHARE), before);
    let address = backing.reserve(GRANULE).unwrap();
    backing.map(address, chunk).unwrap();
    backing.set_access(address, GRANULE).unwrap();
    fill(&*driver, address, GRANULE, 2);
    assert!(matches!(client.status(), Err(ShareError::DaemonGone { .. })));
    let error = backing.create(GRANULE).unwrap_err().to_string();
    assert!(error.contains("has ended") && error.contains("reconnect"), "{error}");
    driver.synchronize().unwrap();
    backing.unmap(address, GRANULE).unwrap();
    backing.release(chunk).unwrap();
    assert!(matches!(lease.release(), Err(ShareError::DaemonGone { .. })));

    let mut daemon = Process::start(&format!("daemon {} {CHUNK}", socket.display()));
    assert_eq!(daemon.hear(), "serving");
    assert_eq!(sum(&*driver, pool.address() + CHUNK - SHARE, 2 * SHARE), before);
    assert_eq!(DaemonClient::connect(&socket).unwrap().status().unwrap().holdings, []);
    daemon.finish();
}

/// Runs in a process of its own, so that no other test opens descriptors or starts threads in it.
#[test]
fn starts_and_kills_leak_nothing() {
    alone();
    let rounds = std::env::var("TENURE_SHARING_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let mut supervisor = Process::start(&format!("supervise {rounds}"));
    eprintln!("{rounds} starts and kills: {}", supervisor.hear());
    supervisor.finish();
}

/// Starts and kills `rounds` workers, a few at a time. Kills half of them at an arbitrary moment.
pub(crate) fn supervise(rounds: u64) {
    let (_folder, socket) = socket();
    let driver = driver();
    let daemon = serve(Arc::clone(&driver), &socket);
    let client = DaemonClient::connect(&socket).unwrap();
    let batch = |batch: u64, count: u64| {
        let mut workers: Vec<_> =
            (0..count).map(|index| Process::start(&format!("copy {} {index}", socket.display()))).collect();
        if batch.is_multiple_of(2) {
            workers.iter_mut().for_each(|worker| assert_eq!(worker.hear(), "copying"));
        } else {
            std::thread::sleep(Duration::from_millis(batch * 7 % if is_cuda() { 600 } else { 30 }));
        }
        workers.into_iter().for_each(Process::kill);
        eventually("their leases come back", || client.status().unwrap().holdings.is_empty());
    };
    // Resources that are opened once and then kept are not leaks.
    batch(0, AT_ONCE);
    let before = Footprint::now(&*driver);
    for number in 0..rounds.div_ceil(AT_ONCE) {
        batch(number, AT_ONCE.min(rounds - number * AT_ONCE));
    }
    assert_eq!(client.status().unwrap().chunk_bytes, 0);
    // A context disappears a little later than its process.
    let deadline = Instant::now() + PATIENCE;
    while !Footprint::now(&*driver).is_no_more_than(&before) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = Footprint::now(&*driver);
    assert!(after.is_no_more_than(&before), "before {before:?}, after {after:?}");
    tell(format!("before {before:?}, after {after:?}"));
    drop(daemon);
}
