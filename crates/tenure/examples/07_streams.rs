//! Uses a block on a second stream without telling the allocator: the simulated device finds the race, and
//! `record_stream` mends it.
//!
//! `cargo run --release -p tenure --example 07_streams`

use std::sync::Arc;

use tenure::alloc::{CachingAllocator, NativeAllocator, Request, Resource};
use tenure::core::StreamId;
use tenure::device::sim::{SimConfig, SimDriver, SimKernel};
use tenure::device::{DeviceBacking, Driver, Priority, StreamCalls};

const BYTES: u64 = 1 << 20;

fn main() -> Result<(), tenure::Error> {
    for is_recorded in [false, true] {
        let device = Arc::new(SimDriver::new(SimConfig::default()));
        let backing = Arc::new(DeviceBacking::new(Arc::clone(&device) as Arc<dyn Driver>));
        let allocator = NativeAllocator::new(backing, Default::default())?;
        let side = device.create_stream(Priority::Default)?;

        let block = allocator.allocate(Request::new(BYTES, StreamId::NULL))?;
        device.launch(SimKernel::new("reader", side).reads(block.address, BYTES))?;
        if is_recorded {
            allocator.record_stream(block.address, side)?;
        }
        allocator.free(block.address)?;
        // The same stream gets the same memory again, unless the allocator knows that the reader may still run.
        let again = allocator.allocate(Request::new(BYTES, StreamId::NULL))?;
        let write = SimKernel::new("writer", StreamId::NULL).writes(again.address, BYTES);
        let fault = device.launch(write).and_then(|_| device.synchronize()).err();

        println!("record_stream: {is_recorded}, same address: {}", block.address == again.address);
        println!("  {}", fault.as_ref().map_or("no race".into(), ToString::to_string));
        assert_eq!(fault.is_none(), is_recorded);
    }
    Ok(())
}
