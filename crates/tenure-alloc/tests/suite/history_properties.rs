//! Property tests of histories against a model, under random use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::common::{FakeBacking, MIB};
use parking_lot::Mutex;
use proptest::prelude::*;
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{
    CachingAllocator, HistoryAction, HistoryContext, HistoryEvent, KeepContexts, NativeAllocator, NativeConfig,
    PagedAllocator, PagedConfig, PoolId, PoolUse, Recording, Request, Resource, Snapshot,
};
use tenure_core::StreamId;

const POOL: PoolId = PoolId(1, 0);
const ACTIONS: [HistoryAction; 10] = HistoryAction::ALL;

#[derive(Clone, Debug)]
enum Step {
    /// Allocates; the call of the backing with the number `failing` fails, if one is given and reached.
    Alloc {
        bytes: u64,
        stream: u64,
        is_private: bool,
        failing: Option<u64>,
    },
    Free(usize),
    RecordStream(usize),
    Release,
    Start {
        limit: usize,
        contexts: KeepContexts,
        skip: usize,
        clear: bool,
    },
    Stop,
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use KeepContexts::{All, Alloc, Never, State};
    let bytes = prop_oneof![1..2000u64, MIB..24 * MIB];
    let contexts = prop_oneof![Just(Never), Just(State), Just(Alloc), Just(All)];
    let alloc = |is_private| {
        let failing = prop::option::weighted(0.2, 0..8u64);
        (bytes.clone(), 0..2u64, failing).prop_map(move |(bytes, stream, failing)| Step::Alloc {
            bytes,
            stream,
            is_private,
            failing,
        })
    };
    let step = prop_oneof![
        9 => alloc(false),
        1 => alloc(true),
        9 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::RecordStream),
        1 => Just(Step::Release),
        1 => (0..30usize, contexts, 0..20usize, any::<bool>())
            .prop_map(|(limit, contexts, skip, clear)| Step::Start { limit, contexts, skip, clear }),
        1 => Just(Step::Stop),
        1 => Just(Step::Snapshot),
    ];
    prop::collection::vec(step, 1..120)
}

fn allocator(kind: usize, backing: Arc<FakeBacking>) -> Arc<dyn CachingAllocator> {
    match kind {
        0 => Arc::new(NativeAllocator::new(backing, NativeConfig::default()).unwrap()),
        1 => Arc::new(NativeAllocator::new(backing, NativeConfig::expandable()).unwrap()),
        // Without slack and with few mappings, memory is pieced together, and windows come and go.
        _ => {
            let config = PagedConfig { slack: 0.0, slack_bytes: 0, min_chunk_bytes: 2 * MIB, ..Default::default() };
            let config = PagedConfig { mappings_per_chunk: 1, ..config };
            Arc::new(PagedAllocator::new(backing, config).unwrap())
        }
    }
}

/// An allocator in use, and the state that its history must have.
struct Run {
    backing: Arc<FakeBacking>,
    allocator: Arc<dyn CachingAllocator>,
    live: Vec<u64>,
    /// The events that a tracker got in this step.
    heard: Arc<Mutex<Vec<HistoryEvent>>>,
    /// The events that the ring must hold.
    kept: Vec<HistoryEvent>,
    recording: Option<Recording>,
    /// The number of the context that each live block must have, by address, if it must have one.
    contexts: BTreeMap<u64, u64>,
    /// Every context so far. A context stays alive as long as anything holds it.
    made: Vec<Weak<u64>>,
    /// The contexts in which segments were made. A segment of several parts shows the context of its first part.
    of_segments: BTreeSet<u64>,
    /// The number of uses of the private pool.
    uses: usize,
}

impl Run {
    fn new(kind: usize) -> Self {
        let backing = Arc::new(FakeBacking::new(128 * MIB));
        let allocator = allocator(kind, Arc::clone(&backing));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        allocator.history().add_tracker(Box::new(move |event| hearing.lock().push(event.clone())));
        Self {
            backing,
            allocator,
            live: Vec::new(),
            heard,
            kept: Vec::new(),
            recording: None,
            contexts: BTreeMap::new(),
            made: Vec::new(),
            of_segments: BTreeSet::new(),
            uses: 0,
        }
    }

    /// Makes a context that contains its number, and is dropped with its last holder.
    fn context(&mut self) -> HistoryContext {
        let number = Arc::new(self.made.len() as u64);
        self.made.push(Arc::downgrade(&number));
        HistoryContext::new(number)
    }

    fn step(&mut self, step: &Step) {
        let context = self.context();
        let _context = HistoryContext::enter(Some(context));
        let history = self.allocator.history();
        match *step {
            Step::Alloc { bytes, stream, is_private, failing } => {
                if is_private {
                    self.allocator.begin_pool(POOL, PoolUse::Eager, Box::new(|_| true)).unwrap();
                    self.uses += 1;
                }
                failing.into_iter().for_each(|number| self.backing.fail_calls(number..number + 1));
                let block = self.allocator.allocate(Request::new(bytes, StreamId(stream)));
                self.backing.fail_none();
                if is_private {
                    self.allocator.end_pool(POOL).unwrap();
                }
                if let Ok(block) = block {
                    self.live.push(block.address);
                    if self.keeps(KeepContexts::State) {
                        self.contexts.insert(block.address, self.made.len() as u64 - 1);
                    }
                }
            }
            Step::Free(pick) if !self.live.is_empty() => {
                let address = self.live.swap_remove(pick % self.live.len());
                self.contexts.remove(&address);
                self.allocator.free(address).unwrap();
            }
            Step::RecordStream(pick) if !self.live.is_empty() => {
                self.allocator.record_stream(self.live[pick % self.live.len()], StreamId(9)).unwrap();
            }
            Step::Free(_) | Step::RecordStream(_) => {}
            Step::Release => self.allocator.release_cached().unwrap(),
            Step::Start { limit, contexts, skip, clear } => {
                let skip = ACTIONS.get(skip).copied().into_iter().collect();
                let recording = Recording { limit, contexts, skip };
                history.start(recording.clone(), clear);
                if clear {
                    self.kept.clear();
                }
                self.recording = Some(recording);
            }
            Step::Stop => {
                history.stop();
                self.kept.clear();
                self.recording = None;
            }
            Step::Snapshot => drop(self.allocator.snapshot()),
        }
        self.hear();
    }

    fn keeps(&self, level: KeepContexts) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.contexts >= level)
    }

    /// Adds the tracker's events to those that must be kept.
    fn hear(&mut self) {
        let heard = std::mem::take(&mut *self.heard.lock());
        if heard.iter().any(|event| matches!(event.action, HistoryAction::SegmentAlloc | HistoryAction::SegmentMap)) {
            self.of_segments.insert(self.made.len() as u64 - 1);
        }
        if let Some(Recording { limit, contexts, skip }) = &self.recording {
            for event in &heard {
                assert!(event.context.is_none() || *contexts >= KeepContexts::Alloc, "{event:?}");
            }
            self.kept.extend(heard.into_iter().filter(|event| !skip.contains(&event.action)));
            let excess = self.kept.len().saturating_sub(*limit);
            self.kept.drain(..excess);
        }
    }

    fn check(&mut self) -> Snapshot {
        let snapshot = self.allocator.snapshot();
        let taken = self.heard.lock().pop().unwrap();
        assert_eq!(taken.action, HistoryAction::Snapshot);
        self.hear();
        assert_eq!(snapshot.device_traces.concat(), self.kept, "events up to the snapshot, without it");
        self.heard.lock().push(taken);
        self.hear();
        assert_eq!(self.allocator.history().events(), self.kept);

        let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks().filter(|block| block.state == SnapshotState::Allocated) {
            assert_eq!(block.context.as_ref().map(number), self.contexts.get(&block.address).copied());
        }
        let events = snapshot.device_traces.iter().flatten().filter_map(|event| event.context.as_ref());
        let held = blocks().filter_map(|block| block.context.as_ref());
        let segments = snapshot.segments.iter().filter_map(|segment| segment.context.as_ref());
        let named: BTreeSet<u64> = events.chain(held).chain(segments).map(number).collect();
        assert!(self.alive().difference(&named).all(|number| self.of_segments.contains(number)));
        snapshot
    }

    fn alive(&self) -> BTreeSet<u64> {
        self.made.iter().filter_map(Weak::upgrade).map(|number| *number).collect()
    }

    /// Gives all memory back.
    fn end(&mut self) {
        while !self.live.is_empty() {
            self.step(&Step::Free(0));
        }
        (0..self.uses).for_each(|_| self.allocator.release_pool(POOL).unwrap());
        self.step(&Step::Release);
    }
}

fn number(context: &HistoryContext) -> u64 {
    **context.downcast::<Arc<u64>>().unwrap()
}

/// The mapped bytes that events add up to: first address to end, merged where they touch.
#[derive(Debug, Default, PartialEq)]
struct Mapped(BTreeMap<u64, u64>);

impl Mapped {
    fn add(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &until)) = self.0.range(..=start).next_back() {
            assert!(until <= start, "{start:#x} is mapped twice");
            if until == start {
                self.0.remove(&before);
                start = before;
            }
        }
        if let Some((&behind, &until)) = self.0.range(start + 1..).next() {
            assert!(end <= behind, "{behind:#x} is mapped twice");
            if end == behind {
                self.0.remove(&behind);
                end = until;
            }
        }
        self.0.insert(start, end);
    }

    fn cut(&mut self, start: u64, end: u64) {
        let (first, until) = self.around(start, end).expect("what is unmapped was mapped, in one piece");
        self.0.remove(&first);
        if first < start {
            self.0.insert(first, start);
        }
        if end < until {
            self.0.insert(end, until);
        }
    }

    fn around(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (&first, &until) = self.0.range(..=start).next_back()?;
        (end <= until).then_some((first, until))
    }

    fn replay(&mut self, event: &HistoryEvent) {
        let start = event.address;
        let end = event.address + event.bytes;
        match event.action {
            HistoryAction::SegmentAlloc | HistoryAction::SegmentMap => self.add(start, end),
            HistoryAction::SegmentFree | HistoryAction::SegmentUnmap => self.cut(start, end),
            HistoryAction::Alloc | HistoryAction::FreeRequested | HistoryAction::FreeCompleted => {
                assert!(self.around(start, end).is_some(), "{event:?} lies in no segment");
            }
            HistoryAction::Snapshot | HistoryAction::OutOfMemory | HistoryAction::Annotate => {}
        }
    }

    fn of(snapshot: &Snapshot) -> Self {
        let mut mapped = Self::default();
        snapshot.segments.iter().for_each(|segment| mapped.add(segment.address, segment.address + segment.bytes()));
        mapped
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_last_events_are_kept_and_contexts_go_with_the_last_that_names_them(kind in 0..3usize, steps in steps()) {
        let mut run = Run::new(kind);
        steps.iter().for_each(|step| run.step(step));
        run.check();
        run.end();
        prop_assert!(run.check().segments.is_empty());
        let named: BTreeSet<u64> = run.kept.iter().filter_map(|event| event.context.as_ref()).map(number).collect();
        prop_assert_eq!(run.alive(), named);
    }

    #[test]
    fn the_segments_of_a_snapshot_are_what_the_events_add_up_to(kind in 0..3usize, steps in steps()) {
        let mut run = Run::new(kind);
        let replayed = Arc::new(Mutex::new(Mapped::default()));
        let replaying = Arc::clone(&replayed);
        run.allocator.history().add_tracker(Box::new(move |event| replaying.lock().replay(event)));
        for step in &steps {
            run.step(step);
        }
        let snapshot = run.allocator.snapshot();
        prop_assert_eq!(&*replayed.lock(), &Mapped::of(&snapshot));
        run.end();
        prop_assert_eq!(&*replayed.lock(), &Mapped::default());
    }
}
