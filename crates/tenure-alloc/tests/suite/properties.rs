//! Property tests of every allocator against a simple model, under random operations and failing driver calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{FakeBacking, MIB};
use proptest::prelude::*;
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{
    AllocError, Backing, BackingError, CachingAllocator, MemoryLimits, NativeAllocator, NativeConfig, PagedAllocator,
    PagedConfig, PoolCheckpoint, PoolId, PoolSource, PoolStatistics, PoolUse, Request, Tuning,
};
use tenure_core::{KeyId, StreamId, Tag};

const CASES: u32 = 1000;
const STREAMS: u64 = 3;
const POOL: PoolId = PoolId(0, 5);
/// A pool whose segments come from a source of its own.
const OWN: PoolId = PoolId(0, 6);

#[derive(Clone, Debug)]
enum Op {
    Allocate { bytes: u64, stream: u64, tag: usize },
    Free { index: usize },
    RecordStream { index: usize, stream: u64 },
    Retag { index: usize, tag: usize },
    Pass { stream: u64 },
    ReleaseCached,
    BeginCycle { kind: u64 },
    BeginPool,
    EndPool,
    ReleasePool,
    BeginOwn,
    EndOwn,
    Checkpoint,
    Restore,
    FailCalls { after: u64, count: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    // Blocks of few sizes correspond to blocks of earlier cycles.
    let few = (1..4_u64).prop_map(|count| count * 8 * MIB);
    let bytes = prop_oneof![1..2000_u64, 1..MIB, 1..12 * MIB, MIB..90 * MIB, few];
    prop_oneof![
        8 => (bytes, 0..STREAMS, 0..Tag::ALL.len())
            .prop_map(|(bytes, stream, tag)| Op::Allocate { bytes, stream, tag }),
        7 => any::<usize>().prop_map(|index| Op::Free { index }),
        3 => (any::<usize>(), 0..STREAMS).prop_map(|(index, stream)| Op::RecordStream { index, stream }),
        2 => (any::<usize>(), 0..Tag::ALL.len()).prop_map(|(index, tag)| Op::Retag { index, tag }),
        2 => (0..STREAMS).prop_map(|stream| Op::Pass { stream }),
        1 => Just(Op::ReleaseCached),
        1 => (0..2_u64).prop_map(|kind| Op::BeginCycle { kind }),
        1 => Just(Op::BeginPool),
        1 => Just(Op::EndPool),
        1 => prop_oneof![3 => Just(Op::BeginOwn), 3 => Just(Op::EndOwn), 1 => Just(Op::ReleasePool)],
        2 => prop_oneof![Just(Op::Checkpoint), Just(Op::Restore)],
        1 => (0..12_u64, 1..4_u64).prop_map(|(after, count)| Op::FailCalls { after, count }),
    ]
}

/// An allocator and its settings.
#[derive(Clone, Debug)]
enum Engine {
    Native(NativeConfig),
    /// The paged allocator; the flag turns on expandable segments in private pools.
    Paged(PagedConfig, bool),
}

impl Engine {
    fn build(&self, backing: &Arc<FakeBacking>) -> Arc<dyn CachingAllocator> {
        let backing = Arc::clone(backing) as _;
        match self.clone() {
            Self::Native(config) => {
                let collects = config.garbage_collection_threshold > 0.0;
                let allocator = NativeAllocator::new(backing, config).unwrap();
                if collects {
                    allocator.set_memory_fraction(0.75).unwrap();
                }
                Arc::new(allocator)
            }
            Self::Paged(config, expandable) => {
                let allocator = PagedAllocator::new(backing, config).unwrap();
                allocator.tune(Tuning::ExpandableSegments(expandable)).unwrap();
                Arc::new(allocator)
            }
        }
    }

    /// Returns the bytes that may be reserved of a device of 512 MiB.
    fn limit(&self) -> u64 {
        match self {
            Self::Native(config) if config.garbage_collection_threshold > 0.0 && !config.expandable_segments => {
                384 * MIB
            }
            _ => 512 * MIB,
        }
    }
}

fn native() -> impl Strategy<Value = Engine> {
    let limits = prop_oneof![Just(None), Just(Some(24 * MIB))];
    let thresholds = prop_oneof![Just(0.0), Just(0.3)];
    (any::<bool>(), limits, prop_oneof![Just(0), Just(8)], thresholds).prop_map(
        |(expandable_segments, max_split_size, divisions, garbage_collection_threshold)| {
            Engine::Native(NativeConfig {
                expandable_segments,
                max_split_size,
                roundup_power2_divisions: [divisions; 16],
                garbage_collection_threshold,
                ..NativeConfig::default()
            })
        },
    )
}

/// Makes settings with small slack and small chunks, so that memory has to be pieced together, and few mappings, so
/// that windows are unmapped.
fn paged() -> impl Strategy<Value = Engine> {
    let slack = prop_oneof![Just(0), Just(8 * MIB), Just(62 * MIB)];
    let flags = (any::<bool>(), any::<bool>());
    (slack, 1..6_u64, 1..3_usize, flags).prop_map(|(slack_bytes, chunk, mappings_per_chunk, (crowded, expandable))| {
        let config = PagedConfig {
            slack_bytes,
            min_chunk_bytes: chunk * 2 * MIB,
            max_chunk_bytes: chunk * 4 * MIB,
            mappings_per_chunk,
            address_space_bytes: crowded.then_some(2048 * MIB),
            ..PagedConfig::default()
        };
        Engine::Paged(config, expandable)
    })
}

#[derive(Clone, Copy)]
struct Live {
    bytes: u64,
    requested: u64,
    tag: Tag,
}

/// An allocator, and the state that it should have.
struct Model {
    engine: Engine,
    backing: Arc<FakeBacking>,
    allocator: Arc<dyn CachingAllocator>,
    live: BTreeMap<u64, Live>,
    /// The addresses of live blocks, oldest first.
    order: Vec<u64>,
    capturing: bool,
    own: bool,
    checkpoint: Option<(PoolCheckpoint, BTreeMap<u64, Live>)>,
}

/// A source of segments of the fake device, apart from the allocator's.
struct Own(Arc<FakeBacking>);

impl PoolSource for Own {
    fn allocate(&self, bytes: u64, _: StreamId) -> Result<u64, BackingError> {
        self.0.malloc(bytes)
    }

    fn free(&self, address: u64, _: u64, _: StreamId) {
        // This free must succeed, even while calls are made to fail.
        while self.0.free(address).is_err() {}
    }
}

impl Model {
    fn new(engine: Engine) -> Self {
        let backing = Arc::new(FakeBacking::new(512 * MIB));
        backing.hold_streams();
        let allocator = engine.build(&backing);
        allocator.create_pool(OWN, Some(Arc::new(Own(Arc::clone(&backing))))).unwrap();
        let live = BTreeMap::new();
        let order = Vec::new();
        let checkpoint = None;
        Self { engine, backing, allocator, live, order, capturing: false, own: false, checkpoint }
    }

    /// Does `op`. An error must leave the state that the caller sees as it was.
    fn apply(&mut self, op: &Op) -> Result<(), AllocError> {
        match *op {
            Op::Allocate { bytes, stream, tag } => {
                let stream = StreamId(stream);
                let tag = Tag::ALL[tag];
                let block = self.allocator.allocate(Request::new(bytes, stream).with_tag(tag))?;
                assert!(block.bytes >= bytes);
                let before = self.live.range(..block.address + block.bytes).next_back();
                assert!(before.is_none_or(|(start, live)| start + live.bytes <= block.address), "blocks overlap");
                self.backing.assert_exclusive(stream, block.address, block.bytes);
                self.backing.launch(stream, block.address, block.bytes);
                self.order.push(block.address);
                self.live.insert(block.address, Live { bytes: block.bytes, requested: bytes, tag });
            }
            Op::Free { index } => {
                if let Some(address) = self.pick(index) {
                    self.allocator.free(address)?;
                    self.live.remove(&address);
                    self.order.retain(|&other| other != address);
                }
            }
            Op::RecordStream { index, stream } => {
                if let Some(address) = self.pick(index) {
                    self.allocator.record_stream(address, StreamId(stream))?;
                    // Work put on a stream during a capture does not run, so nothing can race with it.
                    if !self.capturing {
                        self.backing.launch(StreamId(stream), address, self.live[&address].bytes);
                    }
                }
            }
            Op::Retag { index, tag } => {
                if let Some(address) = self.pick(index) {
                    self.allocator.retag(address, Tag::ALL[tag], KeyId::NONE)?;
                    self.live.entry(address).and_modify(|live| live.tag = Tag::ALL[tag]);
                }
            }
            Op::Pass { stream } => self.backing.pass(StreamId(stream)),
            Op::ReleaseCached => self.allocator.release_cached()?,
            Op::BeginCycle { kind } => self.allocator.begin_cycle(kind)?,
            Op::BeginPool if !self.capturing => {
                self.allocator.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == StreamId(1)))?;
                self.capturing = true;
            }
            Op::EndPool if self.capturing => {
                self.allocator.end_pool(POOL)?;
                self.capturing = false;
            }
            Op::ReleasePool if self.allocator.pool_uses(POOL) > 0 => self.allocator.release_pool(POOL)?,
            Op::BeginOwn if !self.own => {
                self.allocator.begin_pool(OWN, PoolUse::Eager, Box::new(|stream| stream == StreamId(2)))?;
                self.own = true;
            }
            Op::EndOwn if self.own => {
                self.allocator.end_pool(OWN)?;
                self.own = false;
            }
            Op::BeginPool | Op::EndPool | Op::ReleasePool | Op::BeginOwn | Op::EndOwn => {}
            Op::Checkpoint => {
                let checkpoint = self.allocator.checkpoint(POOL)?;
                let live = checkpoint.addresses().map(|address| (address, self.live[&address])).collect();
                self.checkpoint = Some((checkpoint, live));
            }
            Op::Restore => self.restore()?,
            Op::FailCalls { after, count } => self.backing.fail_calls(after..after + count),
        }
        Ok(())
    }

    /// Sets the pool back, and the model with it.
    fn restore(&mut self) -> Result<(), AllocError> {
        let Some((checkpoint, live)) = &self.checkpoint else { return Ok(()) };
        let before = self.allocator.live_blocks(POOL);
        let restored = self.allocator.restore(checkpoint)?;
        assert_eq!(Ok(&restored.freed), before.as_ref());
        assert_eq!(restored.allocated, self.allocator.live_blocks(POOL)?);
        assert_eq!(restored.allocated, live.keys().copied().collect::<Vec<_>>());
        self.live.retain(|address, _| !restored.freed.contains(address));
        self.order.retain(|address| !restored.freed.contains(address));
        for (&address, block) in live {
            self.live.insert(address, *block);
            self.order.push(address);
            self.backing.assert_exclusive(StreamId(1), address, block.bytes);
        }
        Ok(())
    }

    fn pick(&self, index: usize) -> Option<u64> {
        Some(self.order[index.checked_rem(self.order.len())?])
    }

    fn check(&self) {
        let statistics = self.allocator.statistics();
        let all = &statistics.all;
        assert_eq!(all.allocation.current, self.live.len() as u64);
        assert_eq!(all.allocated_bytes.current, self.sum(|live| live.bytes));
        assert!(all.requested_bytes.current >= self.sum(|live| live.requested));
        assert_eq!(all.reserved_bytes.current, self.backing.used());
        assert!(all.reserved_bytes.current <= self.engine.limit());
        for pool in [all, &statistics.small_pool, &statistics.large_pool] {
            assert!(pool.requested_bytes.current <= pool.active_bytes.current);
            assert!(pool.allocated_bytes.current <= pool.active_bytes.current);
            assert!(pool.active_bytes.current <= pool.reserved_bytes.current);
        }
        let both = |figure: fn(&PoolStatistics) -> u64| {
            assert_eq!(figure(all), figure(&statistics.small_pool) + figure(&statistics.large_pool));
        };
        both(|pool| pool.active_bytes.current);
        both(|pool| pool.reserved_bytes.current);
        both(|pool| pool.inactive_split_bytes.current);
        for tag in Tag::ALL {
            let figures = statistics.tags[tag as usize];
            assert_eq!(figures.allocated_bytes.current, self.sum(|live| if live.tag == tag { live.bytes } else { 0 }));
            assert!(figures.allocated_bytes.current <= figures.active_bytes.current);
        }
        assert_eq!(statistics.tags.map(|tag| tag.active_bytes.current).iter().sum::<u64>(), all.active_bytes.current);
    }

    /// Checks that the blocks of a snapshot cover their segments, and that no two free ones lie side by side.
    fn check_snapshot(&self) {
        let snapshot = self.allocator.snapshot();
        let mut allocated = BTreeMap::new();
        let mut requested = 0;
        for segment in &snapshot.segments {
            let mut next = segment.address;
            for block in &segment.blocks {
                assert_eq!(block.address, next);
                next += block.bytes;
                if block.state != SnapshotState::Inactive {
                    requested += block.requested;
                }
                if block.state == SnapshotState::Allocated {
                    allocated.insert(block.address, (block.bytes, block.tag));
                }
            }
            let inactive = |index: usize| segment.blocks[index].state == SnapshotState::Inactive;
            assert!((1..segment.blocks.len()).all(|index| !(inactive(index - 1) && inactive(index))));
        }
        let live = self.live.iter().map(|(&address, live)| (address, (live.bytes, live.tag)));
        let live: BTreeMap<u64, (u64, Tag)> = live.collect();
        assert_eq!(allocated, live);
        assert_eq!(self.allocator.statistics().all.requested_bytes.current, requested);
    }

    fn sum(&self, figure: impl Fn(&Live) -> u64) -> u64 {
        self.live.values().map(figure).sum()
    }

    /// Frees everything; nothing may be left anywhere.
    fn finish(mut self) {
        self.backing.fail_none();
        self.apply(&Op::EndPool).unwrap();
        self.apply(&Op::EndOwn).unwrap();
        for address in std::mem::take(&mut self.live).into_keys() {
            self.allocator.free(address).unwrap();
        }
        for pool in [POOL, OWN] {
            while self.allocator.pool_uses(pool) > 0 {
                self.allocator.release_pool(pool).unwrap();
            }
        }
        self.allocator.release_cached().unwrap();
        self.check();
        assert_eq!(self.backing.used(), 0);
        assert_eq!(self.allocator.statistics().all.inactive_split_bytes.current, 0);
        assert_eq!(self.allocator.statistics().all.active.current, 0);
        assert!(self.allocator.snapshot().segments.is_empty());
        if let Engine::Paged(..) = self.engine {
            drop(self.allocator);
        }
        assert_eq!(self.backing.reserved_address_space(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_never_overlap_and_figures_are_exact(
        engine in prop_oneof![native(), paged()],
        ops in prop::collection::vec(op(), 1..120),
        // Reading statistics makes the paged allocator's heaps give back their parked memory, so it is not done after
        // every operation.
        check_every in 1..12_usize,
    ) {
        let mut model = Model::new(engine);
        for (number, op) in ops.iter().enumerate() {
            // Errors are expected: memory is short, and calls are made to fail.
            let _ = model.apply(op);
            if number % check_every == 0 {
                model.check();
            }
        }
        model.check_snapshot();
        model.finish();
    }
}

/// Returns a workload that makes every kind of call: growth, streams, a full device, a capture, release.
fn workload() -> Vec<Op> {
    let allocate = |mib: u64, stream| Op::Allocate { bytes: mib * MIB, stream, tag: 0 };
    let small = |stream| Op::Allocate { bytes: 700, stream, tag: 1 };
    vec![
        // Nearly all of the device is held for a stream that must be waited for before the next block fits.
        allocate(400, 0),
        Op::RecordStream { index: 0, stream: 1 },
        Op::Free { index: 0 },
        allocate(420, 2),
        Op::Free { index: 0 },
        Op::ReleaseCached,
        small(0),
        allocate(30, 0),
        allocate(70, 0),
        allocate(45, 1),
        Op::RecordStream { index: 2, stream: 1 },
        Op::RecordStream { index: 2, stream: 2 },
        Op::Free { index: 2 },
        Op::BeginPool,
        allocate(25, 1),
        Op::RecordStream { index: 1, stream: 2 },
        Op::Free { index: 1 },
        Op::EndPool,
        Op::Pass { stream: 1 },
        small(2),
        Op::Pass { stream: 2 },
        Op::Free { index: 0 },
        allocate(150, 0),
        Op::Free { index: 3 },
        allocate(170, 2),
        // The request exceeds the free memory, so all cached memory is given back first.
        allocate(220, 1),
        Op::Free { index: 3 },
        Op::ReleaseCached,
        allocate(20, 0),
        // A pool is set back while another stream uses its last block; another pool has segments from its own source.
        Op::BeginPool,
        allocate(3, 1),
        Op::EndPool,
        Op::Checkpoint,
        Op::BeginPool,
        allocate(5, 1),
        Op::EndPool,
        Op::RecordStream { index: 6, stream: 0 },
        Op::Restore,
        Op::BeginOwn,
        allocate(15, 2),
        Op::EndOwn,
        Op::ReleasePool,
        Op::ReleaseCached,
    ]
}

/// Runs the workload with `count` calls failing from the `first` on. An operation that fails is repeated at once, and
/// must then succeed.
fn survives_failures(engine: &Engine, first: u64, count: u64) {
    let mut model = Model::new(engine.clone());
    model.backing.fail_calls(first..first + count);
    for op in workload() {
        let before = model.live.len();
        if let Err(error) = model.apply(&op) {
            assert!(matches!(error, AllocError::Backing(_)), "call {first}: {op:?}: {error}");
            assert_eq!(model.live.len(), before);
            model.check();
            model.backing.fail_none();
            model.apply(&op).unwrap_or_else(|error| panic!("after call {first} failed: {op:?}: {error}"));
        }
        model.check();
    }
    model.check_snapshot();
    model.finish();
}

fn survives_every_failure(engine: &Engine) {
    let mut undisturbed = Model::new(engine.clone());
    workload().iter().for_each(|op| undisturbed.apply(op).unwrap());
    assert!(undisturbed.allocator.statistics().num_alloc_retries > 0, "the workload must fill the device");
    let calls = undisturbed.backing.call_count();

    for count in [1, 2, 5, 1000] {
        for first in 0..calls {
            survives_failures(engine, first, count);
        }
    }
}

#[test]
fn any_failing_call_leaves_the_native_allocator_usable_and_exact() {
    survives_every_failure(&Engine::Native(NativeConfig::default()));
}

#[test]
fn any_failing_call_leaves_the_expandable_allocator_usable_and_exact() {
    survives_every_failure(&Engine::Native(NativeConfig::expandable()));
}

#[test]
fn any_failing_call_leaves_the_paged_allocator_usable_and_exact() {
    for (slack_bytes, expandable) in [(0, true), (62 * MIB, false)] {
        let config = PagedConfig { slack_bytes, ..PagedConfig::default() };
        survives_every_failure(&Engine::Paged(config, expandable));
    }
}

#[test]
fn threads_on_streams_of_their_own_share_an_allocator() {
    for engine in [Engine::Native(NativeConfig::default()), Engine::Paged(PagedConfig::default(), false)] {
        let backing = Arc::new(FakeBacking::new(512 * MIB));
        let allocator = engine.build(&backing);
        std::thread::scope(|scope| {
            for stream in 0..4 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for round in 0..500 {
                        let sizes = [512, 4096, (round % 7 + 1) * MIB];
                        sizes
                            .map(|bytes| allocator.allocate(Request::new(bytes, StreamId(stream))).unwrap())
                            .iter()
                            .for_each(|block| allocator.free(block.address).unwrap());
                    }
                });
            }
        });
        let statistics = allocator.statistics();
        assert_eq!((statistics.all.allocation.current, statistics.all.allocation.freed), (0, 6000));
        assert_eq!(statistics.all.reserved_bytes.current, backing.used());
    }
}
