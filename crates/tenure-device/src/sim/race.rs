//! Detection of races by vector clocks, which give the order of work. Streams order their own work, events order
//! streams, and the host orders everything that it has seen completed before everything that it puts on a stream
//! afterwards.
//!
//! Nothing here depends on when work runs. So a race is found in every schedule.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tenure_alloc::Address;

use crate::Launch;

/// The memory that a piece of work declares to touch: device addresses that it reads and writes, and host memory.
#[derive(Clone, Default)]
pub(super) struct Touches {
    pub(super) reads: Vec<Range<Address>>,
    pub(super) writes: Vec<Range<Address>>,
    pub(super) host: Option<HostUse>,
}

impl Touches {
    /// Creates a declaration of at most one range to read and one to write.
    pub(super) fn new(read: Option<Range<Address>>, write: Option<Range<Address>>) -> Self {
        Self { reads: read.into_iter().collect(), writes: write.into_iter().collect(), host: None }
    }

    /// Also declares `bytes` bytes of host memory at `address`.
    pub(super) fn and_host(self, address: *const u8, bytes: u64, write: bool) -> Self {
        let start = address as u64;
        Self { host: Some(HostUse { range: start..start.saturating_add(bytes), write }), ..self }
    }
}

/// The host memory that an asynchronous copy reads, or writes if `write` is set.
#[derive(Clone)]
pub(super) struct HostUse {
    pub(super) range: Range<u64>,
    pub(super) write: bool,
}

/// A vector clock: for each stream, by its index, the number of pieces of work that are known to be complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// Adds the work that is complete according to `other`.
    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Counts one more piece of work of `stream`. Returns its number.
    fn tick(&mut self, stream: usize) -> u64 {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        self.0[stream]
    }

    /// Returns whether the work of `access` is complete according to this clock. If it is not, the two are not ordered.
    pub(super) fn covers(&self, access: &Access) -> bool {
        self.0.get(access.stream).is_some_and(|&known| known >= access.epoch)
    }
}

/// The clock at a point of a stream. `None` stands for no work, so that a program that declares no work pays nothing.
pub(super) type Stamp = Option<Arc<Clock>>;

/// The clocks of the streams and of the host.
///
/// The host is one actor: what one of its threads has seen, all have seen.
#[derive(Default)]
pub(super) struct StreamOrder {
    streams: Vec<Stamp>,
    host: Clock,
}

impl StreamOrder {
    /// Returns the work known to be complete at the current end of `stream`.
    pub(super) fn stamp(&self, stream: usize) -> Stamp {
        self.streams.get(stream).cloned().flatten()
    }

    /// Returns the work known to be complete at the current ends of all streams.
    pub(super) fn stamp_of_all(&self) -> Stamp {
        let mut all = Stamp::default();
        for stamp in self.streams.iter().flatten() {
            Arc::make_mut(all.get_or_insert_default()).join(stamp);
        }
        all
    }

    /// Orders later work of `stream` after `stamp`.
    pub(super) fn wait(&mut self, stream: usize, stamp: &Stamp) {
        if let Some(stamp) = stamp {
            Arc::make_mut(clock(&mut self.streams, stream)).join(stamp);
        }
    }

    /// Records that the host has seen the work of `stamp` complete.
    pub(super) fn observe(&mut self, stamp: &Stamp) {
        if let Some(stamp) = stamp {
            self.host.join(stamp);
        }
    }

    /// Puts a piece of work on `stream`. Also returns the clock of the work that comes before it, itself included.
    pub(super) fn launch(&mut self, stream: usize, launch: Arc<Launch>) -> (Access, Arc<Clock>) {
        let shared = clock(&mut self.streams, stream);
        let clock = Arc::make_mut(shared);
        clock.join(&self.host);
        let epoch = clock.tick(stream);
        (Access { stream, epoch, launch }, Arc::clone(shared))
    }

    /// Returns the clock of the work that the host has seen complete.
    pub(super) fn host(&self) -> &Clock {
        &self.host
    }
}

/// Returns the clock of `stream`, which is created if it does not exist yet.
fn clock(streams: &mut Vec<Stamp>, stream: usize) -> &mut Arc<Clock> {
    if streams.len() <= stream {
        streams.resize(stream + 1, None);
    }
    streams[stream].get_or_insert_default()
}

/// One piece of work on a stream: its number there, which clocks count, and its launch.
#[derive(Clone)]
pub(super) struct Access {
    stream: usize,
    /// The number of the piece of work on its stream, from 1.
    epoch: u64,
    pub(super) launch: Arc<Launch>,
}

impl Access {
    /// Returns whether `later` is on the same stream, so that work after `later` is after both.
    pub(super) fn is_superseded_by(&self, later: &Self) -> bool {
        self.stream == later.stream
    }
}

/// The last accesses to each byte of one physical allocation.
#[derive(Default)]
pub(super) struct Shadow {
    /// The ranges, by their first byte; they do not overlap.
    cells: BTreeMap<u64, Cell>,
}

/// The last accesses to a range of bytes, all of which were accessed by the same work.
#[derive(Clone, Default)]
struct Cell {
    end: u64,
    write: Option<Access>,
    /// The reads since the write, the last one of each stream.
    reads: Vec<Access>,
}

impl Shadow {
    /// Returns the first access to a part of `range` that conflicts and that `clock` does not cover, and that part.
    pub(super) fn conflict(&self, range: &Range<u64>, write: bool, clock: &Clock) -> Option<(Arc<Launch>, Range<u64>)> {
        let first = self.cells.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        self.cells.range(first..range.end).filter(|(_, cell)| cell.end > range.start).find_map(|(&start, cell)| {
            let reads = if write { cell.reads.as_slice() } else { &[] };
            let access = cell.write.iter().chain(reads).find(|access| !clock.covers(access))?;
            Some((Arc::clone(&access.launch), start.max(range.start)..cell.end.min(range.end)))
        })
    }

    /// Records that `access` touches `range`. The caller checked that this conflicts with no earlier access.
    pub(super) fn record(&mut self, range: &Range<u64>, write: bool, access: &Access) {
        self.split(range.start);
        self.split(range.end);
        if write {
            while let Some((&start, _)) = self.cells.range(range.clone()).next() {
                self.cells.remove(&start);
            }
            let cell = Cell { end: range.end, write: Some(access.clone()), reads: Vec::new() };
            self.cells.insert(range.start, cell);
            return;
        }
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, cell) in self.cells.range_mut(range.clone()) {
            if at < start {
                gaps.push(at..start);
            }
            at = cell.end;
            cell.reads.retain(|earlier| !earlier.is_superseded_by(access));
            cell.reads.push(access.clone());
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.cells.insert(gap.start, Cell { end: gap.end, write: None, reads: vec![access.clone()] });
        }
    }

    /// Divides the cell that contains `at`, if there is one, so that a cell begins there.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back()
            && cell.end > at
        {
            let right = cell.clone();
            cell.end = at;
            self.cells.insert(at, right);
        }
    }
}
