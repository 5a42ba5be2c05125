//! Tests of holders, on every allocator that keeps snapshots.

use std::sync::Arc;

use crate::common::{FakeBacking, GIB, MIB};
use tenure_alloc::snapshot::Holder;
use tenure_alloc::{CachingAllocator, NativeAllocator, NativeConfig, PagedAllocator, PagedConfig, Request};
use tenure_core::{Key, KeyId, StreamId, Tag};

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

fn each_allocator(check: impl Fn(&FakeBacking, &dyn CachingAllocator)) {
    let backing = Arc::new(FakeBacking::new(GIB));
    backing.hold_streams();
    check(&backing, &NativeAllocator::new(Arc::clone(&backing) as _, NativeConfig::default()).unwrap());
    check(&backing, &PagedAllocator::new(Arc::clone(&backing) as _, PagedConfig::default()).unwrap());
}

#[test]
fn live_blocks_are_summed_by_tag_and_key_largest_first() {
    let key = KeyId::intern(Key { module: "head".into(), op: "matmul".into(), role: "out".into(), occurrence: 0 });
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
