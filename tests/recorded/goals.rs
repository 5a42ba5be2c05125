//! Tests of the paged allocator's goals on recorded programs: memory, driver time, and no waiting.

use std::collections::HashMap;
use std::sync::Arc;

use crate::trace;
use tenure::alloc::{Request, Resource};
use tenure::device::sim::{SimConfig, SimDriver};
use tenure::plan::Trace;
use tenure::replay::{AllocatorKind, Replay, ReplayOutcome};
use tenure_alloc::{PagedAllocator, PagedConfig};
use tenure_device::DeviceBacking;
use tenure_plan::TraceAction;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/resnet50_step.pickle.xz");

fn replay(trace: &Trace, allocator: AllocatorKind, repeat: u32, lag_us: u64) -> ReplayOutcome {
    Replay { allocator, repeat, lag_us }.run(trace).unwrap()
}

/// Checks the goals. `excess` is the share of the requested bytes that may be reserved in addition, or 64 MiB if that
/// is more.
fn keeps_its_promises(trace: &Trace, lag_us: u64, excess: f64) {
    let native = replay(trace, AllocatorKind::Native, 1, lag_us);
    let first = replay(trace, AllocatorKind::Paged, 1, lag_us);
    let paged = replay(trace, AllocatorKind::Paged, 3, lag_us);
    let name = format!("{} at a lag of {lag_us} µs", trace.source());

    let allowed = ((paged.peak_requested_bytes as f64 * excess) as u64).max(64 << 20);
    let beyond = paged.peak_reserved_bytes - paged.peak_requested_bytes;
    assert!(beyond <= allowed, "{name}: {beyond} bytes beyond what was requested");
    let cost = first.modelled_driver_us / native.modelled_driver_us;
    assert!(cost <= 5.0, "{name}: {cost} times native's driver time");
    assert_eq!((paged.host_syncs, paged.driver_calls_last_repeat.total()), (0, 0), "{name}");
    if trace.summary().streams.len() == 1 {
        assert_eq!(paged.cross_stream_waits, 0, "{name}");
    }
}

#[test]
fn the_sample_is_held_closely() {
    keeps_its_promises(&Trace::read(SAMPLE).unwrap(), 10_000, 0.01);
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn recorded_programs_are_held_closely() {
    // Llama misses the goal of 1 %; docs/benchmarks.md explains why. It must not get worse.
    let traces = [("gpt2_varlen", 0.01, 200_000), ("llama_ckpt_varlen", 0.016, 0), ("multi_model_serve", 0.01, 0)];
    for (name, excess, lag_us) in traces {
        keeps_its_promises(&trace(name), lag_us, excess);
    }
}

/// Returns the most bytes requested and reserved by a program on fine chunks.
fn peaks_on_fine_chunks(trace: &Trace) -> (u64, u64) {
    let driver = Arc::new(SimDriver::new(SimConfig { capacity_bytes: 64 << 30, ..SimConfig::default() }));
    trace.summary().streams.into_iter().for_each(|stream| driver.adopt_stream(stream));
    let backing = Arc::new(DeviceBacking::new(Arc::clone(&driver) as _));
    let allocator = PagedAllocator::new(backing, PagedConfig::fine()).unwrap();
    let mut live = HashMap::new();
    let mut requested = 0;
    let mut peak = 0;
    for event in trace.events() {
        match event.action {
            TraceAction::Alloc => {
                let block = allocator.allocate(Request::new(event.bytes, event.stream)).unwrap();
                live.insert(event.address, (block.address, event.bytes));
                requested += event.bytes;
                peak = u64::max(peak, requested);
            }
            TraceAction::FreeCompleted => {
                let (address, bytes) = live.remove(&event.address).unwrap();
                allocator.free(address).unwrap();
                requested -= bytes;
            }
            _ => {}
        }
    }
    (peak, driver.peak_bytes())
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn fine_chunks_hold_every_recorded_program_within_one_percent() {
    for name in ["resnet50_train", "densenet201_train", "gpt2_varlen", "llama_ckpt_varlen", "multi_model_serve"] {
        let (requested, reserved) = peaks_on_fine_chunks(&trace(name));
        assert!(reserved - requested <= u64::max(requested / 100, 64 << 20), "{name}: {reserved} of {requested}");
    }
}
