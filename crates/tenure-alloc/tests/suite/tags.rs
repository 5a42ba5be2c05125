//! Tests of the tags and keys of live blocks, on every allocator: changing them, and sums by them.

use std::sync::Arc;

use crate::common::{FakeBacking, GIB, MIB, busy_backing};
use tenure_alloc::adaptor::{Donated, RangePlacement};
use tenure_alloc::snapshot::Holder;
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
    for config in [NativeConfig::default(), NativeConfig::expandable()] {
        let backing = busy_backing(GIB);
        check(&backing, &NativeAllocator::new(Arc::clone(&backing) as _, config).unwrap());
    }
    let backing = busy_backing(GIB);
    check(&backing, &PagedAllocator::new(Arc::clone(&backing) as _, PagedConfig::default()).unwrap());
    let backing = busy_backing(GIB);
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
            let [was, is] = [&before, &after].map(|statistics| statistics.tags[Tag::Gradient as usize]);
            assert_eq!(is.requested_bytes.current - was.requested_bytes.current, requested);
            assert_eq!(is.allocated_bytes.current - was.allocated_bytes.current, block.bytes);
            assert_eq!(is.active_bytes.current - was.active_bytes.current, block.bytes);
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

#[test]
fn live_blocks_are_summed_by_tag_and_key_largest_first() {
    let key = key("out");
    each_allocator(|_, allocator| {
        let allocate = |bytes, stream, tag, key| {
            let request = Request::new(bytes, stream).with_tag(tag).with_key(key);
            allocator.allocate(request).unwrap().address
        };
        for stream in [A, B] {
            allocate(512, stream, Tag::Gradient, KeyId::NONE);
            allocate(20 * MIB, stream, Tag::Weight, key);
        }
        allocate(30 * MIB, A, Tag::Weight, KeyId::NONE);
        let free = allocate(30 * MIB, A, Tag::Workspace, KeyId::NONE);
        allocator.free(free).unwrap();

        let weights = Holder { tag: Tag::Weight, key, bytes: 40 * MIB, blocks: 2 };
        let keyless = Holder { tag: Tag::Weight, key: KeyId::NONE, bytes: 30 * MIB, blocks: 1 };
        let gradients = Holder { tag: Tag::Gradient, key: KeyId::NONE, bytes: 1024, blocks: 2 };
        let snapshot = allocator.snapshot();
        assert_eq!(snapshot.holders(10), [weights, keyless, gradients]);
        assert_eq!(snapshot.holders(1), [weights]);
    });
}

#[test]
fn a_freed_block_holds_its_memory_until_other_streams_have_passed() {
    each_allocator(|backing, allocator| {
        let block = allocator.allocate(Request::new(20 * MIB, A).with_tag(Tag::Activation)).unwrap();
        allocator.record_stream(block.address, B).unwrap();
        backing.launch(B, block.address, block.bytes);
        allocator.free(block.address).unwrap();
        let held = Holder { tag: Tag::Activation, key: KeyId::NONE, bytes: 20 * MIB, blocks: 1 };
        assert_eq!(allocator.snapshot().holders(5), [held]);
    });
}
