//! A backing for tests. It is small, deterministic and stricter than any driver: it panics on every misuse.
#![allow(dead_code, unreachable_pub, reason = "tests of `tenure` have it too, and use another part")]

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// The number of the last mark passed, recorded or waited for, by stream.
type Passed = BTreeMap<StreamId, u64>;

#[derive(Default)]
pub struct FakeBacking {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: u64,
    used: u64,
    overhead: u64,
    next_address: Address,
    next_chunk: u64,
    /// The addresses that `malloc` returns before any of its own.
    given: VecDeque<Address>,
    mallocs: BTreeMap<Address, u64>,
    ranges: BTreeMap<Address, u64>,
    /// Chunks: the bytes of each, and the number of its mappings.
    chunks: BTreeMap<ChunkId, (u64, u32)>,
    mappings: BTreeMap<Address, Mapping>,
    /// The last mark recorded, by stream.
    recorded: Passed,
    passed: Passed,
    /// Whether streams run by themselves: every mark is passed once it is recorded.
    idle: bool,
    /// The marks that each stream waits for before its next work; and, in `waits_at`, those it waited for when a mark
    /// was recorded.
    waits: BTreeMap<StreamId, Passed>,
    waits_at: BTreeMap<Mark, Passed>,
    launches: Vec<Launch>,
    calls: BTreeMap<&'static str, u64>,
    fail_in: Option<Range<u64>>,
}

struct Mapping {
    bytes: u64,
    chunk: ChunkId,
    accessible: bool,
}

/// Work on a stream that uses `addresses`, and the memory that was under them. It is done once the stream passes mark
/// number `sequence`.
struct Launch {
    stream: StreamId,
    sequence: u64,
    addresses: Range<Address>,
    memory: Vec<Piece>,
}

/// Bytes of a chunk or of a segment from `malloc`.
struct Piece {
    owner: Owner,
    bytes: Range<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Segment(Address),
    Chunk(ChunkId),
}

/// Makes a backing of `total` bytes whose streams pass marks only when told.
pub fn busy_backing(total: u64) -> Arc<FakeBacking> {
    let backing = Arc::new(FakeBacking::new(total));
    backing.hold_streams();
    backing
}

impl FakeBacking {
    /// Makes a device of `total` bytes whose streams are always idle.
    pub fn new(total: u64) -> Self {
        let state = State { total, next_address: 1 << 40, idle: true, ..State::default() };
        Self { state: Mutex::new(state) }
    }

    /// Makes streams pass marks only when told, from now on.
    pub fn hold_streams(&self) {
        self.state.lock().idle = false;
    }

    /// Lets `stream` pass everything put on it.
    pub fn pass(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let sequence = state.recorded.get(&stream).copied().unwrap_or(0) + 1;
        state.passed.insert(stream, sequence);
        state.recorded.insert(stream, sequence);
        state.forget_passed();
    }

    /// Puts work that uses `address..address + bytes` on `stream`. Panics if the range is not accessible.
    pub fn launch(&self, stream: StreamId, address: Address, bytes: u64) {
        let mut state = self.state.lock();
        let memory = state.memory_under(address, bytes);
        if !state.idle {
            let sequence = state.recorded.get(&stream).copied().unwrap_or(0) + 1;
            state.launches.push(Launch { stream, sequence, addresses: address..address + bytes, memory });
        }
    }

    /// Panics if work of a new owner on `stream` would race with unfinished work of another stream on the same memory,
    /// at any address.
    pub fn assert_exclusive(&self, stream: StreamId, address: Address, bytes: u64) {
        let state = self.state.lock();
        let memory = state.memory_under(address, bytes);
        let waited = state.waits.get(&stream);
        for launch in &state.launches {
            let sequence = waited.and_then(|waited| waited.get(&launch.stream)).copied().unwrap_or(0);
            let ordered = launch.stream == stream || launch.sequence <= sequence;
            let shared = launch.memory.iter().any(|used| memory.iter().any(|piece| piece.overlaps(used)));
            assert!(ordered || !shared, "{address:#x} is handed out while stream {} still uses it", launch.stream);
        }
    }

    /// Returns the number of calls that change or query the backing, by name.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().calls.clone()
    }

    /// Returns the number of all calls so far.
    pub fn call_count(&self) -> u64 {
        self.state.lock().calls.values().sum()
    }

    /// Makes the calls with these numbers fail. They count from now on, and the next call has number 0.
    pub fn fail_calls(&self, numbers: Range<u64>) {
        let now = self.call_count();
        self.state.lock().fail_in = Some(now + numbers.start..now + numbers.end);
    }

    pub fn fail_none(&self) {
        self.state.lock().fail_in = None;
    }

    /// Returns the bytes of physical memory handed out.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Sets the bytes that the process holds beside the memory from here.
    pub fn set_overhead(&self, bytes: u64) {
        self.state.lock().overhead = bytes;
    }

    /// Makes `malloc` return these addresses, in order.
    pub fn give_addresses(&self, addresses: impl IntoIterator<Item = Address>) {
        self.state.lock().given.extend(addresses);
    }

    /// Returns the bytes of address space reserved and not given back.
    pub fn reserved_address_space(&self) -> u64 {
        self.state.lock().ranges.values().sum()
    }

    fn enter(&self, call: &'static str) -> Result<MutexGuard<'_, State>, BackingError> {
        let mut state = self.state.lock();
        let number = state.calls.values().sum();
        *state.calls.entry(call).or_default() += 1;
        match &state.fail_in {
            Some(failing) if failing.contains(&number) => {
                Err(BackingError::Failed { call, reason: format!("call {number} was made to fail") })
            }
            _ => Ok(state),
        }
    }
}

impl Piece {
    fn overlaps(&self, other: &Self) -> bool {
        self.owner == other.owner && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

impl State {
    const GRANULARITY: u64 = 2 * MIB;

    fn take(&mut self, call: &'static str, bytes: u64) -> Result<(), BackingError> {
        let free = self.total - self.used;
        if bytes > free {
            return Err(BackingError::OutOfMemory { call, requested: bytes, free });
        }
        self.used += bytes;
        Ok(())
    }

    fn place(&mut self, bytes: u64) -> Address {
        let address = self.next_address;
        // A gap keeps ranges from merging by accident.
        self.next_address += bytes.next_multiple_of(Self::GRANULARITY) + Self::GRANULARITY;
        address
    }

    fn forget_passed(&mut self) {
        let passed = &self.passed;
        self.launches.retain(|launch| passed.get(&launch.stream).copied().unwrap_or(0) < launch.sequence);
    }

    /// Returns the memory under a range. Panics if some of it is not accessible.
    fn memory_under(&self, address: Address, bytes: u64) -> Vec<Piece> {
        let end = address + bytes;
        if let Some((&base, size)) = self.mallocs.range(..=address).next_back()
            && end <= base + size
        {
            return vec![Piece { owner: Owner::Segment(base), bytes: address - base..end - base }];
        }
        let mut pieces = Vec::new();
        let mut next = address;
        while next < end {
            let (base, mapping) = self.mappings.range(..=next).next_back().expect("memory under the block");
            let until = end.min(base + mapping.bytes);
            assert!(next < until, "nothing is mapped at {next:#x}");
            assert!(mapping.accessible, "{next:#x} is mapped but not accessible");
            pieces.push(Piece { owner: Owner::Chunk(mapping.chunk), bytes: next - base..until - base });
            next = until;
        }
        pieces
    }

    /// Returns the whole mappings that exactly cover a range.
    fn mapped_in(&self, address: Address, bytes: u64) -> Vec<Address> {
        let mut next = address;
        while next < address + bytes {
            let mapping = self.mappings.get(&next).unwrap_or_else(|| panic!("no mapping starts at {next:#x}"));
            next += mapping.bytes;
        }
        assert_eq!(next, address + bytes, "a range must hold whole chunks");
        self.mappings.range(address..next).map(|(&address, _)| address).collect()
    }
}

impl Backing for FakeBacking {
    fn granularity(&self) -> u64 {
        State::GRANULARITY
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        let state = self.enter("memory_info")?;
        Ok(MemoryInfo { free: state.total - state.used, total: state.total })
    }

    fn overhead_bytes(&self) -> u64 {
        self.state.lock().overhead
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        let mut state = self.enter("malloc")?;
        state.take("malloc", bytes)?;
        let address = state.given.pop_front().unwrap_or_else(|| state.place(bytes));
        assert!(state.mallocs.insert(address, bytes).is_none(), "{address:#x} is given twice");
        Ok(address)
    }

    fn free(&self, address: Address) -> Result<(), BackingError> {
        let mut state = self.enter("free")?;
        let bytes = state.mallocs.remove(&address).expect("free of a segment of malloc");
        state.used -= bytes;
        // The driver waits for the whole device.
        state.launches.retain(|launch| launch.addresses.end <= address || address + bytes <= launch.addresses.start);
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        let mut state = self.enter("reserve")?;
        assert!(bytes.is_multiple_of(State::GRANULARITY), "reserve of {bytes} bytes");
        let address = state.place(bytes);
        state.ranges.insert(address, bytes);
        Ok(address)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        let mut state = self.enter("unreserve")?;
        assert_eq!(state.ranges.remove(&address), Some(bytes), "unreserve of a whole range");
        assert_eq!(state.mappings.range(address..address + bytes).count(), 0, "unreserve under mappings");
        Ok(())
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        let mut state = self.enter("create")?;
        assert!(bytes > 0 && bytes.is_multiple_of(State::GRANULARITY), "create of {bytes} bytes");
        state.take("create", bytes)?;
        state.next_chunk += 1;
        let chunk = ChunkId(state.next_chunk);
        state.chunks.insert(chunk, (bytes, 0));
        Ok(chunk)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        let mut state = self.enter("release")?;
        let (bytes, mapped) = state.chunks.remove(&chunk).expect("release of a chunk");
        assert_eq!(mapped, 0, "release of a mapped chunk");
        state.used -= bytes;
        Ok(())
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        let mut state = self.enter("map")?;
        assert!(address.is_multiple_of(State::GRANULARITY), "map at {address:#x}");
        let (bytes, mapped) = state.chunks.get_mut(&chunk).expect("map of a chunk");
        *mapped += 1;
        let bytes = *bytes;
        let end = address + bytes;
        let (base, size) = state.ranges.range(..=address).next_back().expect("map in a reserved range");
        assert!(end <= base + size, "map beyond the reserved range");
        let before = state.mappings.range(..end).next_back();
        assert!(before.is_none_or(|(base, mapping)| base + mapping.bytes <= address), "map over a mapping");
        state.mappings.insert(address, Mapping { bytes, chunk, accessible: false });
        Ok(())
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        let mut state = self.enter("set_access")?;
        for mapped in state.mapped_in(address, bytes) {
            state.mappings.get_mut(&mapped).expect("just found").accessible = true;
        }
        Ok(())
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        let mut state = self.enter("unmap")?;
        let end = address + bytes;
        let used = state.launches.iter().any(|work| work.addresses.start < end && address < work.addresses.end);
        assert!(!used, "unmap of {address:#x} under unfinished work");
        for mapped in state.mapped_in(address, bytes) {
            let mapping = state.mappings.remove(&mapped).expect("just found");
            state.chunks.get_mut(&mapping.chunk).expect("a mapped chunk exists").1 -= 1;
        }
        Ok(())
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        let mut state = self.enter("record")?;
        let sequence = state.recorded.get(&stream).copied().unwrap_or(0) + 1;
        state.recorded.insert(stream, sequence);
        if state.idle {
            state.passed.insert(stream, sequence);
        }
        let mark = Mark { stream, sequence };
        let mut waits = state.waits.get(&stream).cloned().unwrap_or_default();
        waits.insert(stream, sequence);
        state.waits_at.insert(mark, waits);
        Ok(mark)
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        let state = self.enter("completed")?;
        Ok(state.passed.get(&mark.stream).copied().unwrap_or(0) >= mark.sequence)
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        let mut state = self.enter("wait")?;
        let waited = state.waits_at.get(&mark).cloned().expect("wait for a recorded mark");
        let waits = state.waits.entry(stream).or_default();
        for (other, sequence) in waited {
            let known = waits.entry(other).or_default();
            *known = sequence.max(*known);
        }
        Ok(())
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        let mut state = self.enter("synchronize_all")?;
        let State { recorded, passed, launches, .. } = &mut *state;
        passed.extend(recorded.iter().map(|(stream, sequence)| (*stream, *sequence)));
        launches.clear();
        Ok(())
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        let mut state = self.enter("synchronize")?;
        let waited = state.waits_at.get(&mark).cloned().expect("synchronize with a recorded mark");
        for (stream, sequence) in waited {
            let passed = state.passed.entry(stream).or_default();
            *passed = sequence.max(*passed);
        }
        state.forget_passed();
        Ok(())
    }
}
