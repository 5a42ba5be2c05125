//! Two real processes with a simulated device each, which share a chunk and an event. The child is this program again,
//! running one test. It gets the chunk as its standard input, and the event in its environment.
#![expect(
    clippy::disallowed_methods,
    reason = "a child that sleeps until it is killed; polls a condition that no event tells of"
)]

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use tenure_alloc::Address;
use tenure_core::StreamId;
use tenure_device::sim::SimDriver;
use tenure_device::{CopyCalls, EventCalls, EventHandle, EventId, EventKind, SharingCalls};

use crate::common::{GRANULE, map_anywhere, mapped_chunk, read, sim};

const EVENT: &str = "TENURE_TEST_EVENT";
const HANGS: &str = "TENURE_TEST_HANGS";

/// A child process that has the chunk at `address`, and the event.
struct Peer {
    child: Child,
    address: Address,
    event: EventId,
}

fn start_peer(driver: &SimDriver, hangs: bool) -> Peer {
    let (address, chunk) = mapped_chunk(driver, GRANULE);
    let event = driver.create_event(EventKind::Interprocess).unwrap();
    driver.memset(address, 1, 64, StreamId::NULL).unwrap();
    driver.record_event(event, StreamId::NULL).unwrap();
    let handle = driver.export_event(event).unwrap().0.map(|byte| format!("{byte:02x}")).concat();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "processes::child"]).stdout(Stdio::null());
    command.env(EVENT, handle).envs(hangs.then_some((HANGS, "1"))).stdin(driver.export(chunk).unwrap());
    Peer { child: command.spawn().unwrap(), address, event }
}

#[test]
fn child() {
    let Ok(handle) = env::var(EVENT) else { return };
    let driver = sim(1);
    let event = driver
        .open_event(&EventHandle(std::array::from_fn(|at| {
            u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap()
        })))
        .unwrap();
    let chunk = driver.import(io::stdin().as_fd(), GRANULE).unwrap();
    let address = map_anywhere(&*driver, chunk, GRANULE);
    driver.wait_event(StreamId::NULL, event).unwrap();
    assert_eq!(read(&*driver, address, 64), [1; 64]);
    let hangs = env::var(HANGS).is_ok();
    if hangs {
        driver.busy_until(StreamId::NULL, 1).unwrap();
    } else {
        driver.memset(address, 2, 64, StreamId::NULL).unwrap();
    }
    driver.record_event(event, StreamId::NULL).unwrap();
    if hangs {
        thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn a_child_reads_what_was_written_before_the_event_and_answers_in_the_same_way() {
    let driver = sim(0);
    let Peer { mut child, address, event } = start_peer(&driver, false);
    assert!(child.wait().unwrap().success());
    assert!(driver.query_event(event).unwrap());
    assert_eq!(read(&*driver, address, 64), [2; 64]);
}

#[test]
fn the_unfinished_record_of_a_killed_child_is_never_passed() {
    let driver = sim(0);
    let Peer { mut child, event, .. } = start_peer(&driver, true);
    let deadline = Instant::now() + Duration::from_secs(300);
    while driver.query_event(event).unwrap() {
        assert!(Instant::now() < deadline, "the child did not record the event");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!driver.query_event(event).unwrap());
    driver.record_event(event, StreamId::NULL).unwrap();
    assert!(driver.query_event(event).unwrap(), "a new record is passed");
}
