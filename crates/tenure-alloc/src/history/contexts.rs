//! The contexts of live blocks and of segments: the places in the program that allocated them.
//!
//! They are kept here and not in the blocks, which would otherwise be larger even while nothing is recorded.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{HistoryAction, HistoryContext, HistoryEvent, KeepContexts};
use crate::Address;

/// The contexts of live blocks and of segments, by address.
#[derive(Default)]
pub(super) struct Contexts {
    /// The contexts of blocks that are live, or freed but not yet reusable.
    blocks: FxHashMap<Address, HistoryContext>,
    /// For the first address of each segment, the address after its last byte, and its context.
    segments: BTreeMap<Address, (Address, HistoryContext)>,
}

impl Contexts {
    /// Stores the current context for a block or segment that `event` says was made, and removes that of one which is
    /// gone. Returns the context to record with the event, or `None` below [`KeepContexts::Alloc`]. It is the current
    /// one; for an event that gives memory back, below [`KeepContexts::All`] or without a current one, it is that of
    /// the allocation.
    pub(super) fn update(&mut self, event: &HistoryEvent, kept: KeepContexts) -> Option<HistoryContext> {
        let HistoryEvent { address, bytes, .. } = *event;
        let context = match event.action {
            HistoryAction::Alloc => {
                let context = current_context(kept, KeepContexts::State);
                // An earlier block at the address may have left its context here.
                if let Some(context) = &context {
                    self.blocks.insert(address, context.clone());
                } else {
                    self.blocks.remove(&address);
                }
                context
            }
            HistoryAction::FreeRequested => current_context(kept, KeepContexts::All).or_else(|| self.of_block(address)),
            HistoryAction::FreeCompleted => {
                let own = self.blocks.remove(&address);
                current_context(kept, KeepContexts::All).or(own)
            }
            HistoryAction::SegmentAlloc | HistoryAction::SegmentMap => {
                let context = current_context(kept, KeepContexts::Alloc);
                if let Some(context) = &context {
                    self.segments.insert(address, (address + bytes, context.clone()));
                }
                context
            }
            HistoryAction::SegmentFree | HistoryAction::SegmentUnmap => {
                let own = self.of_segment(address);
                self.cut_segments(address, address + bytes);
                current_context(kept, KeepContexts::All).or(own)
            }
            HistoryAction::OutOfMemory | HistoryAction::Annotate => current_context(kept, KeepContexts::State),
            HistoryAction::Snapshot => None,
        };
        if kept >= KeepContexts::Alloc { context } else { None }
    }

    /// Records that memory of a segment moved from the range of event `from` to the range of event `to`: its context
    /// moves along. Returns the context to record with both events; there is none below [`KeepContexts::Alloc`].
    pub(super) fn move_segment(
        &mut self,
        from: &HistoryEvent,
        to: &HistoryEvent,
        kept: KeepContexts,
    ) -> Option<HistoryContext> {
        let context = self.of_segment(from.address)?;
        self.cut_segments(from.address, from.address + from.bytes);
        self.segments.insert(to.address, (to.address + to.bytes, context.clone()));
        (kept >= KeepContexts::Alloc).then_some(context)
    }

    /// Returns the context of the block at an address.
    pub(super) fn of_block(&self, address: Address) -> Option<HistoryContext> {
        self.blocks.get(&address).cloned()
    }

    /// Returns the context of the segment that an address lies in.
    pub(super) fn of_segment(&self, address: Address) -> Option<HistoryContext> {
        let (_, (end, context)) = self.segments.range(..=address).next_back()?;
        (address < *end).then(|| context.clone())
    }

    /// Removes the contexts of all segments.
    pub(super) fn forget_segments(&mut self) {
        self.segments.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.segments.is_empty()
    }

    /// Removes the contexts of the addresses `start..end`. A segment that reaches beyond them keeps its context for its
    /// remaining one or two parts.
    fn cut_segments(&mut self, start: Address, end: Address) {
        // Segments do not overlap, so the last one that begins before `end` also ends last.
        while let Some((&first, &(segment_end, _))) = self.segments.range(..end).next_back() {
            if segment_end <= start {
                return;
            }
            let Some((_, context)) = self.segments.remove(&first) else { return };
            if segment_end > end {
                self.segments.insert(end, (segment_end, context.clone()));
            }
            if first < start {
                self.segments.insert(first, (start, context));
            }
        }
    }
}

/// Returns the context that the program has set for this thread, if the level `kept` is at least `least`.
fn current_context(kept: KeepContexts, least: KeepContexts) -> Option<HistoryContext> {
    if kept >= least { HistoryContext::current() } else { None }
}
