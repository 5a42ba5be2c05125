//! Tests of changing a live block's tag and key, on every allocator.

use std::sync::Arc;

use crate::common::{FakeBacking, GIB, MIB};
use tenure_alloc::adaptor::{Donated, RangePlacement};
use tenure_alloc::{
    AllocError, Backing, CachingAllocator, NativeAllocator, NativeConfig, PagedAllocator, PagedConfig, PoolId, PoolUse,
    Request, Stat,
};
use tenure_core::{Key, KeyId, StreamId, Tag};

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);
const POOL: PoolId = PoolId(0, 3);

/// The sizes of a small block, and of larger ones that share a segment or have their own.
const SIZES: [u64; 3] = [700, 5 * MIB, 40 * MIB];

fn each_allocator(check: impl Fn(&FakeBacking, &dyn CachingAllocator)) {
    let fake = || {
        let backing = Arc::new(FakeBacking::new(GIB));
        backing.hold_streams();
        backing
    };
    for config in [NativeConfig::default(), NativeConfig::expandable()] {
        let backing = fake();
        check(&backing, &NativeAllocator::new(Arc::clone(&backing) as _, config).unwrap());
    }
    let backing = fake();
    check(&backing, &PagedAllocator::new(Arc::clone(&backing) as _, PagedConfig::default()).unwrap());
    let backing = fake();
    let inner = NativeAllocator::new(Arc::clone(&backing) as _, NativeConfig::default()).unwrap();
    let donated = Donated::new(inner, Arc::clone(&backing) as _);
    donated.donated().insert(backing.malloc(64 * MIB).unwrap(), 64 * MIB, A, RangePlacement::BestFit).unwrap();
    check(&backing, &donated);
}

fn key(role: &str) -> KeyId {
    KeyId::intern(Key { module: "encoder".into(), op: "linear".into(), role: role.into(), occurrence: 0 })
}

/// Returns the tag and key of the block at `address`.
fn purpose(allocator: &dyn CachingAllocator, address: u64) -> (Tag, KeyId) {
    let snapshot = allocator.snapshot();
    let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.find(|block| block.address == address).map(|block| (block.tag, block.key)).unwrap()
}

#[test]
fn the_bytes_move_from_one_tag_to_the_other() {
    each_allocator(|_, allocator| {
        for requested in SIZES {
            let before = allocator.statistics();
            let block = allocator.allocate(Request::new(requested, A).with_tag(Tag::Activation)).unwrap();
            let held = allocator.statistics();
            allocator.retag(block.address, Tag::Gradient, key("grad")).unwrap();
            let after = allocator.statistics();
            assert_eq!(after.tags[Tag::Activation as usize].requested_bytes.current, 0);
            let Stat { current, peak, .. } = after.tags[Tag::Activation as usize].active_bytes;
            assert_eq!((current, peak), (0, held.tags[Tag::Activation as usize].active_bytes.peak));
            let gained = |figures: fn(&tenure_alloc::TagStatistics) -> Stat| {
                let of = |statistics: &tenure_alloc::Statistics| figures(&statistics.tags[Tag::Gradient as usize]);
                of(&after).current - of(&before).current
            };
            assert_eq!(gained(|tag| tag.requested_bytes), requested);
            assert_eq!(gained(|tag| tag.allocated_bytes), block.bytes);
            assert_eq!(gained(|tag| tag.active_bytes), block.bytes);
            assert_eq!((&after.all, &after.small_pool), (&held.all, &held.small_pool), "no pool is touched");
            assert_eq!(purpose(allocator, block.address), (Tag::Gradient, key("grad")));
        }
    });
}

#[test]
fn a_block_is_freed_under_the_tag_that_it_has() {
    each_allocator(|backing, allocator| {
        for bytes in SIZES {
            let block = allocator.allocate(Request::new(bytes, A).with_tag(Tag::Activation)).unwrap();
            allocator.retag(block.address, Tag::Weight, KeyId::NONE).unwrap();
            allocator.record_stream(block.address, B).unwrap();
            backing.launch(B, block.address, block.bytes);
            allocator.free(block.address).unwrap();
            let figures = allocator.statistics().tags[Tag::Weight as usize];
            assert_eq!((figures.allocated_bytes.current, figures.active_bytes.current), (0, block.bytes));
            backing.pass(B);
            // Later allocations find that the other stream has passed.
            for bytes in [512, 2 * MIB] {
                let later = allocator.allocate(Request::new(bytes, A)).unwrap();
                allocator.free(later.address).unwrap();
            }
        }
        allocator.release_cached().unwrap();
        for figures in allocator.statistics().tags {
            assert_eq!((figures.requested_bytes.current, figures.active_bytes.current), (0, 0));
        }
    });
}

#[test]
fn blocks_of_private_pools_can_be_tagged_too() {
    each_allocator(|_, allocator| {
        allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|_| true)).unwrap();
        let block = allocator.allocate(Request::new(3 * MIB, A)).unwrap();
        allocator.end_pool(POOL).unwrap();
        allocator.retag(block.address, Tag::Workspace, KeyId::NONE).unwrap();
        assert_eq!(allocator.statistics().tags[Tag::Workspace as usize].requested_bytes.current, 3 * MIB);
        assert_eq!(purpose(allocator, block.address).0, Tag::Workspace);
    });
}

#[test]
fn only_the_start_of_a_live_block_can_be_tagged() {
    each_allocator(|_, allocator| {
        let retag = |address| allocator.retag(address, Tag::Weight, KeyId::NONE);
        for bytes in SIZES {
            let block = allocator.allocate(Request::new(bytes, A)).unwrap();
            assert_eq!(retag(block.address + 512), Err(AllocError::UnknownAddress(block.address + 512)));
            allocator.record_stream(block.address, B).unwrap();
            allocator.free(block.address).unwrap();
            assert_eq!(retag(block.address), Err(AllocError::UnknownAddress(block.address)), "freed");
        }
        assert_eq!(retag(0), Ok(()), "no memory");
        assert_eq!(allocator.statistics().tags[Tag::Weight as usize].allocated_bytes.allocated, 0);
    });
}
