//! Tests of errors in work that was submitted earlier. Each loses the context, so each has a process of its own.

use tenure_core::StreamId;
use tenure_device::cuda::{CudaDriver, LaunchConfig};
use tenure_device::{AccessMode, Driver, ErrorKind, HostFunction, MemoryCalls, StreamCalls};

use crate::common::{child, childs_device, device, kernel, map, mapped_chunk, output_of, poke, read};

/// Waits for the device, whose context `kernel` must have lost, and prints the reason.
fn assert_lost(driver: &CudaDriver, kernel: &str) {
    let first = driver.synchronize().unwrap_err();
    println!("first error: {first}");
    let ErrorKind::Device { in_flight, .. } = &first.kind else { panic!("{first}") };
    let launch = &in_flight[0];
    assert_eq!((launch.name, launch.at.unwrap().file()), (kernel, file!()));
    for later in [driver.memory_info().unwrap_err(), driver.create(driver.granularity()).unwrap_err()] {
        let ErrorKind::ContextLost(cause) = &later.kind else { panic!("{later}") };
        assert_eq!(**cause, first);
    }
    println!("the first error names its kernel");
}

/// Runs a test that loses the context as a child. Checks that its error contains `cause` and names the kernel.
fn assert_child_loses_context(test: &str, cause: &str) {
    let Some(_device) = device() else { return };
    let text = output_of(child(test));
    assert!(text.contains(cause) && text.contains("the first error names its kernel"), "{text}");
}

#[test]
fn an_illegal_address_names_the_kernel_and_every_later_call_fails() {
    assert_child_loses_context("errors::child_with_an_illegal_address", "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "a child of the test above"]
fn child_with_an_illegal_address() {
    let Some(driver) = childs_device() else { return };
    poke(&driver, 0x10, StreamId::NULL);
    assert_lost(&driver, "poke");
}

/// Runs a kernel without parameters in one thread.
fn run(driver: &CudaDriver, name: &'static str) {
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    // SAFETY: the kernel has no parameter, and touches no memory.
    unsafe { driver.launch(kernel(driver, name), config, StreamId::NULL, &mut []).unwrap() };
}

#[test]
fn a_trap_names_the_kernel_and_every_later_call_fails() {
    assert_child_loses_context("errors::child_with_a_trap", "");
}

#[test]
#[ignore = "a child of the test above"]
fn child_with_a_trap() {
    let Some(driver) = childs_device() else { return };
    run(&driver, "trap");
    assert_lost(&driver, "trap");
}

#[test]
fn an_assertion_names_the_kernel_and_every_later_call_fails() {
    assert_child_loses_context("errors::child_with_an_assertion", "CUDA_ERROR_ASSERT");
}

#[test]
#[ignore = "a child of the test above"]
fn child_with_an_assertion() {
    let Some(driver) = childs_device() else { return };
    run(&driver, "deny");
    assert_lost(&driver, "deny");
}

#[test]
fn a_write_through_a_mapping_for_reading_is_refused() {
    assert_child_loses_context("errors::child_that_writes_what_it_may_read", "");
}

#[test]
#[ignore = "a child of the test above"]
fn child_that_writes_what_it_may_read() {
    let Some(driver) = childs_device() else { return };
    let bytes = driver.granularity();
    let (writable, chunk) = mapped_chunk(&*driver, bytes);
    let readable = map(&*driver, chunk, bytes, AccessMode::Read);
    poke(&driver, writable, StreamId::NULL);
    assert_eq!(read(&*driver, readable, 1), [1]);
    poke(&driver, readable, StreamId::NULL);
    assert_lost(&driver, "poke");
}

#[test]
fn a_panic_in_a_host_function_ends_the_process() {
    let Some(_device) = device() else { return };
    let output = child("errors::child_with_a_panic").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_none(), "ended by a signal: {text}");
    assert!(text.contains("a panic of the test's"), "{text}");
}

#[test]
#[ignore = "a child of the test above"]
fn child_with_a_panic() {
    let Some(driver) = childs_device() else { return };
    let function: HostFunction = Box::new(|| panic!("a panic of the test's"));
    driver.host_function(StreamId::NULL, function).unwrap();
    driver.synchronize().unwrap();
}
