//! Tests of private pools, as PyTorch's graphs and MemPools use them: one behaviour each, in every allocator.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{FakeBacking, GIB, MIB};
use parking_lot::Mutex;
use tenure_alloc::snapshot::{Segment, SnapshotState};
use tenure_alloc::{
    Address, AllocError, Backing, BackingError, CachingAllocator, MemoryReports, NativeAllocator, NativeConfig,
    OutOfMemory, PagedAllocator, PagedConfig, PoolId, PoolSource, PoolUse, Request, Tuning,
};
use tenure_core::StreamId;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);
const POOL: PoolId = PoolId(0, 3);

struct Fixture {
    name: &'static str,
    backing: Arc<FakeBacking>,
    allocator: Arc<dyn CachingAllocator>,
}

/// Runs a test in each allocator.
fn each(total: u64, test: impl Fn(&Fixture)) {
    let fixture = |name, build: &dyn Fn(Arc<dyn Backing>) -> Arc<dyn CachingAllocator>| {
        let backing = Arc::new(FakeBacking::new(total));
        let allocator = build(Arc::clone(&backing) as _);
        test(&Fixture { name, backing, allocator });
    };
    let native =
        |config: NativeConfig| move |backing| Arc::new(NativeAllocator::new(backing, config.clone()).unwrap()) as _;
    fixture("native", &native(NativeConfig::default()));
    fixture("expandable", &native(NativeConfig::expandable()));
    let paged = |backing| PagedAllocator::new(backing, PagedConfig::default()).unwrap();
    fixture("paged", &|backing| Arc::new(paged(backing)));
    fixture("paged, pools expandable", &|backing| {
        let allocator = paged(backing);
        assert_eq!(allocator.tune(Tuning::ExpandableSegments(true)), Ok(true));
        Arc::new(allocator)
    });
}

impl Fixture {
    fn alloc(&self, bytes: u64) -> Address {
        self.try_alloc(bytes, A).unwrap()
    }

    fn try_alloc(&self, bytes: u64, stream: StreamId) -> Result<Address, AllocError> {
        Ok(self.allocator.allocate(Request::new(bytes, stream))?.address)
    }

    fn free(&self, address: Address) {
        self.allocator.free(address).unwrap();
    }

    /// Runs `inside` while allocations go to the pool.
    fn within<T>(&self, pool: PoolId, purpose: PoolUse, inside: impl FnOnce() -> T) -> T {
        self.allocator.begin_pool(pool, purpose, Box::new(|_| true)).unwrap();
        let result = inside();
        self.allocator.end_pool(pool).unwrap();
        result
    }

    fn capture<T>(&self, inside: impl FnOnce() -> T) -> T {
        self.within(POOL, PoolUse::Capture, inside)
    }

    fn segments(&self, pool: PoolId) -> Vec<Segment> {
        self.allocator.snapshot().segments.into_iter().filter(|segment| segment.pool == pool).collect()
    }

    fn reserved(&self) -> u64 {
        let reserved = self.allocator.statistics().all.reserved_bytes.current;
        assert_eq!(reserved, self.backing.used(), "{}", self.name);
        reserved
    }

    fn calls(&self, name: &str) -> u64 {
        self.backing.calls().get(name).copied().unwrap_or(0)
    }
}

#[test]
fn uses_are_counted_by_making_beginning_and_giving_up() {
    each(GIB, |f| {
        assert_eq!(f.allocator.pool_uses(POOL), 0);
        f.allocator.create_pool(POOL, None).unwrap();
        f.allocator.create_pool(POOL, None).unwrap();
        assert_eq!(f.allocator.pool_uses(POOL), 2);
        f.allocator.begin_pool(POOL, PoolUse::Eager, Box::new(|_| true)).unwrap();
        assert_eq!(f.allocator.pool_uses(POOL), 3);
        f.allocator.end_pool(POOL).unwrap();
        assert_eq!(f.allocator.pool_uses(POOL), 3, "ending gives no use up");
        (0..3).for_each(|_| f.allocator.release_pool(POOL).unwrap());
        assert_eq!(f.allocator.pool_uses(POOL), 0);
        assert_eq!(f.allocator.release_pool(POOL), Err(AllocError::UnknownPool(POOL)));
    });
}

#[test]
fn a_pool_is_begun_once_at_a_time_and_the_common_pool_never() {
    each(GIB, |f| {
        f.capture(|| {
            let again = f.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|_| true));
            let said = again.as_ref().unwrap_err().to_string();
            assert_eq!(said, "pool = (0, 3): end allocating to the pool before beginning again");
            assert!(matches!(again, Err(AllocError::InvalidSetting { .. })));
            assert_eq!(f.allocator.pool_uses(POOL), 1, "a failing call counts nothing");
        });
        assert_eq!(f.allocator.end_pool(POOL), Err(AllocError::UnknownPool(POOL)));
        let common = PoolId::default();
        assert!(f.allocator.begin_pool(common, PoolUse::Eager, Box::new(|_| true)).is_err());
        assert!(f.allocator.create_pool(common, None).is_err());
    });
}

#[test]
fn only_a_capture_keeps_freed_blocks_and_cached_memory_from_others() {
    each(80 * MIB, |f| {
        f.backing.hold_streams();
        f.free(f.alloc(60 * MIB));
        f.allocator.begin_pool(POOL, PoolUse::Eager, Box::new(|_| true)).unwrap();
        let set_use = |purpose| f.allocator.set_pool_use(POOL, purpose);
        set_use(PoolUse::Capture);
        assert!(f.allocator.is_capturing());
        f.try_alloc(40 * MIB, A).unwrap_err();
        set_use(PoolUse::Eager);
        assert!(!f.allocator.is_capturing());
        let block = f.alloc(40 * MIB);
        assert!(f.segments(PoolId::default()).is_empty(), "the pool got what was cached outside");

        f.allocator.record_stream(block, B).unwrap();
        set_use(PoolUse::Capture);
        let records = || f.backing.calls().get("record").copied();
        let before = records();
        f.free(block);
        assert_eq!(records(), before, "a capture would break");
        set_use(PoolUse::Eager);
        f.alloc(512);
        f.backing.pass(B);
        assert_eq!(f.alloc(40 * MIB), block);
        f.allocator.end_pool(POOL).unwrap();

        set_use(PoolUse::Capture);
        assert!(!f.allocator.is_capturing(), "no allocations go to the pool");
    });
}

#[test]
fn segments_have_pytorchs_sizes_and_small_requests_their_own() {
    each(GIB, |f| {
        if f.name.contains("expandable") {
            return;
        }
        let sizes = [512, MIB, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB + 512];
        let blocks = f.capture(|| sizes.map(|bytes| f.alloc(bytes)));
        let mut segments: Vec<u64> = f.segments(POOL).iter().map(Segment::bytes).collect();
        segments.sort_unstable();
        assert_eq!(segments, [2 * MIB, 2 * MIB, 12 * MIB, 20 * MIB]);
        let statistics = f.allocator.statistics();
        assert_eq!((statistics.small_pool.segment.current, statistics.large_pool.segment.current), (2, 2));
        assert_eq!(statistics.small_pool.reserved_bytes.current, 4 * MIB);
        assert_eq!(statistics.small_pool.allocated_bytes.current, 2 * MIB + 512);
        blocks.into_iter().for_each(|block| f.free(block));
    });
}

#[test]
fn a_pool_given_up_goes_when_its_blocks_have() {
    each(GIB, |f| {
        let [small, large] = f.capture(|| [512, 30 * MIB].map(|bytes| f.alloc(bytes)));
        f.allocator.release_cached_in(POOL).unwrap();
        assert_eq!(f.segments(POOL).len(), 2);
        f.free(large);
        f.allocator.release_cached().unwrap();
        assert_eq!(f.segments(POOL).len(), 2, "a pool in use keeps what is free");
        f.allocator.release_pool(POOL).unwrap();
        f.allocator.release_cached_in(POOL).unwrap();
        assert_eq!(f.segments(POOL).len(), 1);
        f.free(small);
        f.allocator.release_cached_in(POOL).unwrap();
        assert_eq!((f.segments(POOL).len(), f.reserved()), (0, 0));
        assert_eq!(f.allocator.live_blocks(POOL), Err(AllocError::UnknownPool(POOL)));
        f.allocator.release_cached_in(POOL).unwrap();
    });
}

#[test]
fn releasing_one_pool_leaves_the_others_and_the_common_one() {
    each(GIB, |f| {
        let one = PoolId(0, 1);
        let other = PoolId(0, 2);
        for pool in [one, other] {
            f.within(pool, PoolUse::Eager, || f.free(f.alloc(30 * MIB)));
            f.allocator.release_pool(pool).unwrap();
        }
        f.free(f.alloc(30 * MIB));
        let before = f.reserved();
        f.allocator.release_cached_in(one).unwrap();
        assert!(f.segments(one).is_empty() && !f.segments(other).is_empty() && f.reserved() < before);
        f.allocator.release_cached_in(PoolId::default()).unwrap();
        assert_eq!(f.reserved(), 0);
    });
}

#[test]
fn releasing_a_pool_waits_for_its_own_blocks_only() {
    each(GIB, |f| {
        f.backing.hold_streams();
        let inside = f.within(POOL, PoolUse::Eager, || f.alloc(MIB));
        for block in [f.alloc(MIB), inside] {
            f.backing.launch(B, block, MIB);
            f.allocator.record_stream(block, B).unwrap();
            f.free(block);
        }
        f.allocator.release_pool(POOL).unwrap();
        f.allocator.release_cached_in(POOL).unwrap();
        let figures = f.allocator.statistics().all;
        assert_eq!((figures.active.current, figures.requested_bytes.current), (1, MIB), "{}", f.name);
        assert!(f.segments(POOL).is_empty(), "{}", f.name);
    });
}

#[test]
fn a_pool_that_graphs_share_lives_as_long_as_the_last() {
    each(GIB, |f| {
        let first = f.capture(|| f.alloc(12 * MIB));
        f.free(first);
        let second = f.capture(|| f.alloc(12 * MIB));
        assert_eq!(first, second, "graphs of a pool share its memory");
        f.free(second);
        f.allocator.release_pool(POOL).unwrap();
        f.allocator.release_cached().unwrap();
        assert!(f.reserved() > 0);
        f.allocator.release_pool(POOL).unwrap();
        f.allocator.release_cached().unwrap();
        assert_eq!(f.reserved(), 0);
    });
}

#[test]
fn only_a_capture_forbids_asking_about_streams() {
    each(GIB, |f| {
        f.backing.hold_streams();
        let freed_elsewhere = |purpose| {
            let block = f.alloc(30 * MIB);
            f.allocator.record_stream(block, B).unwrap();
            f.within(POOL, purpose, || f.free(block));
        };
        freed_elsewhere(PoolUse::Capture);
        assert_eq!(f.calls("record"), 0, "{}", f.name);
        freed_elsewhere(PoolUse::Eager);
        assert!(f.calls("record") > 0, "{}", f.name);
        f.within(POOL, PoolUse::Eager, || f.allocator.release_cached().unwrap());
        assert_eq!(f.reserved(), 0, "{}", f.name);
    });
}

#[test]
fn a_full_device_gives_the_pool_what_is_cached_elsewhere() {
    each(100 * MIB, |f| {
        f.free(f.alloc(60 * MIB));
        f.within(POOL, PoolUse::Eager, || f.alloc(60 * MIB));
        assert!(f.reserved() <= 80 * MIB);
    });
}

#[test]
fn a_pool_lends_to_others_only_while_it_is_told_to() {
    each(100 * MIB, |f| {
        let private = f.capture(|| f.alloc(60 * MIB));
        f.free(private);
        f.try_alloc(60 * MIB, A).unwrap_err();
        f.allocator.use_pool_on_oom(POOL, true).unwrap();
        f.try_alloc(60 * MIB, B).unwrap_err();
        let lent = f.alloc(60 * MIB);
        assert_eq!(lent, private);
        assert_eq!(f.allocator.live_blocks(POOL).unwrap(), [private]);
        f.free(lent);
        f.allocator.use_pool_on_oom(POOL, false).unwrap();
        f.try_alloc(60 * MIB, A).unwrap_err();
    });
}

#[test]
fn without_splits_every_block_is_a_segment() {
    each(GIB, |f| {
        if f.name.contains("expandable") {
            return;
        }
        f.allocator.create_pool(POOL, None).unwrap();
        f.allocator.set_no_split(POOL).unwrap();
        f.capture(|| [4 * MIB, 4 * MIB, 512, 512].map(|bytes| f.alloc(bytes)));
        let segments = f.segments(POOL);
        assert_eq!(segments.len(), 4);
        assert!(segments.iter().all(|segment| segment.blocks.len() == 1));
        assert_eq!(f.allocator.set_no_split(PoolId(9, 9)), Err(AllocError::UnknownPool(PoolId(9, 9))));
    });
}

#[test]
fn a_pool_may_expand_alone() {
    each(GIB, |f| {
        f.allocator.create_pool(POOL, None).unwrap();
        f.allocator.set_expandable(POOL).unwrap();
        // The freed block serves two requests of about half its size, and grows.
        f.capture(|| {
            f.free(f.alloc(60 * MIB));
            [25, 25, 90].map(|mib| f.alloc(mib * MIB))
        });
        assert_eq!(f.allocator.statistics().all.reserved_bytes.current, 140 * MIB, "{}", f.name);
        let segments = f.segments(POOL);
        assert!(segments.iter().all(|segment| segment.is_expandable), "{}", f.name);
        // The common pool is as it was.
        if f.name == "native" {
            f.alloc(2 * MIB);
            assert!(f.segments(PoolId::default()).iter().all(|segment| !segment.is_expandable));
        }
        assert_eq!(f.allocator.set_expandable(PoolId(9, 9)), Err(AllocError::UnknownPool(PoolId(9, 9))));
    });
}

#[test]
fn a_pool_s_segments_keep_the_numbers_that_they_were_made_with() {
    each(GIB, |f| {
        // The addresses do not show the order of the segments.
        f.backing.give_addresses([512 * MIB, 768 * MIB, 128 * MIB]);
        let pools = [PoolId(0, 5), PoolId(0, 4), POOL];
        let made = |pool| f.segments(pool).iter().map(|segment| segment.made).collect::<Vec<_>>();
        let numbers = pools.map(|pool| {
            f.within(pool, PoolUse::Eager, || f.free(f.alloc(30 * MIB)));
            made(pool)
        });
        assert!(numbers.is_sorted() && numbers[0] != numbers[1] && numbers[1] != numbers[2], "{}: {numbers:?}", f.name);
        f.allocator.release_pool(pools[0]).unwrap();
        f.allocator.release_cached_in(pools[0]).unwrap();
        assert_eq!(pools.map(made), [vec![], numbers[1].clone(), numbers[2].clone()], "{}", f.name);
    });
}

#[test]
fn live_blocks_are_those_of_the_pool() {
    each(GIB, |f| {
        f.alloc(512);
        let mut blocks = f.capture(|| [512, 3 * MIB, 700].map(|bytes| f.alloc(bytes)));
        f.free(blocks[1]);
        f.alloc(3 * MIB);
        blocks.sort_unstable();
        let live = f.allocator.live_blocks(POOL).unwrap();
        assert_eq!(live.len(), 2);
        assert!(live.is_sorted() && live.iter().all(|address| blocks.contains(address)));
    });
}

/// A source of segments of the fake device that records the requests it got.
struct Source {
    backing: Arc<FakeBacking>,
    segments: Mutex<BTreeMap<Address, (u64, StreamId)>>,
    is_empty: bool,
}

impl Source {
    fn new(backing: &Arc<FakeBacking>, is_empty: bool) -> Arc<Self> {
        Arc::new(Self { backing: Arc::clone(backing), segments: Mutex::default(), is_empty })
    }
}

impl PoolSource for Source {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Address, BackingError> {
        if self.is_empty {
            return Err(BackingError::OutOfMemory { call: "source", requested: bytes, free: 0 });
        }
        let address = self.backing.malloc(bytes)?;
        self.segments.lock().insert(address, (bytes, stream));
        Ok(address)
    }

    fn free(&self, address: Address, bytes: u64, stream: StreamId) {
        assert_eq!(self.segments.lock().remove(&address), Some((bytes, stream)));
        self.backing.free(address).unwrap();
    }
}

#[test]
fn a_pool_of_a_programs_own_allocator_takes_segments_from_it_only() {
    each(GIB, |f| {
        let source = Source::new(&f.backing, false);
        f.allocator.create_pool(POOL, Some(Arc::clone(&source) as _)).unwrap();
        let again = f.allocator.create_pool(POOL, Some(Arc::clone(&source) as _));
        assert!(matches!(again, Err(AllocError::InvalidSetting { .. })));
        assert_eq!(f.allocator.pool_uses(POOL), 1);

        let inside = f.within(POOL, PoolUse::Eager, || [MIB, MIB, MIB].map(|bytes| f.alloc(bytes)));
        f.alloc(MIB);
        let segments: Vec<u64> = source.segments.lock().values().map(|(bytes, _)| *bytes).collect();
        assert_eq!(segments, [2 * MIB, 2 * MIB], "blocks share segments as everywhere");
        assert_eq!(f.segments(POOL).len(), 2);
        f.reserved();
        assert_eq!(f.allocator.chunks_under(inside[0], MIB), None);

        inside.into_iter().for_each(|block| f.free(block));
        (0..2).for_each(|_| f.allocator.release_pool(POOL).unwrap());
        f.allocator.release_cached_in(POOL).unwrap();
        assert!(source.segments.lock().is_empty() && f.segments(POOL).is_empty());
    });
}

#[test]
fn a_source_without_memory_is_an_out_of_memory_error_of_its_pool() {
    each(GIB, |f| {
        f.allocator.create_pool(POOL, Some(Source::new(&f.backing, true) as _)).unwrap();
        let inside = f.within(POOL, PoolUse::Eager, || f.try_alloc(MIB, A));
        assert!(matches!(inside, Err(AllocError::OutOfMemory { .. })));
        f.alloc(MIB);
    });
}

#[test]
fn a_source_gets_back_what_a_request_released_and_did_not_fit_in() {
    let config = NativeConfig { max_split_size: Some(24 * MIB), ..NativeConfig::default() };
    let backing = Arc::new(FakeBacking::new(256 * MIB));
    let allocator = Arc::new(NativeAllocator::new(Arc::clone(&backing) as _, config).unwrap());
    let f = Fixture { name: "native", backing: Arc::clone(&backing), allocator };
    f.allocator.create_pool(POOL, Some(Source::new(&backing, false) as _)).unwrap();
    f.within(POOL, PoolUse::Eager, || {
        f.free(f.alloc(100 * MIB));
        // While a capture is underway, no other memory is released, and the request is not tried again.
        f.allocator.begin_pool(PoolId(0, 4), PoolUse::Capture, Box::new(|stream| stream == B)).unwrap();
        assert!(matches!(f.try_alloc(300 * MIB, A), Err(AllocError::OutOfMemory { .. })));
        assert_eq!(f.reserved(), 0);
    });
}

/// A source that, for each segment, keeps a block in the allocator that it serves.
struct Nested {
    allocator: Arc<dyn CachingAllocator>,
    backing: Arc<FakeBacking>,
    blocks: Mutex<Vec<Address>>,
}

impl PoolSource for Nested {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Address, BackingError> {
        let block = self.allocator.allocate(Request::new(700, stream)).unwrap();
        self.blocks.lock().push(block.address);
        self.backing.malloc(bytes)
    }

    fn free(&self, address: Address, _: u64, _: StreamId) {
        let block = self.blocks.lock().pop().unwrap();
        self.allocator.free(block).unwrap();
        self.backing.free(address).unwrap();
    }
}

#[test]
fn a_source_may_allocate_in_the_allocator_that_it_is_for() {
    each(GIB, |f| {
        let allocator = Arc::clone(&f.allocator);
        let backing = Arc::clone(&f.backing);
        let source = Arc::new(Nested { allocator, backing, blocks: Mutex::default() });
        f.allocator.create_pool(POOL, Some(Arc::clone(&source) as _)).unwrap();
        let block = f.within(POOL, PoolUse::Eager, || f.alloc(3 * MIB));
        assert_eq!(source.blocks.lock().len(), 1);
        assert_eq!(f.allocator.live_blocks(POOL).unwrap(), [block], "its own block is outside the pool");
        f.free(block);
        (0..2).for_each(|_| f.allocator.release_pool(POOL).unwrap());
        f.allocator.release_cached_in(POOL).unwrap();
        assert!(source.blocks.lock().is_empty());
        f.allocator.release_cached().unwrap();
        assert_eq!(f.reserved(), 0);
    });
}

#[test]
fn a_pool_is_set_back_to_a_checkpoint() {
    each(GIB, |f| {
        let [first, second, third] = f.capture(|| [512, 3 * MIB, 12 * MIB].map(|bytes| f.alloc(bytes)));
        f.free(second);
        let checkpoint = f.allocator.checkpoint(POOL).unwrap();
        let statistics = f.allocator.statistics();
        let layout = || -> Vec<_> {
            let blocks = f.segments(POOL).into_iter().flat_map(|segment| segment.blocks);
            blocks.map(|block| (block.address, block.bytes, block.state)).collect()
        };
        let before = layout();
        f.free(third);
        let later = f.capture(|| [MIB, 5 * MIB].map(|bytes| f.alloc(bytes)));

        let restored = f.allocator.restore(&checkpoint).unwrap();
        let mut freed = vec![first, later[0], later[1]];
        freed.sort_unstable();
        assert_eq!(restored.freed, freed);
        let mut allocated = vec![first, third];
        allocated.sort_unstable();
        assert_eq!(restored.allocated, allocated);
        assert_eq!(f.allocator.live_blocks(POOL).unwrap(), allocated);
        assert_eq!(checkpoint.addresses().collect::<Vec<_>>(), allocated);
        if !f.name.contains("expandable") {
            assert_eq!(layout(), before, "{}", f.name);
        }
        let now = f.allocator.statistics();
        assert_eq!(now.all.allocated_bytes.current, statistics.all.allocated_bytes.current);
        assert_eq!(now.all.requested_bytes.current, statistics.all.requested_bytes.current);
        assert_eq!(now.all.active.current, statistics.all.active.current);
        allocated.into_iter().for_each(|block| f.free(block));
        assert_eq!(f.allocator.statistics().all.allocated_bytes.current, 0);
    });
}

#[test]
fn requests_after_a_restore_get_the_same_addresses_each_time() {
    each(GIB, |f| {
        let blocks = f.capture(|| [512, 2 * MIB, 4 * MIB, 30 * MIB, 700].map(|bytes| f.alloc(bytes)));
        [blocks[1], blocks[3]].into_iter().for_each(|block| f.free(block));
        let checkpoint = f.allocator.checkpoint(POOL).unwrap();
        let record = || {
            f.allocator.restore(&checkpoint).unwrap();
            f.capture(|| [MIB, 2 * MIB, 13 * MIB, 512, 9 * MIB].map(|bytes| f.alloc(bytes)))
        };
        record();
        let once = record();
        let twice = record();
        assert_eq!(once, twice, "{}", f.name);
    });
}

#[test]
fn a_pool_that_was_given_up_cannot_be_set_back() {
    each(GIB, |f| {
        let block = f.capture(|| f.alloc(12 * MIB));
        let checkpoint = f.allocator.checkpoint(POOL).unwrap();
        f.allocator.release_pool(POOL).unwrap();
        assert_eq!(f.allocator.restore(&checkpoint), Err(AllocError::PoolChanged(POOL)));
        assert_eq!(f.allocator.live_blocks(POOL).unwrap(), [block], "nothing has changed");
        f.free(block);
        f.allocator.release_cached().unwrap();
        assert_eq!(f.allocator.restore(&checkpoint), Err(AllocError::UnknownPool(POOL)));
        assert_eq!(f.allocator.checkpoint(POOL), Err(AllocError::UnknownPool(POOL)));
        f.allocator.create_pool(POOL, None).unwrap();
        assert_eq!(f.allocator.restore(&checkpoint), Err(AllocError::PoolChanged(POOL)));
    });
}

#[test]
fn a_restore_waits_for_other_streams_and_a_capture_cannot() {
    each(GIB, |f| {
        let block = f.capture(|| f.alloc(12 * MIB));
        let checkpoint = f.allocator.checkpoint(POOL).unwrap();
        f.allocator.record_stream(block, B).unwrap();
        f.capture(|| assert_eq!(f.allocator.restore(&checkpoint), Err(AllocError::PoolBusy(POOL))));
        let waits = f.calls("synchronize");
        assert_eq!(f.allocator.restore(&checkpoint).unwrap().allocated, [block]);
        assert!(f.calls("synchronize") > waits);
    });
}

#[test]
fn a_call_that_fails_in_a_restore_changes_nothing() {
    each(GIB, |f| {
        let block = f.capture(|| f.alloc(12 * MIB));
        let checkpoint = f.allocator.checkpoint(POOL).unwrap();
        f.allocator.record_stream(block, B).unwrap();
        let later = f.capture(|| f.alloc(5 * MIB));
        for call in 0..2 {
            f.backing.fail_calls(call..call + 1);
            assert!(matches!(f.allocator.restore(&checkpoint), Err(AllocError::Backing(_))), "{}", f.name);
            assert_eq!(f.allocator.live_blocks(POOL).unwrap().len(), 2);
        }
        f.backing.fail_none();
        let mut both = vec![block, later];
        both.sort_unstable();
        assert_eq!(f.allocator.restore(&checkpoint).unwrap().freed, both);
    });
}

#[test]
fn the_chunks_under_a_block_show_it_at_the_same_offset() {
    each(GIB, |f| {
        let common = [700, 3 * MIB, 100 * MIB].map(|bytes| (f.alloc(bytes), bytes));
        let private = f.capture(|| [700, 30 * MIB].map(|bytes| (f.alloc(bytes), bytes)));
        for (address, bytes) in common.into_iter().chain(private) {
            let (base, extent) = f.allocator.extent(address).unwrap();
            assert!(base <= address && address + bytes <= base + extent, "{}", f.name);
            let Some(chunks) = f.allocator.chunks_under(address, bytes) else {
                assert_eq!(f.name, "native");
                continue;
            };
            assert!(chunks.windows(2).all(|pair| pair[0].address + pair[0].bytes == pair[1].address));
            let first = chunks.first().unwrap();
            let last = chunks.last().unwrap();
            assert!(first.address <= address && address < first.address + first.bytes);
            assert!(last.address < address + bytes && address + bytes <= last.address + last.bytes);
            f.free(address);
            assert_eq!(f.allocator.extent(address), None);
            assert_eq!(f.allocator.chunks_under(address, bytes), None);
        }
    });
}

#[test]
fn the_longest_free_range_is_told() {
    each(GIB, |f| {
        assert_eq!(f.allocator.largest_free(), 0);
        let [_, freed] = [512, 200 * MIB].map(|bytes| f.alloc(bytes));
        f.free(freed);
        assert!((200 * MIB..400 * MIB).contains(&f.allocator.largest_free()), "{}", f.name);
        f.free(f.capture(|| f.alloc(500 * MIB)));
        assert!(f.allocator.largest_free() >= 500 * MIB, "{}", f.name);
    });
}

#[test]
fn requests_are_rounded_as_they_are_told_to_be() {
    each(GIB, |f| {
        assert_eq!(f.allocator.tune(Tuning::Rounding([4; 16])), Ok(true));
        let blocks = [2049, 5 * MIB + 1].map(|bytes| f.alloc(bytes));
        let private = f.capture(|| [2049, 5 * MIB + 1].map(|bytes| f.alloc(bytes)));
        let statistics = f.allocator.statistics();
        assert_eq!(statistics.all.allocated_bytes.current, 2 * (2560 + 6 * MIB), "{}", f.name);
        assert_eq!(statistics.all.requested_bytes.current, 2 * (2049 + 5 * MIB + 1));
        blocks.into_iter().chain(private).for_each(|block| f.free(block));
        assert!(matches!(f.allocator.tune(Tuning::Rounding([3; 16])), Err(AllocError::InvalidSetting { .. })));
        f.allocator.tune(Tuning::Rounding([0; 16])).unwrap();
        f.alloc(5 * MIB + 1);
        assert_eq!(f.allocator.statistics().all.allocated_bytes.current, 5 * MIB + 512);
    });
}

#[test]
fn settings_of_the_native_policy_mean_nothing_to_the_paged_allocator() {
    each(GIB, |f| {
        let means = f.name == "native" || f.name == "expandable";
        let tunings = [Tuning::MaxSplitSize(Some(40 * MIB)), Tuning::GarbageCollectionThreshold(0.8)];
        tunings.into_iter().for_each(|tuning| assert_eq!(f.allocator.tune(tuning), Ok(means)));
        assert_eq!(f.allocator.statistics().max_split_size, means.then_some(40 * MIB));
    });
}

#[test]
fn rejections_are_counted_apart() {
    each(GIB, |f| {
        let seen: Arc<Mutex<Vec<OutOfMemory>>> = Arc::default();
        let told = Arc::clone(&seen);
        f.allocator.add_out_of_memory_observer(Box::new(move |error| told.lock().push(*error)));
        let counts = || (f.allocator.statistics().num_ooms, f.allocator.statistics().num_oom_rejections);
        assert_eq!(f.allocator.tune(Tuning::RejectAbove(Some(0.5))), Ok(true));
        let held = f.alloc(200 * MIB);
        f.free(f.alloc(200 * MIB));
        // Cached memory is given back first.
        f.free(f.alloc(300 * MIB));
        f.try_alloc(400 * MIB, A).unwrap_err();
        assert_eq!(counts(), (0, 1), "{}", f.name);
        // If another limit refuses too, it is an ordinary out-of-memory error.
        f.allocator.set_memory_fraction(0.5).unwrap();
        f.try_alloc(400 * MIB, A).unwrap_err();
        f.allocator.set_memory_fraction(1.0).unwrap();
        assert_eq!(f.allocator.memory_fraction(), 1.0);
        assert_eq!(counts(), (1, 1), "{}", f.name);
        let told = seen.lock().clone();
        let told: Vec<_> = told.iter().map(|it| (it.requested, it.allocated, it.allowed, it.rejected)).collect();
        let of = |rejected| (400 * MIB, 200 * MIB, 512 * MIB, rejected);
        assert_eq!(told, [of(true), of(false)], "{}", f.name);

        assert_eq!(f.allocator.tune(Tuning::RejectAbove(None)), Ok(true));
        f.free(f.alloc(400 * MIB));
        f.free(held);
        let invalid = f.allocator.tune(Tuning::RejectAbove(Some(1.5)));
        assert!(matches!(invalid, Err(AllocError::InvalidSetting { .. })), "{}", f.name);
    });
}

#[test]
fn expandable_segments_turned_off_serve_no_request_until_they_are_turned_on_again() {
    let backing = Arc::new(FakeBacking::new(GIB));
    let allocator = NativeAllocator::new(Arc::clone(&backing) as _, NativeConfig::expandable()).unwrap();
    let alloc = || tenure_alloc::Resource::allocate(&allocator, Request::new(30 * MIB, A)).unwrap().address;
    let expandable = alloc();
    tenure_alloc::Resource::free(&allocator, expandable).unwrap();
    allocator.tune(Tuning::ExpandableSegments(false)).unwrap();
    let other = alloc();
    assert_ne!(other, expandable);
    allocator.tune(Tuning::ExpandableSegments(true)).unwrap();
    assert_eq!(alloc(), expandable);
    assert!(allocator.snapshot().segments.iter().all(|segment| segment.blocks[0].state == SnapshotState::Allocated));
}

#[test]
fn a_fraction_is_read_back_and_may_leave_the_overhead_out() {
    each(200 * MIB, |f| {
        assert_eq!(f.allocator.memory_fraction(), 1.0);
        f.allocator.set_memory_fraction(0.5).unwrap();
        assert_eq!(f.allocator.memory_fraction(), 0.5);
        assert!(f.allocator.set_memory_fraction(1.5).is_err());
        assert_eq!(f.allocator.memory_fraction(), 0.5);
        f.backing.set_overhead(80 * MIB);
        f.try_alloc(60 * MIB, A).unwrap_err();
        f.allocator.count_overhead(false);
        let block = f.alloc(60 * MIB);
        f.capture(|| f.try_alloc(60 * MIB, A)).unwrap_err();
        f.free(block);
        f.allocator.release_cached().unwrap();
        f.within(PoolId(1, 1), PoolUse::Eager, || f.alloc(60 * MIB));
    });
}
