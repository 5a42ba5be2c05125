//! Tests of the clients that a daemon serves, and of clients that misbehave.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Uid;
use tenure_device::share::wire::{DaemonReply, DaemonRequest, FRAME_BYTES, encode};
use tenure_device::share::{DaemonClient, DaemonConfig, DaemonRefusal, LeaseState, MemoryDaemon, ShareError};
use tenure_device::sim::SimDriver;
use tenure_device::{AccessMode, Clock, MemoryCalls};

use crate::common::{Daemon, GRANULE, Raw, becomes_free, eventually, quick, settle, sim, socket};

#[test]
fn a_client_is_told_what_is_offered() {
    let daemon = Daemon::with_pool(&[1, 3]);
    let client = daemon.client();
    assert_eq!((&*client.terms().device, &client.terms().pool), ("cuda:0", &vec![GRANULE, 3 * GRANULE]));
    let status = client.status().unwrap();
    assert_eq!((status.pid, status.connections), (std::process::id(), 1));
    assert_eq!((status.holdings, status.chunk_bytes, status.unreleased), (vec![], 0, 0));
}

#[test]
fn without_a_daemon_the_error_says_how_to_start_one() {
    let (_folder, path) = socket();
    let error = DaemonClient::connect(&path).err().unwrap();
    assert!(matches!(error, ShareError::NoDaemon { .. }));
    assert!(error.to_string().contains(&format!("tenure memory daemon --socket {}", path.display())));
}

#[test]
fn a_second_daemon_takes_no_memory() {
    let daemon = Daemon::with_pool(&[1]);
    let driver = sim();
    let config = DaemonConfig { socket: daemon.daemon.socket().into(), pool: vec![GRANULE], ..quick() };
    let error = MemoryDaemon::start(Arc::<SimDriver>::clone(&driver), config).err().unwrap();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert_eq!(driver.counters().create, 0);
}

#[test]
fn a_daemon_that_stops_gives_its_memory_back() {
    let daemon = Daemon::with_pool(&[1, 2]);
    let driver = Arc::clone(&daemon.driver);
    let path = daemon.daemon.socket().to_owned();
    let client = daemon.client();
    let free = driver.memory_info().unwrap().free;
    daemon.daemon.stop();
    becomes_free(&*driver, free + 3 * GRANULE);
    assert!(!path.exists());
    assert!(matches!(client.status(), Err(ShareError::DaemonGone { .. })));
}

#[test]
fn a_pool_that_can_not_be_is_an_error_before_anything_is_taken() {
    for pool in [vec![GRANULE, 0], vec![GRANULE / 2], vec![GRANULE; 65], vec![u64::MAX - GRANULE + 1; 2]] {
        let ((_folder, socket), driver) = (socket(), sim());
        let config = DaemonConfig { socket: socket.clone(), pool, ..quick() };
        let error = MemoryDaemon::start(Arc::<SimDriver>::clone(&driver), config).err().unwrap();
        assert!(matches!(error, ShareError::InvalidSetting { setting: "pool", .. }), "{error}");
        assert_eq!(driver.counters().create, 0);
        assert!(!socket.exists());
    }
}

#[test]
fn another_user_is_refused_and_told_why() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can serve another user");
        return;
    }
    let daemon = Daemon::new(DaemonConfig { uid: 65534, ..quick() });
    let error = DaemonClient::connect(daemon.daemon.socket()).err().unwrap();
    assert!(matches!(error, ShareError::Refused(DaemonRefusal::ForeignUser { uid: 0, allowed: 65534 })), "{error}");
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(daemon.daemon.socket()).unwrap());
    assert_eq!(owner, 65534);
}

#[test]
fn a_daemon_of_another_user_is_not_believed() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let (_folder, path) = socket();
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    thread::scope(|threads| {
        threads.spawn(|| {
            // Sets the user of this thread only.
            rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(65534), Uid::ROOT).unwrap();
            net::listen(&listener, 1).unwrap();
        });
    });
    let error = DaemonClient::connect(&path).err().unwrap();
    assert!(matches!(error, ShareError::ForeignDaemon { uid: 65534, user: 0, .. }), "{error}");
}

#[test]
fn there_are_no_more_clients_than_are_allowed() {
    let daemon = Daemon::new(DaemonConfig { clients: 2, ..quick() });
    let _first = daemon.client();
    let second = daemon.client();
    let error = DaemonClient::connect(daemon.daemon.socket()).err().unwrap();
    assert!(matches!(error, ShareError::Refused(DaemonRefusal::TooManyClients { limit: 2 })), "{error}");
    drop(second);
    eventually("its place is free", || DaemonClient::connect(daemon.daemon.socket()).is_ok());
}

#[test]
fn only_who_is_idle_and_holds_nothing_makes_place_for_another() {
    let daemon = Daemon::new(DaemonConfig { clients: 4, idle: Duration::ZERO, pool: vec![GRANULE], ..quick() });
    let attached = daemon.attach();
    let idle = daemon.client();
    let lessee = daemon.raw();
    let recalled = daemon.client();
    lessee
        .ask(&DaemonRequest::LeasePool { offset: 0, bytes: GRANULE, access: AccessMode::Read, waits: false })
        .unwrap();
    // The first new connection takes the place of `idle`; this one takes that of `recalled`'s own, which holds nothing
    // either.
    let _recalls = recalled.on_recall(|_| {}).unwrap();
    assert!(matches!(idle.status(), Err(ShareError::DaemonGone { .. })));
    let status = daemon.status();
    assert_eq!((status.connections, status.attached), (4, vec![std::process::id()]));
    attached.0.lease(0, GRANULE, AccessMode::Read).unwrap();
    assert_eq!(lessee.ask(&DaemonRequest::Attach), Some(DaemonReply::Attached));
}

#[test]
fn an_invalid_message_ends_its_connection_and_no_other() {
    let daemon = Daemon::with_pool(&[1]);
    let other = daemon.client();
    let wrong_version = [[9, 9], [0, 0]].concat();
    let frames = [vec![1], vec![1, 0, 200], wrong_version, vec![1; FRAME_BYTES + 1]];
    for frame in frames {
        let hostile = daemon.raw();
        hostile.send(&frame);
        let reply = hostile.receive();
        assert!(matches!(reply, Some(DaemonReply::Refused(DaemonRefusal::Unreadable { .. }))), "{reply:?}");
        assert_eq!(hostile.receive(), None);
        other.status().unwrap();
    }
}

#[test]
fn descriptors_are_not_taken() {
    let daemon = Daemon::with_pool(&[1]);
    let hostile = daemon.raw();
    let frame = encode(&DaemonRequest::Status).unwrap();
    tenure_ipc::send(&hostile.0, &[IoSlice::new(&frame)], &[hostile.0.as_fd()]).unwrap();
    assert!(matches!(hostile.receive(), Some(DaemonReply::Refused(DaemonRefusal::Unreadable { .. }))));
}

#[test]
fn a_client_that_takes_no_answers_delays_no_other() {
    let daemon = Daemon::with_pool(&[1]);
    let deaf = daemon.raw();
    let asking = thread::spawn(move || {
        let frame = encode(&DaemonRequest::Status).unwrap();
        // The loop ends when the daemon has dropped the connection.
        while rustix::net::send(&deaf.0, &frame, SendFlags::NOSIGNAL).is_ok() {}
    });
    let other = daemon.client();
    eventually("it is dropped", || {
        other.status().unwrap();
        asking.is_finished()
    });
    asking.join().unwrap();
}

#[test]
fn leases_of_a_closed_connection_stay_while_its_process_runs() {
    let clock = Clock::manual();
    let daemon = Daemon::new(DaemonConfig { pool: vec![4 * GRANULE], clock: clock.clone(), ..quick() });
    let raw = daemon.raw();
    let lease =
        raw.ask(&DaemonRequest::LeasePool { offset: 0, bytes: GRANULE, access: AccessMode::ReadWrite, waits: false });
    assert!(matches!(lease, Some(DaemonReply::Leased(_))));
    assert_eq!(daemon.status().holdings[0].state, LeaseState::Held);
    drop(raw);
    eventually("it is noticed", || daemon.status().holdings[0].state == LeaseState::Orphaned);
    clock.advance(1000 * quick().grace);
    settle(&daemon.client());
    assert_eq!(daemon.status().holdings[0].bytes, GRANULE);
    let (pool, _driver) = daemon.attach();
    let error = pool.lease(0, GRANULE, AccessMode::Read).err().unwrap();
    assert!(error.to_string().contains(&format!("process {} for writing", std::process::id())), "{error}");
}

#[test]
fn a_client_can_not_give_back_what_another_holds() {
    let daemon = Daemon::with_pool(&[4]);
    let holder = daemon.raw();
    let other = daemon.raw();
    let Some(DaemonReply::Leased(lease)) = holder.ask(&DaemonRequest::LeasePool {
        offset: 0,
        bytes: GRANULE,
        access: AccessMode::ReadWrite,
        waits: false,
    }) else {
        panic!("no lease")
    };
    let refused = Some(DaemonReply::Refused(DaemonRefusal::UnknownLease(lease)));
    assert_eq!(other.ask(&DaemonRequest::Release(lease)), refused);
    assert_eq!(holder.ask(&DaemonRequest::Release(lease)), Some(DaemonReply::Done));
    assert_eq!(holder.ask(&DaemonRequest::Release(lease)), refused);
}

#[test]
fn a_client_that_asks_again_before_its_answer_is_dropped() {
    let daemon = Daemon::new(DaemonConfig { chunk_limit_bytes: Some(GRANULE), ..quick() });
    let (holder, hasty): (Raw, Raw) = (daemon.raw(), daemon.raw());
    holder.send(&encode(&DaemonRequest::LeaseChunk { bytes: GRANULE }).unwrap());
    hasty.send(&encode(&DaemonRequest::Room { bytes: GRANULE, wait_ms: 60_000 }).unwrap());
    hasty.send(&encode(&DaemonRequest::Status).unwrap());
    assert_eq!(hasty.receive(), None);
    eventually("nothing waits", || daemon.status().connections == 2);
}
