//! Tests of memory and events shared between processes.
#![expect(clippy::disallowed_methods, reason = "prints how long something took on a GPU, and asserts nothing of it")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::io::{FdFlags, fcntl_setfd};
use tenure_core::StreamId;
use tenure_device::{
    AccessMode, CopyCalls, Driver, ErrorKind, EventCalls, EventHandle, EventKind, MemoryCalls, Priority, SharingCalls,
    StreamCalls,
};

use crate::common::{child, childs_device, device, map, mapped_chunk, output_of, poke, read, spin, unmap};

const DESCRIPTOR: &str = "TENURE_TEST_DESCRIPTOR";
const EVENT: &str = "TENURE_TEST_EVENT";

/// Lets a child inherit `chunk` under the same descriptor number.
fn hand_down(command: &mut Command, chunk: &OwnedFd) {
    fcntl_setfd(chunk, FdFlags::empty()).unwrap();
    command.env(DESCRIPTOR, chunk.as_raw_fd().to_string());
}

/// Returns the descriptor that the parent handed down.
fn inherited() -> BorrowedFd<'static> {
    let number = env::var(DESCRIPTOR).unwrap().parse().unwrap();
    // SAFETY: the parent left the descriptor open, and nothing here closes it.
    unsafe { BorrowedFd::borrow_raw(number) }
}

const HUGE: u64 = 16 << 30;

#[test]
fn a_chunk_of_16_gib_is_mapped_by_another_process_in_less_than_a_millisecond() {
    let Some(driver) = device() else { return };
    let start = Instant::now();
    let chunk = driver.create(HUGE).unwrap();
    let created = start.elapsed();
    let descriptor = driver.export(chunk).unwrap();
    println!("create {created:?}, export {:?}", start.elapsed() - created);
    let address = map(&*driver, chunk, HUGE, AccessMode::ReadWrite);
    driver.memset(address + HUGE - 8, 5, 8, StreamId::NULL).unwrap();
    driver.synchronize().unwrap();
    let mut importer = child("sharing::child_that_maps_16_gib");
    hand_down(&mut importer, &descriptor);
    println!("{}", output_of(importer));
    assert_eq!(read(&*driver, address, 1), [1], "what the importer wrote");
    unmap(&*driver, address, HUGE);
    driver.release(chunk).unwrap();
}

#[test]
#[ignore = "a child of the test above"]
fn child_that_maps_16_gib() {
    let Some(driver) = childs_device() else { return };
    let start = Instant::now();
    let chunk = driver.import(inherited(), HUGE).unwrap();
    println!("import {:?}", start.elapsed());
    let address = driver.reserve(HUGE).unwrap();
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            driver.map(address, chunk).unwrap();
            let mapped = start.elapsed();
            driver.set_access(address, HUGE, AccessMode::ReadWrite).unwrap();
            let accessible = start.elapsed();
            println!("map {mapped:?}, with access {accessible:?}");
            assert_eq!(read(&*driver, address + HUGE - 8, 8), [5; 8]);
            driver.unmap(address, HUGE).unwrap();
            accessible
        })
        .min();
    assert!(best.unwrap().as_micros() < 1000, "{best:?}");
    let address = map(&*driver, chunk, HUGE, AccessMode::ReadWrite);
    poke(&driver, address, StreamId::NULL);
    driver.synchronize().unwrap();
}

#[test]
fn an_importer_writes_nothing_through_a_mapping_for_reading() {
    let Some(driver) = device() else { return };
    let bytes = driver.granularity();
    let (address, chunk) = mapped_chunk(&*driver, bytes);
    driver.memset(address, 3, bytes, StreamId::NULL).unwrap();
    driver.synchronize().unwrap();
    let descriptor = driver.export(chunk).unwrap();
    let mut importer = child("sharing::child_that_may_only_read");
    hand_down(&mut importer, &descriptor);
    output_of(importer);
    assert_eq!(read(&*driver, address, bytes as usize), vec![3; bytes as usize]);
    unmap(&*driver, address, bytes);
    driver.release(chunk).unwrap();
}

#[test]
#[ignore = "a child of the test above"]
fn child_that_may_only_read() {
    let Some(driver) = childs_device() else { return };
    let bytes = driver.granularity();
    let chunk = driver.import(inherited(), bytes).unwrap();
    let address = map(&*driver, chunk, bytes, AccessMode::Read);
    assert_eq!(read(&*driver, address, 4), [3; 4]);
    poke(&driver, address, StreamId::NULL);
    let error = driver.synchronize().unwrap_err();
    assert!(error.kind.loses_context(), "{error}");
}

#[test]
fn a_process_waits_on_the_device_for_an_event_of_another() {
    let Some(driver) = device() else { return };
    let bytes = driver.granularity();
    let stream = driver.create_stream(Priority::Default).unwrap();
    let (address, chunk) = mapped_chunk(&*driver, bytes);
    let event = driver.create_event(EventKind::Interprocess).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    driver.memset(address, 1, bytes, stream).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();

    let mut waiter = child("sharing::child_that_waits_for_an_event");
    hand_down(&mut waiter, &descriptor);
    let handle = driver.export_event(event).unwrap();
    waiter.env(EVENT, handle.0.map(|byte| format!("{byte:02x}")).concat());
    let mut waiter = waiter.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut go = waiter.stdin.take().unwrap();
    let mut lines = BufReader::new(waiter.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")), "the child ended early");

    spin(&driver, stream, 500);
    driver.memset(address, 2, bytes, stream).unwrap();
    driver.record_event(event, stream).unwrap();
    writeln!(go, "go").unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    println!("{}", rest.join("\n"));
    assert!(waiter.wait().unwrap().success(), "{rest:?}");
    driver.synchronize_stream(stream).unwrap();
    unmap(&*driver, address, bytes);
    driver.release(chunk).unwrap();
    driver.destroy_event(event).unwrap();
    driver.destroy_stream(stream).unwrap();
}

#[test]
#[ignore = "a child of the test above"]
fn child_that_waits_for_an_event() {
    let Some(driver) = childs_device() else { return };
    let bytes = driver.granularity();
    let stream = driver.create_stream(Priority::Default).unwrap();
    let chunk = driver.import(inherited(), bytes).unwrap();
    let address = map(&*driver, chunk, bytes, AccessMode::Read);
    let hex = env::var(EVENT).unwrap();
    let handle = std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap());
    let event = driver.open_event(&EventHandle(handle)).unwrap();
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let passed_at_once = driver.query_event(event).unwrap();
    driver.wait_event(stream, event).unwrap();
    let mut seen = vec![0; 4096];
    driver.copy_from_device(&mut seen, address + bytes - 4096, stream).unwrap();
    println!("the event had passed before the wait: {passed_at_once}");
    assert_eq!(seen, vec![2; 4096]);
    driver.destroy_event(event).unwrap();
}

#[test]
fn only_interprocess_events_are_exported() {
    let Some(driver) = device() else { return };
    let event = driver.create_event(EventKind::Timing).unwrap();
    let actual = EventKind::Timing;
    let needed = EventKind::Interprocess;
    let error = driver.export_event(event).unwrap_err();
    assert_eq!(error.kind, ErrorKind::WrongEventKind { event: event.0, actual, needed });
    driver.destroy_event(event).unwrap();
}

#[test]
fn a_chunk_imported_where_it_was_made_is_the_same_memory() {
    let Some(driver) = device() else { return };
    let bytes = driver.granularity();
    let (first, chunk) = mapped_chunk(&*driver, bytes);
    let import = driver.import(driver.export(chunk).unwrap().as_fd(), bytes).unwrap();
    println!("created as {:#x}, imported as {:#x}", chunk.0, import.0);
    let second = map(&*driver, import, bytes, AccessMode::ReadWrite);
    driver.memset(first, 8, 16, StreamId::NULL).unwrap();
    assert_eq!(read(&*driver, second, 16), [8; 16]);
    unmap(&*driver, first, bytes);
    driver.release(chunk).unwrap();
    assert_eq!(read(&*driver, second, 16), [8; 16]);
    unmap(&*driver, second, bytes);
    driver.release(import).unwrap();
}
