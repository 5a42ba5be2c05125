//! A ring buffer: keeps the last entries of a sequence.

use std::collections::VecDeque;

/// A buffer that keeps the last entries pushed, up to its limit, which is 0 at first.
pub(super) struct Ring<T> {
    limit: usize,
    entries: VecDeque<T>,
}

impl<T> Ring<T> {
    /// Changes the limit; removes the oldest entries beyond it.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        let excess = self.entries.len().saturating_sub(limit);
        self.entries.drain(..excess);
    }

    /// Adds an entry; removes the oldest if the limit is exceeded.
    pub(super) fn push(&mut self, entry: T) {
        if self.limit == 0 {
            return;
        }
        if self.entries.len() == self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl<T: Clone> Ring<T> {
    /// Returns the entries, oldest first.
    pub(super) fn to_vec(&self) -> Vec<T> {
        self.entries.iter().cloned().collect()
    }
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { limit: 0, entries: VecDeque::new() }
    }
}
