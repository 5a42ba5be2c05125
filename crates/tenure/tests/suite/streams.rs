//! Tests of allocators under work that runs: the simulated driver finds every use of memory that no stream order, event
//! or wait orders after the previous use.

use std::sync::Arc;

use proptest::prelude::*;
use tenure_alloc::{CachingAllocator, NativeAllocator, NativeConfig, PagedAllocator, PagedConfig, Request};
use tenure_core::StreamId;
use tenure_device::sim::{SimConfig, SimDriver, SimKernel};
use tenure_device::{DeviceBacking, Driver, EventCalls, EventKind, Priority, StreamCalls};

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Engine {
    Native,
    Expandable,
    Paged,
}

const ENGINES: [Engine; 3] = [Engine::Native, Engine::Expandable, Engine::Paged];

/// A device, three streams, and an allocator on it.
struct StreamBench {
    sim: Arc<SimDriver>,
    allocator: Arc<dyn CachingAllocator>,
    streams: Vec<StreamId>,
}

impl StreamBench {
    fn new(engine: Engine, seed: u64, slack_bytes: u64) -> Self {
        let config = SimConfig { capacity_bytes: 256 * MIB, seed, ..SimConfig::default() };
        let sim = Arc::new(SimDriver::new(config));
        let streams = (0..3).map(|_| sim.create_stream(Priority::Default).unwrap()).collect();
        let backing = Arc::new(DeviceBacking::new(Arc::clone(&sim) as Arc<dyn Driver>));
        let allocator: Arc<dyn CachingAllocator> = match engine {
            Engine::Native => Arc::new(NativeAllocator::new(backing, NativeConfig::default()).unwrap()),
            Engine::Expandable => Arc::new(NativeAllocator::new(backing, NativeConfig::expandable()).unwrap()),
            Engine::Paged => {
                let config = PagedConfig { slack_bytes, mappings_per_chunk: 2, ..PagedConfig::default() };
                Arc::new(PagedAllocator::new(backing, config).unwrap())
            }
        };
        Self { sim, allocator, streams }
    }

    fn allocate(&self, bytes: u64, stream: StreamId) -> u64 {
        self.allocator.allocate(Request::new(bytes, stream)).unwrap().address
    }

    /// Makes `stream` wait for everything on `other`.
    fn follow(&self, stream: StreamId, other: StreamId) {
        let event = self.sim.create_event(EventKind::Timing).unwrap();
        self.sim.record_event(event, other).unwrap();
        self.sim.wait_event(stream, event).unwrap();
    }
}

/// A block is written on one stream, read on another and freed; its memory is then used again on the first.
fn produce_and_consume(engine: Engine, seed: u64, record: bool) -> Result<(), String> {
    let bench = StreamBench::new(engine, seed, 0);
    let [producer, consumer, _] = bench.streams[..] else { unreachable!() };
    let bytes = 4 * MIB;
    let block = bench.allocate(bytes, producer);
    bench.sim.launch(SimKernel::new("produce", producer).writes(block, bytes)).unwrap();
    bench.follow(consumer, producer);
    bench.sim.launch(SimKernel::new("consume", consumer).reads(block, bytes)).unwrap();
    if record {
        bench.allocator.record_stream(block, consumer).unwrap();
    }
    bench.allocator.free(block).unwrap();
    let next = bench.allocate(bytes, producer);
    bench.sim.launch(SimKernel::new("overwrite", producer).writes(next, bytes)).map_err(|error| error.to_string())?;
    bench.sim.run().map_err(|error| error.to_string())
}

#[test]
fn a_forgotten_record_stream_is_caught_with_every_schedule() {
    for (engine, seed) in ENGINES.into_iter().flat_map(|engine| (0..8).map(move |seed| (engine, seed))) {
        let error = produce_and_consume(engine, seed, false).unwrap_err();
        assert!(error.contains("overwrite") && error.contains("consume"), "{engine:?}, seed {seed}: {error}");
    }
}

#[test]
fn a_recorded_stream_is_waited_for_with_every_schedule() {
    for (engine, seed) in ENGINES.into_iter().flat_map(|engine| (0..8).map(move |seed| (engine, seed))) {
        produce_and_consume(engine, seed, true).unwrap_or_else(|error| panic!("{engine:?}, seed {seed}: {error}"));
    }
}

#[derive(Clone, Debug)]
enum StreamOp {
    Allocate { bytes: u64, stream: usize },
    Use { block: usize, stream: usize },
    Free { block: usize },
    Run { steps: usize },
    ReleaseCached,
}

fn op() -> impl Strategy<Value = StreamOp> {
    let bytes = prop_oneof![1..3000_u64, 1..MIB, 1..16 * MIB, MIB..70 * MIB];
    prop_oneof![
        8 => (bytes, 0..3_usize).prop_map(|(bytes, stream)| StreamOp::Allocate { bytes, stream }),
        3 => (any::<usize>(), 0..3_usize).prop_map(|(block, stream)| StreamOp::Use { block, stream }),
        7 => any::<usize>().prop_map(|block| StreamOp::Free { block }),
        2 => (0..9_usize).prop_map(|steps| StreamOp::Run { steps }),
        1 => Just(StreamOp::ReleaseCached),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every block is written on its stream as soon as it is allocated, and by the streams recorded on it. There are no
    /// races, no memory is unmapped in use, and each block still has its content when it is freed.
    #[test]
    fn no_memory_is_handed_out_too_early(
        engine in prop::sample::select(ENGINES.to_vec()),
        seed in any::<u64>(),
        slack in prop::sample::select(vec![0, 62 * MIB]),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let bench = StreamBench::new(engine, seed, slack);
        let mut live: Vec<(u64, u64, StreamId)> = Vec::new();
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                StreamOp::Allocate { bytes, stream } => {
                    let stream = bench.streams[stream];
                    let Ok(block) = bench.allocator.allocate(Request::new(bytes, stream)) else { continue };
                    let address = block.address;
                    let mark = (number as u64).to_le_bytes();
                    let last = address + bytes.saturating_sub(1) / 8 * 8;
                    let kernel = SimKernel::new("fill", stream).writes(address, bytes.next_multiple_of(8)).body(move |memory| {
                        memory.write(address, &mark);
                        memory.write(last, &mark);
                    });
                    bench.sim.launch(kernel).unwrap();
                    live.push((address, number as u64, stream));
                }
                StreamOp::Use { block, stream } if !live.is_empty() => {
                    let (address, _, owner) = live[block % live.len()];
                    let stream = bench.streams[stream];
                    bench.follow(stream, owner);
                    bench.allocator.record_stream(address, stream).unwrap();
                    bench.sim.launch(SimKernel::new("use", stream).reads(address, 1)).unwrap();
                }
                StreamOp::Free { block } if !live.is_empty() => {
                    let (address, number, stream) = live.swap_remove(block % live.len());
                    let check = SimKernel::new("check", stream).reads(address, 8).body(move |memory| {
                        let mut bytes = [0; 8];
                        memory.read(address, &mut bytes);
                        assert_eq!(u64::from_le_bytes(bytes), number, "the block was overwritten");
                    });
                    bench.sim.launch(check).unwrap();
                    bench.allocator.free(address).unwrap();
                }
                StreamOp::Run { steps } => (0..steps).for_each(|_| { bench.sim.step().unwrap(); }),
                StreamOp::ReleaseCached => bench.allocator.release_cached().unwrap(),
                StreamOp::Use { .. } | StreamOp::Free { .. } => {}
            }
            prop_assert!(bench.sim.fault().is_none(), "{:?}", bench.sim.fault());
        }
        bench.sim.run().unwrap();
        prop_assert!(bench.sim.fault().is_none(), "{:?}", bench.sim.fault());
    }
}
