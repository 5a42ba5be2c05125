//! The figures of a trace over time, reduced to the points that a chart can show.

use rustc_hash::FxHashMap;
use tenure_core::StreamId;
use tenure_plan::{Trace, TraceAction, TraceEvent};

use super::axis::{BINS, Span};
use super::chart::{DrawnAs, Series};

/// The position of events in a chart: by time, or by number if the recorder had no clock.
pub(super) struct Bins {
    events: Vec<u16>,
    span: Span,
}

impl Bins {
    pub(super) fn of(trace: &Trace) -> Self {
        Self::new(trace.events().iter().map(|event| event.time_us))
    }

    /// Makes the bins of events at these times in µs, which ascend.
    pub(super) fn new(times_us: impl ExactSizeIterator<Item = u64> + DoubleEndedIterator + Clone) -> Self {
        let first_us = times_us.clone().next().unwrap_or(0);
        let last_us = times_us.clone().next_back().unwrap_or(first_us);
        let duration_us = last_us - first_us;
        let place = |place: u64, length: u64| (u128::from(place) * BINS as u128 / (u128::from(length) + 1)) as u16;
        if duration_us > 0 {
            let events = times_us.map(|time_us| place(time_us - first_us, duration_us)).collect();
            Self { events, span: Span::Us(duration_us) }
        } else {
            let count = times_us.len() as u64;
            Self { events: (0..count).map(|index| place(index, count)).collect(), span: Span::Events(count) }
        }
    }

    pub(super) fn of_event(&self, event: usize) -> usize {
        usize::from(self.events[event])
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }
}

/// The highest value in each bin.
#[derive(Default)]
pub(super) struct Envelope {
    highest: Vec<u64>,
    current: u64,
}

impl Envelope {
    /// Sets the value from an event in `bin` on.
    pub(super) fn set(&mut self, bin: usize, value: u64) {
        self.fill(bin + 1);
        self.highest[bin] = self.highest[bin].max(value);
        self.current = value;
    }

    pub(super) fn finish(mut self) -> Vec<u64> {
        self.fill(BINS);
        self.highest
    }

    fn fill(&mut self, bins: usize) {
        if self.highest.len() < bins {
            self.highest.resize(bins, self.current);
        }
    }
}

/// The composition of the live bytes, in each bin at the moment when they were most.
pub(super) struct Composition {
    groups: Vec<Group>,
}

/// A gain or loss of live bytes in a group.
pub(super) struct Change {
    pub(super) bin: usize,
    pub(super) group: usize,
    pub(super) bytes: u64,
    pub(super) gains: bool,
}

struct Group {
    name: String,
    class: String,
    values: Vec<u64>,
}

/// The upper ends of the block sizes that charts distinguish, in bytes, and their names.
const SIZES: [(u64, &str); 6] = [
    (64 << 10, "up to 64 KiB"),
    (1 << 20, "up to 1 MiB"),
    (10 << 20, "up to 10 MiB"),
    (64 << 20, "up to 64 MiB"),
    (256 << 20, "up to 256 MiB"),
    (u64::MAX, "larger"),
];

/// Returns the number of the size class of a block of `bytes`.
pub(super) fn size_class(bytes: u64) -> usize {
    SIZES.iter().position(|&(upper, _)| bytes <= upper).unwrap_or(SIZES.len() - 1)
}

/// The number of streams that have a colour of their own; the others share the last.
const STREAMS: usize = 8;

impl Composition {
    pub(super) fn by_size(trace: &Trace, bins: &Bins) -> Self {
        let names = SIZES.iter().map(|(_, name)| (*name).to_owned()).collect();
        let size = |event: &TraceEvent| size_class(event.bytes);
        Self::of(trace, bins, names, "size", size)
    }

    /// Divides live bytes by stream. `streams` ascend.
    pub(super) fn by_stream(trace: &Trace, bins: &Bins, streams: &[StreamId]) -> Self {
        let mut names: Vec<_> = streams.iter().take(STREAMS).map(|stream| format!("stream {stream}")).collect();
        if let Some(last) = names.last_mut().filter(|_| streams.len() > STREAMS) {
            *last = "other streams".into();
        }
        let stream = |event: &TraceEvent| streams.binary_search(&event.stream).unwrap_or(STREAMS).min(STREAMS - 1);
        Self::of(trace, bins, names, "stream", stream)
    }

    fn of(
        trace: &Trace,
        bins: &Bins,
        names: Vec<String>,
        class: &str,
        group_of: impl Fn(&TraceEvent) -> usize,
    ) -> Self {
        let groups = (0..).zip(names).map(|(index, name)| (name, format!("{class}{index}"), 0)).collect();
        // A block leaves the group that it joined, whatever stream its free names.
        let mut live = FxHashMap::default();
        let changes = trace.events().iter().enumerate().filter_map(|(index, event)| {
            let (gains, (group, bytes)) = match event.action {
                TraceAction::Alloc => {
                    (true, *live.entry(event.address).insert_entry((group_of(event), event.bytes)).get())
                }
                TraceAction::FreeCompleted => (false, live.remove(&event.address)?),
                _ => return None,
            };
            Some(Change { bin: bins.of_event(index), group, bytes, gains })
        });
        Self::new(groups, changes)
    }

    /// Makes the composition. Groups have a name, a class and initial bytes; changes are in the order of their bins.
    pub(super) fn new(groups: Vec<(String, String, u64)>, changes: impl Iterator<Item = Change>) -> Self {
        let mut live: Vec<u64> = groups.iter().map(|&(.., bytes)| bytes).collect();
        let group = |(name, class, _)| Group { name, class, values: Vec::with_capacity(BINS) };
        let mut groups: Vec<Group> = groups.into_iter().map(group).collect();
        let mut total = live.iter().sum();
        let mut highest = 0;
        for Change { bin, group, bytes, gains } in changes {
            // No change came before this bin.
            if groups[0].values.len() <= bin {
                groups.iter_mut().zip(&live).for_each(|(group, &bytes)| group.values.resize(bin + 1, bytes));
                highest = total;
            }
            if gains {
                live[group] += bytes;
                total += bytes;
            } else {
                live[group] -= bytes;
                total -= bytes;
            }
            if total > highest {
                highest = total;
                groups.iter_mut().zip(&live).for_each(|(group, &bytes)| group.values[bin] = bytes);
            }
        }
        groups.iter_mut().zip(&live).for_each(|(group, &bytes)| group.values.resize(BINS, bytes));
        groups.retain(|group| group.values.iter().any(|&bytes| bytes > 0));
        Self { groups }
    }

    pub(super) fn into_series(self) -> Vec<Series> {
        self.groups
            .into_iter()
            .map(|group| Series::new(group.name, group.class, DrawnAs::Stacked, group.values))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tenure_plan::Settings;

    use super::*;

    fn event(time_us: u64, action: TraceAction, address: u64, bytes: u64) -> TraceEvent {
        TraceEvent { time_us, address, bytes, stream: StreamId::NULL, action }
    }

    #[test]
    fn an_envelope_keeps_what_was_highest_and_goes_on_with_what_was_last() {
        let mut envelope = Envelope::default();
        envelope.set(1, 5);
        envelope.set(1, 9);
        envelope.set(1, 2);
        envelope.set(4, 3);
        assert_eq!(envelope.finish()[..6], [0, 9, 2, 2, 3, 3]);
    }

    #[test]
    fn a_composition_is_of_the_moment_when_its_bin_was_fullest() {
        let events = vec![
            event(0, TraceAction::Alloc, 1 << 40, 100),
            event(0, TraceAction::Alloc, 1 << 41, 2 << 20),
            event(0, TraceAction::FreeRequested, 1 << 41, 2 << 20),
            event(0, TraceAction::FreeCompleted, 1 << 41, 2 << 20),
            event(1000, TraceAction::Alloc, 1 << 42, 100),
        ];
        let trace = Trace::new("small", 0, Settings::default(), events).unwrap();
        let composition = Composition::by_size(&trace, &Bins::of(&trace));
        let figures: Vec<_> = composition
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.values[0], group.values[1], group.values[BINS - 1]))
            .collect();
        assert_eq!(figures, [("up to 64 KiB", 100, 100, 200), ("up to 10 MiB", 2 << 20, 0, 0)]);
    }

    #[test]
    fn without_a_clock_events_are_counted() {
        let events = (0..10).map(|index| event(0, TraceAction::Alloc, 1 + index * 16, 1)).collect();
        let bins = Bins::of(&Trace::new("timeless", 0, Settings::default(), events).unwrap());
        assert!(matches!(bins.span(), Span::Events(10)));
        assert_eq!((bins.of_event(0), bins.of_event(5)), (0, BINS * 5 / 11));
    }
}
