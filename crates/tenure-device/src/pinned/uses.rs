//! The streams that use blocks, and the freed blocks that wait for them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_alloc::{Backing, BackingError, Mark};
use tenure_core::StreamId;

use super::blocks::BlockId;
use crate::DeviceBacking;

/// A stream of a device, whose marks a backing records.
#[derive(Clone)]
pub struct Use {
    /// The device.
    pub device: Arc<DeviceBacking>,
    /// The stream.
    pub stream: StreamId,
}

impl PartialEq for Use {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream && Arc::ptr_eq(&self.device, &other.device)
    }
}

impl fmt::Debug for Use {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Use").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Use {
    /// Returns whether the stream is captured now.
    pub(super) fn is_capturing(&self) -> bool {
        self.device.driver().is_capturing(self.stream).unwrap_or(false)
    }

    pub(super) fn record(&self) -> Result<Mark, BackingError> {
        self.device.record(self.stream)
    }
}

/// Freed blocks that wait until streams have passed marks.
#[derive(Default)]
pub(super) struct Waiting {
    /// The marks of each stream, in the order in which they were recorded, so that a slow stream delays only its own
    /// blocks.
    queues: Vec<(Use, VecDeque<(Mark, BlockId)>)>,
    /// The marks that each block waits for, and those that its graphs stand for.
    left: FxHashMap<BlockId, usize>,
}

impl Waiting {
    /// Lets a block wait for `marks` of [`add_mark`](Self::add_mark) and [`pass`](Self::pass).
    pub(super) fn add(&mut self, block: BlockId, marks: usize) {
        self.left.insert(block, marks);
    }

    pub(super) fn add_mark(&mut self, of: Use, mark: Mark, block: BlockId) {
        match self.queues.iter_mut().find(|(queue, _)| *queue == of) {
            Some((_, marks)) => marks.push_back((mark, block)),
            None => self.queues.push((of, VecDeque::from([(mark, block)]))),
        }
    }

    /// Counts one of a block's marks as passed. Returns whether it was the last.
    pub(super) fn pass(&mut self, block: BlockId) -> bool {
        let Some(left) = self.left.get_mut(&block) else { return false };
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.left.remove(&block);
        }
        is_last
    }

    /// Returns the blocks whose marks have all passed. A stream that cannot be queried keeps its blocks.
    pub(super) fn passed(&mut self) -> Vec<BlockId> {
        let mut passed = Vec::new();
        for place in 0..self.queues.len() {
            let (of, marks) = &mut self.queues[place];
            let is_passed = |(mark, _): &&(Mark, BlockId)| of.device.completed(*mark).unwrap_or(false);
            let count = marks.iter().take_while(is_passed).count();
            let blocks: Vec<BlockId> = marks.drain(..count).map(|(_, block)| block).collect();
            passed.extend(blocks.into_iter().filter(|&block| self.pass(block)));
        }
        self.queues.retain(|(_, marks)| !marks.is_empty());
        passed
    }

    /// Iterates over the blocks that wait.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.left.keys().copied()
    }

    /// Returns the last mark of each stream.
    pub(super) fn last(&self) -> Vec<(Use, Mark)> {
        self.queues.iter().filter_map(|(of, marks)| Some((of.clone(), marks.back()?.0))).collect()
    }
}
