//! Memory of another process, opened by its handle.

use std::env;
use std::process::Command;

use tenure_core::StreamId;
use tenure_device::{Call, CopyCalls, DriverError, ErrorKind, MemoryCalls, MemoryHandle, OpenedMemory, SharingCalls};

use crate::common::{kind, read, sim};

const HANDLE: &str = "TENURE_TEST_MEMORY";

fn fault(result: Result<(), DriverError>) -> ErrorKind {
    result.unwrap_err().error.kind
}

#[test]
fn opened_memory_is_read_and_written_in_place() {
    let exporter = sim(0);
    let importer = sim(1);
    let address = exporter.malloc(100).unwrap();
    exporter.copy_to_device(address, &[7; 100], StreamId::NULL).unwrap();
    let handle = exporter.export_memory(address).unwrap();
    let opened = OpenedMemory::open(importer.clone(), &handle).unwrap();
    assert_eq!(opened.bytes(), 100);
    let mut found = [0; 4];
    opened.read(96, &mut found).unwrap();
    assert_eq!(found, [7; 4]);
    opened.write(1, &[1, 2]).unwrap();
    assert_eq!(read(&*exporter, address, 4), [7, 1, 2, 7]);
    let again = OpenedMemory::open(importer.clone(), &handle).unwrap();
    drop(opened);
    again.read(0, &mut found).unwrap();
    assert_eq!(found, [7, 1, 2, 7], "it was opened twice and closed once");
    drop(again);
    assert_eq!(importer.calls(Some(Call::CloseMemory)), 2);
    exporter.free(address).unwrap();
}

#[test]
fn bytes_outside_opened_memory_are_refused() {
    let exporter = sim(0);
    let importer = sim(1);
    let address = exporter.malloc(100).unwrap();
    let opened = OpenedMemory::open(importer, &exporter.export_memory(address).unwrap()).unwrap();
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (u64::MAX, 0)] {
        let expected = ErrorKind::OutsideMemory { offset, len: len as u64, bytes: 100 };
        assert_eq!(fault(opened.read(offset, &mut vec![0; len])), expected);
        assert_eq!(fault(opened.write(offset, &vec![0; len])), expected);
    }
    opened.read(100, &mut []).unwrap();
}

#[test]
fn a_handle_names_memory_that_another_process_holds() {
    let exporter = sim(0);
    let importer = sim(1);
    let address = exporter.malloc(100).unwrap();
    let handle = exporter.export_memory(address).unwrap();
    assert_eq!(kind(exporter.open_memory(&handle)), ErrorKind::OwnMemory);
    let unknown = |handle| matches!(kind(importer.open_memory(&handle)), ErrorKind::UnknownHandle { .. });
    assert!(unknown(MemoryHandle([0; 64])));
    for at in 0..48 {
        let mut other = handle;
        other.0[at] ^= 0x55;
        assert!(unknown(other), "byte {at}");
    }
    let (opened, _) = importer.open_memory(&handle).unwrap();
    assert!(matches!(kind(importer.free(opened)), ErrorKind::UnknownHandle { .. }), "it is closed, not freed");
    importer.close_memory(opened).unwrap();
    assert!(matches!(kind(importer.close_memory(opened)), ErrorKind::UnknownHandle { .. }));
    exporter.free(address).unwrap();
    assert!(unknown(handle), "it is gone");
    assert!(matches!(kind(exporter.export_memory(address)), ErrorKind::UnknownHandle { .. }));
}

#[test]
fn memory_in_use_is_not_closed() {
    let exporter = sim(0);
    let importer = sim(1);
    let address = exporter.malloc(100).unwrap();
    let (opened, bytes) = importer.open_memory(&exporter.export_memory(address).unwrap()).unwrap();
    importer.memset(opened, 1, bytes, StreamId::NULL).unwrap();
    assert!(matches!(kind(importer.close_memory(opened)), ErrorKind::UnmappedInUse { .. }));
}

#[test]
fn child() {
    let Ok(handle) = env::var(HANDLE) else { return };
    let opened = OpenedMemory::open(
        sim(1),
        &MemoryHandle(std::array::from_fn(|at| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap())),
    )
    .unwrap();
    let mut found = [0; 2];
    opened.read(2, &mut found).unwrap();
    assert_eq!(found, [7, 7]);
    opened.write(0, &[8, 8]).unwrap();
}

#[test]
fn another_process_reads_and_writes_the_memory() {
    let driver = sim(0);
    let address = driver.malloc(4).unwrap();
    driver.copy_to_device(address, &[7; 4], StreamId::NULL).unwrap();
    let handle = driver.export_memory(address).unwrap().0.map(|byte| format!("{byte:02x}")).concat();
    let mut command = Command::new(env::current_exe().unwrap());
    let status = command.args(["--exact", "opened::child"]).env(HANDLE, handle).status().unwrap();
    assert!(status.success());
    assert_eq!(read(&*driver, address, 4), [8, 8, 7, 7]);
}
