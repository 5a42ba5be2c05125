//! The player: replays a trace's events on an allocator and a machine.

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;
use tenure_alloc::{Address, AllocError, CachingAllocator, Request};
use tenure_device::Counters;
use tenure_plan::{Summary, Trace, TraceAction, TraceEvent};

use super::kind::AllocatorKind;
use super::latency::Latencies;
use super::machine::{LiveBlock, Machine};
use super::outcome::{DriverCalls, ReplayOutcome};
use crate::Error;

/// The progress of a replay, after each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// The pass, from 0.
    pub pass: u32,
    /// The event, from 0.
    pub event: usize,
    /// Bytes requested and live.
    pub requested_bytes: u64,
    /// Bytes in live blocks.
    pub allocated_bytes: u64,
    /// Bytes of the device that the allocator holds.
    pub reserved_bytes: u64,
}

/// A replay in progress.
pub(super) struct Player<'a> {
    kind: AllocatorKind,
    repeat: u32,
    trace: &'a Trace,
    summary: &'a Summary,
    // Declared before the machine, which destroys the streams that it made.
    allocator: Box<dyn CachingAllocator>,
    machine: Box<dyn Machine>,
    /// Live blocks, by their addresses in the trace.
    live: FxHashMap<Address, LiveBlock>,
    /// The requested bytes, counted here because an allocator's own peaks may be sums over streams.
    requested: Gauge,
    allocated: Gauge,
    operations: usize,
    /// The number of blocks allocated, over all passes.
    blocks: u64,
    /// The current event, from 0.
    event: usize,
    mismatched: usize,
    allocs: Latencies,
    frees: Latencies,
}

#[derive(Default)]
struct Gauge {
    current: u64,
    peak: u64,
}

impl Gauge {
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
    }
}

impl<'a> Player<'a> {
    pub(super) fn new(
        kind: AllocatorKind,
        repeat: u32,
        trace: &'a Trace,
        summary: &'a Summary,
        machine: Box<dyn Machine>,
    ) -> Result<Self, Error> {
        let allocator = kind.build(trace.settings(), trace.device(), machine.backing())?;
        let samples = summary.allocations * repeat.max(1) as usize;
        Ok(Self {
            kind,
            repeat,
            trace,
            summary,
            allocator,
            machine,
            live: FxHashMap::default(),
            requested: Gauge::default(),
            allocated: Gauge::default(),
            operations: 0,
            blocks: 0,
            event: 0,
            mismatched: 0,
            allocs: Latencies::with_capacity(samples),
            frees: Latencies::with_capacity(samples),
        })
    }

    pub(super) fn play(
        mut self,
        observe: &mut impl FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplayOutcome, Error> {
        let mut last_pass = Counters::default();
        for pass in 0..self.repeat.max(1) {
            let before = self.machine.counters();
            self.pass(pass, observe)?;
            last_pass = self.machine.counters() - before;
        }
        self.outcome(last_pass)
    }

    fn pass(&mut self, pass: u32, observe: &mut impl FnMut(ReplayProgress) -> ControlFlow<()>) -> Result<(), Error> {
        let trace = self.trace;
        let first_us = trace.events().first().map_or(0, |event| event.time_us);
        let mut emptied = false;
        self.operations = 0;
        for (index, event) in trace.events().iter().enumerate() {
            self.event = index;
            self.machine.set_time(event.time_us - first_us);
            match event.action {
                TraceAction::Alloc => self.allocate(pass, event)?,
                // The trace's program may have freed the block long before and used it on another stream
                // (`record_stream`); a trace does not name that stream. It does say when PyTorch knew the block to be
                // reusable. The block's lifetime ends there, and every allocator can be asked to do no worse.
                TraceAction::FreeCompleted => self.free(event.address)?,
                TraceAction::SegmentFree | TraceAction::SegmentUnmap if !emptied => {
                    self.allocator.release_cached().map_err(|source| self.refused(source))?;
                }
                _ => {}
            }
            emptied = match event.action {
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => true,
                TraceAction::Alloc | TraceAction::FreeRequested | TraceAction::FreeCompleted => false,
                _ => emptied,
            };
            self.machine.replayed()?;
            let seen = observe(ReplayProgress {
                pass,
                event: index,
                requested_bytes: self.requested.current,
                allocated_bytes: self.allocated.current,
                reserved_bytes: self.machine.reserved_bytes()?,
            });
            if seen.is_break() {
                return Err(Error::Stopped { event: index });
            }
        }
        self.free_the_rest()?;
        self.machine.end_pass()
    }

    fn allocate(&mut self, pass: u32, event: &TraceEvent) -> Result<(), Error> {
        let request = Request::new(event.bytes, self.machine.stream(event.stream));
        let block = self.allocs.time(|| self.allocator.allocate(request)).map_err(|source| self.refused(source))?;
        self.operations += 1;
        self.mismatched += usize::from(pass == 0 && block.address != event.address);
        self.requested.add(event.bytes);
        self.allocated.add(block.bytes);
        let live = LiveBlock {
            address: block.address,
            requested: event.bytes,
            allocated: block.bytes,
            stream: request.stream,
            number: self.blocks,
        };
        self.blocks += 1;
        self.machine.allocated(&live)?;
        self.live.insert(event.address, live);
        Ok(())
    }

    /// Frees the block that was at `address` in the trace.
    fn free(&mut self, address: Address) -> Result<(), Error> {
        let block = self.live.remove(&address).expect("a trace frees live blocks only");
        self.machine.freeing(&block)?;
        self.frees.time(|| self.allocator.free(block.address)).map_err(|source| self.refused(source))?;
        self.operations += 1;
        self.requested.current -= block.requested;
        self.allocated.current -= block.allocated;
        Ok(())
    }

    /// Frees the blocks that are still live, in the order of the allocator's addresses.
    fn free_the_rest(&mut self) -> Result<(), Error> {
        let mut rest: Vec<_> = self.live.iter().map(|(&address, block)| (block.address, address)).collect();
        rest.sort_unstable();
        rest.into_iter().try_for_each(|(_, address)| self.free(address))
    }

    fn refused(&self, source: AllocError) -> Error {
        Error::Replay { event: self.event, allocator: self.kind, source }
    }

    fn outcome(mut self, last_pass: Counters) -> Result<ReplayOutcome, Error> {
        let counters = self.machine.counters();
        let peak_reserved_bytes = self.machine.peak_reserved_bytes();
        let peak_segments = self.allocator.statistics().all.segment.peak;
        let device = self.machine.finish(&*self.allocator)?;
        // A real device chooses its own addresses.
        let compares = self.kind == AllocatorKind::Native && device.is_none();
        Ok(ReplayOutcome {
            trace: self.trace.source().to_owned(),
            allocator: self.kind,
            events: self.summary.events,
            earlier_bytes: self.summary.earlier_bytes,
            recorded_reserved_bytes: self.summary.peak_segment_bytes,
            recorded_reserved_end_bytes: self.summary.end_segment_bytes,
            operations: self.operations,
            peak_requested_bytes: self.requested.peak,
            peak_allocated_bytes: self.allocated.peak,
            peak_reserved_bytes,
            peak_segments,
            created_bytes: counters.created_bytes,
            driver_calls: counters.into(),
            driver_calls_last_repeat: DriverCalls::from(last_pass),
            modelled_driver_us: counters.driver_us,
            modelled_driver_us_last_repeat: last_pass.driver_us,
            trace_duration_us: self.summary.duration_us,
            host_syncs: counters.host_syncs,
            cross_stream_waits: counters.stream_waits,
            mismatched_addresses: (compares && has_native_addresses(self.trace)).then_some(self.mismatched),
            alloc_ns_median: self.allocs.quantile(0.5),
            alloc_ns_p99: self.allocs.quantile(0.99),
            free_ns_median: self.frees.quantile(0.5),
            device,
        })
    }
}

impl Drop for Player<'_> {
    /// Leaves nothing on the device, even after an error. Otherwise PyTorch's allocator would keep its cache.
    fn drop(&mut self) {
        let freed = self.live.values().try_for_each(|block| self.allocator.free(block.address));
        // If the context was lost, its memory is gone too.
        let _ = freed.and_then(|()| self.allocator.release_cached());
    }
}

/// Returns whether `trace` says where the segments of PyTorch's native allocator were, starting with an empty device.
pub(super) fn has_native_addresses(trace: &Trace) -> bool {
    let complete = trace.earlier_events() == 0 && !trace.settings().expandable_segments;
    complete && trace.events().iter().any(|event| event.action == TraceAction::SegmentAlloc)
}
