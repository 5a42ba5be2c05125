//! Tests of chunks that are leased one by one, under an allocator.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tenure_alloc::{AllocError, Backing, BackingError, CachingAllocator, Request, Resource};
use tenure_core::StreamId;
use tenure_device::share::{DaemonConfig, DaemonRefusal, LeaseKind, LeasedBacking, wire};
use tenure_device::sim::SimDriver;
use tenure_device::{Call, Clock};

use crate::common::{Daemon, GRANULE, eventually, fill, paged, quick, settle, sim, sum};
use crate::process::Process;

/// How long a request may wait: the longest time that the daemon allows.
const WAIT: Duration = Duration::from_secs(60);

fn backing(daemon: &Daemon, wait: Duration) -> (Arc<LeasedBacking>, Arc<SimDriver>) {
    let driver = sim();
    (Arc::new(LeasedBacking::new(daemon.client(), Arc::<SimDriver>::clone(&driver), wait)), driver)
}

fn limited(granules: u64) -> Daemon {
    limited_by(granules, Clock::default())
}

fn limited_by(granules: u64, clock: Clock) -> Daemon {
    Daemon::new(DaemonConfig { chunk_limit_bytes: Some(granules * GRANULE), clock, ..quick() })
}

#[test]
fn an_allocator_draws_its_pages_from_the_daemon() {
    let daemon = Daemon::with_pool(&[]);
    let (backing, driver) = backing(&daemon, Duration::ZERO);
    let allocator = paged(backing);
    let block = allocator.allocate(Request::new(3 * GRANULE, StreamId::NULL)).unwrap();
    fill(&*driver, block.address, 3 * GRANULE, 7);
    sum(&*driver, block.address, 3 * GRANULE);
    let status = daemon.status();
    assert_eq!(status.holdings[0].kind, LeaseKind::Chunk);
    assert!(status.chunk_bytes >= 3 * GRANULE);
    assert_eq!(status.chunk_bytes, daemon.driver.counters().created_bytes);
    assert_eq!(driver.counters().create, 0);
    allocator.free(block.address).unwrap();
    allocator.release_cached().unwrap();
    assert_eq!((daemon.status().holdings, daemon.status().chunk_bytes), (vec![], 0));
    assert_eq!(daemon.driver.counters().release, daemon.driver.counters().create);
}

#[test]
fn a_chunk_that_one_process_had_is_leased_to_no_other() {
    let daemon = limited(1);
    let ((first, here), (second, there)) = (backing(&daemon, Duration::ZERO), backing(&daemon, Duration::ZERO));
    let map = |backing: &LeasedBacking, chunk| {
        let address = backing.reserve(GRANULE).unwrap();
        backing.map(address, chunk).unwrap();
        backing.set_access(address, GRANULE).unwrap();
        address
    };
    let chunk = first.create(GRANULE).unwrap();
    let address = map(&first, chunk);
    fill(&*here, address, GRANULE, 3);
    let before = sum(&*here, address, GRANULE);
    first.unmap(address, GRANULE).unwrap();
    first.release(chunk).unwrap();
    let address = map(&second, second.create(GRANULE).unwrap());
    assert_ne!(sum(&*there, address, GRANULE), before);
    assert_eq!((daemon.driver.calls(Some(Call::Create)), daemon.driver.calls(Some(Call::Release))), (2, 1));
}

#[test]
fn the_limit_holds_for_all_together() {
    let daemon = limited(3);
    let ((first, _a), (second, _b)) = (backing(&daemon, Duration::ZERO), backing(&daemon, Duration::ZERO));
    let chunk = first.create(2 * GRANULE).unwrap();
    let error = second.create(2 * GRANULE).unwrap_err();
    let BackingError::OutOfMemory { requested, free, .. } = error else { panic!("{error}") };
    assert_eq!((requested, free), (2 * GRANULE, GRANULE));
    first.release(chunk).unwrap();
    second.create(3 * GRANULE).unwrap();
}

#[test]
fn an_allocator_says_out_of_memory_when_the_daemon_is() {
    let daemon = limited(4);
    let (backing, _driver) = backing(&daemon, Duration::ZERO);
    let allocator = paged(backing);
    let block = allocator.allocate(Request::new(4 * GRANULE, StreamId::NULL)).unwrap();
    let error = allocator.allocate(Request::new(4 * GRANULE, StreamId::NULL)).unwrap_err();
    let AllocError::OutOfMemory { free, .. } = error else { panic!("{error}") };
    assert_eq!(free, 0, "of the daemon's, not of the device's");
    allocator.free(block.address).unwrap();
    allocator.allocate(Request::new(4 * GRANULE, StreamId::NULL)).unwrap();
}

#[test]
fn segments_beside_the_daemon_s_budget_are_refused() {
    let daemon = limited(1);
    let (backing, driver) = backing(&daemon, Duration::ZERO);
    let error = backing.malloc(GRANULE).unwrap_err().to_string();
    assert!(error.contains("`paged`"), "{error}");
    assert_eq!(driver.calls(Some(Call::Malloc)), 0);
}

#[test]
fn a_request_that_waits_is_served_when_memory_comes_back() {
    let clock = Clock::manual();
    let daemon = limited_by(2, clock.clone());
    let ((first, _a), (second, _b)) = (backing(&daemon, Duration::ZERO), backing(&daemon, WAIT));
    let chunk = first.create(2 * GRANULE).unwrap();
    let allocator = Arc::new(paged(Arc::<LeasedBacking>::clone(&second)));
    let _recalls = second.serve(&allocator).unwrap();
    let waiting = thread::spawn(move || allocator.allocate(Request::new(2 * GRANULE, StreamId::NULL)).map(drop));
    eventually("it waits", || daemon.status().waiting == 1);
    first.release(chunk).unwrap();
    settle(&daemon.client());
    // The daemon notices that no more memory comes back, long before the time limit.
    clock.advance(WAIT / 60);
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_wait_does_not_keep_the_same_client_from_giving_back() {
    let clock = Clock::manual();
    let daemon = limited_by(2, clock.clone());
    let (backing, _driver) = backing(&daemon, WAIT);
    let chunk = backing.create(2 * GRANULE).unwrap();
    backing.create(GRANULE).unwrap_err();
    let waiting = Arc::clone(&backing);
    let waiting = thread::spawn(move || waiting.make_room());
    eventually("it waits", || daemon.status().waiting == 1);
    backing.release(chunk).unwrap();
    settle(&daemon.client());
    clock.advance(WAIT / 60);
    assert!(waiting.join().unwrap());
    assert!(!backing.make_room(), "nothing was refused since");
}

#[test]
fn a_request_waits_once_however_often_it_is_tried() {
    let clock = Clock::manual();
    let daemon = limited_by(2, clock.clone());
    let ((first, _a), (second, _b)) = (backing(&daemon, Duration::ZERO), backing(&daemon, WAIT));
    first.create(2 * GRANULE).unwrap();
    let allocator = Arc::new(paged(Arc::<LeasedBacking>::clone(&second)));
    let _recalls = second.serve(&allocator).unwrap();
    let waiting = thread::spawn(move || allocator.allocate(Request::new(GRANULE, StreamId::NULL)));
    eventually("it waits", || daemon.status().waiting == 1);
    let moment = Duration::from_millis(1);
    clock.advance(WAIT - moment);
    settle(&daemon.client());
    assert_eq!(daemon.status().waiting, 1);
    clock.advance(moment);
    eventually("its wait is over", || daemon.status().waiting == 0);
    eventually("it is refused", || {
        assert_eq!(daemon.status().waiting, 0, "it waits again");
        waiting.is_finished()
    });
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_wait_for_more_than_there_is_goes_on() {
    let clock = Clock::manual();
    let daemon = limited_by(3, clock.clone());
    let (holder, _driver) = backing(&daemon, Duration::ZERO);
    holder.create(2 * GRANULE).unwrap();
    let waiting = daemon.raw();
    waiting.send(&wire::encode(&wire::DaemonRequest::Room { bytes: 2 * GRANULE, wait_ms: 100 }).unwrap());
    eventually("it waits", || daemon.status().waiting == 1);
    clock.advance(Duration::from_millis(99));
    settle(&daemon.client());
    assert_eq!(daemon.status().waiting, 1);
    clock.advance(Duration::from_millis(1));
    let reply = waiting.receive();
    let full = DaemonRefusal::Full { requested: 2 * GRANULE, available: GRANULE };
    assert_eq!(format!("{reply:?}"), format!("{:?}", Some(wire::DaemonReply::Refused(full))));
}

#[test]
fn an_impossible_request_is_refused_at_once() {
    let daemon = limited(1);
    let hasty = daemon.raw();
    // The daemon would disconnect a client that sends a second request while the first one waits.
    for request in [wire::DaemonRequest::Room { bytes: 2 * GRANULE, wait_ms: 60_000 }, wire::DaemonRequest::Status] {
        hasty.send(&wire::encode(&request).unwrap());
    }
    let replies = [(); 2].map(|()| hasty.receive());
    assert!(
        matches!(
            replies,
            [Some(wire::DaemonReply::Refused(DaemonRefusal::Full { .. })), Some(wire::DaemonReply::Status(_))]
        ),
        "{replies:?}"
    );
    let (backing, _driver) = backing(&daemon, WAIT);
    assert!(matches!(backing.create(2 * GRANULE), Err(BackingError::OutOfMemory { .. })));
    assert!(!backing.make_room());
    backing.create(GRANULE).unwrap();
}

#[test]
fn others_are_asked_for_what_they_can_spare() {
    let daemon = limited(8);
    let mut hoarder = Process::simulated(&format!("hoard {} {}", daemon.daemon.socket().display(), 8 * GRANULE));
    assert_eq!(hoarder.hear(), "hoarding");
    assert_eq!(daemon.status().chunk_bytes, 8 * GRANULE);
    let (backing, _driver) = backing(&daemon, WAIT);
    backing.create(3 * GRANULE).unwrap_err();
    assert!(backing.make_room());
    backing.create(3 * GRANULE).unwrap();
    assert_eq!(hoarder.hear(), format!("gave back {}", 3 * GRANULE));
    assert_eq!(daemon.status().chunk_bytes, 3 * GRANULE);
    hoarder.finish();
}

#[test]
fn a_recall_ends_with_its_guard() {
    let daemon = limited(1);
    let client = daemon.client();
    let recalls = client.on_recall(|_| panic!("recalled")).unwrap();
    assert_eq!(daemon.status().connections, 3);
    drop(recalls);
    eventually("its connection is closed", || daemon.status().connections == 2);
}
