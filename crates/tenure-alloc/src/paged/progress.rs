//! Tracks, stream by stream, how far the device has got, to tell whether freed memory may be used again.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tenure_core::StreamId;

use crate::{Backing, BackingError, Mark};

/// A use of memory by the work on `stream` up to the end of its epoch number `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EpochUse {
    stream: StreamId,
    epoch: u64,
}

/// The last use of some memory by each stream.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochUses(SmallVec<[EpochUse; 2]>);

impl EpochUses {
    /// Adds a use, which replaces the earlier use by the same stream.
    pub(super) fn add(&mut self, new: EpochUse) {
        match self.0.iter_mut().find(|old| old.stream == new.stream) {
            Some(old) => old.epoch = new.epoch,
            None => self.0.push(new),
        }
    }
}

/// The progress of every stream, counted in *epochs*. An epoch is the work between two marks (events) on a stream.
///
/// Marks are recorded only when another stream, or an unmapping, needs memory. Work that stays on its own stream costs
/// no event.
pub(super) struct DeviceProgress {
    backing: Arc<dyn Backing>,
    streams: FxHashMap<StreamId, StreamEpochs>,
    /// Waits by `(waiter, awaited)`: the waiter runs after every epoch of the awaited stream below the value.
    waited: FxHashMap<(StreamId, StreamId), u64>,
    /// Whether a stream is captured into a graph. The backing is not queried then, because a query would break the
    /// capture.
    is_capturing: bool,
}

#[derive(Default)]
struct StreamEpochs {
    /// The current epoch.
    epoch: u64,
    /// The first epoch that may not have completed; every epoch below has.
    completed: u64,
    /// The mark at the end of each epoch that may not have completed, oldest first.
    marks: VecDeque<(u64, Mark)>,
}

/// The most unfinished marks that queries record on a stream. Then they record no more until the oldest completes.
const MARKS: usize = 8;

impl StreamEpochs {
    /// Returns the first recorded mark after a use.
    fn covering(&self, used: EpochUse) -> Option<(u64, Mark)> {
        // Epochs of marks are consecutive.
        let oldest = self.marks.front()?.0;
        self.marks.get(usize::try_from(used.epoch.saturating_sub(oldest)).ok()?).copied()
    }
}

impl DeviceProgress {
    pub(super) fn new(backing: Arc<dyn Backing>) -> Self {
        Self { backing, streams: FxHashMap::default(), waited: FxHashMap::default(), is_capturing: false }
    }

    pub(super) fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.is_capturing
    }

    /// Returns a use of memory by `stream` that ends now.
    pub(super) fn use_now(&mut self, stream: StreamId) -> EpochUse {
        EpochUse { stream, epoch: self.streams.entry(stream).or_default().epoch }
    }

    /// Returns a use of memory by `stream` that ends now, and records the mark after it at once, unless a stream is
    /// captured. The memory is then known to be free as early as possible.
    pub(super) fn mark_now(&mut self, stream: StreamId) -> Result<EpochUse, BackingError> {
        let now = self.use_now(stream);
        if !self.is_capturing {
            self.mark_after(now)?;
        }
        Ok(now)
    }

    /// Returns whether `stream` may use the memory without waiting for another stream.
    pub(super) fn is_ready_for(&mut self, stream: StreamId, uses: &mut EpochUses) -> Result<bool, BackingError> {
        self.retain_unfinished(uses, |other| other == stream)?;
        Ok(uses.0.iter().all(|unfinished| self.runs_after(stream, *unfinished)))
    }

    /// Returns whether the device has finished with the memory.
    pub(super) fn is_finished(&mut self, uses: &mut EpochUses) -> Result<bool, BackingError> {
        self.retain_unfinished(uses, |_| false)?;
        Ok(uses.0.is_empty())
    }

    /// Makes `stream` run after every use of the memory. The host does not wait.
    pub(super) fn wait(&mut self, stream: StreamId, uses: &EpochUses) -> Result<(), BackingError> {
        for awaited in uses.0.iter().filter(|awaited| awaited.stream != stream) {
            if self.runs_after(stream, *awaited) {
                continue;
            }
            let (epoch, mark) = self.mark_after(*awaited)?;
            self.backing.wait(stream, mark)?;
            self.waited.insert((stream, awaited.stream), epoch + 1);
        }
        Ok(())
    }

    /// Blocks the host until the device has finished with the memory.
    pub(super) fn synchronize(&mut self, uses: &mut EpochUses) -> Result<(), BackingError> {
        for unfinished in uses.0.clone() {
            if self.completed(unfinished)? {
                continue;
            }
            let (epoch, mark) = self.mark_after(unfinished)?;
            self.backing.synchronize(mark)?;
            let stream = self.streams.entry(unfinished.stream).or_default();
            stream.completed = stream.completed.max(epoch + 1);
        }
        uses.0.clear();
        Ok(())
    }

    /// Removes the uses that the device has finished, except on streams for which `keep` returns `true`. If a query
    /// fails, the remaining uses stay.
    fn retain_unfinished(&mut self, uses: &mut EpochUses, keep: impl Fn(StreamId) -> bool) -> Result<(), BackingError> {
        let mut result = Ok(());
        uses.0.retain(|used| {
            if keep(used.stream) || result.is_err() {
                return true;
            }
            match self.completed(*used) {
                Ok(is_completed) => !is_completed,
                Err(error) => {
                    result = Err(error);
                    true
                }
            }
        });
        result
    }

    /// Returns whether work enqueued on `stream` from now on runs after a use.
    fn runs_after(&self, stream: StreamId, used: EpochUse) -> bool {
        used.stream == stream || self.waited.get(&(stream, used.stream)).is_some_and(|&epoch| epoch > used.epoch)
    }

    /// Returns whether the device has finished a use. Records a mark after it if there is none yet.
    fn completed(&mut self, used: EpochUse) -> Result<bool, BackingError> {
        let stream = self.streams.entry(used.stream).or_default();
        if used.epoch < stream.completed {
            return Ok(true);
        }
        if self.is_capturing {
            return Ok(false);
        }
        if stream.marks.len() < MARKS || stream.covering(used).is_some() {
            self.mark_after(used)?;
        }
        let stream = self.streams.entry(used.stream).or_default();
        while let Some(&(epoch, mark)) = stream.marks.front() {
            if !self.backing.completed(mark)? {
                break;
            }
            stream.completed = epoch + 1;
            stream.marks.pop_front();
        }
        Ok(used.epoch < stream.completed)
    }

    /// Returns the first mark after a use, and records it if there is none yet; the mark's epoch ends with it.
    fn mark_after(&mut self, used: EpochUse) -> Result<(u64, Mark), BackingError> {
        let stream = self.streams.entry(used.stream).or_default();
        if let Some(found) = stream.covering(used) {
            return Ok(found);
        }
        let recorded = (stream.epoch, self.backing.record(used.stream)?);
        stream.marks.push_back(recorded);
        stream.epoch += 1;
        Ok(recorded)
    }
}
