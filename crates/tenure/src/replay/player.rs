use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_alloc::{Address, AllocError, CachingAllocator, Request};
use tenure_core::StreamId;
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Counters, DeviceBacking, Driver};
use tenure_plan::{Action, Event, Summary, Trace};

use super::latency::Latencies;
use super::{AllocatorKind, DriverCalls, Outcome, Progress, Replay};
use crate::Error;

/// Whether `trace` says where the segments of PyTorch's native allocator were.
pub(super) fn has_native_addresses(trace: &Trace) -> bool {
    !trace.settings().expandable_segments && trace.events().iter().any(|event| event.action == Action::SegmentAlloc)
}

/// A replay under way.
pub(super) struct Player<'a> {
    replay: &'a Replay,
    trace: &'a Trace,
    summary: Summary,
    driver: Arc<SimDriver>,
    allocator: Box<dyn CachingAllocator>,
    /// Live blocks, by their address in the trace.
    live: FxHashMap<Address, Live>,
    /// Counted here, since an allocator's own peaks may be sums over streams.
    requested: Gauge,
    allocated: Gauge,
    operations: usize,
    mismatched: usize,
    allocs: Latencies,
    frees: Latencies,
}

struct Live {
    address: Address,
    requested: u64,
    allocated: u64,
    stream: StreamId,
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
    /// With `scripted`, segments get the addresses that they had when the trace was recorded.
    pub(super) fn new(replay: &'a Replay, trace: &'a Trace, scripted: bool) -> Result<Self, Error> {
        let summary = trace.summary();
        let driver = Arc::new(SimDriver::new(device_for(&summary)));
        for &stream in &summary.streams {
            driver.adopt_stream(stream);
        }
        if scripted {
            let segments = trace.events().iter().filter(|event| event.action == Action::SegmentAlloc);
            driver.script_addresses(segments.map(|event| event.address));
        }
        let backing = Arc::new(DeviceBacking::new(Arc::clone(&driver) as Arc<dyn Driver>));
        let allocator = replay.allocator.build(trace, backing)?;
        let samples = summary.allocations * replay.repeat.max(1) as usize;
        Ok(Self {
            replay,
            trace,
            summary,
            driver,
            allocator,
            live: FxHashMap::default(),
            requested: Gauge::default(),
            allocated: Gauge::default(),
            operations: 0,
            mismatched: 0,
            allocs: Latencies::with_capacity(samples),
            frees: Latencies::with_capacity(samples),
        })
    }

    pub(super) fn play(mut self, observe: &mut impl FnMut(Progress)) -> Result<Outcome, Error> {
        let mut last_pass = Counters::default();
        for pass in 0..self.replay.repeat.max(1) {
            let before = self.driver.counters();
            self.pass(pass, observe)?;
            last_pass = self.driver.counters() - before;
        }
        Ok(self.outcome(last_pass))
    }

    fn pass(&mut self, pass: u32, observe: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let trace = self.trace;
        let start_us = self.driver.now_us();
        let first_us = trace.events().first().map_or(0, |event| event.time_us);
        let mut emptied = false;
        self.operations = 0;
        for (index, event) in trace.events().iter().enumerate() {
            let now_us = start_us.saturating_add(event.time_us - first_us);
            self.driver.set_time(now_us);
            match event.action {
                Action::Alloc => self.allocate(pass, event),
                // The trace's program may have freed the block long before and used it on another stream
                // (`record_stream`), which a trace does not name. What it does tell is when PyTorch knew the block to
                // be reusable: there its tenure ends, and any allocator can be asked to do no worse.
                Action::FreeCompleted => self.free(event.address, now_us),
                Action::SegmentFree | Action::SegmentUnmap if !emptied => self.allocator.release_cached(),
                _ => Ok(()),
            }
            .map_err(|source| Error::Replay { event: index, allocator: self.replay.allocator, source })?;
            emptied = match event.action {
                Action::SegmentFree | Action::SegmentUnmap => true,
                Action::Alloc | Action::FreeRequested | Action::FreeCompleted => false,
                _ => emptied,
            };
            observe(Progress {
                pass,
                event: index,
                requested_bytes: self.requested.current,
                allocated_bytes: self.allocated.current,
                reserved_bytes: self.reserved_bytes()?,
            });
        }
        self.finish_pass(start_us)
    }

    fn allocate(&mut self, pass: u32, event: &Event) -> Result<(), AllocError> {
        let Event { address, bytes, stream, .. } = *event;
        let block = self.allocs.time(|| self.allocator.allocate(Request::new(bytes, stream)))?;
        self.operations += 1;
        self.mismatched += usize::from(pass == 0 && block.address != address);
        self.requested.add(bytes);
        self.allocated.add(block.bytes);
        self.live.insert(address, Live { address: block.address, requested: bytes, allocated: block.bytes, stream });
        Ok(())
    }

    /// Frees the block that was at `address` in the trace.
    fn free(&mut self, address: Address, now_us: u64) -> Result<(), AllocError> {
        let block = self.live.remove(&address).expect("a trace frees live blocks only");
        // Before the free, so that any mark which the allocator puts on the stream from now on comes after the work.
        if self.replay.lag_us > 0 {
            let done_us = now_us.saturating_add(self.replay.lag_us);
            self.driver.busy_until(block.stream, done_us).expect("the trace's streams were adopted");
        }
        self.frees.time(|| self.allocator.free(block.address))?;
        self.operations += 1;
        self.requested.current -= block.requested;
        self.allocated.current -= block.allocated;
        Ok(())
    }

    /// Frees what is still live, in the order of the allocator's addresses, and lets the streams complete.
    fn finish_pass(&mut self, start_us: u64) -> Result<(), Error> {
        let end_us = start_us.saturating_add(self.summary.duration_us);
        let mut rest: Vec<_> = self.live.iter().map(|(&address, block)| (block.address, address)).collect();
        rest.sort_unstable();
        for (_, address) in rest {
            self.free(address, end_us)?;
        }
        // The clock may be ahead of the trace, where the host had to wait. The program that waits here is not the
        // allocator, so nothing is counted.
        self.driver.set_time(end_us.max(self.driver.now_us()).saturating_add(self.replay.lag_us).saturating_add(1));
        Ok(())
    }

    fn reserved_bytes(&self) -> Result<u64, Error> {
        let info = self.driver.memory_info()?;
        Ok(info.total - info.free)
    }

    fn outcome(mut self, last_pass: Counters) -> Outcome {
        let counters = self.driver.counters();
        let is_native = self.replay.allocator == AllocatorKind::Native;
        Outcome {
            trace: self.trace.source().to_owned(),
            allocator: self.replay.allocator,
            events: self.summary.events,
            operations: self.operations,
            peak_requested_bytes: self.requested.peak,
            peak_allocated_bytes: self.allocated.peak,
            peak_reserved_bytes: self.driver.peak_bytes(),
            peak_segments: self.allocator.statistics().all.segment.peak,
            created_bytes: counters.created_bytes,
            driver_calls: counters.into(),
            driver_calls_last_repeat: DriverCalls::from(last_pass),
            modelled_driver_us: counters.driver_us,
            modelled_driver_us_last_repeat: last_pass.driver_us,
            trace_duration_us: self.summary.duration_us,
            host_syncs: counters.host_syncs,
            cross_stream_waits: counters.stream_waits,
            mismatched_addresses: (is_native && has_native_addresses(self.trace)).then_some(self.mismatched),
            alloc_ns_median: self.allocs.quantile(0.5),
            alloc_ns_p99: self.allocs.quantile(0.99),
            free_ns_median: self.frees.quantile(0.5),
        }
    }
}

/// An H200, or a device with room for four times the peak: PyTorch's allocator may hold twice of it.
fn device_for(summary: &Summary) -> SimConfig {
    /// Several times the memory of any device; an allocator's tables may grow with it.
    const LARGEST: u64 = 1 << 40;
    let h200 = SimConfig::default();
    let ample = summary.peak_requested_bytes.saturating_mul(4).min(LARGEST).next_multiple_of(h200.granularity_bytes);
    SimConfig { capacity_bytes: h200.capacity_bytes.max(ample), ..h200 }
}
