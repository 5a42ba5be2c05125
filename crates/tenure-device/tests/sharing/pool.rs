//! Tests of a pool as processes see it.

use std::sync::Arc;

use tenure_core::StreamId;
use tenure_device::share::{DaemonRefusal, ShareError, SharedPool};
use tenure_device::sim::SimDriver;
use tenure_device::{AccessMode, CopyCalls, Driver, ErrorKind, MemoryCalls, Priority, StreamCalls};

use crate::common::{Daemon, GRANULE, becomes_free, fill, sim, sum};

#[test]
fn one_client_reads_the_bytes_that_another_writes() {
    let daemon = Daemon::with_pool(&[1, 3]);
    let ((writer, here), (reader, there)) = (daemon.attach(), daemon.attach());
    assert_eq!(writer.bytes(), 4 * GRANULE);
    // The range crosses the border of two chunks.
    let lease = writer.lease(0, 2 * GRANULE, AccessMode::ReadWrite).unwrap();
    fill(&*here, lease.address(), 2 * GRANULE, 5);
    let written = sum(&*here, lease.address(), 2 * GRANULE);
    lease.release().unwrap();
    let lease = reader.lease(0, 2 * GRANULE, AccessMode::Read).unwrap();
    assert_eq!(sum(&*there, lease.address(), 2 * GRANULE), written);
}

#[test]
fn a_writer_is_alone_and_readers_are_not() {
    let daemon = Daemon::with_pool(&[4]);
    let ((a, _a), (b, _b)) = (daemon.attach(), daemon.attach());
    let reading = a.lease(0, 2 * GRANULE, AccessMode::Read).unwrap();
    let beside = b.lease(GRANULE, GRANULE, AccessMode::Read).unwrap();
    for pool in [&a, &b] {
        let error = pool.lease(0, GRANULE, AccessMode::ReadWrite).err().unwrap();
        assert!(matches!(error, ShareError::Refused(DaemonRefusal::Leased { .. })), "{error}");
    }
    drop((reading, beside));
    let _writing = b.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    assert!(a.lease(0, 4 * GRANULE, AccessMode::Read).is_err());
    a.lease(GRANULE, GRANULE, AccessMode::Read).unwrap();
}

#[test]
fn only_a_lease_to_write_makes_its_chunks_writable_and_only_while_it_lasts() {
    let writes = |leased: bool, offset: u64| {
        let daemon = Daemon::with_pool(&[2, 2]);
        let (pool, driver) = daemon.attach();
        let lease = pool.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
        let kept = leased.then_some(lease);
        let result = driver.memset(pool.address() + offset, 1, GRANULE, StreamId::NULL);
        let result = result.and_then(|()| driver.synchronize());
        drop(kept);
        result.map_err(|error| error.kind)
    };
    assert_eq!(writes(true, 0), Ok(()));
    assert!(matches!(writes(false, 0), Err(ErrorKind::ReadOnly { .. })), "the lease is over");
    assert!(matches!(writes(true, 2 * GRANULE), Err(ErrorKind::ReadOnly { .. })), "another chunk");
}

#[test]
fn a_chunk_stays_writable_until_its_last_writer_is_done() {
    let daemon = Daemon::with_pool(&[2]);
    let (pool, driver) = daemon.attach();
    let first = pool.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    let second = pool.lease(GRANULE, GRANULE, AccessMode::ReadWrite).unwrap();
    first.release().unwrap();
    fill(&*driver, second.address(), GRANULE, 1);
    second.release().unwrap();
    driver.memset(pool.address(), 1, GRANULE, StreamId::NULL).and_then(|()| driver.synchronize()).unwrap_err();
}

#[test]
fn a_range_that_is_none_is_refused() {
    let daemon = Daemon::with_pool(&[4]);
    let (pool, _driver) = daemon.attach();
    let ranges = [(0, 0), (1, GRANULE), (0, GRANULE + 1), (0, 5 * GRANULE), (4 * GRANULE, GRANULE)];
    for (offset, bytes) in ranges.into_iter().chain([(u64::MAX - GRANULE + 1, GRANULE)]) {
        let error = pool.lease(offset, bytes, AccessMode::Read).err().unwrap();
        assert!(matches!(error, ShareError::Refused(DaemonRefusal::OutsidePool { .. })), "{error}");
    }
}

#[test]
fn a_daemon_without_a_pool_says_so() {
    let daemon = Daemon::with_pool(&[]);
    let error = SharedPool::attach(daemon.client(), sim()).err().unwrap();
    assert!(matches!(error, ShareError::NoPool { .. }));
}

#[test]
fn memory_is_the_device_s_again_when_the_last_of_all_lets_go() {
    let daemon = Daemon::with_pool(&[4]);
    let (pool, driver) = daemon.attach();
    let owner = Arc::<SimDriver>::clone(&daemon.driver);
    let before = owner.memory_info().unwrap().free;
    daemon.daemon.stop();
    assert_eq!(owner.memory_info().unwrap().free, before);
    sum(&*driver, pool.address(), GRANULE);
    drop(pool);
    becomes_free(&*owner, before + 4 * GRANULE);
}

#[test]
fn a_pool_that_is_dropped_waits_for_work_that_uses_it() {
    let daemon = Daemon::with_pool(&[4]);
    let (pool, driver) = daemon.attach();
    let lease = pool.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    driver.memset(lease.address(), 1, GRANULE, StreamId::NULL).unwrap();
    drop((lease, pool));
    assert!(driver.fault().is_none());
    assert_eq!(daemon.status().holdings, []);
}

#[test]
fn a_range_is_kept_for_reading_when_the_work_on_it_is_done() {
    let daemon = Daemon::with_pool(&[4]);
    let ((writer, here), (reader, there)) = (daemon.attach(), daemon.attach());
    let mut lease = writer.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    let stream = here.create_stream(Priority::Default).unwrap();
    here.memset(lease.address(), 1, GRANULE, stream).unwrap();
    lease.lower().unwrap();
    let mut bytes = vec![0; GRANULE as usize];
    let read = reader.lease(0, GRANULE, AccessMode::Read).unwrap();
    there.copy_from_device(&mut bytes, read.address(), StreamId::NULL).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
    here.synchronize().unwrap();
}

#[test]
fn a_range_is_given_back_when_the_work_on_it_is_done() {
    let daemon = Daemon::with_pool(&[4]);
    let ((writer, here), (reader, there)) = (daemon.attach(), daemon.attach());
    let lease = writer.lease(0, GRANULE, AccessMode::ReadWrite).unwrap();
    // The simulated driver leaves this work unfinished until a caller waits for the stream.
    here.memset(lease.address(), 1, GRANULE, StreamId::NULL).unwrap();
    lease.release().unwrap();
    let lease = reader.lease(0, GRANULE, AccessMode::Read).unwrap();
    let mut bytes = vec![0; GRANULE as usize];
    there.copy_from_device(&mut bytes, lease.address(), StreamId::NULL).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
}
