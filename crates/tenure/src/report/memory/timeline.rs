//! Live bytes over time, by tag.
//!
//! A block's tag may be set after it was allocated, and a history may begin when blocks are already live. So the
//! history is read backwards from the current live bytes: each block counts under its last tag, and the bytes that
//! remain at the beginning were live from the start.

use rustc_hash::FxHashMap;
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{Address, HistoryAction, HistoryEvent, Snapshot};
use tenure_core::Tag;

use crate::report::axis::Unit;
use crate::report::chart::Chart;
use crate::report::history::{Bins, Change, Composition};

/// Returns the chart of the history in `snapshot`; `None` if it has none.
pub(super) fn chart(title: &str, snapshot: &Snapshot) -> Option<Chart> {
    let events = snapshot.device_traces.iter().find(|trace| !trace.is_empty())?;
    let bins = Bins::new(events.iter().map(|event| event.time_us));
    let (before, changes) = rewind(snapshot, events, &bins);
    let groups = Tag::ALL.iter().zip(before).map(|(tag, bytes)| (tag.name().to_owned(), class(*tag), bytes)).collect();
    let description = "Bytes that the program asked for and had not freed, stacked by what they were for.";
    let series = Composition::new(groups, changes.into_iter().rev()).into_series();
    Some(Chart::new("Live bytes by tag", title, description, bins.span(), Unit::Bytes, series))
}

/// Returns a tag's class in the style sheet.
pub(super) fn class(tag: Tag) -> String {
    format!("tag-{tag}")
}

/// Returns the live bytes by tag before the first event, and every later change, the last first.
fn rewind(snapshot: &Snapshot, events: &[HistoryEvent], bins: &Bins) -> ([u64; Tag::ALL.len()], Vec<Change>) {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let mut live: FxHashMap<Address, (Tag, u64)> = blocks
        .filter(|block| block.state != SnapshotState::Inactive)
        .map(|block| (block.address, (block.tag, block.requested)))
        .collect();
    let mut changes = Vec::new();
    for (index, event) in events.iter().enumerate().rev() {
        let gained = match event.action {
            HistoryAction::Alloc => live.remove(&event.address),
            HistoryAction::FreeCompleted => {
                let purpose = (event.tag, event.bytes);
                live.insert(event.address, purpose);
                Some(purpose)
            }
            _ => None,
        };
        if let Some((tag, bytes)) = gained {
            let bin = bins.of_event(index);
            let gains = event.action == HistoryAction::Alloc;
            changes.push(Change { bin, group: tag as usize, bytes, gains });
        }
    }
    let mut before = [0; Tag::ALL.len()];
    live.into_values().for_each(|(tag, bytes)| before[tag as usize] += bytes);
    (before, changes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_alloc::{Recording, Request};
    use tenure_core::{KeyId, StreamId};
    use tenure_device::memory::{DeviceMemory, MemoryConfig};
    use tenure_device::sim::{SimConfig, SimDriver};

    use super::*;

    #[test]
    fn blocks_count_under_their_last_tag_and_from_before_the_history() {
        let memory =
            DeviceMemory::new(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default()).unwrap();
        let allocate = |bytes| memory.allocate(Request::new(bytes, StreamId::NULL)).unwrap().address;
        let retag = |address, tag| memory.allocator().retag(address, tag, KeyId::NONE).unwrap();
        let weight = allocate(1000);
        let freed_later = allocate(2000);
        memory.allocator().history().start(Recording::events(100), true);
        memory.free(freed_later).unwrap();
        let gradient = allocate(3000);
        let activation = allocate(4000);
        retag(weight, Tag::Weight);
        retag(activation, Tag::Activation);
        memory.free(activation).unwrap();
        retag(gradient, Tag::Gradient);

        let snapshot = memory.allocator().snapshot();
        let events = &snapshot.device_traces[0];
        let bins = Bins::new(events.iter().map(|event| event.time_us));
        let (before, mut changes) = rewind(&snapshot, events, &bins);
        changes.reverse();
        assert_eq!([Tag::Weight, Tag::Unknown].map(|tag| before[tag as usize]), [1000, 2000]);
        assert_eq!(before.iter().sum::<u64>(), 3000);
        let changes: Vec<_> = changes.iter().map(|c| (Tag::ALL[c.group], c.bytes, c.gains)).collect();
        let unknown = (Tag::Unknown, 2000, false);
        let activation = Tag::Activation;
        assert_eq!(
            changes,
            [unknown, (Tag::Gradient, 3000, true), (activation, 4000, true), (activation, 4000, false)]
        );
    }
}
