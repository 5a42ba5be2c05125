//! A backing that counts and times the calls to another backing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;
use tenure_device::cost::{self, Cost};
use tenure_device::{Call, Counters};

use super::MeasuredCall;

/// A backing that forwards calls to another one; counts and times them, and adds up the time that the cost model
/// predicts.
///
/// It records the sizes of chunks and mappings as they are made, since a call over several chunks costs by the chunk.
pub(super) struct MeteredBacking {
    inner: Arc<dyn Backing>,
    meter: Mutex<Meter>,
}

/// The calls so far, and the memory that they hold.
#[derive(Default)]
struct Meter {
    tallies: BTreeMap<Call, CallTally>,
    /// The bytes of all segments and chunks so far, freed or not.
    created_bytes: u64,
    /// The bytes of segments and chunks that exist now.
    held_bytes: u64,
    /// The most bytes held at once.
    peak_bytes: u64,
    /// The bytes of each segment.
    segments: FxHashMap<Address, u64>,
    /// The bytes of each chunk.
    chunks: FxHashMap<ChunkId, u64>,
    /// The bytes of each mapping, by its address.
    mappings: BTreeMap<Address, u64>,
}

/// The calls of one kind, and their time.
#[derive(Clone, Copy, Default)]
struct CallTally {
    /// The number of calls; a call over several chunks counts once for each.
    count: u64,
    /// The wall-clock time of the calls.
    measured: Duration,
    /// The time of the calls by the cost model, in µs.
    modelled_us: f64,
}

impl MeteredBacking {
    pub(super) fn new(inner: Arc<dyn Backing>) -> Self {
        Self { inner, meter: Mutex::default() }
    }

    /// Returns the bytes held through this backing.
    pub(super) fn held_bytes(&self) -> u64 {
        self.meter.lock().held_bytes
    }

    /// Returns the most bytes that were held at once.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.meter.lock().peak_bytes
    }

    /// Returns the counters of all calls so far, with the time that the model predicts.
    pub(super) fn counters(&self) -> Counters {
        let meter = self.meter.lock();
        let count = |call| meter.tallies.get(&call).map_or(0, |tally| tally.count);
        Counters {
            malloc: count(Call::Malloc),
            free: count(Call::Free),
            create: count(Call::Create),
            map: count(Call::Map),
            set_access: count(Call::SetAccess),
            unmap: count(Call::Unmap),
            release: count(Call::Release),
            host_syncs: count(Call::SynchronizeEvent),
            stream_waits: count(Call::WaitEvent),
            created_bytes: meter.created_bytes,
            driver_us: meter.tallies.values().map(|tally| tally.modelled_us).sum(),
            ..Counters::default()
        }
    }

    /// Returns every kind of call that was made.
    pub(super) fn calls(&self) -> Vec<MeasuredCall> {
        self.meter
            .lock()
            .tallies
            .iter()
            .map(|(&call, tally)| MeasuredCall {
                call: call.name(),
                count: tally.count,
                measured_us: tally.measured.as_secs_f64() * 1e6,
                modelled_us: model(call).map(|_| tally.modelled_us),
            })
            .collect()
    }

    /// Makes a call that involves no memory, and counts it once.
    fn time<T>(
        &self,
        call: Call,
        action: impl FnOnce(&dyn Backing) -> Result<T, BackingError>,
    ) -> Result<T, BackingError> {
        self.time_memory(call, action, |_, _| vec![0])
    }

    /// Makes a call and records the time that it took. `record` updates the meter and returns the size of each chunk or
    /// segment that the call worked on. Calls that fail are not counted.
    fn time_memory<T>(
        &self,
        call: Call,
        action: impl FnOnce(&dyn Backing) -> Result<T, BackingError>,
        record: impl FnOnce(&mut Meter, &T) -> Vec<u64>,
    ) -> Result<T, BackingError> {
        let start = Instant::now();
        let result = action(&*self.inner)?;
        let measured = start.elapsed();
        let mut meter = self.meter.lock();
        let sizes = record(&mut meter, &result);
        let tally = meter.tallies.entry(call).or_default();
        tally.count += sizes.len() as u64;
        tally.measured += measured;
        tally.modelled_us += model(call).map_or(0.0, |cost| sizes.iter().map(|&bytes| cost.us(bytes)).sum());
        Ok(result)
    }
}

impl Meter {
    /// Adds bytes of a new segment or chunk.
    fn hold(&mut self, bytes: u64) {
        self.created_bytes += bytes;
        self.held_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.held_bytes);
    }

    /// Subtracts bytes that are returned to the device. Returns them as a list of one.
    fn give_back(&mut self, bytes: Option<u64>) -> Vec<u64> {
        let bytes = bytes.unwrap_or(0);
        self.held_bytes -= bytes;
        vec![bytes]
    }
}

impl Backing for MeteredBacking {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        self.time(Call::MemoryInfo, |inner| inner.memory_info())
    }

    fn overhead_bytes(&self) -> u64 {
        self.inner.overhead_bytes()
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        self.time_memory(
            Call::Malloc,
            |inner| inner.malloc(bytes),
            |meter, &address| {
                meter.segments.insert(address, bytes);
                meter.hold(bytes);
                vec![bytes]
            },
        )
    }

    fn free(&self, address: Address) -> Result<(), BackingError> {
        self.time_memory(
            Call::Free,
            |inner| inner.free(address),
            |meter, ()| {
                let bytes = meter.segments.remove(&address);
                meter.give_back(bytes)
            },
        )
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        self.time(Call::Reserve, |inner| inner.reserve(bytes))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.time(Call::Unreserve, |inner| inner.unreserve(address, bytes))
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        self.time_memory(
            Call::Create,
            |inner| inner.create(bytes),
            |meter, &chunk| {
                meter.chunks.insert(chunk, bytes);
                meter.hold(bytes);
                vec![bytes]
            },
        )
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.time_memory(
            Call::Release,
            |inner| inner.release(chunk),
            |meter, ()| {
                let bytes = meter.chunks.remove(&chunk);
                meter.give_back(bytes)
            },
        )
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        self.time_memory(
            Call::Map,
            |inner| inner.map(address, chunk),
            |meter, ()| {
                let bytes = meter.chunks.get(&chunk).copied().unwrap_or(0);
                meter.mappings.insert(address, bytes);
                vec![bytes]
            },
        )
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.time_memory(
            Call::SetAccess,
            |inner| inner.set_access(address, bytes),
            |meter, ()| meter.mappings.range(address..address + bytes).map(|(_, &bytes)| bytes).collect(),
        )
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.time_memory(
            Call::Unmap,
            |inner| inner.unmap(address, bytes),
            |meter, ()| {
                let unmapped = meter.mappings.extract_if(address..address + bytes, |_, _| true);
                unmapped.map(|(_, bytes)| bytes).collect()
            },
        )
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        self.time(Call::RecordEvent, |inner| inner.record(stream))
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        self.time(Call::QueryEvent, |inner| inner.completed(mark))
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        self.time(Call::WaitEvent, |inner| inner.wait(stream, mark))
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        self.time(Call::SynchronizeEvent, |inner| inner.synchronize(mark))
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        self.time(Call::Synchronize, |inner| inner.synchronize_all())
    }
}

/// Returns the cost of a call by the model; `None` for calls that the model does not cover.
fn model(call: Call) -> Option<Cost> {
    Some(match call {
        Call::Malloc => cost::MALLOC,
        Call::Free => cost::FREE,
        Call::Create => cost::CREATE,
        Call::Map => cost::MAP,
        Call::SetAccess => cost::SET_ACCESS,
        Call::Unmap => cost::UNMAP,
        Call::Release => cost::RELEASE,
        _ => return None,
    })
}
