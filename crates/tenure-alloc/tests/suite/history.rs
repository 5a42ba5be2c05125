//! Tests of histories and snapshots: the events and contexts that they contain. All allocators record the same.

use std::sync::Arc;

use crate::common::{GIB, MIB, busy_backing};
use parking_lot::Mutex;
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{
    CachingAllocator, HistoryAction, HistoryContext, HistoryEvent, KeepContexts, NativeAllocator, NativeConfig,
    PagedAllocator, PagedConfig, PoolId, PoolUse, Recording, Request,
};
use tenure_core::StreamId;

const A: StreamId = StreamId(3);
const B: StreamId = StreamId(4);
const POOL: PoolId = PoolId(0, 7);

/// Makes an allocator of each kind, on devices whose streams pass marks when told.
fn allocators() -> [Arc<dyn CachingAllocator>; 3] {
    [
        Arc::new(NativeAllocator::new(busy_backing(GIB), NativeConfig::default()).unwrap()),
        Arc::new(NativeAllocator::new(busy_backing(GIB), NativeConfig::expandable()).unwrap()),
        Arc::new(PagedAllocator::new(busy_backing(GIB), PagedConfig::default()).unwrap()),
    ]
}

fn keep(contexts: KeepContexts) -> Recording {
    Recording { contexts, ..Recording::default() }
}

/// Allocates in a context of its own.
fn alloc(allocator: &dyn CachingAllocator, bytes: u64, context: &'static str) -> u64 {
    let _context = HistoryContext::enter(Some(HistoryContext::new(context)));
    allocator.allocate(Request::new(bytes, A)).unwrap().address
}

fn free(allocator: &dyn CachingAllocator, address: u64, context: &'static str) {
    let _context = HistoryContext::enter(Some(HistoryContext::new(context)));
    allocator.free(address).unwrap();
}

fn words(context: Option<&HistoryContext>) -> &'static str {
    context.map_or("", |context| context.downcast::<&'static str>().unwrap())
}

/// Returns the contexts of the events of an action.
fn contexts_of(allocator: &dyn CachingAllocator, action: HistoryAction) -> Vec<&'static str> {
    let events = allocator.history().events();
    events.iter().filter(|event| event.action == action).map(|event| words(event.context.as_ref())).collect()
}

/// Returns the contexts of the blocks that are in use, and of every segment.
fn contexts_held(allocator: &dyn CachingAllocator) -> (Vec<&'static str>, Vec<&'static str>) {
    let segments = allocator.snapshot().segments;
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let used = blocks.filter(|block| block.state != SnapshotState::Inactive);
    (
        used.map(|block| words(block.context.as_ref())).collect(),
        segments.iter().map(|segment| words(segment.context.as_ref())).collect(),
    )
}

#[test]
fn contexts_are_kept_as_far_as_was_asked() {
    use KeepContexts::{All, Alloc, Never, State};
    for allocator in allocators().iter().map(Arc::as_ref) {
        let history = allocator.history();
        // Each row has the level kept, and the contexts of the allocation and its segment, of the free, and of the live
        // block.
        for (kept, at_alloc, at_free, of_block) in [
            (Never, "", "", ""),
            (State, "", "", "take"),
            (Alloc, "take", "take", "take"),
            (All, "take", "give", "take"),
        ] {
            history.start(keep(kept), true);
            assert_eq!((history.wants(State), history.wants(All)), (kept >= State, kept >= All));
            let block = alloc(allocator, 5 * MIB, "take");
            assert_eq!(contexts_held(allocator), (vec![of_block], vec![at_alloc]), "{kept:?}");
            free(allocator, block, "give");
            {
                let _context = HistoryContext::enter(Some(HistoryContext::new("empty")));
                allocator.release_cached().unwrap();
            }
            assert_eq!(contexts_of(allocator, HistoryAction::Alloc), [at_alloc], "{kept:?}");
            assert_eq!(contexts_of(allocator, HistoryAction::FreeRequested), [at_free], "{kept:?}");
            assert_eq!(contexts_of(allocator, HistoryAction::FreeCompleted), [at_free], "{kept:?}");
            let events = history.events();
            let last = events.last().unwrap();
            assert!(matches!(last.action, HistoryAction::SegmentFree | HistoryAction::SegmentUnmap), "{last:?}");
            assert_eq!(words(last.context.as_ref()), if kept == All { "empty" } else { at_alloc }, "{kept:?}");
        }
    }
}

#[test]
fn the_pending_free_of_a_block_keeps_its_context() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(keep(KeepContexts::Alloc), true);
        let block = alloc(allocator, 5 * MIB, "take");
        allocator.record_stream(block, B).unwrap();
        free(allocator, block, "give");
        assert_eq!(contexts_held(allocator).0, ["take"]);
        allocator.release_cached().unwrap();
        assert_eq!(contexts_of(allocator, HistoryAction::FreeCompleted), ["take"]);
        assert_eq!(contexts_held(allocator).0, [""; 0]);
    }
}

#[test]
fn the_reuse_of_memory_changes_its_blocks_context_and_not_its_segments() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(keep(KeepContexts::Alloc), true);
        let block = alloc(allocator, 5 * MIB, "first");
        free(allocator, block, "");
        assert_eq!(alloc(allocator, 5 * MIB, "second"), block);
        assert_eq!(contexts_held(allocator), (vec!["second"], vec!["first"]));
    }
}

#[test]
fn stopping_forgets_events_and_live_blocks_keep_their_contexts_until_they_are_freed() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        let history = allocator.history();
        history.start(Recording::default(), true);
        let block = alloc(allocator, 5 * MIB, "recorded");
        history.stop();
        assert_eq!((history.is_recording(), history.events()), (false, vec![]));
        assert_eq!(contexts_held(allocator), (vec!["recorded"], vec![""]));
        free(allocator, block, "");
        assert_eq!(alloc(allocator, 5 * MIB, "not recorded"), block);
        assert_eq!(contexts_held(allocator).0, [""]);
        free(allocator, block, "");
        allocator.release_cached().unwrap();
        assert!(!history.is_on(), "nothing is left to look after");
        history.start(Recording::default(), false);
        alloc(allocator, 5 * MIB, "again");
        assert_eq!(contexts_of(allocator, HistoryAction::Alloc), ["again"]);
    }
}

#[test]
fn starting_again_keeps_the_events_unless_told_to_clear_them() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        let history = allocator.history();
        let allocs = || history.events().iter().filter(|event| event.action == HistoryAction::Alloc).count();
        history.start(Recording::default(), true);
        alloc(allocator, 5 * MIB, "");
        history.start(Recording::default(), false);
        alloc(allocator, 5 * MIB, "");
        assert_eq!(allocs(), 2);
        history.start(Recording::default(), true);
        assert_eq!(history.events(), []);
    }
}

#[test]
fn with_no_room_for_events_only_the_state_is_kept() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(Recording { limit: 0, ..keep(KeepContexts::State) }, true);
        alloc(allocator, 5 * MIB, "take");
        assert_eq!(contexts_held(allocator).0, ["take"]);
        assert_eq!(allocator.history().events(), []);
    }
}

#[test]
fn actions_can_be_left_out_of_the_events_and_trackers_hear_of_them_all_the_same() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let history = allocator.history();
        let hearing = Arc::clone(&heard);
        history.add_tracker(Box::new(move |event: &HistoryEvent| hearing.lock().push(event.action)));
        let block = alloc(allocator, 1000, "");
        assert_eq!(history.events(), [], "a tracker does not make the history record");
        history.start(
            Recording { skip: vec![HistoryAction::FreeCompleted, HistoryAction::Snapshot], ..Recording::default() },
            true,
        );
        free(allocator, block, "");
        allocator.snapshot();
        let kept: Vec<HistoryAction> = history.events().iter().map(|event| event.action).collect();
        assert_eq!(kept, [HistoryAction::FreeRequested]);
        let all =
            [HistoryAction::Alloc, HistoryAction::FreeRequested, HistoryAction::FreeCompleted, HistoryAction::Snapshot];
        let heard = heard.lock();
        assert_eq!(heard.iter().filter(|action| all.contains(action)).copied().collect::<Vec<_>>(), all);
    }
}

#[test]
fn a_note_is_kept_with_every_event_whatever_contexts_are_kept() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(keep(KeepContexts::Never), true);
        HistoryContext::set_note(Some(HistoryContext::new("step 1")));
        let block = alloc(allocator, 5 * MIB, "");
        free(allocator, block, "");
        allocator.release_cached().unwrap();
        HistoryContext::set_note(None);
        allocator.snapshot();
        let events = allocator.history().events();
        let (last, rest) = events.split_last().unwrap();
        assert!(rest.iter().all(|event| words(event.note.as_ref()) == "step 1"));
        assert_eq!((last.action, &last.note), (HistoryAction::Snapshot, &None));
    }
}

#[test]
fn annotations_are_kept_while_recording_and_no_more_of_them_than_events() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        let history = allocator.history();
        let mark = |name: &str| history.annotate(1, vec![("name".to_owned(), name.to_owned())]);
        mark("too early");
        history.start(Recording::events(2), true);
        ["a", "b", "c"].into_iter().for_each(mark);
        let found = allocator.snapshot().annotations;
        let names: Vec<(u32, &str)> = found.iter().map(|mark| (mark.device, &*mark.metadata[0].1)).collect();
        assert_eq!(names, [(1, "b"), (1, "c")]);
        assert!(found[0].time_us > 0 && found[0].time_us <= found[1].time_us);
        history.stop();
        assert_eq!(allocator.snapshot().annotations, []);
    }
}

#[test]
fn a_snapshot_may_be_of_one_pool_and_without_the_events() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(Recording::default(), true);
        let common = alloc(allocator, 5 * MIB, "");
        allocator.begin_pool(POOL, PoolUse::Eager, Box::new(|_| true)).unwrap();
        let private = alloc(allocator, 6 * MIB, "");
        allocator.end_pool(POOL).unwrap();
        allocator.history().start(Recording::default(), true);

        let snapshot = allocator.snapshot_of(Some(POOL), false);
        let used = |snapshot: &tenure_alloc::Snapshot| -> Vec<u64> {
            let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
            blocks.filter(|block| block.state == SnapshotState::Allocated).map(|block| block.address).collect()
        };
        assert_eq!(used(&snapshot), [private]);
        assert!(snapshot.segments.iter().all(|segment| segment.pool == POOL));
        assert!(snapshot.device_traces.iter().all(Vec::is_empty));
        let mut both = [common, private];
        both.sort_unstable();
        assert_eq!(used(&allocator.snapshot_of(Some(PoolId(0, 0)), true)), both);
        assert_eq!(used(&allocator.snapshot_of(Some(PoolId(0, 8)), true)), []);

        let taken = allocator.history().events();
        let taken = taken.iter().map(|event| (event.action, event.pool, event.bytes));
        let bytes = [6 * MIB, 11 * MIB, 0].into_iter().zip([POOL, PoolId(0, 0), PoolId(0, 8)]);
        assert!(taken.eq(bytes.map(|(bytes, pool)| (HistoryAction::Snapshot, pool, bytes))));
    }
}

#[test]
fn events_carry_the_pool_of_their_memory() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(Recording::default(), true);
        allocator.begin_pool(POOL, PoolUse::Eager, Box::new(|_| true)).unwrap();
        let block = alloc(allocator, 6 * MIB, "");
        allocator.end_pool(POOL).unwrap();
        allocator.free(block).unwrap();
        allocator.release_pool(POOL).unwrap();
        allocator.release_cached().unwrap();
        let events = allocator.history().events();
        assert!(events.len() >= 5 && events.iter().all(|event| event.pool == POOL), "{events:?}");
    }
}

#[test]
fn an_out_of_memory_error_is_an_event_with_the_context_of_the_request() {
    for allocator in allocators().iter().map(Arc::as_ref) {
        allocator.history().start(Recording::default(), true);
        let _context = HistoryContext::enter(Some(HistoryContext::new("too much")));
        allocator.allocate(Request::new(2 * GIB, A)).unwrap_err();
        let events = allocator.history().events();
        let event = events.last().unwrap();
        assert_eq!((event.action, event.address, event.bytes), (HistoryAction::OutOfMemory, GIB, 2 * GIB));
        assert_eq!(words(event.context.as_ref()), "too much");
    }
}
