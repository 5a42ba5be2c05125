//! Leaves free memory in pieces, and asks for one large block: PyTorch's policy takes new memory from the device, the
//! paged allocator maps the pieces side by side.
//!
//! `cargo run --release -p tenure --example 06_fragmentation`

use std::sync::Arc;

use tenure::alloc::{AllocError, CachingAllocator, NativeAllocator, PagedAllocator, Request};
use tenure::core::StreamId;
use tenure::device::DeviceBacking;
use tenure::device::sim::{SimConfig, SimDriver};
use tenure::units::Bytes;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), AllocError> {
    let backing = || Arc::new(DeviceBacking::new(Arc::new(SimDriver::new(SimConfig::default()))));
    let native = NativeAllocator::new(backing(), Default::default())?;
    let paged = PagedAllocator::new(backing(), Default::default())?;
    for (name, allocator) in [("PyTorch's policy", &native as &dyn CachingAllocator), ("paged", &paged)] {
        let allocate = |bytes| allocator.allocate(Request::new(bytes, StreamId::NULL));
        // Eight blocks, of which every second one is freed.
        let blocks = (0..8).map(|_| allocate(64 * MIB)).collect::<Result<Vec<_>, _>>()?;
        for block in blocks.iter().step_by(2) {
            allocator.free(block.address)?;
        }
        let large = allocate(256 * MIB)?;
        let reserved = allocator.statistics().all.reserved_bytes.current;
        println!("{name}: {} reserved for {}", Bytes(reserved), Bytes(8 * 64 * MIB));
        allocator.free(large.address)?;
    }
    Ok(())
}
