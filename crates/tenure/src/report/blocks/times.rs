//! The times in a page: few enough to fit, and chosen so that interpolation gives all others.

use std::ops::Range;

use serde::Serialize;
use tenure_plan::TraceEvent;

use super::columns::{deflated, differences};

/// The events whose times the page stores, and the largest error of an interpolated time.
#[derive(Debug)]
pub(super) struct Times {
    /// Ascending event numbers, the first and the last of the span among them.
    pub(super) told: Vec<usize>,
    /// The largest error in µs; 0 if interpolated times are right when rounded to µs.
    pub(super) error_us: u64,
}

/// The table of times in a page.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct TimeColumns {
    error_us: u64,
    #[serde(with = "differences")]
    pub(super) event: Vec<u64>,
    /// µs since the first event of the trace.
    #[serde(with = "differences")]
    pub(super) us: Vec<u64>,
}

impl Times {
    /// Chooses as many times as fit into `bytes` of the page, but at least two, of the events in `span`.
    pub(super) fn within(events: &[TraceEvent], span: &Range<usize>, bytes: usize) -> Self {
        // Times of a repetitive program take less than a byte each.
        let mut most = 4 * bytes;
        loop {
            let times = Self::of(events, span, most);
            let length = deflated(&times.columns(events)).len();
            if length <= bytes || times.told.len() <= 2 {
                return times;
            }
            most = (times.told.len() as f64 * (bytes as f64 / length as f64).min(0.9)) as usize;
        }
    }

    /// Returns the table of times.
    pub(super) fn columns(&self, events: &[TraceEvent]) -> TimeColumns {
        let first_us = events.first().map_or(0, |event| event.time_us);
        TimeColumns {
            error_us: self.error_us,
            event: self.told.iter().map(|&event| event as u64).collect(),
            us: self.told.iter().map(|&event| events[event].time_us - first_us).collect(),
        }
    }

    /// Chooses at most `most` times, but at least two, of the events in `span`, as exact as possible.
    fn of(events: &[TraceEvent], span: &Range<usize>, most: usize) -> Self {
        let mut error_us = 0;
        loop {
            match told(events, span, error_us, most.max(2)) {
                Some(told) => return Self { told, error_us },
                // Interpolated times lie between the first and the last, so that this ends.
                None => error_us = (error_us * 2).max(1),
            }
        }
    }
}

/// Returns the first event of each stretch that a line fits with an error of at most `error_us`, and the last event;
/// `None` if these are more than `most`.
fn told(events: &[TraceEvent], span: &Range<usize>, error_us: u64, most: usize) -> Option<Vec<usize>> {
    let allowed_us = (error_us as f64).max(0.49);
    let mut told = Vec::new();
    let Some(last) = span.end.checked_sub(1).filter(|last| span.contains(last)) else { return Some(told) };
    let mut anchor = span.start;
    told.push(anchor);
    // The slopes, in µs per event, of lines from the anchor that pass near all events since.
    let mut low = f64::NEG_INFINITY;
    let mut high = f64::INFINITY;
    for event in span.start + 1..=last {
        let (mut length, mut rise_us) = since(events, anchor, event);
        if rise_us / length < low || rise_us / length > high {
            anchor = event - 1;
            told.push(anchor);
            if told.len() >= most {
                return None;
            }
            (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
            (length, rise_us) = since(events, anchor, event);
        }
        low = low.max((rise_us - allowed_us) / length);
        high = high.min((rise_us + allowed_us) / length);
    }
    if anchor < last {
        told.push(last);
    }
    Some(told)
}

/// Returns the events and µs from `anchor` to `event`.
fn since(events: &[TraceEvent], anchor: usize, event: usize) -> (f64, f64) {
    ((event - anchor) as f64, (events[event].time_us - events[anchor].time_us) as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::StreamId;
    use tenure_plan::TraceAction;

    use super::*;

    fn events(gaps_us: &[u64]) -> Vec<TraceEvent> {
        let times = gaps_us.iter().scan(0, |time_us, gap_us| {
            *time_us += gap_us;
            Some(*time_us)
        });
        times
            .map(|time_us| TraceEvent { time_us, address: 0, bytes: 0, stream: StreamId(0), action: TraceAction::Oom })
            .collect()
    }

    fn interpolated_us(events: &[TraceEvent], told: &[usize], event: usize) -> f64 {
        let next = told.partition_point(|&other| other < event);
        if told[next] == event {
            return events[event].time_us as f64;
        }
        let (length, rise_us) = since(events, told[next - 1], told[next]);
        events[told[next - 1]].time_us as f64 + (event - told[next - 1]) as f64 / length * rise_us
    }

    proptest! {
        #[test]
        fn interpolated_times_are_off_by_no_more_than_they_say(
            gaps_us in prop::collection::vec(prop_oneof![Just(0), 0..50_u64, Just(10_000_000)], 1..300),
            from in 0_usize..300,
            most in 2_usize..400,
        ) {
            let events = events(&gaps_us);
            let span = from.min(events.len())..events.len();
            let times = Times::of(&events, &span, most);
            prop_assert!(times.told.len() <= most);
            for event in span {
                let told_us = interpolated_us(&events, &times.told, event);
                let error_us = (told_us - events[event].time_us as f64).abs();
                prop_assert!(error_us < (times.error_us as f64).max(0.49) + 0.001, "event {event} by {error_us} of {times:?}");
            }
        }
    }

    #[test]
    fn a_pause_between_even_events_costs_two_times() {
        let mut gaps_us = vec![10; 10_000];
        gaps_us[4567] = 60_000_000;
        let times = Times::of(&events(&gaps_us), &(0..10_000), 100);
        assert_eq!((times.told, times.error_us), (vec![0, 4566, 4567, 9999], 0));
    }
}
