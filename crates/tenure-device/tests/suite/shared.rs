//! Chunks that several simulated devices hold, each of which stands for the device as one process sees it.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_alloc::{Address, ChunkId};
use tenure_core::StreamId;
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{Call, CopyCalls, Driver, ErrorKind, MemoryCalls, Priority, SharingCalls, StreamCalls};

use crate::common::{GRANULE, kind, map_anywhere, mapped_chunk, read, sim};

/// Imports a chunk of another device, maps it and makes it accessible.
fn imported_chunk(driver: &dyn Driver, descriptor: impl AsFd, bytes: u64) -> (Address, ChunkId) {
    let chunk = driver.import(descriptor.as_fd(), bytes).unwrap();
    (map_anywhere(driver, chunk, bytes), chunk)
}

fn free(driver: &SimDriver) -> u64 {
    driver.memory_info().unwrap().free
}

/// Waits until all memory is free again: a process that another test starts may hold descriptors for a moment.
fn wait_until_all_is_free(driver: &SimDriver) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while free(driver) < driver.memory_info().unwrap().total {
        assert!(Instant::now() < deadline, "{} bytes are free", free(driver));
        std::thread::yield_now();
    }
}

#[test]
fn bytes_written_before_an_export_are_there_after_it() {
    let small = SimConfig { granularity_bytes: 4096, ..SimConfig::default() };
    for (config, bytes) in [(small, 4096), (small, 20 << 12), (SimConfig::default(), 2 << 20)] {
        let exporter = SimDriver::new(config);
        let importer = SimDriver::new(config);
        let (mine, chunk) = mapped_chunk(&exporter, bytes);
        exporter.copy_to_device(mine + bytes - 100, &[7; 100], StreamId::NULL).unwrap();
        let before = read(&exporter, mine + bytes - 200, 200);
        let (theirs, _) = imported_chunk(&importer, exporter.export(chunk).unwrap(), bytes);
        assert_eq!(read(&exporter, mine + bytes - 200, 200), before);
        assert_eq!(read(&importer, theirs + bytes - 200, 200), before);
    }
}

#[test]
fn each_side_reads_what_the_other_wrote() {
    let exporter = sim(0);
    let importer = sim(1);
    let (mine, chunk) = mapped_chunk(&*exporter, 2 * GRANULE);
    let (theirs, _) = imported_chunk(&*importer, exporter.export(chunk).unwrap(), 2 * GRANULE);
    for value in 0..10 {
        exporter.copy_to_device(mine + GRANULE - 8, &[value; 16], StreamId::NULL).unwrap();
        assert_eq!(read(&*importer, theirs + GRANULE - 8, 16), [value; 16]);
        importer.copy_to_device(theirs + 5, &[!value; 3], StreamId::NULL).unwrap();
        assert_eq!(read(&*exporter, mine + 5, 3), [!value; 3]);
    }
}

#[test]
fn every_export_of_a_chunk_is_the_same_memory_and_an_import_can_be_exported_again() {
    let devices = [sim(0), sim(1), sim(2)];
    let (first, chunk) = mapped_chunk(&*devices[0], GRANULE);
    let (second, import) = imported_chunk(&*devices[1], devices[0].export(chunk).unwrap(), GRANULE);
    let (third, _) = imported_chunk(&*devices[2], devices[1].export(import).unwrap(), GRANULE);
    let (fourth, _) = imported_chunk(&*devices[2], devices[0].export(chunk).unwrap(), GRANULE);
    devices[2].copy_to_device(third, &[9; 4], StreamId::NULL).unwrap();
    for (device, address) in [(0, first), (1, second), (2, fourth)] {
        assert_eq!(read(&*devices[device], address, 4), [9; 4]);
    }
}

#[test]
fn a_huge_shared_chunk_costs_only_what_is_written() {
    const BYTES: u64 = 16 << 30;
    let driver = SimDriver::new(SimConfig::default());
    let (address, chunk) = mapped_chunk(&driver, BYTES);
    let descriptor = driver.export(chunk).unwrap();
    driver.copy_to_device(address + BYTES / 2, &[1], StreamId::NULL).unwrap();
    assert_eq!(read(&driver, address + BYTES / 2, 1), [1]);
    assert!(File::from(descriptor).metadata().unwrap().blocks() * 512 < 1 << 20);
}

#[test]
fn an_import_is_on_the_account_of_the_device_that_made_the_chunk() {
    let exporter = sim(0);
    let importer = sim(0);
    let chunk = exporter.create(GRANULE).unwrap();
    let descriptor = exporter.export(chunk).unwrap();
    let import = importer.import(descriptor.as_fd(), GRANULE).unwrap();
    drop(descriptor);
    assert_eq!((free(&exporter), free(&importer)), (63 * GRANULE, 64 * GRANULE));
    exporter.release(chunk).unwrap();
    assert_eq!(free(&exporter), 63 * GRANULE, "the importer still holds it");
    importer.release(import).unwrap();
    wait_until_all_is_free(&exporter);
    assert_eq!(free(&importer), 64 * GRANULE);
}

#[test]
fn a_descriptor_alone_keeps_the_memory() {
    let driver = sim(0);
    let chunk = driver.create(64 * GRANULE).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    driver.release(chunk).unwrap();
    assert!(matches!(kind(driver.create(GRANULE)), ErrorKind::OutOfMemory { free: 0, .. }));
    drop(descriptor);
    wait_until_all_is_free(&driver);
    driver.create(64 * GRANULE).unwrap();
}

#[test]
fn a_killed_process_holds_nothing_any_more() {
    let driver = sim(0);
    let chunk = driver.create(GRANULE).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    let mut holder = Command::new("sleep").arg("1000").stdin(Stdio::from(descriptor)).spawn().unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(free(&driver), 63 * GRANULE);
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until_all_is_free(&driver);
}

#[test]
fn an_import_by_the_exporter_is_another_name_of_its_chunk() {
    let driver = sim(0);
    let (first, chunk) = mapped_chunk(&*driver, GRANULE);
    let (second, import) = imported_chunk(&*driver, driver.export(chunk).unwrap(), GRANULE);
    assert_ne!(chunk, import);
    assert_eq!(free(&driver), 63 * GRANULE);
    driver.unmap(first, GRANULE).unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(free(&driver), 63 * GRANULE, "the other name holds it");
    driver.unmap(second, GRANULE).unwrap();
    driver.release(import).unwrap();
    wait_until_all_is_free(&driver);
}

#[test]
fn names_of_one_chunk_race_with_each_other() {
    let driver = sim(0);
    let (first, chunk) = mapped_chunk(&*driver, GRANULE);
    let (second, _) = imported_chunk(&*driver, driver.export(chunk).unwrap(), GRANULE);
    driver.memset(first, 0, 16, driver.create_stream(Priority::Default).unwrap()).unwrap();
    assert!(matches!(kind(driver.memset(second + 8, 0, 1, StreamId::NULL)), ErrorKind::Race { .. }));
}

#[test]
fn an_import_is_released_like_any_chunk() {
    let exporter = sim(0);
    let importer = sim(0);
    let chunk = exporter.create(GRANULE).unwrap();
    let (address, import) = imported_chunk(&*importer, exporter.export(chunk).unwrap(), GRANULE);
    assert_eq!(kind(importer.release(import)), ErrorKind::ChunkMapped { chunk: import, count: 1 });
    importer.unmap(address, GRANULE).unwrap();
    importer.release(import).unwrap();
    assert!(matches!(kind(importer.release(import)), ErrorKind::UnknownHandle { what: "chunk", .. }));
    exporter.release(chunk).unwrap();
}

#[test]
fn a_size_that_the_chunk_does_not_have_is_refused() {
    let driver = sim(0);
    let descriptor = driver.export(driver.create(2 * GRANULE).unwrap()).unwrap();
    let expected = ErrorKind::SharedSize { given: GRANULE, actual: 2 * GRANULE };
    assert_eq!(kind(driver.import(descriptor.as_fd(), GRANULE)), expected);
}

#[test]
fn descriptors_of_other_things_are_refused() {
    let driver = sim(0);
    for path in ["/dev/null", "/proc/self/exe", "/tmp"] {
        let error = kind(driver.import(File::open(path).unwrap().as_fd(), GRANULE));
        assert!(matches!(error, ErrorKind::UnknownHandle { what: "shared chunk", .. }), "{path}: {error}");
    }
}

#[test]
fn a_failed_export_leaves_the_chunk_as_it_was() {
    let driver = sim(0);
    let (address, chunk) = mapped_chunk(&*driver, GRANULE);
    let before = read(&*driver, address, 16);
    driver.inject(Failure::of(Call::Export, 1));
    assert_eq!(kind(driver.export(chunk)), ErrorKind::Injected);
    assert_eq!(read(&*driver, address, 16), before);
    assert!(matches!(kind(driver.export(ChunkId(99))), ErrorKind::UnknownHandle { what: "chunk", .. }));
}
