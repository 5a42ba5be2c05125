//! Devices, kernels and child processes for the tests.

use std::env;
use std::ffi::c_void;
use std::fs::File;
use std::ops::Deref;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use tenure_alloc::{Address, ChunkId};
use tenure_core::StreamId;
use tenure_device::cuda::{self, CudaDriver, Function, KernelModule, LaunchConfig};
use tenure_device::{AccessMode, Driver, Platform};

/// The environment variable that tells a process that it is a child, and for which test.
const CHILD: &str = "TENURE_TEST_CHILD";

/// A device that no other test uses at the same time.
pub(crate) struct Device {
    driver: Arc<CudaDriver>,
    _alone: File,
}

impl Device {
    /// Returns the driver, for values that keep a reference to it. Drop them before this device.
    pub(crate) fn shared(&self) -> Arc<CudaDriver> {
        Arc::clone(&self.driver)
    }
}

impl Deref for Device {
    type Target = CudaDriver;

    fn deref(&self) -> &CudaDriver {
        &self.driver
    }
}

/// Returns the first device; `None`, with a message, if there is none.
pub(crate) fn device() -> Option<Device> {
    if let Err(error) = cuda::platform().device_count() {
        eprintln!("skipped: {error}");
        return None;
    }
    let alone = File::create(env::temp_dir().join("tenure-cuda-tests.lock")).unwrap();
    alone.lock().unwrap();
    Some(Device { driver: cuda::platform().cuda_driver(0).unwrap(), _alone: alone })
}

/// Returns the first device in a process that [`child`] started, whose parent keeps other tests away from it. Returns
/// `None` in any other process.
pub(crate) fn childs_device() -> Option<Arc<CudaDriver>> {
    env::var_os(CHILD)?;
    Some(cuda::platform().cuda_driver(0).unwrap())
}

/// Returns a command that runs one test of this program, which is ignored otherwise.
pub(crate) fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(CHILD, test);
    command
}

/// Runs a child, and returns its output. The child must succeed.
pub(crate) fn output_of(mut child: Command) -> String {
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// Returns a kernel of `kernels.cu`.
pub(crate) fn kernel(driver: &CudaDriver, name: &'static str) -> Function {
    static MODULE: OnceLock<KernelModule> = OnceLock::new();
    let module = MODULE.get_or_init(|| {
        let image = driver.compile(include_str!("kernels.cu"), &[]).unwrap_or_else(|error| panic!("{error}"));
        driver.load_module(&image).unwrap()
    });
    driver.function(*module, name).unwrap()
}

/// Returns a kernel's argument.
pub(crate) fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// Keeps `stream` busy for about `ms` milliseconds, on a device of 2 GHz.
pub(crate) fn spin(driver: &CudaDriver, stream: StreamId, ms: i64) {
    let spin = kernel(driver, "spin");
    let mut cycles = ms * 2_000_000;
    // SAFETY: the kernel has one parameter, a 64-bit number, and touches no memory.
    unsafe { driver.launch(spin, LaunchConfig::linear(1), stream, &mut [argument(&mut cycles)]).unwrap() };
}

/// Launches a kernel on `stream` that writes the byte at `target`.
#[track_caller]
pub(crate) fn poke(driver: &CudaDriver, mut target: Address, stream: StreamId) {
    let poke = kernel(driver, "poke");
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    // SAFETY: the kernel has one parameter, an address. The test chooses what lies there.
    unsafe { driver.launch(poke, config, stream, &mut [argument(&mut target)]).unwrap() };
}

/// Creates a chunk and maps it at a new address.
pub(crate) fn mapped_chunk(driver: &dyn Driver, bytes: u64) -> (Address, ChunkId) {
    let chunk = driver.create(bytes).unwrap();
    (map(driver, chunk, bytes, AccessMode::ReadWrite), chunk)
}

/// Maps a chunk at a new address.
pub(crate) fn map(driver: &dyn Driver, chunk: ChunkId, bytes: u64, access: AccessMode) -> Address {
    let address = driver.reserve(bytes).unwrap();
    driver.map(address, chunk).unwrap();
    driver.set_access(address, bytes, access).unwrap();
    address
}

/// Undoes [`map`].
pub(crate) fn unmap(driver: &dyn Driver, address: Address, bytes: u64) {
    driver.unmap(address, bytes).unwrap();
    driver.unreserve(address, bytes).unwrap();
}

/// Reads `count` bytes at `address`, after all work on the null stream.
pub(crate) fn read(driver: &dyn Driver, address: Address, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    driver.copy_from_device(&mut bytes, address, StreamId::NULL).unwrap();
    bytes
}
