//! Tests of PyTorch's allocator: one behaviour each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::common::{FakeBacking, GIB, MIB};
use tenure_alloc::{
    AllocError, CachingAllocator, MemoryLimits, MemoryReports, NativeAllocator, NativeConfig, OutOfMemory, PoolId,
    PoolUse, PrivatePools, Request, Resource, Stat, Statistics,
};
use tenure_core::StreamId;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);
const C: StreamId = StreamId(9);

struct Fixture {
    backing: Arc<FakeBacking>,
    allocator: Arc<NativeAllocator>,
}

impl Fixture {
    fn new(config: NativeConfig) -> Self {
        Self::on_device(GIB, config)
    }

    fn on_device(total: u64, config: NativeConfig) -> Self {
        let backing = Arc::new(FakeBacking::new(total));
        let allocator = Arc::new(NativeAllocator::new(Arc::clone(&backing) as _, config).unwrap());
        Self { backing, allocator }
    }

    fn try_alloc(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        self.allocator.allocate(Request::new(bytes, stream)).map(|block| block.address)
    }

    fn alloc(&self, bytes: u64) -> u64 {
        self.try_alloc(bytes, A).unwrap()
    }

    fn free(&self, address: u64) {
        self.allocator.free(address).unwrap();
    }

    /// Allocates all blocks and then frees them, which leaves cached segments of these sizes.
    fn cache(&self, sizes: &[u64]) {
        let addresses: Vec<u64> = sizes.iter().map(|&bytes| self.alloc(bytes)).collect();
        addresses.into_iter().for_each(|address| self.free(address));
    }

    fn calls(&self, name: &str) -> u64 {
        self.backing.calls().get(name).copied().unwrap_or(0)
    }

    fn reserved(&self) -> u64 {
        self.statistics().all.reserved_bytes.current
    }

    fn statistics(&self) -> Statistics {
        self.allocator.statistics()
    }
}

fn split_at(bytes: u64) -> NativeConfig {
    NativeConfig { max_split_size: Some(bytes), ..NativeConfig::default() }
}

#[test]
fn small_requests_share_segments_of_2_mib() {
    let f = Fixture::new(NativeConfig::default());
    let one = f.alloc(1);
    let other = f.alloc(513);
    assert_eq!(other, one + 512);
    assert_eq!(f.alloc(1), other + 1024);
    assert_eq!((f.calls("malloc"), f.reserved()), (1, 2 * MIB));
}

#[test]
fn requests_below_10_mib_share_segments_of_20_mib_and_larger_ones_have_their_own() {
    let f = Fixture::new(NativeConfig::default());
    let one = f.alloc(2 * MIB);
    assert_eq!(f.alloc(9 * MIB), one + 2 * MIB);
    assert_eq!(f.reserved(), 20 * MIB);
    f.alloc(11 * MIB + 1);
    assert_eq!(f.reserved(), 32 * MIB);
}

#[test]
fn the_smallest_block_that_fits_wins_and_then_the_lowest_address() {
    let f = Fixture::new(NativeConfig::default());
    let blocks = [4096, 512, 1024, 512, 1024, 512].map(|bytes| f.alloc(bytes));
    for freed in [4, 2, 0] {
        f.free(blocks[freed]);
    }
    assert_eq!(f.alloc(1000), blocks[2]);
    assert_eq!(f.alloc(1000), blocks[4]);
    assert_eq!(f.alloc(1000), blocks[0]);
}

#[test]
fn a_freed_block_merges_with_free_neighbours() {
    let f = Fixture::new(NativeConfig::default());
    let blocks = [512, 512, 512, 512].map(|bytes| f.alloc(bytes));
    f.free(blocks[0]);
    f.free(blocks[2]);
    f.free(blocks[1]);
    assert_eq!(f.alloc(1536), blocks[0]);
}

#[test]
fn a_large_block_is_not_split_for_a_rest_of_up_to_1_mib() {
    let f = Fixture::new(NativeConfig::default());
    f.cache(&[20 * MIB]);
    let block = f.allocator.allocate(Request::new(19 * MIB, A)).unwrap();
    assert_eq!(block.bytes, 20 * MIB);
    f.free(block.address);
    let block = f.allocator.allocate(Request::new(19 * MIB - 512, A)).unwrap();
    assert_eq!(block.bytes, 19 * MIB - 512);
}

#[test]
fn a_block_is_reused_on_its_own_stream_only() {
    let f = Fixture::new(NativeConfig::default());
    let block = f.alloc(5 * MIB);
    f.free(block);
    assert_ne!(f.try_alloc(5 * MIB, B).unwrap(), block);
    assert_eq!(f.alloc(5 * MIB), block);
}

#[test]
fn zero_bytes_are_address_zero_and_what_is_not_live_is_refused() {
    let f = Fixture::new(NativeConfig::default());
    assert_eq!(f.alloc(0), 0);
    f.free(0);
    let block = f.alloc(1);
    f.free(block);
    assert_eq!(f.allocator.free(block), Err(AllocError::UnknownAddress(block)));
    assert_eq!(f.allocator.record_stream(block, B), Err(AllocError::UnknownAddress(block)));
    assert_eq!(f.try_alloc(u64::MAX, A), Err(AllocError::TooLarge(u64::MAX)));
}

#[test]
fn an_oversize_block_is_neither_split_nor_given_to_smaller_requests() {
    let f = Fixture::new(split_at(64 * MIB));
    f.cache(&[100 * MIB]);
    f.alloc(32 * MIB);
    assert_eq!(f.reserved(), 132 * MIB);
    // It also serves no oversize request that is smaller by 20 MiB or more.
    f.alloc(80 * MIB);
    assert_eq!(f.reserved(), 212 * MIB);
    let block = f.allocator.allocate(Request::new(80 * MIB + 512, A)).unwrap();
    assert_eq!((block.bytes, f.reserved()), (100 * MIB, 212 * MIB));
    assert_eq!(f.statistics().oversize_allocations, Stat { current: 2, peak: 2, allocated: 3, freed: 1 });
}

#[test]
fn with_a_split_limit_only_enough_oversize_segments_are_released_before_a_retry() {
    let f = Fixture::on_device(300 * MIB, split_at(64 * MIB));
    f.cache(&[70 * MIB, 90 * MIB, 110 * MIB]);
    f.alloc(150 * MIB);
    // The largest segment below the request went, and the next.
    assert_eq!(f.reserved(), (70 + 150) * MIB);
    assert_eq!(f.statistics().num_alloc_retries, 0);
}

#[test]
fn everything_cached_is_released_before_the_last_retry() {
    let f = Fixture::on_device(100 * MIB, NativeConfig::default());
    let kept = f.alloc(12 * MIB);
    f.cache(&[40 * MIB, 30 * MIB]);
    f.alloc(60 * MIB);
    assert_eq!(f.reserved(), 72 * MIB);
    let statistics = f.statistics();
    assert_eq!((statistics.num_alloc_retries, statistics.num_ooms, statistics.num_sync_all_streams), (1, 0, 1));
    f.free(kept);
}

#[test]
fn garbage_collection_releases_segments_of_at_least_mean_age() {
    let f = Fixture::new(NativeConfig { garbage_collection_threshold: 0.5, ..NativeConfig::default() });
    f.allocator.set_memory_fraction(0.25).unwrap();
    f.cache(&[30 * MIB, 40 * MIB]);
    (0..10).for_each(|_| f.cache(&[60 * MIB]));
    // 130 MiB are held and 128 MiB may be. The two segments not used since go, the third stays.
    f.alloc(70 * MIB);
    assert_eq!((f.calls("free"), f.reserved()), (2, (60 + 70) * MIB));
}

#[test]
fn segments_grow_old_only_while_less_than_the_device_may_be_held() {
    let f = Fixture::new(NativeConfig { garbage_collection_threshold: 0.5, ..NativeConfig::default() });
    f.allocator.set_memory_fraction(1.0).unwrap();
    f.cache(&[30 * MIB, 40 * MIB]);
    (0..10).for_each(|_| f.cache(&[60 * MIB]));
    f.allocator.set_memory_fraction(0.25).unwrap();
    f.alloc(70 * MIB);
    assert_eq!((f.calls("free"), f.reserved()), (3, 70 * MIB));
}

#[test]
fn a_memory_fraction_limits_what_is_held() {
    let f = Fixture::new(NativeConfig::default());
    f.allocator.set_memory_fraction(0.5).unwrap();
    f.alloc(500 * MIB);
    let error = f.try_alloc(30 * MIB, B).unwrap_err();
    let expected = AllocError::OutOfMemory {
        requested: 30 * MIB,
        stream: B,
        allocated: 500 * MIB,
        reserved: 500 * MIB,
        inactive: 0,
        overhead: 0,
        free: GIB - 500 * MIB,
        total: GIB,
        allowed: 512 * MIB,
    };
    assert_eq!(error, expected);
    assert_eq!(f.statistics().num_ooms, 1);
    assert!(matches!(f.allocator.set_memory_fraction(1.5), Err(AllocError::InvalidSetting { .. })));
}

#[test]
fn overhead_counts_against_the_fraction() {
    let f = Fixture::new(NativeConfig::default());
    f.allocator.set_memory_fraction(0.5).unwrap();
    f.backing.set_overhead(100 * MIB);
    f.alloc(400 * MIB);
    let error = f.try_alloc(30 * MIB, B).unwrap_err();
    let AllocError::OutOfMemory { overhead, inactive, .. } = error else { panic!("{error}") };
    assert_eq!((overhead, inactive), (100 * MIB, 0));
    f.alloc(12 * MIB);
}

#[test]
fn callbacks_free_memory_before_new_segments_are_made() {
    let f = Fixture::new(NativeConfig::default());
    let spare = f.alloc(12 * MIB);
    let allocator = Arc::downgrade(&f.allocator);
    let freed = AtomicU64::new(spare);
    f.allocator.add_free_memory_callback(Box::new(move || {
        let block = freed.swap(0, Ordering::Relaxed);
        // This would never return if the allocator's lock were held.
        allocator.upgrade().unwrap().free(block).unwrap();
        block != 0
    }));
    assert_eq!(f.alloc(12 * MIB), spare);
    assert_eq!(f.calls("malloc"), 1);
}

#[test]
fn observers_of_out_of_memory_run_without_the_lock() {
    let f = Fixture::on_device(50 * MIB, NativeConfig::default());
    f.alloc(30 * MIB);
    let seen: Arc<OnceLock<(OutOfMemory, u64)>> = Arc::default();
    let allocator = Arc::downgrade(&f.allocator);
    let told = Arc::clone(&seen);
    f.allocator.add_out_of_memory_observer(Box::new(move |error| {
        told.set((*error, allocator.upgrade().unwrap().statistics().num_ooms)).unwrap();
    }));
    f.try_alloc(30 * MIB + 1, A).unwrap_err();
    let expected = OutOfMemory {
        requested: 32 * MIB,
        allowed: 50 * MIB,
        overhead: 0,
        allocated: 30 * MIB,
        inactive: 0,
        total: 50 * MIB,
        free: 20 * MIB,
        rejected: false,
    };
    assert_eq!(seen.get(), Some(&(expected, 1)));
}

#[test]
fn a_recorded_stream_holds_a_freed_block_until_it_has_passed() {
    let f = Fixture::new(NativeConfig::default());
    f.backing.hold_streams();
    let block = f.alloc(12 * MIB);
    f.allocator.record_stream(block, A).unwrap();
    f.allocator.record_stream(block, B).unwrap();
    f.allocator.record_stream(block, B).unwrap();
    f.free(block);
    assert_eq!(f.calls("record"), 1);
    let statistics = f.statistics().all;
    assert_eq!((statistics.allocated_bytes.current, statistics.active_bytes.current), (0, 12 * MIB));

    assert_ne!(f.alloc(12 * MIB), block);
    f.backing.pass(B);
    assert_eq!(f.alloc(12 * MIB), block);
}

#[test]
fn a_slow_stream_delays_its_own_blocks_only() {
    let f = Fixture::new(NativeConfig::default());
    f.backing.hold_streams();
    let slow = f.alloc(12 * MIB);
    let fast = f.alloc(14 * MIB);
    f.allocator.record_stream(slow, B).unwrap();
    f.allocator.record_stream(fast, C).unwrap();
    f.free(slow);
    f.free(fast);
    f.backing.pass(C);
    assert_eq!(f.alloc(12 * MIB), fast);
}

#[test]
fn release_waits_for_pending_blocks() {
    let f = Fixture::new(NativeConfig::default());
    f.backing.hold_streams();
    let block = f.alloc(12 * MIB);
    f.allocator.record_stream(block, B).unwrap();
    f.free(block);
    f.allocator.release_cached().unwrap();
    assert_eq!((f.reserved(), f.calls("synchronize")), (0, 1));
}

#[test]
fn a_private_pool_shares_no_memory_until_it_is_released() {
    let f = Fixture::new(NativeConfig::default());
    f.cache(&[12 * MIB]);
    let pool = PoolId(0, 1);
    f.allocator.begin_pool(pool, PoolUse::Capture, Box::new(|stream| stream == B)).unwrap();
    let private = f.try_alloc(12 * MIB, B).unwrap();
    f.alloc(12 * MIB);
    assert_eq!(f.calls("malloc"), 2);
    f.allocator.end_pool(pool).unwrap();

    f.free(private);
    assert_ne!(f.try_alloc(12 * MIB, B).unwrap(), private);
    f.allocator.release_cached().unwrap();
    assert_eq!(f.calls("free"), 0);
    f.allocator.release_pool(pool).unwrap();
    f.allocator.release_cached().unwrap();
    assert_eq!(f.calls("free"), 1);
    // The pool holds no memory now, and is forgotten.
    assert_eq!(f.allocator.use_pool_on_oom(pool, true), Err(AllocError::UnknownPool(pool)));
}

#[test]
fn the_pool_begun_last_is_asked_first() {
    let f = Fixture::new(NativeConfig::default());
    for id in [1, 2] {
        f.allocator.begin_pool(PoolId(0, id), PoolUse::Capture, Box::new(|_| true)).unwrap();
    }
    f.alloc(1);
    assert_eq!(f.allocator.snapshot().segments[0].pool, PoolId(0, 2));
    let again = f.allocator.begin_pool(PoolId(0, 1), PoolUse::Capture, Box::new(|_| true));
    assert!(matches!(again, Err(AllocError::InvalidSetting { .. })));
}

#[test]
fn a_block_freed_in_a_capture_waits_for_its_end_and_for_uses_outside_it() {
    let f = Fixture::new(NativeConfig::default());
    f.backing.hold_streams();
    let [before, during] = [12 * MIB, 14 * MIB].map(|bytes| f.alloc(bytes));
    f.allocator.record_stream(before, B).unwrap();
    f.allocator.begin_pool(PoolId(1, 0), PoolUse::Capture, Box::new(|stream| stream != A)).unwrap();
    f.allocator.record_stream(before, C).unwrap();
    f.allocator.record_stream(during, B).unwrap();
    f.free(before);
    f.free(during);
    f.alloc(16 * MIB);
    assert_eq!((f.calls("record"), f.calls("completed")), (0, 0), "a capture would break");

    f.allocator.end_pool(PoolId(1, 0)).unwrap();
    assert_eq!(f.alloc(14 * MIB), during);
    assert_eq!(f.calls("record"), 1);
    f.backing.pass(B);
    assert_eq!(f.alloc(12 * MIB), before);
}

#[test]
fn a_use_outside_a_capture_counts_even_if_it_was_recorded_in_one_before() {
    let f = Fixture::new(NativeConfig::default());
    f.backing.hold_streams();
    let block = f.alloc(12 * MIB);
    let capture = |inside: &dyn Fn()| {
        f.allocator.begin_pool(PoolId(1, 0), PoolUse::Capture, Box::new(|stream| stream != A)).unwrap();
        inside();
        f.allocator.end_pool(PoolId(1, 0)).unwrap();
    };
    capture(&|| f.allocator.record_stream(block, B).unwrap());
    f.allocator.record_stream(block, B).unwrap();
    capture(&|| f.free(block));
    assert_ne!(f.alloc(12 * MIB), block);
    f.backing.pass(B);
    assert_eq!(f.alloc(12 * MIB), block);
}

#[test]
fn a_pool_may_be_opened_to_others_before_an_out_of_memory_error() {
    let f = Fixture::on_device(40 * MIB, NativeConfig::default());
    let pool = PoolId(0, 3);
    assert_eq!(f.allocator.use_pool_on_oom(pool, true), Err(AllocError::UnknownPool(pool)));
    f.allocator.begin_pool(pool, PoolUse::Capture, Box::new(|_| true)).unwrap();
    let private = f.alloc(30 * MIB);
    f.free(private);
    f.allocator.end_pool(pool).unwrap();
    f.try_alloc(30 * MIB, A).unwrap_err();
    f.allocator.use_pool_on_oom(pool, true).unwrap();
    assert_eq!(f.alloc(30 * MIB), private);
}

#[test]
fn inactive_split_counts_free_blocks_of_segments_in_use() {
    let f = Fixture::new(NativeConfig::default());
    let inactive = |f: &Fixture| {
        let small = f.statistics().small_pool;
        (small.inactive_split.current, small.inactive_split_bytes.current)
    };
    let blocks = [512, 512, 512].map(|bytes| f.alloc(bytes));
    assert_eq!(inactive(&f), (1, 2 * MIB - 1536));
    f.free(blocks[1]);
    assert_eq!(inactive(&f), (2, 2 * MIB - 1024));
    f.free(blocks[2]);
    assert_eq!(inactive(&f), (1, 2 * MIB - 512));
    f.free(blocks[0]);
    assert_eq!(inactive(&f), (0, 0));
}

#[test]
fn an_expandable_segment_grows_in_place() {
    let f = Fixture::new(NativeConfig::expandable());
    let one = f.alloc(30 * MIB);
    assert_eq!(f.reserved(), 40 * MIB);
    assert_eq!(f.alloc(30 * MIB), one + 30 * MIB);
    assert_eq!(f.reserved(), 60 * MIB);
    assert_eq!((f.calls("reserve"), f.calls("create"), f.calls("malloc")), (1, 3, 0));
    assert_eq!(f.backing.reserved_address_space(), (GIB + GIB / 8).next_multiple_of(20 * MIB));
}

#[test]
fn a_free_block_that_could_grow_is_kept_for_larger_requests() {
    let f = Fixture::new(NativeConfig::expandable());
    let blocks = [30 * MIB, 25 * MIB, 3 * MIB].map(|bytes| f.alloc(bytes));
    f.free(blocks[1]);
    // The 2 MiB at the end would fit better, but unmapped addresses follow them.
    assert_eq!(f.alloc(2 * MIB), blocks[1]);
}

#[test]
fn unmapped_gaps_of_an_expandable_segment_are_filled_first() {
    let f = Fixture::new(NativeConfig::expandable());
    let blocks = [20 * MIB, 40 * MIB, 20 * MIB].map(|bytes| f.alloc(bytes));
    f.free(blocks[1]);
    f.allocator.release_cached().unwrap();
    assert_eq!(f.reserved(), 40 * MIB);
    assert_eq!(f.alloc(30 * MIB), blocks[1]);
    assert_eq!(f.alloc(30 * MIB), blocks[2] + 20 * MIB);
}

#[test]
fn chunks_are_unmapped_after_their_stream_has_passed() {
    let f = Fixture::new(NativeConfig::expandable());
    f.backing.hold_streams();
    let block = f.try_alloc(30 * MIB, B).unwrap();
    // The backing would panic if this work were still running when its chunks are unmapped.
    f.backing.launch(B, block, 30 * MIB);
    f.free(block);
    f.allocator.release_cached().unwrap();
    assert_eq!((f.reserved(), f.backing.used(), f.backing.reserved_address_space()), (0, 0, 0));
}

#[test]
fn only_whole_free_chunks_are_unmapped() {
    let f = Fixture::new(NativeConfig::expandable());
    let blocks = [30 * MIB, 30 * MIB].map(|bytes| f.alloc(bytes));
    f.free(blocks[0]);
    f.allocator.release_cached().unwrap();
    assert_eq!(f.reserved(), 40 * MIB);
    // The half chunk that stayed is used together with one that is mapped again.
    assert_eq!(f.alloc(28 * MIB), blocks[0]);
    assert_eq!(f.reserved(), 60 * MIB);
}

#[test]
fn a_failing_call_of_a_mapping_leaves_no_memory_held() {
    let f = Fixture::new(NativeConfig::expandable());
    let before = f.backing.call_count();
    f.alloc(50 * MIB);
    let needed = f.backing.call_count() - before;
    assert_eq!(needed, 1 + 3 + 3 + 1, "reserve, create, map, set access");
    for failing in 0..needed {
        let f = Fixture::new(NativeConfig::expandable());
        f.backing.fail_calls(failing..failing + 1);
        assert!(matches!(f.try_alloc(50 * MIB, A), Err(AllocError::Backing(_))));
        assert_eq!((f.backing.used(), f.reserved()), (0, 0));
        f.alloc(50 * MIB);
    }
}

#[test]
fn chunks_left_by_a_failed_mapping_are_counted_and_used_next() {
    let f = Fixture::new(NativeConfig::expandable());
    // Creating the second chunk fails, and then so does giving back the first.
    f.backing.fail_calls(2..4);
    f.try_alloc(40 * MIB, A).unwrap_err();
    assert_eq!((f.backing.used(), f.reserved()), (20 * MIB, 20 * MIB));
    f.alloc(40 * MIB);
    assert_eq!((f.backing.used(), f.reserved()), (40 * MIB, 40 * MIB));
    assert_eq!(f.calls("create"), 3);
}
