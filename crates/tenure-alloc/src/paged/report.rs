//! Snapshots of a paged allocator: see Note [Where bytes are shown].

use std::collections::BTreeMap;

use tenure_core::{KeyId, StreamId, Tag};

use super::PagedAllocator;
use super::directory::LoanKind;
use super::large::LargeBlock;
use super::slabs::{SlabBlock, SlabBlockState};
use super::state::PagedState;
use crate::snapshot::{Segment, Setting, SnapshotBlock, SnapshotState};
use crate::{Address, PoolId, PoolKind, Snapshot};

/// Takes a snapshot of everything that `allocator` holds.
pub(super) fn snapshot(allocator: &PagedAllocator, pool: Option<PoolId>, traces: bool) -> Snapshot {
    // All heaps are locked before the device lock, in order: nothing moves meanwhile.
    let heaps: Vec<_> = allocator.heaps.all().map(|heap| (heap.stream, heap.lock())).collect();
    let state = allocator.state.lock();
    let mut blocks = free_blocks(&state);
    for (address, block) in state.blocks.iter() {
        blocks.insert(address, large(address, block));
    }
    for (&address, (stream, loan)) in &state.loans {
        let Some((_, heap)) = heaps.iter().find(|(owner, _)| owner == stream) else { continue };
        let mut shown: Vec<SnapshotBlock> = match loan.kind {
            LoanKind::Slab => heap.slabs().blocks_of(address).into_iter().map(small).collect(),
            LoanKind::Range => heap.large().get(address).map(|block| large(address, block)).into_iter().collect(),
        };
        if shown.is_empty() {
            // It is parked, or on its way to or from the heap.
            shown.push(free(address, loan.bytes));
        }
        blocks.extend(shown.into_iter().map(|block| (block.address, block)));
    }
    let mut segments = join(blocks, state.config.device);
    debug_assert!(state.space.reserved >= segments.iter().map(Segment::bytes).sum());
    segments.extend(state.private.engine.describe_segments());
    Snapshot::take(segments, state.config.device, settings(&state), &allocator.history, pool, traces)
}

/// Returns the free bytes of the common space's chunks, each at its chunk's first mapping.
fn free_blocks(state: &PagedState) -> BTreeMap<Address, SnapshotBlock> {
    let mut blocks = BTreeMap::new();
    for (_, chunk) in &state.space.chunks {
        let Some(home) = chunk.mapped_at.first() else { continue };
        for extent in &chunk.free {
            let block = free(home.address + extent.offset, extent.bytes);
            blocks.insert(block.address, block);
        }
    }
    blocks
}

fn free(address: Address, bytes: u64) -> SnapshotBlock {
    let tag = Tag::Unknown;
    let key = KeyId::NONE;
    SnapshotBlock { address, bytes, requested: 0, state: SnapshotState::Inactive, tag, key, context: None }
}

fn large(address: Address, block: &LargeBlock) -> SnapshotBlock {
    let LargeBlock { bytes, requested, tag, key, .. } = *block;
    let state = if block.is_freed { SnapshotState::PendingFree } else { SnapshotState::Allocated };
    SnapshotBlock { address, bytes, requested, state, tag, key, context: None }
}

fn small(entry: &SlabBlock) -> SnapshotBlock {
    let state = match entry.state {
        SlabBlockState::Live => SnapshotState::Allocated,
        SlabBlockState::Pending => SnapshotState::PendingFree,
        SlabBlockState::Free => SnapshotState::Inactive,
    };
    let SlabBlock { address, requested, tag, key, .. } = *entry;
    SnapshotBlock { address, bytes: entry.bytes(), requested: u64::from(requested), state, tag, key, context: None }
}

/// Joins blocks that touch into segments, and free blocks that touch into one.
fn join(blocks: BTreeMap<Address, SnapshotBlock>, device: u32) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (address, block) in blocks {
        match segments.last_mut().filter(|segment| segment.address + segment.bytes() == address) {
            Some(segment) => match segment.blocks.last_mut() {
                Some(last) if last.state == block.state && block.state == SnapshotState::Inactive => {
                    last.bytes += block.bytes;
                }
                _ => segment.blocks.push(block),
            },
            None => segments.push(Segment {
                device,
                address,
                stream: StreamId::NULL,
                kind: PoolKind::Large,
                made: 0,
                pool: PoolId::default(),
                is_expandable: true,
                is_external: false,
                context: None,
                blocks: vec![block],
            }),
        }
    }
    segments
}

fn settings(state: &PagedState) -> Vec<(&'static str, Setting)> {
    let config = &state.config;
    vec![
        ("allocator", Setting::Text("tenure paged".to_owned())),
        ("expandable_segments", Setting::Flag(true)),
        ("slack", Setting::Number(config.slack)),
        ("slack_bytes", integer(config.slack_bytes)),
        ("min_chunk_bytes", integer(config.min_chunk_bytes)),
        ("max_chunk_bytes", integer(config.max_chunk_bytes)),
        ("roundup_power2_divisions", state.private.engine.config.describe_rounding()),
    ]
}

fn integer(value: u64) -> Setting {
    Setting::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}
