//! The contexts of live blocks and segments.
//!
//! They are kept here and not in the blocks, which would be larger for them even when nothing is recorded.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{HistoryAction, HistoryContext, HistoryEvent, KeepContexts};
use crate::Address;

#[derive(Default)]
pub(super) struct Contexts {
    blocks: FxHashMap<Address, HistoryContext>,
    /// Segments by first address: the address after the last byte, and the context.
    segments: BTreeMap<Address, (Address, HistoryContext)>,
}

impl Contexts {
    /// Updates the contexts of the block or segment that an event begins or ends. Returns the event's own context, if
    /// the level `kept` includes it.
    pub(super) fn note(&mut self, event: &HistoryEvent, kept: KeepContexts) -> Option<HistoryContext> {
        let current = |level| if kept >= level { HistoryContext::current() } else { None };
        let HistoryEvent { address, bytes, .. } = *event;
        let context = match event.action {
            HistoryAction::Alloc => {
                let context = current(KeepContexts::State);
                match &context {
                    Some(context) => drop(self.blocks.insert(address, context.clone())),
                    None => drop(self.blocks.remove(&address)),
                }
                context
            }
            HistoryAction::FreeRequested => current(KeepContexts::All).or_else(|| self.of_block(address)),
            HistoryAction::FreeCompleted => {
                let own = self.blocks.remove(&address);
                current(KeepContexts::All).or(own)
            }
            HistoryAction::SegmentAlloc | HistoryAction::SegmentMap => {
                let context = current(KeepContexts::Alloc);
                if let Some(context) = &context {
                    self.segments.insert(address, (address + bytes, context.clone()));
                }
                context
            }
            HistoryAction::SegmentFree | HistoryAction::SegmentUnmap => {
                let own = self.of_segment(address);
                self.cut_segments(address, address + bytes);
                current(KeepContexts::All).or(own)
            }
            HistoryAction::OutOfMemory | HistoryAction::Annotate => current(KeepContexts::State),
            HistoryAction::Snapshot => None,
        };
        context.filter(|_| kept >= KeepContexts::Alloc)
    }

    /// Moves the context of the segment bytes of `from` to `to`. Returns it, if the level `kept` includes the contexts
    /// of events.
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

    pub(super) fn of_block(&self, address: Address) -> Option<HistoryContext> {
        self.blocks.get(&address).cloned()
    }

    /// Returns the context of the segment that an address lies in.
    pub(super) fn of_segment(&self, address: Address) -> Option<HistoryContext> {
        let (_, (end, context)) = self.segments.range(..=address).next_back()?;
        (address < *end).then(|| context.clone())
    }

    pub(super) fn forget_segments(&mut self) {
        self.segments.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.segments.is_empty()
    }

    /// Forgets the segments within `start..end`; parts beyond it stay.
    fn cut_segments(&mut self, start: Address, end: Address) {
        while let Some((&first, &(behind, _))) =
            self.segments.range(..end).next_back().filter(|(_, (to, _))| *to > start)
        {
            let Some((_, context)) = self.segments.remove(&first) else { break };
            if behind > end {
                self.segments.insert(end, (behind, context.clone()));
            }
            if first < start {
                self.segments.insert(first, (start, context));
            }
        }
    }
}
