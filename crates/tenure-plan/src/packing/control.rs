use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Buffers looked at between two looks at the clock: a millisecond or less.
const WORK: usize = 1 << 15;

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingProgress {
    /// Places tried.
    pub nodes: u64,
    /// Of the lowest packing so far.
    pub height_bytes: u64,
    /// What every packing needs, as far as is proven.
    pub lower_bound_bytes: u64,
    /// Since the beginning.
    pub elapsed: Duration,
}

/// Counts what a search does, tells whoever watches, and says when it is enough.
pub(super) struct Control<'a> {
    pub(super) progress: PackingProgress,
    begun: Instant,
    time_limit: Option<Duration>,
    node_limit: u64,
    work: usize,
    observe: &'a mut dyn FnMut(&PackingProgress) -> ControlFlow<()>,
    is_over: bool,
}

impl<'a> Control<'a> {
    pub(super) fn new(
        time_limit: Option<Duration>,
        node_limit: Option<u64>,
        observe: &'a mut dyn FnMut(&PackingProgress) -> ControlFlow<()>,
    ) -> Self {
        let progress = PackingProgress { nodes: 0, height_bytes: 0, lower_bound_bytes: 0, elapsed: Duration::ZERO };
        let node_limit = node_limit.unwrap_or(u64::MAX);
        Self { progress, begun: Instant::now(), time_limit, node_limit, work: 0, observe, is_over: false }
    }

    /// Counts a place tried, which meant looking at `work` buffers. Whether the search may go on.
    pub(super) fn spend(&mut self, work: usize) -> bool {
        self.progress.nodes += 1;
        self.is_over |= self.progress.nodes >= self.node_limit;
        self.work(work)
    }

    /// Counts so many buffers looked at. Whether the search may go on.
    pub(super) fn work(&mut self, work: usize) -> bool {
        self.work += work;
        if self.work >= WORK {
            self.work = 0;
            self.look();
        }
        !self.is_over
    }

    /// Looks at the clock, and tells.
    pub(super) fn look(&mut self) {
        self.progress.elapsed = self.begun.elapsed();
        self.is_over |= (self.observe)(&self.progress).is_break()
            || self.time_limit.is_some_and(|limit| self.progress.elapsed >= limit);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}
