//! Tests in which every driver call of a step fails in turn: the step leaves nothing behind, and succeeds the next
//! time.

use std::sync::Arc;
use std::time::Duration;

use tenure_alloc::{AllocError, CachingAllocator, Request, Resource};
use tenure_core::StreamId;
use tenure_device::share::{DaemonConfig, LeasedBacking, MemoryDaemon, SharedPool};
use tenure_device::sim::{Failure, SimDriver};
use tenure_device::{AccessMode, Call, CopyCalls, Driver, ErrorKind, MemoryCalls};

use crate::common::{Daemon, GRANULE, becomes_free, eventually, paged, quick, sim, socket};

/// Runs `step` with its first driver call failing, then its second, and so on, until it succeeds. Returns how many runs
/// failed.
fn until_it_succeeds<T, E>(
    driver: &SimDriver,
    mut step: impl FnMut() -> Result<T, E>,
    mut failed: impl FnMut(),
) -> u64 {
    for n in 1.. {
        driver.inject(Failure::of_any(n));
        let result = step();
        driver.clear_failures();
        match result {
            Ok(_) => return n - 1,
            Err(_) => failed(),
        }
    }
    unreachable!("a step has an end")
}

#[test]
fn a_daemon_that_can_not_start_leaves_nothing_behind() {
    let ((_folder, socket), driver) = (socket(), sim());
    let total = driver.memory_info().unwrap().free;
    let config = DaemonConfig { socket: socket.clone(), pool: vec![GRANULE; 3], ..quick() };
    assert_eq!(
        until_it_succeeds(
            &driver,
            || MemoryDaemon::start(Arc::<SimDriver>::clone(&driver), config.clone()),
            || {
                becomes_free(&*driver, total);
                assert!(!socket.exists());
            }
        ),
        6,
        "three chunks made and exported"
    );
}

#[test]
fn a_pool_that_can_not_be_attached_is_let_go() {
    let daemon = Daemon::with_pool(&[1, 2]);
    let driver = sim();
    let failures =
        until_it_succeeds(&driver, || SharedPool::attach(daemon.client(), Arc::<SimDriver>::clone(&driver)), || {});
    assert_eq!(failures, 6, "a reservation, two imports and maps, and access");
    let owner = Arc::clone(&daemon.driver);
    let free = owner.memory_info().unwrap().free;
    drop(daemon);
    becomes_free(&*owner, free + 3 * GRANULE);
}

#[test]
fn a_lease_that_can_not_be_written_is_given_back() {
    let daemon = Daemon::with_pool(&[1, 1]);
    let (pool, driver) = daemon.attach();
    let failures = until_it_succeeds(
        &driver,
        || pool.lease(0, 2 * GRANULE, AccessMode::ReadWrite),
        || assert_eq!(daemon.status().holdings, []),
    );
    assert_eq!(failures, 2, "access to two chunks");
}

#[test]
fn a_lease_that_can_not_be_written_leaves_its_chunks_as_they_were() {
    let daemon = Daemon::with_pool(&[2, 1, 1]);
    let (pool, driver) = daemon.attach();
    let beside = pool.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    // The first chunk is writable already; the second becomes writable, and the third fails.
    driver.inject(Failure::of(Call::SetAccess, 2));
    pool.lease(GRANULE, 3 * GRANULE, AccessMode::ReadWrite).err().unwrap();
    driver.clear_failures();
    driver.memset(beside.address(), 1, GRANULE, StreamId::NULL).and_then(|()| driver.synchronize()).unwrap();
    let written = driver.memset(pool.address() + 2 * GRANULE, 1, GRANULE, StreamId::NULL);
    let error = written.and_then(|()| driver.synchronize()).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::ReadOnly { .. }), "{error}");
}

#[test]
fn a_chunk_that_can_not_be_had_is_given_back() {
    let daemon = Daemon::with_pool(&[]);
    let owner = Arc::clone(&daemon.driver);
    let driver = sim();
    let total = owner.memory_info().unwrap().free;
    let backing = Arc::new(LeasedBacking::new(daemon.client(), Arc::<SimDriver>::clone(&driver), Duration::ZERO));
    let allocator = paged(backing);
    let cycle = || -> Result<(), AllocError> {
        let block = allocator.allocate(Request::new(3 * GRANULE, StreamId::NULL))?;
        driver.memset(block.address, 1, 3 * GRANULE, StreamId::NULL).unwrap();
        allocator.free(block.address)?;
        allocator.release_cached()
    };
    let settled = || {
        driver.clear_failures();
        owner.clear_failures();
        allocator.release_cached().unwrap();
        eventually("all is given back", || {
            let status = daemon.status();
            (status.chunk_bytes, status.unreleased, owner.memory_info().unwrap().free) == (0, 0, total)
        });
    };
    let ours = [Call::Import, Call::Map, Call::SetAccess, Call::Unmap, Call::Release].map(|call| (&driver, call));
    let theirs = [Call::Create, Call::Export, Call::Release].map(|call| (&owner, call));
    for (driver, call) in ours.into_iter().chain(theirs) {
        for n in 1..=3 {
            let calls = driver.calls(Some(call));
            driver.inject(Failure::of(call, n));
            // The allocator may recover from the failure.
            let _ = cycle();
            assert!(n > 1 || driver.calls(Some(call)) > calls, "{call} failed");
            settled();
            cycle().unwrap();
        }
    }
}

#[test]
fn memory_that_the_driver_does_not_take_back_is_offered_again() {
    let daemon = Daemon::with_pool(&[]);
    let total = daemon.driver.memory_info().unwrap().free;
    let driver = sim();
    let backing = LeasedBacking::new(daemon.client(), driver, Duration::ZERO);
    let chunk = tenure_alloc::Backing::create(&backing, GRANULE).unwrap();
    daemon.driver.inject(Failure::of(Call::Release, 1).lasting());
    tenure_alloc::Backing::release(&backing, chunk).unwrap();
    assert_eq!((daemon.status().chunk_bytes, daemon.status().unreleased), (0, 1));
    daemon.driver.clear_failures();
    eventually("it is taken", || daemon.status().unreleased == 0);
    becomes_free(&*daemon.driver, total);
}

#[test]
fn a_lost_context_keeps_its_leases() {
    let daemon = Daemon::with_pool(&[2]);
    let (pool, driver) = daemon.attach();
    let lease = pool.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    driver.memset(0x42, 1, 1, StreamId::NULL).unwrap_err();
    assert!(driver.fault().is_some());
    lease.release().unwrap_err();
    drop(pool);
    // The pool's connection is closed, but this process still runs.
    assert_eq!(daemon.status().holdings.len(), 1);
}
