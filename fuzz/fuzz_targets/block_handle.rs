//! Takes any bytes as the handle of another process's block: after a correct head, and as the list of chunks in a
//! living process. A block that opens must be memory that can be read.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tenure_alloc::Request;
use tenure_core::StreamId;
use tenure_device::Driver;
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};

/// The bytes of a handle's magic number and version.
const HEAD: usize = 8;

fn memory() -> DeviceMemory {
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
    DeviceMemory::new(driver, MemoryConfig::default()).expect("a simulated device")
}

/// A device's memory that is shared, and the handle of a block in it, up to the list of chunks.
static SENDER: LazyLock<(DeviceMemory, Vec<u8>)> = LazyLock::new(|| {
    let memory = memory();
    let block = memory.allocate(Request::new(4 << 20, StreamId::NULL)).expect("an empty device");
    let mut handle = memory.share(block.address).expect("a block in chunks").handle;
    let uuid = memory.driver().uuid();
    let device = handle.windows(uuid.len()).position(|bytes| bytes == uuid).expect("it names its device");
    handle.truncate(device + uuid.len());
    (memory, handle)
});

fuzz_target!(|bytes: &[u8]| {
    let start = &SENDER.1;
    // A device gives no address twice: a hostile size would otherwise use up the addresses of later inputs.
    let receiver = memory();
    for start in [&start[..HEAD], start] {
        if let Ok(block) = receiver.open(&[start, bytes].concat()) {
            let mut byte = [0];
            receiver.driver().copy_from_device(&mut byte, block.address(), StreamId::NULL).expect("mapped memory");
        }
    }
});
