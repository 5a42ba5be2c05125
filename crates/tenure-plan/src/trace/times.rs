//! Times of events that a recorder left out, or that run backwards.

use super::TraceEvent;

/// The time of an event without one, until [`fill`].
pub(super) const MISSING_US: u64 = u64::MAX;

/// Returns whether the recorder had a clock: without one, every time is 0.
pub(super) fn are_recorded(events: &[TraceEvent]) -> bool {
    events.iter().any(|event| event.time_us > 0)
}

/// Gives each event without a time that of the event before it, and those at the beginning the first time that there
/// is; 0 if there is none.
pub(super) fn fill(events: &mut [TraceEvent]) {
    let mut latest = events.iter().map(|event| event.time_us).find(|&time_us| time_us != MISSING_US).unwrap_or(0);
    for event in events {
        if event.time_us == MISSING_US {
            event.time_us = latest;
        }
        latest = event.time_us;
    }
}

/// Raises every time to at least its predecessor's.
pub(super) fn order(events: &mut [TraceEvent]) {
    let mut latest = 0;
    for event in events {
        latest = event.time_us.max(latest);
        event.time_us = latest;
    }
}

/// Says how many recorded events have no time, although others have one, and how many times run backwards.
pub(super) fn notes(recorded: &[TraceEvent]) -> impl Iterator<Item = String> {
    let times = recorded.iter().map(|event| event.time_us).filter(|&time_us| time_us != MISSING_US);
    let mut missing = recorded.len();
    let mut backwards = 0_u64;
    let mut farthest_us = 0;
    let mut latest = 0;
    for time_us in times {
        missing -= 1;
        if time_us < latest {
            backwards += 1;
            farthest_us = farthest_us.max(latest - time_us);
        }
        latest = latest.max(time_us);
    }
    let missing = (1..recorded.len()).contains(&missing).then(|| {
        format!(
            "{missing} of {} events have no time: each counts as at the time of the event before it",
            recorded.len()
        )
    });
    let backwards = (backwards > 0).then(|| {
        format!(
            "times run backwards at {backwards} events, by up to {farthest_us} \u{b5}s: each counts as at the latest time \
             before it, so durations are too short"
        )
    });
    missing.into_iter().chain(backwards)
}
