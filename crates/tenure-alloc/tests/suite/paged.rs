//! Tests of the paged allocator: one behaviour each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::common::{FakeBacking, GIB, MIB, busy_backing};
use tenure_alloc::snapshot::Segment;
use tenure_alloc::{
    AllocError, Backing, CachingAllocator, MemoryLimits, MemoryReports, OutOfMemory, PagedAllocator, PagedConfig,
    PoolId, PoolUse, PrivatePools, Request, Resource, Statistics,
};
use tenure_core::StreamId;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);
const POOL: PoolId = PoolId(0, 3);

pub(crate) struct Fixture {
    pub(crate) backing: Arc<FakeBacking>,
    pub(crate) allocator: Arc<PagedAllocator>,
}

/// Returns settings with no slack and chunks of 16 MiB: requests must make do with existing memory where they can.
pub(crate) fn tight() -> PagedConfig {
    PagedConfig {
        slack: 0.0,
        slack_bytes: 0,
        min_chunk_bytes: 16 * MIB,
        max_chunk_bytes: 16 * MIB,
        ..PagedConfig::default()
    }
}

impl Fixture {
    pub(crate) fn new(config: PagedConfig) -> Self {
        let backing = busy_backing(GIB);
        let allocator = Arc::new(PagedAllocator::new(Arc::clone(&backing) as _, config).unwrap());
        Self { backing, allocator }
    }

    pub(crate) fn try_alloc(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        let block = self.allocator.allocate(Request::new(bytes, stream))?;
        self.backing.assert_exclusive(stream, block.address, block.bytes);
        self.backing.launch(stream, block.address, block.bytes);
        Ok(block.address)
    }

    pub(crate) fn alloc(&self, bytes: u64) -> u64 {
        self.try_alloc(bytes, A).unwrap()
    }

    pub(crate) fn free(&self, address: u64) {
        self.allocator.free(address).unwrap();
    }

    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.backing.calls().get(name).copied().unwrap_or(0)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.statistics().all.reserved_bytes.current
    }

    fn statistics(&self) -> Statistics {
        self.allocator.statistics()
    }
}

#[test]
fn memory_in_pieces_becomes_one_block_without_a_new_chunk_or_a_wait() {
    let f = Fixture::new(tight());
    // Five blocks have a chunk each; the second and the fourth stay.
    let blocks: Vec<u64> = (0..5).map(|_| f.alloc(16 * MIB)).collect();
    [0, 2, 4].into_iter().for_each(|index: usize| f.free(blocks[index]));
    let created = f.calls("create");
    f.alloc(48 * MIB);
    assert_eq!((f.calls("create"), f.reserved()), (created, 80 * MIB));
    assert_eq!((f.calls("unmap"), f.calls("synchronize"), f.calls("wait")), (0, 0, 0));
}

#[test]
fn a_block_may_begin_in_one_chunk_in_use_and_end_in_another() {
    let f = Fixture::new(tight());
    // One chunk of 16 MiB has 6 MiB in use at its start, another at its end.
    let keep_low = f.alloc(6 * MIB);
    let drop_high = f.alloc(10 * MIB);
    let drop_low = f.alloc(10 * MIB);
    let keep_high = f.alloc(6 * MIB);
    f.free(drop_high);
    f.free(drop_low);
    assert_eq!(f.reserved(), 32 * MIB);
    let across = f.alloc(20 * MIB);
    assert_eq!(f.reserved(), 32 * MIB);
    [keep_low, keep_high, across].into_iter().for_each(|address| f.free(address));
    f.allocator.release_cached().unwrap();
    assert_eq!(f.backing.used(), 0);
}

#[test]
fn a_repeated_workload_makes_no_driver_call() {
    let f = Fixture::new(tight());
    let step = || {
        let blocks: Vec<u64> = [40, 3, 22, 7, 90, 1].map(|mib| f.alloc(mib * MIB)).to_vec();
        [2, 0, 4].into_iter().for_each(|index: usize| f.free(blocks[index]));
        let late: Vec<u64> = [100, 30].map(|mib| f.alloc(mib * MIB)).to_vec();
        [1, 3, 5].into_iter().for_each(|index: usize| f.free(blocks[index]));
        late.into_iter().for_each(|address| f.free(address));
    };
    step();
    step();
    let calls = f.backing.call_count();
    step();
    assert_eq!(f.backing.call_count(), calls);
}

#[test]
fn blocks_made_in_a_row_are_kept_together_and_a_slab_fills_a_hole() {
    let f =
        Fixture::new(PagedConfig { slack_bytes: GIB, min_chunk_bytes: 64 * MIB, max_chunk_bytes: 64 * MIB, ..tight() });
    let (hole, _) = (f.alloc(4 * MIB), f.alloc(3 * MIB));
    f.free(hole);
    let row: Vec<u64> = (0..9).map(|_| f.alloc(5 * MIB)).collect();
    assert_eq!((f.alloc(3 * MIB), f.alloc(512)), (row[8] + 5 * MIB, hole));
}

#[test]
fn another_streams_memory_is_used_behind_a_wait_on_the_device() {
    let f = Fixture::new(tight());
    let block = f.alloc(32 * MIB);
    f.free(block);
    f.try_alloc(32 * MIB, B).unwrap();
    assert_eq!((f.reserved(), f.calls("wait"), f.calls("synchronize")), (32 * MIB, 1, 0));
}

#[test]
fn another_streams_memory_needs_no_wait_once_its_work_is_done() {
    let f = Fixture::new(tight());
    let block = f.alloc(32 * MIB);
    f.free(block);
    f.backing.pass(A);
    f.try_alloc(32 * MIB, B).unwrap();
    // The mark is recorded only when the memory is wanted, after the work has passed.
    assert!(f.calls("wait") <= 1);
    assert_eq!(f.reserved(), 32 * MIB);
}

#[test]
fn within_the_slack_a_new_chunk_is_better_than_a_wait() {
    let f = Fixture::new(PagedConfig { slack_bytes: 64 * MIB, ..tight() });
    let block = f.alloc(32 * MIB);
    f.free(block);
    f.try_alloc(32 * MIB, B).unwrap();
    assert_eq!((f.reserved(), f.calls("wait")), (64 * MIB, 0));
}

#[test]
fn a_recorded_stream_holds_a_block_back() {
    for bytes in [700, 5 * MIB] {
        let f = Fixture::new(tight());
        let block = f.alloc(bytes);
        f.allocator.record_stream(block, B).unwrap();
        f.backing.launch(B, block, bytes);
        f.free(block);
        assert_eq!(f.statistics().all.active.current, 1);
        assert_ne!(f.alloc(bytes), block);
        f.backing.pass(B);
        f.alloc(bytes);
        assert_eq!(f.statistics().all.active.current, 2, "{bytes} bytes");
    }
}

#[test]
fn small_blocks_share_slabs_and_an_idle_heap_holds_none() {
    let f = Fixture::new(tight());
    let blocks: Vec<u64> = (0..9000).map(|_| f.allocator.allocate(Request::new(1000, A)).unwrap().address).collect();
    // 9,000 blocks of 1 KiB take five slabs of 2 MiB.
    assert_eq!((f.reserved(), f.statistics().small_pool.reserved_bytes.current), (10 * MIB, 10 * MIB));
    blocks.into_iter().for_each(|address| f.free(address));
    assert_eq!(f.statistics().small_pool.reserved_bytes.current, 0);
}

#[test]
fn a_block_is_freed_once_and_only_where_it_begins() {
    let f = Fixture::new(tight());
    for bytes in [700, 5 * MIB] {
        let block = f.alloc(bytes);
        let elsewhere = [block + 512, 12, u64::MAX];
        for address in elsewhere {
            assert_eq!(f.allocator.free(address), Err(AllocError::UnknownAddress(address)));
            assert_eq!(f.allocator.record_stream(address, B), Err(AllocError::UnknownAddress(address)));
        }
        f.free(block);
        assert_eq!(f.allocator.free(block), Err(AllocError::UnknownAddress(block)));
    }
}

#[test]
fn nothing_is_a_block_of_no_bytes() {
    let f = Fixture::new(tight());
    let block = f.allocator.allocate(Request::new(0, A)).unwrap();
    assert_eq!((block.address, block.bytes), (0, 0));
    f.free(0);
    f.allocator.record_stream(0, B).unwrap();
    assert_eq!(f.statistics().all.allocation.allocated, 0);
}

#[test]
fn cached_memory_goes_back_and_windows_with_blocks_stay() {
    let f = Fixture::new(tight());
    let first = f.alloc(16 * MIB);
    let middle = f.alloc(16 * MIB);
    let last = f.alloc(16 * MIB);
    f.free(middle);
    f.backing.pass(A);
    f.allocator.release_cached().unwrap();
    assert_eq!((f.reserved(), f.backing.used()), (32 * MIB, 32 * MIB));
    f.backing.launch(A, first, 16 * MIB);
    f.backing.launch(A, last, 16 * MIB);
    // The hole is filled again without touching its neighbours.
    let again = f.alloc(16 * MIB);
    [first, last, again].into_iter().for_each(|address| f.free(address));
    f.allocator.release_cached().unwrap();
    assert_eq!(f.backing.used(), 0);
}

#[test]
fn windows_that_hold_no_block_are_unmapped_when_there_are_too_many() {
    let f = Fixture::new(PagedConfig { mappings_per_chunk: 1, ..tight() });
    let blocks: Vec<u64> = (0..8).map(|_| f.alloc(16 * MIB)).collect();
    [0, 2].into_iter().for_each(|index: usize| f.free(blocks[index]));
    let pair = f.alloc(32 * MIB);
    assert_eq!((f.calls("map"), f.calls("unmap")), (10, 0), "a window with a block stays");
    f.free(pair);
    // The pair's chunks are in use again, at their old addresses.
    let _again = [f.alloc(16 * MIB), f.alloc(16 * MIB)];
    [4, 6].into_iter().for_each(|index: usize| f.free(blocks[index]));
    f.alloc(32 * MIB);
    assert_eq!(f.calls("unmap"), 0, "the device may not be done with the pair's window");
    f.backing.pass(A);
    [1, 3].into_iter().for_each(|index: usize| f.free(blocks[index]));
    f.alloc(32 * MIB);
    assert_eq!(f.calls("unmap"), 1, "the window not used for longest goes");
    assert_eq!(f.reserved(), 128 * MIB);
}

#[test]
fn chunks_are_larger_while_there_is_a_limit() {
    let created = |coarseness, fraction| {
        let config =
            PagedConfig { min_chunk_bytes: 2 * MIB, block_chunks: 16, limited_coarseness: coarseness, ..tight() };
        let f = Fixture::new(config);
        f.allocator.set_memory_fraction(fraction).unwrap();
        f.alloc(64 * MIB);
        f.calls("create")
    };
    assert_eq!([created(1, 1.0), created(1, 0.5), created(4, 1.0), created(4, 0.5)], [16, 16, 16, 4]);
}

#[test]
fn without_address_space_the_request_fails_and_says_so() {
    let f = Fixture::new(PagedConfig { address_space_bytes: Some(64 * MIB), ..tight() });
    let block = f.alloc(40 * MIB);
    let error = f.try_alloc(40 * MIB, A).unwrap_err().to_string();
    assert!(error.contains("address space"), "{error}");
    f.free(block);
    f.alloc(40 * MIB);
}

#[test]
fn a_private_pools_memory_serves_no_other_requests_until_it_is_given_up() {
    let f = Fixture::new(tight());
    f.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == B)).unwrap();
    let captured = f.try_alloc(30 * MIB, B).unwrap();
    let small = f.try_alloc(700, B).unwrap();
    f.allocator.end_pool(POOL).unwrap();
    let private = f.reserved();
    let other = f.try_alloc(700, B).unwrap();
    [captured, small].into_iter().for_each(|address| f.free(address));
    let before = f.reserved();
    f.alloc(30 * MIB);
    assert!(f.reserved() > before, "the pool keeps its memory");
    let all = f.reserved();
    f.allocator.release_pool(POOL).unwrap();
    f.allocator.release_cached().unwrap();
    assert_eq!(f.reserved(), all - private);
    f.free(other);
    assert_eq!(f.allocator.release_pool(POOL), Err(AllocError::UnknownPool(POOL)));
}

#[test]
fn nothing_is_asked_about_streams_during_a_capture() {
    let f = Fixture::new(tight());
    let block = f.alloc(32 * MIB);
    f.free(block);
    f.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == B)).unwrap();
    f.try_alloc(32 * MIB, B).unwrap();
    let used = f.try_alloc(5 * MIB, B).unwrap();
    f.allocator.record_stream(used, A).unwrap();
    f.free(used);
    f.try_alloc(20 * MIB, StreamId(9)).unwrap();
    f.allocator.release_cached().unwrap();
    assert_eq!(["record", "completed", "wait", "synchronize"].map(|name| f.calls(name)), [0; 4]);
    f.allocator.end_pool(POOL).unwrap();
}

#[test]
fn a_pool_may_lend_its_free_memory_before_an_error() {
    let f = Fixture::new(tight());
    f.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|_| true)).unwrap();
    let captured = f.alloc(600 * MIB);
    f.allocator.end_pool(POOL).unwrap();
    f.free(captured);
    assert!(matches!(f.try_alloc(500 * MIB, A), Err(AllocError::OutOfMemory { .. })));
    f.allocator.use_pool_on_oom(POOL, true).unwrap();
    f.try_alloc(500 * MIB, B).unwrap_err();
    let lent = f.alloc(500 * MIB);
    assert_eq!(lent, captured);
    assert_eq!(f.statistics().num_ooms, 2);
    f.free(lent);
    assert_eq!(f.allocator.use_pool_on_oom(PoolId(9, 9), true), Err(AllocError::UnknownPool(PoolId(9, 9))));
}

#[test]
fn a_full_device_asks_the_callbacks_then_waits_then_tells_the_observers() {
    let f = Fixture::new(tight());
    let held = f.alloc(600 * MIB);
    let seen = Arc::new(OnceLock::new());
    let tries = Arc::new(AtomicU64::new(0));
    let observed = Arc::clone(&seen);
    let tried = Arc::clone(&tries);
    let allocator = Arc::downgrade(&f.allocator);
    f.allocator.add_out_of_memory_observer(Box::new(move |error: &OutOfMemory| observed.set(*error).unwrap()));
    f.allocator.add_free_memory_callback(Box::new(move || {
        // It is called with no lock held, so it may use the allocator. Only the first time it has a block to free.
        let first = tried.fetch_add(1, Ordering::Relaxed) == 0;
        if first {
            allocator.upgrade().unwrap().free(held).unwrap();
        }
        first
    }));
    let block = f.alloc(700 * MIB);
    assert_eq!((f.statistics().num_ooms, tries.load(Ordering::Relaxed)), (0, 1));

    let error = f.try_alloc(500 * MIB + 1, B).unwrap_err();
    let free = GIB - f.reserved();
    let inactive = f.reserved() - 700 * MIB;
    let expected = OutOfMemory {
        requested: 500 * MIB + 512,
        allowed: GIB,
        overhead: 0,
        allocated: 700 * MIB,
        inactive,
        total: GIB,
        free,
        rejected: false,
    };
    assert_eq!(seen.get(), Some(&expected));
    let AllocError::OutOfMemory { requested, allocated, reserved, .. } = error else { panic!("{error}") };
    assert_eq!((requested, allocated, reserved), (500 * MIB + 1, 700 * MIB, f.reserved()));
    f.free(block);
    f.try_alloc(500 * MIB, B).unwrap();
}

#[test]
fn a_memory_fraction_limits_what_is_reserved() {
    let f = Fixture::new(PagedConfig::default());
    f.allocator.set_memory_fraction(0.25).unwrap();
    f.alloc(200 * MIB);
    assert!(matches!(f.try_alloc(100 * MIB, A), Err(AllocError::OutOfMemory { allowed, .. }) if allowed == GIB / 4));
    f.alloc(56 * MIB);
    assert_eq!(f.reserved(), GIB / 4);
    assert!(f.allocator.set_memory_fraction(1.5).is_err());
}

#[test]
fn overhead_counts_against_the_fraction() {
    let f = Fixture::new(PagedConfig::default());
    f.allocator.set_memory_fraction(0.5).unwrap();
    f.backing.set_overhead(100 * MIB);
    f.alloc(400 * MIB);
    let error = f.try_alloc(30 * MIB, B).unwrap_err();
    let AllocError::OutOfMemory { overhead, inactive, reserved, .. } = error else { panic!("{error}") };
    assert_eq!((overhead, inactive), (100 * MIB, reserved - 400 * MIB));
    f.alloc(12 * MIB);
    assert_eq!(f.reserved(), 412 * MIB);
}

#[test]
fn a_snapshot_shows_each_byte_once_and_every_block() {
    let f = Fixture::new(tight());
    let blocks: Vec<u64> = [16, 16, 16, 5, 20].map(|mib| f.alloc(mib * MIB)).to_vec();
    [0, 2].into_iter().for_each(|index: usize| f.free(blocks[index]));
    let across = f.alloc(30 * MIB);
    let small = f.alloc(1000);
    let snapshot = f.allocator.snapshot();
    assert_eq!(snapshot.segments.iter().map(Segment::bytes).sum::<u64>(), f.reserved());
    for block in [blocks[1], blocks[3], blocks[4], across, small] {
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        assert_eq!(blocks.filter(|shown| shown.address == block).count(), 1);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let wrong = [
        (PagedConfig { slack: -0.1, ..tight() }, "slack"),
        (PagedConfig { chunk_share: f64::NAN, ..tight() }, "chunk_share"),
        (PagedConfig { min_chunk_bytes: 0, ..tight() }, "min_chunk_bytes"),
        (PagedConfig { min_chunk_bytes: 99 * MIB, ..tight() }, "min_chunk_bytes"),
        (PagedConfig { max_chunk_bytes: u64::MAX, ..tight() }, "max_chunk_bytes"),
        (PagedConfig { mappings_per_chunk: 0, ..tight() }, "mappings_per_chunk"),
        (PagedConfig { limited_coarseness: 0, ..tight() }, "limited_coarseness"),
        (PagedConfig { address_space_bytes: Some(0), ..tight() }, "address_space_bytes"),
        (PagedConfig { address_space_bytes: Some(u64::MAX), ..tight() }, "address_space_bytes"),
        (PagedConfig { device: 128, ..tight() }, "device"),
    ];
    for (config, name) in wrong {
        let backing = Arc::new(FakeBacking::new(GIB));
        let error = PagedAllocator::new(backing, config).err().unwrap();
        assert!(matches!(error, AllocError::InvalidSetting { setting, .. } if setting == name), "{error}");
    }
    let f = Fixture::new(tight());
    assert_eq!(f.try_alloc(u64::MAX, A), Err(AllocError::TooLarge(u64::MAX)));
}

#[test]
fn free_memory_is_given_back_before_the_error() {
    let f = Fixture::new(tight());
    let held = f.alloc(100 * MIB);
    let freed = f.alloc(200 * MIB);
    f.free(freed);
    f.try_alloc(2 * GIB, A).unwrap_err();
    assert!(f.reserved() < 300 * MIB && f.reserved() >= 100 * MIB);
    f.free(held);
    f.try_alloc(2 * GIB, B).unwrap_err();
    assert_eq!(f.reserved(), 0);
}

#[test]
fn a_request_larger_than_the_device_is_an_out_of_memory_error() {
    let f = Fixture::new(tight());
    let told = Arc::new(AtomicU64::new(0));
    let observer = Arc::clone(&told);
    f.allocator.add_out_of_memory_observer(Box::new(move |_| {
        observer.fetch_add(1, Ordering::Relaxed);
    }));
    for bytes in [GIB + 1, 1 << 47, 1 << 61] {
        let error = f.try_alloc(bytes, A).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory { requested, .. } if requested == bytes), "{error}");
    }
    assert_eq!((told.load(Ordering::Relaxed), f.allocator.statistics().num_ooms), (3, 3));
}

#[test]
fn a_streams_peaks_are_exact_though_its_pools_peak_apart() {
    let f = Fixture::new(tight());
    let peaks = || {
        let all = f.allocator.statistics().all;
        [all.requested_bytes, all.allocated_bytes, all.active_bytes].map(|stat| stat.peak)
    };
    f.free(f.alloc(MIB));
    let large = f.alloc(3 * MIB);
    assert_eq!(peaks(), [3 * MIB; 3]);
    // A freed block is active while another stream uses it.
    f.backing.launch(B, large, MIB);
    f.allocator.record_stream(large, B).unwrap();
    f.free(large);
    f.alloc(MIB);
    assert_eq!(peaks(), [4 * MIB, 3 * MIB, 4 * MIB]);
}

#[test]
fn free_memory_is_used_when_others_hold_the_rest_of_the_device() {
    let f = Fixture::new(PagedConfig { slack_bytes: 62 * MIB, ..tight() });
    let others = f.backing.create(512 * MIB).unwrap();
    let blocks: Vec<u64> = (0..8).map(|_| f.alloc(64 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&address| f.free(address));
    f.backing.pass(A);
    // 256 MiB are free in pieces, and no chunk can be created.
    let _held = [120, 50].map(|mib| f.alloc(mib * MIB));
    f.backing.release(others).unwrap();
}

#[test]
fn a_request_that_failed_does_not_raise_what_may_be_reserved() {
    let reserved = |failed: Option<u64>| {
        let f = Fixture::new(tight());
        if let Some(bytes) = failed {
            f.try_alloc(bytes, A).unwrap_err();
        }
        let block = f.alloc(96 * MIB);
        f.free(block);
        f.try_alloc(64 * MIB, B).unwrap();
        f.reserved()
    };
    assert_eq!(reserved(Some(40 * GIB)), reserved(None));
}

#[test]
fn there_is_address_space_for_many_windows() {
    // Every second block is freed, so that hardly any two free ranges lie side by side.
    let f = Fixture::new(tight());
    let blocks: Vec<u64> = (0..400).map(|_| f.alloc(2 * MIB)).collect();
    let mut kept: Vec<u64> = blocks.iter().copied().skip(1).step_by(2).collect();
    blocks.iter().step_by(2).for_each(|&address| f.free(address));
    kept.extend((0..50).map(|_| f.alloc(8 * MIB)));
    assert_eq!(f.reserved(), 800 * MIB);
    kept.into_iter().for_each(|address| f.free(address));
}

#[test]
fn slabs_emptied_before_an_error_are_not_lost() {
    let f = Fixture::new(tight());
    let blocks: Vec<u64> = (0..6).map(|_| f.alloc(MIB)).collect();
    for &block in &blocks {
        f.allocator.record_stream(block, B).unwrap();
        f.free(block);
    }
    f.backing.pass(B);
    for call in 0..8 {
        f.backing.fail_calls(call..call + 1);
        let _ = f.try_alloc(700, A).map(|address| f.free(address));
        f.backing.fail_none();
    }
    f.backing.pass(A);
    f.allocator.release_cached().unwrap();
    assert_eq!((f.reserved(), f.backing.used()), (0, 0));
}

#[test]
fn addresses_of_a_private_pool_stay_mapped() {
    let f = Fixture::new(PagedConfig { mappings_per_chunk: 1, ..tight() });
    for _ in 0..3 {
        f.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == B)).unwrap();
        for mib in [16, 33, 50, 18, 70] {
            let blocks = [mib, mib / 2, mib + 5].map(|mib| f.try_alloc(mib * MIB, B).unwrap());
            blocks.into_iter().for_each(|address| f.free(address));
        }
        f.allocator.end_pool(POOL).unwrap();
        f.backing.pass(B);
    }
    assert_eq!(f.calls("unmap"), 0);
}
