//! Tests of memory donated to an allocator: the requests it serves, and how it is taken back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{FakeBacking, GIB, MIB, busy_backing};
use proptest::prelude::*;
use tenure_alloc::adaptor::{Donated, PlacedBlock, RangeGate, RangePlacement};
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{
    AllocError, Backing, BackingError, CachingAllocator, MemoryReports, NativeAllocator, NativeConfig, PoolId, PoolUse,
    PrivatePools, Request, Resource,
};
use tenure_core::{StreamId, Tag};

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);
const POOL: PoolId = PoolId(0, 5);

struct Fixture {
    backing: Arc<FakeBacking>,
    donated: Donated<NativeAllocator>,
}

impl Fixture {
    fn new() -> Self {
        let backing = busy_backing(GIB);
        let inner = NativeAllocator::new(Arc::clone(&backing) as _, NativeConfig::default()).unwrap();
        let donated = Donated::new(inner, Arc::clone(&backing) as _);
        Self { backing, donated }
    }

    /// Gives `bytes` bytes to `stream`; returns their address.
    fn insert(&self, bytes: u64, stream: StreamId) -> u64 {
        let address = self.backing.malloc(bytes).unwrap();
        self.donated.donated().insert(address, bytes, stream, RangePlacement::BestFit).unwrap();
        address
    }

    /// Gives `bytes` bytes to stream A with a placement; returns their address.
    fn insert_as(&self, bytes: u64, placement: RangePlacement) -> u64 {
        let address = self.backing.malloc(bytes).unwrap();
        self.donated.donated().insert(address, bytes, A, placement).unwrap();
        address
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> u64 {
        self.donated.allocate(Request::new(bytes, stream)).unwrap().address
    }

    fn free(&self, address: u64) {
        self.donated.free(address).unwrap();
    }
}

#[test]
fn large_requests_on_its_stream_are_served_from_it() {
    let f = Fixture::new();
    let range = f.insert(32 * MIB, A);
    let inside = |address: u64| (range..range + 32 * MIB).contains(&address);
    assert!(inside(f.alloc(2 * MIB, A)));
    assert!(!inside(f.alloc(2 * MIB, B)), "another stream");
    assert!(!inside(f.alloc(MIB, A)), "a small request");
    assert!(!inside(f.alloc(31 * MIB, A)), "more than is left");
}

#[test]
fn the_smallest_piece_that_fits_is_split_and_merged_again() {
    let f = Fixture::new();
    let large = f.insert(32 * MIB, A);
    let small = f.insert(8 * MIB, A);
    let first = f.alloc(5 * MIB, A);
    let second = f.alloc(4 * MIB, A);
    assert_eq!((first, second), (small, large));
    f.free(first);
    f.free(second);
    assert_eq!((f.alloc(8 * MIB, A), f.alloc(32 * MIB, A)), (small, large));
}

#[test]
fn ranges_that_overlap_or_do_not_fit_the_grid_are_refused() {
    let f = Fixture::new();
    let range = f.insert(8 * MIB, A);
    for (address, bytes) in [(range + MIB, 512), (range - 512, 1024), (range - 512, 16 * MIB)] {
        let error = f.donated.donated().insert(address, bytes, B, RangePlacement::BestFit).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
    }
    for (address, bytes) in [(1, 512), (512, 511), (512, 0), (0, 512), (u64::MAX - 511, 1024)] {
        assert!(matches!(
            f.donated.donated().insert(address, bytes, B, RangePlacement::BestFit),
            Err(AllocError::InvalidSetting { .. })
        ));
    }
    f.donated.donated().insert(range - 512, 512, B, RangePlacement::BestFit).unwrap();
}

#[test]
fn clear_takes_out_one_range_and_only_when_nothing_lives_there() {
    let f = Fixture::new();
    let first = f.insert(8 * MIB, A);
    let second = f.insert(4 * MIB, A);
    let blocks = [f.alloc(5 * MIB, A), f.alloc(4 * MIB, A)];
    assert_eq!(blocks, [first, second]);
    f.free(blocks[0]);
    f.donated.donated().clear(first).unwrap();
    let error = f.donated.donated().clear(second).unwrap_err();
    assert_eq!(error, AllocError::StillInUse { bytes: 4 * MIB, blocks: 1, stream: A });
    f.free(blocks[1]);
    assert_eq!(f.donated.donated().clear(first), Err(AllocError::UnknownAddress(first)));
    assert_eq!(f.alloc(2 * MIB, A), second);
    f.donated.donated().insert(first, 8 * MIB, B, RangePlacement::BestFit).unwrap();
    assert_eq!(f.alloc(2 * MIB, B), first);
}

#[test]
fn a_recorded_stream_holds_a_block_back_until_it_has_passed() {
    let f = Fixture::new();
    let range = f.insert(8 * MIB, A);
    let block = f.alloc(8 * MIB, A);
    f.donated.record_stream(block, B).unwrap();
    f.backing.launch(B, block, 8 * MIB);
    f.free(block);
    assert_eq!(f.donated.statistics().all.active.current, 1);
    assert_ne!(f.alloc(8 * MIB, A), range);
    f.backing.pass(B);
    assert_eq!(f.alloc(8 * MIB, A), range);
}

#[test]
fn clear_waits_for_other_streams_of_freed_blocks() {
    let f = Fixture::new();
    let range = f.insert(8 * MIB, A);
    let block = f.alloc(8 * MIB, A);
    f.donated.record_stream(block, B).unwrap();
    f.free(block);
    f.donated.donated().clear(range).unwrap();
    assert_eq!(f.backing.calls()["synchronize"], 1);
}

#[test]
fn a_capture_gets_none_of_it_and_asks_nothing_of_streams() {
    let f = Fixture::new();
    let range = f.insert(8 * MIB, A);
    let block = f.alloc(8 * MIB, A);
    f.donated.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == A)).unwrap();
    f.donated.record_stream(block, B).unwrap();
    f.free(block);
    assert_ne!(f.alloc(8 * MIB, A), range);
    assert_eq!(
        f.donated.donated().clear(range).unwrap_err(),
        AllocError::StillInUse { bytes: 8 * MIB, blocks: 1, stream: A }
    );
    assert!(!f.backing.calls().contains_key("record"));
    f.donated.end_pool(POOL).unwrap();
    f.donated.donated().clear(range).unwrap();
}

#[test]
fn a_block_is_freed_once_and_only_where_it_begins() {
    let f = Fixture::new();
    f.insert(8 * MIB, A);
    let block = f.alloc(4 * MIB, A);
    for address in [block + 512, block + 5 * MIB] {
        assert_eq!(f.donated.free(address), Err(AllocError::UnknownAddress(address)));
        assert_eq!(f.donated.record_stream(address, B), Err(AllocError::UnknownAddress(address)));
    }
    f.free(block);
    assert_eq!(f.donated.free(block), Err(AllocError::UnknownAddress(block)));
}

#[test]
fn a_freed_block_that_cannot_be_asked_about_fails_no_other_request() {
    let f = Fixture::new();
    let range = f.insert(16 * MIB, A);
    let block = f.alloc(8 * MIB, A);
    f.donated.record_stream(block, B).unwrap();
    f.free(block);
    f.backing.fail_calls(0..1);
    assert_eq!(f.alloc(8 * MIB, A), range + 8 * MIB);
    f.backing.fail_calls(0..1);
    f.donated.donated().clear(range).unwrap_err();
}

#[test]
fn a_mark_that_fails_leaves_the_block_live() {
    let f = Fixture::new();
    f.insert(8 * MIB, A);
    let block = f.alloc(4 * MIB, A);
    f.donated.record_stream(block, B).unwrap();
    f.backing.fail_calls(0..1);
    assert!(matches!(f.donated.free(block), Err(AllocError::Backing(_))));
    f.free(block);
}

#[derive(Clone, Debug)]
enum Op {
    Insert { mib: u64, stream: u64 },
    Clear { index: usize },
    Allocate { bytes: u64, stream: u64, tag: usize },
    Free { index: usize },
    RecordStream { index: usize, stream: u64 },
    Pass { stream: u64 },
    BeginPool,
    EndPool,
    FailCall { after: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (2..24_u64, 0..3_u64).prop_map(|(mib, stream)| Op::Insert { mib, stream }),
        1 => any::<usize>().prop_map(|index| Op::Clear { index }),
        8 => (prop_oneof![1..2 * MIB, MIB..12 * MIB], 0..3_u64, 0..Tag::ALL.len())
            .prop_map(|(bytes, stream, tag)| Op::Allocate { bytes, stream, tag }),
        7 => any::<usize>().prop_map(|index| Op::Free { index }),
        3 => (any::<usize>(), 0..3_u64).prop_map(|(index, stream)| Op::RecordStream { index, stream }),
        2 => (0..3_u64).prop_map(|stream| Op::Pass { stream }),
        1 => Just(Op::BeginPool),
        1 => Just(Op::EndPool),
        1 => (0..4_u64).prop_map(|after| Op::FailCall { after }),
    ]
}

/// The adaptor, and the state that it should have.
struct Model {
    f: Fixture,
    /// The bytes and requested bytes of live blocks, by address.
    live: BTreeMap<u64, (u64, u64)>,
    ranges: BTreeMap<u64, (u64, StreamId)>,
    /// The bytes of ranges taken back.
    cleared: u64,
    capturing: bool,
}

impl Model {
    fn apply(&mut self, op: &Op) -> Result<(), AllocError> {
        let Fixture { backing, donated } = &self.f;
        match *op {
            Op::Insert { mib, stream } => {
                let bytes = mib * MIB;
                let stream = StreamId(stream);
                let address = backing.malloc(bytes)?;
                donated.donated().insert(address, bytes, stream, RangePlacement::BestFit)?;
                self.ranges.insert(address, (bytes, stream));
            }
            Op::Clear { index } => {
                let at = index.checked_rem(self.ranges.len()).and_then(|index| self.ranges.iter().nth(index));
                if let Some((&address, &(bytes, _))) = at {
                    donated.donated().clear(address)?;
                    assert!(self.live.range(address..address + bytes).next().is_none(), "blocks live there");
                    self.ranges.remove(&address);
                    self.cleared += bytes;
                }
            }
            Op::Allocate { bytes, stream, tag } => {
                let stream = StreamId(stream);
                let block = donated.allocate(Request::new(bytes, stream).with_tag(Tag::ALL[tag]))?;
                let end = block.address + block.bytes;
                let before = self.live.range(..end).next_back();
                assert!(before.is_none_or(|(start, live)| start + live.0 <= block.address), "blocks overlap");
                let range = self.ranges.range(..=block.address).next_back();
                if let Some((start, range)) = range.filter(|(start, range)| block.address < **start + range.0) {
                    assert!(end <= start + range.0 && range.1 == stream && bytes > MIB);
                    assert!(!self.capturing || stream != A, "a captured stream got donated memory");
                }
                backing.assert_exclusive(stream, block.address, block.bytes);
                backing.launch(stream, block.address, block.bytes);
                self.live.insert(block.address, (block.bytes, bytes));
            }
            Op::Free { index } => {
                if let Some(address) = self.pick(index) {
                    donated.free(address)?;
                    self.live.remove(&address);
                }
            }
            Op::RecordStream { index, stream } => {
                if let Some(address) = self.pick(index) {
                    donated.record_stream(address, StreamId(stream))?;
                    if !self.capturing {
                        backing.launch(StreamId(stream), address, self.live[&address].0);
                    }
                }
            }
            Op::Pass { stream } => backing.pass(StreamId(stream)),
            Op::BeginPool if !self.capturing => {
                donated.begin_pool(POOL, PoolUse::Capture, Box::new(|stream| stream == A))?;
                self.capturing = true;
            }
            Op::EndPool if self.capturing => {
                donated.end_pool(POOL)?;
                self.capturing = false;
            }
            Op::BeginPool | Op::EndPool => {}
            Op::FailCall { after } => backing.fail_calls(after..after + 1),
        }
        Ok(())
    }

    fn pick(&self, index: usize) -> Option<u64> {
        self.live.keys().nth(index.checked_rem(self.live.len())?).copied()
    }

    fn check(&self) {
        let all = self.f.donated.statistics().all;
        assert_eq!(all.allocated_bytes.current, self.live.values().map(|live| live.0).sum());
        assert_eq!(all.reserved_bytes.current + self.cleared, self.f.backing.used());
        assert!(all.allocated_bytes.current <= all.active_bytes.current);
        assert!(all.active_bytes.current <= all.reserved_bytes.current);

        let snapshot = self.f.donated.snapshot();
        let external: Vec<_> = snapshot.segments.iter().filter(|segment| segment.is_external).collect();
        let ranges: Vec<_> = self.ranges.iter().map(|(&address, &(bytes, stream))| (address, bytes, stream)).collect();
        assert_eq!(external.iter().map(|s| (s.address, s.bytes(), s.stream)).collect::<Vec<_>>(), ranges);
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let active = blocks.filter(|block| block.state != SnapshotState::Inactive);
        assert_eq!(all.requested_bytes.current, active.clone().map(|block| block.requested).sum());
        let allocated = active.filter(|block| block.state == SnapshotState::Allocated);
        let allocated: BTreeMap<u64, (u64, u64)> =
            allocated.map(|block| (block.address, (block.bytes, block.requested))).collect();
        assert_eq!(allocated, self.live);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_never_overlap_and_figures_are_exact(ops in prop::collection::vec(op(), 1..100)) {
        let mut model = Model {
            f: Fixture::new(),
            live: BTreeMap::new(),
            ranges: BTreeMap::new(),
            cleared: 0,
            capturing: false,
        };
        for op in &ops {
            // Errors are expected: ranges are in use, and calls are made to fail.
            let _ = model.apply(op);
            model.check();
        }
        model.f.backing.fail_none();
        model.apply(&Op::EndPool).unwrap();
        for address in std::mem::take(&mut model.live).into_keys() {
            model.f.free(address);
        }
        while !model.ranges.is_empty() {
            model.apply(&Op::Clear { index: 0 }).unwrap();
        }
        model.f.donated.release_cached().unwrap();
        model.check();
        prop_assert_eq!(model.f.donated.statistics().all.active.current, 0);
    }
}

#[test]
fn a_range_filled_in_order_takes_every_request_and_repeats_itself() {
    let places = [0; 2].map(|_| {
        let f = Fixture::new();
        let range = f.insert_as(8 * MIB, RangePlacement::InOrder);
        let blocks = [4, MIB, 100, 2 * MIB].map(|bytes| f.alloc(bytes, A));
        f.free(blocks[1]);
        (blocks.map(|block| block - range), f.alloc(512, A) - range)
    });
    assert_eq!(places[0], ([0, 512, 512 + MIB, 1024 + MIB], 512), "the first place that is free");
    assert_eq!(places[0], places[1]);
}

#[test]
fn where_requests_come_to_lie_is_known_before() {
    let f = Fixture::new();
    let range = f.insert_as(8 * MIB, RangePlacement::InOrder);
    let requests = [4, MIB, 512, 513, 1];
    let first = requests.map(|bytes| f.alloc(bytes, A))[0];
    assert_eq!(first, range);
    assert_eq!(f.donated.donated().close(range).unwrap(), PlacedBlock::in_order(&requests));
    assert_eq!(PlacedBlock::in_order(&[u64::MAX, 1])[1].offset, u64::MAX, "more than there is of anything");
}

#[test]
fn a_range_filled_in_order_refuses_what_it_has_no_place_for() {
    let f = Fixture::new();
    f.insert_as(8 * MIB, RangePlacement::InOrder);
    f.alloc(7 * MIB, A);
    let error = f.donated.allocate(Request::new(2 * MIB, A)).unwrap_err();
    assert_eq!(error, AllocError::RangeFull { requested: 2 * MIB, bytes: 8 * MIB, free: MIB });
    f.alloc(2 * MIB, B);
}

#[test]
fn a_recorded_range_places_the_same_requests_at_the_same_offsets() {
    let f = Fixture::new();
    let range = f.insert_as(8 * MIB, RangePlacement::InOrder);
    let blocks = [4, MIB, 100].map(|bytes| f.alloc(bytes, A));
    f.free(blocks[0]);
    let layout = f.donated.donated().close(range).unwrap();
    assert_eq!(layout, [(512, MIB), (512 + MIB, 100)].map(|(offset, bytes)| PlacedBlock { offset, bytes }));
    assert!(!(range..range + 8 * MIB).contains(&f.alloc(2 * MIB, A)), "it takes nothing more");
    assert_eq!(f.donated.donated().close(range).unwrap(), layout);

    let f = Fixture::new();
    let range = f.insert_as(8 * MIB, RangePlacement::Recorded(layout));
    assert_eq!(f.donated.donated().outstanding(range), 2);
    let error = f.donated.allocate(Request::new(100, A)).unwrap_err();
    assert_eq!(error, AllocError::LayoutDiffers { index: 0, requested: 100, recorded: MIB });
    assert_eq!([MIB, 100].map(|bytes| f.alloc(bytes, A) - range), [512, 512 + MIB]);
    assert_eq!(f.donated.donated().outstanding(range), 0);
    assert!(!(range..range + 8 * MIB).contains(&f.alloc(100, A)));
}

#[test]
fn recorded_blocks_must_lie_in_the_range_and_apart() {
    let f = Fixture::new();
    let address = f.backing.malloc(MIB).unwrap();
    let placed = |offset, bytes| PlacedBlock { offset, bytes };
    for layout in [
        vec![placed(MIB, 1)],
        vec![placed(0, MIB + 1)],
        vec![placed(1, 1)],
        vec![placed(0, 0)],
        vec![placed(512, 1), placed(0, 513)],
        vec![placed(u64::MAX - 511, 1)],
        vec![placed(0, u64::MAX)],
    ] {
        let inserted = f.donated.donated().insert(address, MIB, A, RangePlacement::Recorded(layout.clone()));
        assert!(matches!(inserted, Err(AllocError::InvalidSetting { .. })), "{layout:?}");
    }
    f.donated.donated().insert(address, MIB, A, RangePlacement::InOrder).unwrap();
    let other = f.backing.malloc(MIB).unwrap();
    assert!(f.donated.donated().insert(other, MIB, A, RangePlacement::InOrder).is_err(), "which of them?");
}

#[test]
fn parameters_come_before_computation_on_the_same_stream() {
    let f = Fixture::new();
    let computation = f.insert(8 * MIB, A);
    let parameters = f.insert_as(8 * MIB, RangePlacement::InOrder);
    assert_eq!(f.alloc(2 * MIB, A), parameters);
    f.donated.donated().close(parameters).unwrap();
    assert_eq!(f.alloc(2 * MIB, A), computation);
}

/// A gate that counts the blocks inside, and refuses entry while it is closed.
#[derive(Default)]
struct Counting {
    inside: AtomicI64,
    is_closed: AtomicBool,
    is_over: AtomicBool,
    captures_ended: AtomicI64,
    /// A block that `enter` frees, as another thread might while an allocation waits to enter.
    frees: Mutex<Option<(Arc<Donated<NativeAllocator>>, u64)>>,
}

impl RangeGate for Counting {
    fn enter(&self) -> Result<bool, BackingError> {
        if let Some((donated, block)) = self.frees.lock().unwrap().take() {
            donated.free(block).unwrap();
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(BackingError::Failed { call: "gate", reason: "closed".into() });
        }
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.inside.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
    }

    fn after_captures(&self) {
        self.captures_ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes a gate, and a range that may be used only inside it.
fn behind_gate(f: &Fixture, bytes: u64) -> (Arc<Counting>, u64) {
    let gate = Arc::new(Counting::default());
    let address = f.backing.malloc(bytes).unwrap();
    f.donated.donated().insert_behind(Arc::clone(&gate) as _, address, bytes, A).unwrap();
    (gate, address)
}

#[test]
fn a_gate_is_entered_for_each_block_and_left_with_it() {
    let f = Fixture::new();
    let (gate, range) = behind_gate(&f, 8 * MIB);
    let inside = || gate.inside.load(Ordering::Relaxed);
    let blocks = [3 * MIB, 4 * MIB].map(|bytes| f.alloc(bytes, A));
    assert_eq!((blocks[0], inside()), (range, 2));
    // Neither a small block nor one for which there is no room is placed there.
    let elsewhere = [MIB, 4 * MIB].map(|bytes| f.alloc(bytes, A));
    assert_eq!(inside(), 2);
    elsewhere.into_iter().for_each(|block| f.free(block));
    f.donated.record_stream(blocks[0], B).unwrap();
    f.backing.launch(B, blocks[0], MIB);
    f.free(blocks[0]);
    assert_eq!(inside(), 1, "the stream that leaves waits for the other");
    f.free(blocks[1]);
    assert_eq!(inside(), 0);
    assert!(f.donated.free(blocks[1]).is_err());
    assert_eq!(inside(), 0);
}

#[test]
fn a_gate_is_told_when_the_last_capture_has_ended() {
    let f = Fixture::new();
    let (gate, _) = behind_gate(&f, 8 * MIB);
    let begin = |number, purpose| f.donated.begin_pool(PoolId(0, number), purpose, Box::new(|_| false)).unwrap();
    let ended = |number| {
        f.donated.end_pool(PoolId(0, number)).unwrap();
        gate.captures_ended.load(Ordering::Relaxed)
    };
    begin(1, PoolUse::Eager);
    assert_eq!(ended(1), 0, "nothing was captured");
    begin(1, PoolUse::Capture);
    begin(2, PoolUse::Capture);
    assert_eq!([ended(1), ended(2)], [0, 1]);
    begin(1, PoolUse::Eager);
    f.donated.set_pool_use(PoolId(0, 1), PoolUse::Capture);
    assert_eq!(gate.captures_ended.load(Ordering::Relaxed), 1);
    f.donated.set_pool_use(PoolId(0, 1), PoolUse::Eager);
    assert_eq!(gate.captures_ended.load(Ordering::Relaxed), 2);
    assert_eq!(ended(1), 2);
}

#[test]
fn nothing_is_placed_behind_a_gate_that_is_closed() {
    let f = Fixture::new();
    let (gate, range) = behind_gate(&f, 8 * MIB);
    gate.is_closed.store(true, Ordering::Relaxed);
    assert!(matches!(f.donated.allocate(Request::new(2 * MIB, A)), Err(AllocError::Backing(_))), "nor elsewhere");
    gate.is_closed.store(false, Ordering::Relaxed);
    assert_eq!(f.alloc(8 * MIB, A), range);
}

#[test]
fn behind_a_gate_that_says_so_requests_are_served_from_elsewhere() {
    let f = Fixture::new();
    let (gate, range) = behind_gate(&f, 8 * MIB);
    let block = f.alloc(2 * MIB, A);
    gate.is_over.store(true, Ordering::Relaxed);
    assert!(!(range..range + 8 * MIB).contains(&f.alloc(2 * MIB, A)));
    f.free(block);
    assert_eq!(gate.inside.load(Ordering::Relaxed), 0);
}

/// Checks that no lock is held while a gate is entered, because entering may wait for a thread that frees a block.
#[test]
fn a_gate_is_entered_under_no_lock_and_the_place_found_again() {
    let f = Fixture::new();
    let other = f.insert(4 * MIB, A);
    let block = f.alloc(4 * MIB, A);
    let (gate, range) = behind_gate(&f, 8 * MIB);
    let donated = Arc::new(f.donated);
    *gate.frees.lock().unwrap() = Some((Arc::clone(&donated), block));
    let placed = donated.allocate(Request::new(3 * MIB, A)).unwrap().address;
    assert_eq!(placed, other, "the smaller piece, which was freed meanwhile");
    assert_eq!(gate.inside.load(Ordering::Relaxed), 0);
    assert_eq!(donated.allocate(Request::new(8 * MIB, A)).unwrap().address, range);
}

#[test]
fn blocks_in_order_are_remembered_until_they_are_overlapped() {
    let f = Fixture::new();
    let range = f.insert_as(8 * MIB, RangePlacement::InOrder);
    let donated = f.donated.donated();
    let sizes = |placed: Vec<PlacedBlock>| placed.into_iter().map(|placed| placed.bytes).collect::<Vec<_>>();
    let blocks = [1000, 2000, 3000].map(|bytes| f.alloc(bytes, A));
    f.free(blocks[0]);
    f.free(blocks[1]);
    assert_eq!(sizes(donated.live(range).unwrap()), [3000]);
    assert_eq!(sizes(donated.placed(range).unwrap()), [1000, 2000, 3000]);
    assert_eq!(f.alloc(1500, A), range);
    assert_eq!(sizes(donated.live(range).unwrap()), [3000, 1500]);
    assert_eq!(sizes(donated.placed(range).unwrap()), [3000, 1500]);
    let other = f.insert(8 * MIB, A);
    assert_eq!(donated.live(other), Err(AllocError::UnknownAddress(other)));
}
