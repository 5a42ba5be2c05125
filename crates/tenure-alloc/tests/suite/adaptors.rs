//! Tests of the adaptors: the effect of each on the resource below it, and of all of them together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::common::{FakeBacking, GIB, MIB};
use parking_lot::Mutex;
use tenure_alloc::adaptor::{Counted, FailureCallback, Limited, OnFailure, Recorded};
use tenure_alloc::{
    AllocError, BumpPool, CachingAllocator, History, HistoryAction, MemoryReports, NativeAllocator, NativeConfig,
    Recording, Request, Resource, Stat,
};
use tenure_core::{StreamId, Tag};

const BASE: u64 = 1 << 40;
const A: StreamId = StreamId(1);

fn bump(bytes: u64) -> Arc<BumpPool> {
    Arc::new(BumpPool::new(BASE, bytes))
}

fn native(device_bytes: u64) -> (Arc<FakeBacking>, Arc<NativeAllocator>) {
    let backing = Arc::new(FakeBacking::new(device_bytes));
    let allocator = NativeAllocator::new(Arc::clone(&backing) as _, NativeConfig::default()).unwrap();
    (backing, Arc::new(allocator))
}

fn alloc(resource: &impl Resource, bytes: u64) -> u64 {
    resource.allocate(Request::new(bytes, A)).unwrap().address
}

/// Returns the `free` and `allowed` bytes of an out-of-memory error.
fn out_of_memory(resource: &impl Resource, bytes: u64) -> (u64, u64) {
    match resource.allocate(Request::new(bytes, A)) {
        Err(AllocError::OutOfMemory { requested, free, allowed, .. }) if requested == bytes => (free, allowed),
        other => panic!("{other:?} instead of an out-of-memory error"),
    }
}

/// Makes a history that is on, whose events have the times 0, 1, 2 and so on.
fn history() -> History {
    let now = AtomicU64::new(0);
    let history = History::new(Box::new(move || now.fetch_add(1, Ordering::Relaxed)));
    history.start(Recording::events(1000), true);
    history
}

fn actions(history: &History) -> Vec<(HistoryAction, u64)> {
    history.events().iter().map(|event| (event.action, event.address)).collect()
}

#[test]
fn a_limit_counts_bytes_as_they_were_rounded() {
    let limited = Limited::new(bump(MIB), 1536);
    let first = alloc(&limited, 513);
    assert_eq!((limited.used(), limited.limit()), (1024, 1536));
    assert_eq!(out_of_memory(&limited, 513), (512, 1536));
    limited.free(first).unwrap();
    assert_eq!(limited.used(), 0);
    alloc(&limited, 1536);
}

#[test]
fn a_block_that_rounding_takes_over_the_limit_goes_back() {
    let pool = bump(MIB);
    let limited = Limited::new(Arc::clone(&pool), 600);
    assert_eq!(out_of_memory(&limited, 600), (600, 600));
    assert_eq!((limited.used(), pool.live_blocks()), (0, 0));
    alloc(&limited, 512);
}

#[test]
fn a_limit_gives_back_what_the_resource_below_refused() {
    let limited = Limited::new(bump(1024), 4096);
    assert_eq!(out_of_memory(&limited, 2048), (1024, 1024), "the error of the resource below");
    assert_eq!(limited.used(), 0);
    let error = limited.free(7).unwrap_err();
    assert_eq!((error, limited.used()), (AllocError::UnknownAddress(7), 0));
}

#[test]
fn a_limit_is_never_passed_by_threads_together() {
    let limited = Limited::new(bump(GIB), 4 * 512);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    if let Ok(block) = limited.allocate(Request::new(512, A)) {
                        assert!(limited.inner().live_bytes() <= limited.limit());
                        limited.free(block.address).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(limited.used(), 0);
}

#[test]
fn statistics_are_kept_by_pool_and_tag() {
    let counted = Counted::new(bump(GIB));
    let small = counted.allocate(Request::new(100, A).with_tag(Tag::Weight)).unwrap();
    counted.allocate(Request::new(3 * MIB, A).with_tag(Tag::Gradient)).unwrap();
    counted.free(small.address).unwrap();
    let statistics = counted.statistics();
    assert_eq!(statistics.small_pool.allocation, Stat { current: 0, peak: 1, allocated: 1, freed: 1 });
    assert_eq!(statistics.large_pool.allocated_bytes.current, 3 * MIB);
    assert_eq!(statistics.all.active_bytes.peak, 3 * MIB + 512);
    let weights = statistics.tags[Tag::Weight as usize];
    assert_eq!((weights.requested_bytes.peak, weights.allocated_bytes.peak), (100, 512));
    assert_eq!(weights.active_bytes.current, 0);
}

#[test]
fn statistics_count_errors_and_can_be_reset() {
    let counted = Counted::new(bump(1024));
    out_of_memory(&counted, 2048);
    let block = alloc(&counted, 512);
    counted.free(block).unwrap();
    assert_eq!(counted.statistics().num_ooms, 1);
    counted.reset_peak_statistics();
    counted.reset_accumulated_statistics();
    assert_eq!((counted.statistics().num_ooms, counted.statistics().all.allocation), (0, Stat::default()));
}

#[test]
fn statistics_equal_those_of_the_allocator_below() {
    let (_, allocator) = native(GIB);
    let counted = Counted::new(Arc::clone(&allocator));
    let blocks = [100, MIB, MIB + 1, 30 * MIB].map(|bytes| alloc(&counted, bytes));
    counted.free(blocks[1]).unwrap();
    let above = counted.statistics();
    let below = allocator.statistics();
    for (above, below) in [(&above.small_pool, &below.small_pool), (&above.large_pool, &below.large_pool)] {
        assert_eq!(above.allocation, below.allocation);
        assert_eq!(above.allocated_bytes, below.allocated_bytes);
        assert_eq!(above.requested_bytes, below.requested_bytes);
    }
    assert_eq!(above.tags, below.tags);
}

#[test]
fn a_recorder_writes_what_the_allocator_below_writes() {
    let (_, allocator) = native(GIB);
    allocator.history().start(Recording::events(100), true);
    let recorded = Recorded::new(Arc::clone(&allocator), history());
    let block = recorded.allocate(Request::new(100, A).with_tag(Tag::Input)).unwrap();
    recorded.free(block.address).unwrap();
    let mut below = allocator.snapshot().device_traces.remove(0);
    below.retain(|event| event.action != HistoryAction::SegmentAlloc && event.action != HistoryAction::Snapshot);
    let above = recorded.history().events();
    assert_eq!(above.len(), 3);
    for (above, below) in above.iter().zip(&below) {
        assert_eq!((above.action, above.address, above.tag), (below.action, below.address, below.tag));
        assert_eq!((above.bytes, above.stream), (below.bytes, below.stream));
    }
}

#[test]
fn an_out_of_memory_error_is_recorded_with_what_was_free() {
    let recorded = Recorded::new(bump(1024), history());
    out_of_memory(&recorded, 2048);
    assert_eq!(actions(recorded.history()), [(HistoryAction::OutOfMemory, 1024)]);
}

#[test]
fn the_free_of_a_block_from_before_the_recording_is_not_recorded() {
    let recorded = Recorded::new(bump(MIB), History::default());
    let before = alloc(&recorded, 1);
    recorded.history().start(Recording::events(10), true);
    let after = alloc(&recorded, 1);
    recorded.free(before).unwrap();
    recorded.free(after).unwrap();
    let freed = [(HistoryAction::FreeRequested, after), (HistoryAction::FreeCompleted, after)];
    assert_eq!(actions(recorded.history()), [&[(HistoryAction::Alloc, after)][..], &freed].concat());
}

#[test]
fn a_free_that_fails_leaves_every_adaptor_as_it_was() {
    let (backing, allocator) = native(GIB);
    let resource = Recorded::new(Counted::new(Limited::new(Arc::clone(&allocator), GIB)), history());
    let block = alloc(&resource, 512);
    // Freeing a block that another stream uses takes a mark, and recording that fails.
    allocator.record_stream(block, StreamId(9)).unwrap();
    backing.fail_calls(0..1);
    resource.free(block).unwrap_err();
    let counted = resource.inner();
    let limited = resource.inner().inner();
    assert_eq!((counted.statistics().all.allocation.current, limited.used()), (1, 512));
    assert_eq!(resource.history().events().last().map(|event| event.action), Some(HistoryAction::Alloc));
    resource.free(block).unwrap();
    assert_eq!((counted.statistics().all.allocation.current, limited.used()), (0, 0));
}

#[test]
fn a_failure_callback_is_asked_until_it_gives_up_or_retries_run_out() {
    let asked = Arc::new(AtomicU32::new(0));
    let until = |limit: u32| -> FailureCallback {
        let asked = Arc::clone(&asked);
        Box::new(move |error| {
            assert!(matches!(error, AllocError::OutOfMemory { .. }));
            asked.fetch_add(1, Ordering::Relaxed) + 1 < limit
        })
    };
    out_of_memory(&OnFailure::new(bump(1024), 5, until(3)), 2048);
    assert_eq!(asked.swap(0, Ordering::Relaxed), 3);
    out_of_memory(&OnFailure::new(bump(1024), 5, until(u32::MAX)), 2048);
    assert_eq!(asked.swap(0, Ordering::Relaxed), 5);
    out_of_memory(&OnFailure::new(bump(1024), 0, until(u32::MAX)), 2048);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_failure_callback_is_not_asked_about_other_errors() {
    let (backing, allocator) = native(GIB);
    let resource = OnFailure::new(allocator, 5, Box::new(|error| panic!("asked about {error}")));
    backing.fail_calls(0..1);
    assert!(matches!(resource.allocate(Request::new(1, A)), Err(AllocError::Backing(_))));
    alloc(&resource, 1);
}

type Stack = Recorded<Counted<OnFailure<Limited<Arc<BumpPool>>>>>;

#[test]
fn all_four_compose_and_a_callback_may_free_from_the_top() {
    let top: Arc<OnceLock<Arc<Stack>>> = Arc::default();
    let evictable = Arc::new(Mutex::new(Vec::new()));
    let callback: FailureCallback = {
        let top = Arc::clone(&top);
        let evictable = Arc::clone(&evictable);
        Box::new(move |_| {
            let victim = evictable.lock().pop();
            victim.is_some_and(|address| top.get().unwrap().free(address).is_ok())
        })
    };
    let pool = bump(MIB);
    let limited = Limited::new(Arc::clone(&pool), 1024);
    let stack = Arc::new(Recorded::new(Counted::new(OnFailure::new(limited, 3, callback)), history()));
    top.set(Arc::clone(&stack)).ok().unwrap();

    let first = alloc(&*stack, 1024);
    evictable.lock().push(first);
    let second = alloc(&*stack, 512);
    assert_eq!(stack.inner().inner().inner().used(), 512);
    let statistics = stack.inner().statistics();
    assert_eq!((statistics.all.allocated_bytes.current, statistics.num_ooms), (512, 0));
    let freed = [(HistoryAction::FreeRequested, first), (HistoryAction::FreeCompleted, first)];
    let expected = [&[(HistoryAction::Alloc, first)][..], &freed, &[(HistoryAction::Alloc, second)]].concat();
    assert_eq!(actions(stack.history()), expected);

    assert_eq!(out_of_memory(&*stack, 1024), (512, 1024));
    assert_eq!(stack.inner().statistics().num_ooms, 1);
    stack.free(second).unwrap();
    assert_eq!(pool.live_blocks(), 0);
}

#[test]
fn a_composition_is_exact_after_threads_have_used_it() {
    let (_, allocator) = native(GIB);
    let stack = Recorded::new(Counted::new(Limited::new(Arc::clone(&allocator), GIB)), history());
    stack.history().start(Recording::events(usize::MAX), true);
    thread::scope(|scope| {
        for thread in 0..4 {
            let stack = &stack;
            scope.spawn(move || {
                for round in 0..200 {
                    let request = Request::new(512 * (1 + round % 7), StreamId(thread % 2));
                    let block = stack.allocate(request).unwrap();
                    stack.free(block.address).unwrap();
                }
            });
        }
    });
    let counted = stack.inner();
    let limited = stack.inner().inner();
    assert_eq!((counted.statistics().all.allocation.allocated, limited.used()), (800, 0));
    // Every address is freed before it is allocated again.
    let mut live = std::collections::HashSet::new();
    for event in stack.history().events() {
        match event.action {
            HistoryAction::Alloc => assert!(live.insert(event.address), "{:#x} is handed out twice", event.address),
            HistoryAction::FreeRequested => assert!(live.remove(&event.address), "{:#x} is freed twice", event.address),
            _ => {}
        }
    }
    assert!(live.is_empty());
}
