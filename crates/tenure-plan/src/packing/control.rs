//! Controls a search: counts its work, reports progress, and ends it at a limit.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The number of buffers examined between two checks of the clock: a millisecond or less.
const CHECK_INTERVAL: usize = 1 << 15;

/// The progress of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingProgress {
    /// Places tried.
    pub nodes: u64,
    /// The height of the lowest packing so far.
    pub height_bytes: u64,
    /// The best proven lower bound on the height of every packing.
    pub lower_bound_bytes: u64,
    /// The time since the search began.
    pub elapsed: Duration,
}

/// Counts the work of a search, reports progress to the caller's observer, and decides when the search ends.
pub(super) struct Control<'a> {
    pub(super) progress: PackingProgress,
    begun: Instant,
    time_limit: Option<Duration>,
    node_limit: u64,
    /// The buffers examined since the clock was last checked.
    work: usize,
    observe: &'a mut dyn FnMut(&PackingProgress) -> ControlFlow<()>,
    is_over: bool,
}

impl<'a> Control<'a> {
    /// Controls a search that begins now, without a time limit.
    pub(super) fn new(
        node_limit: Option<u64>,
        observe: &'a mut dyn FnMut(&PackingProgress) -> ControlFlow<()>,
    ) -> Self {
        let progress = PackingProgress { nodes: 0, height_bytes: 0, lower_bound_bytes: 0, elapsed: Duration::ZERO };
        let node_limit = node_limit.unwrap_or(u64::MAX);
        Self { progress, begun: Instant::now(), time_limit: None, node_limit, work: 0, observe, is_over: false }
    }

    /// Ends the search when `time_limit` has passed since it began, which may be now.
    pub(super) fn limit_time(&mut self, time_limit: Option<Duration>) {
        self.time_limit = time_limit;
        self.check();
    }

    /// Counts a tried place for which `work` buffers were examined. Returns whether the search may go on.
    pub(super) fn count_node(&mut self, work: usize) -> bool {
        self.progress.nodes += 1;
        self.is_over |= self.progress.nodes >= self.node_limit;
        self.count_work(work)
    }

    /// Counts `work` examined buffers. Returns whether the search may go on.
    pub(super) fn count_work(&mut self, work: usize) -> bool {
        self.work += work;
        if self.work >= CHECK_INTERVAL {
            self.work = 0;
            self.check();
        }
        !self.is_over
    }

    /// Reports progress, and ends the search if the caller or the time limit says so.
    pub(super) fn check(&mut self) {
        self.progress.elapsed = self.begun.elapsed();
        self.is_over |= (self.observe)(&self.progress).is_break()
            || self.time_limit.is_some_and(|limit| self.progress.elapsed >= limit);
    }

    /// Returns whether a limit was reached or the caller ended the search.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}
