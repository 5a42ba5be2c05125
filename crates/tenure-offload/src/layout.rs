//! Addresses for the blocks of a step that repeats itself: packed, so that none is in the way of another.

use std::ops::ControlFlow;
use std::time::Duration;

use tenure_alloc::{CachingAllocator, RepeatedCycle};
use tenure_plan::packing::{Buffer, PackingOptions, PackingProblem};

/// The places of a packing that are tried after the greedy ones.
const MOST_TRIED: u64 = 1 << 15;
/// The longest time to look for a packing. Most take less.
const MOST_TIME: Duration = Duration::from_millis(500);
/// Offsets of blocks are multiples of this, as their sizes are.
const ALIGNMENT: u64 = 512;
/// The most blocks of a step that is laid out, so that packing takes less than a second.
const MOST_BLOCKS: usize = 1 << 13;

/// Lays out the step that begins, if it repeats itself and the allocator would map memory for it all the same. Returns
/// the bytes by which the blocks take more than there may be room. Where there is none, they stay where they were: if
/// only some were laid out, the others would be in their way.
pub(crate) fn lay_out(allocator: &dyn CachingAllocator) -> u64 {
    let cycle = allocator.repeated_cycle().filter(|cycle| cycle.blocks.len() <= MOST_BLOCKS);
    let Some(cycle) = cycle else { return 0 };
    let RepeatedCycle { room_bytes, growth_bytes, .. } = cycle;
    let Some((offsets, height_bytes)) = pack(cycle) else { return 0 };
    if height_bytes <= room_bytes
        && let Err(error) = allocator.lay_out_cycle(&offsets)
    {
        // The step needs no layout.
        tracing::warn!("a step could not be laid out: {error}");
    }
    height_bytes.saturating_sub(room_bytes.saturating_add(growth_bytes))
}

/// Returns the offset in bytes of each block, and the end of the highest one.
fn pack(cycle: RepeatedCycle) -> Option<(Vec<u64>, u64)> {
    let buffers = cycle.blocks.into_iter().enumerate().map(|(index, block)| Buffer {
        id: index.to_string(),
        start: block.lifetime.start as u64,
        end: block.lifetime.end as u64,
        size_bytes: block.bytes,
        alignment: ALIGNMENT,
        offset: None,
    });
    let problem = PackingProblem::new(buffers.collect()).ok()?;
    // If no packing fits, a low one is looked for all the same.
    let capacity_bytes = Some(cycle.room_bytes.max(problem.lower_bound_bytes()));
    let options = PackingOptions { capacity_bytes, node_limit: Some(MOST_TRIED), time_limit: Some(MOST_TIME) };
    let packing = problem.pack(&options, |_| ControlFlow::Continue(())).packing;
    Some((packing.offsets().to_vec(), packing.height_bytes()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_alloc::Request;
    use tenure_device::memory::{DeviceMemory, MemoryConfig};
    use tenure_device::sim::{SimConfig, SimDriver};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_step_that_repeats_itself_is_laid_out_if_there_is_room() {
        let memory =
            DeviceMemory::new(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default()).unwrap();
        let allocator = memory.allocator();
        let blocks = || {
            let allocate = |mib| allocator.allocate(Request::new(mib * MIB, memory.streams().current_id())).unwrap();
            let (first, second) = (allocate(16), allocate(32));
            allocator.free(first.address).unwrap();
            let third = allocate(16);
            [second, third].into_iter().for_each(|block| allocator.free(block.address).unwrap());
            [first, second, third].map(|block| block.address)
        };
        let begin = || {
            allocator.release_cached().unwrap();
            allocator.begin_cycle(0).unwrap();
        };
        for _ in 0..2 {
            begin();
            assert_eq!(lay_out(allocator), 0);
            blocks();
        }
        begin();
        allocator.set_memory_fraction(0.0).unwrap();
        assert_eq!(lay_out(allocator), 48 * MIB, "all memory was given back, and none may be made");
        allocator.set_memory_fraction(1.0).unwrap();
        let before = blocks();
        allocator.begin_cycle(0).unwrap();
        assert_eq!(lay_out(allocator), 0);
        let laid_out = blocks();
        assert!(laid_out.iter().zip(before).all(|(block, before)| *block != before));
        assert_eq!(laid_out[0], laid_out[2]);
    }
}
