//! Addresses for the blocks of a step that repeats itself: packed, so that none is in the way of another.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
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

/// The layout of an engine's steps. Packing takes up to as long as some steps, so it is done in the background.
#[derive(Default)]
pub(crate) struct Layout {
    /// The packings that are being made, by the kind of the step.
    pending: HashMap<u64, Receiver<Packed>>,
}

/// The packing of a cycle's blocks.
struct Packed {
    cycle: RepeatedCycle,
    offsets: Vec<u64>,
    /// The end of the highest block.
    height_bytes: u64,
}

impl Layout {
    /// Begins to pack the step of a `kind` that begins, if it repeats itself and the allocator maps memory for it all the
    /// same. If such a packing is ready, or if it has to wait for it, lays the step out. Returns the bytes by which the
    /// blocks take more than there may be room. Where there is none, they stay where they were: if only some were laid
    /// out, the others would be in their way.
    pub(crate) fn lay_out(&mut self, allocator: &dyn CachingAllocator, kind: u64, waits: bool) -> u64 {
        if !self.pending.contains_key(&kind) {
            let cycle = allocator.repeated_cycle().filter(|cycle| cycle.blocks.len() <= MOST_BLOCKS);
            let packed = cycle.and_then(begin_to_pack);
            self.pending.extend(packed.map(|packed| (kind, packed)));
        }
        let Some(packed) = self.pending.get(&kind) else { return 0 };
        let packed = if waits { packed.recv().map_err(TryRecvError::from) } else { packed.try_recv() };
        if packed.as_ref().is_err_and(|error| *error == TryRecvError::Empty) {
            return 0;
        }
        self.pending.remove(&kind);
        let Ok(Packed { cycle, offsets, height_bytes }) = packed else { return 0 };
        let RepeatedCycle { blocks, room_bytes, growth_bytes } = cycle;
        if height_bytes <= room_bytes
            && let Err(error) = allocator.lay_out_cycle(&blocks, &offsets)
        {
            // The step needs no layout.
            tracing::warn!("a step could not be laid out: {error}");
        }
        height_bytes.saturating_sub(room_bytes.saturating_add(growth_bytes))
    }
}

/// Packs a cycle in a thread of its own. Returns None if there is none, and nothing is sent if there is no packing.
fn begin_to_pack(cycle: RepeatedCycle) -> Option<Receiver<Packed>> {
    let (sender, receiver) = mpsc::channel();
    let pack = move || {
        // The engine may be gone.
        pack(cycle).into_iter().for_each(|packed| drop(sender.send(packed)));
    };
    thread::Builder::new().name("tenure-pack".into()).spawn(pack).ok()?;
    Some(receiver)
}

fn pack(cycle: RepeatedCycle) -> Option<Packed> {
    let buffers = cycle.blocks.iter().enumerate().map(|(index, block)| Buffer {
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
    Some(Packed { offsets: packing.offsets().to_vec(), height_bytes: packing.height_bytes(), cycle })
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
            assert_eq!(Layout::default().lay_out(allocator, 0, true), 0);
            blocks();
        }
        begin();
        allocator.set_memory_fraction(0.0).unwrap();
        assert_eq!(
            Layout::default().lay_out(allocator, 0, true),
            48 * MIB,
            "all memory was given back, and none may be made"
        );
        allocator.set_memory_fraction(1.0).unwrap();
        let before = blocks();
        allocator.begin_cycle(0).unwrap();
        assert_eq!(Layout::default().lay_out(allocator, 0, true), 0);
        let laid_out = blocks();
        assert!(laid_out.iter().zip(before).all(|(block, before)| *block != before));
        assert_eq!(laid_out[0], laid_out[2]);
    }
}
