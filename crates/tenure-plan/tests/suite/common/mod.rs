//! Helpers that several test files share.

use proptest::prelude::*;
use tenure_core::StreamId;
use tenure_plan::{ReadOptions, Settings, Trace, TraceAction, TraceError, TraceEvent};

/// Returns an event on stream 0 at time `index`.
pub(crate) fn event(action: TraceAction, address: u64, bytes: u64) -> TraceEvent {
    TraceEvent { time_us: 0, address, bytes, stream: StreamId::NULL, action }
}

pub(crate) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read_from(bytes, "test", &ReadOptions::default())
}

/// Returns the error that reading `bytes` gives, which is one line.
pub(crate) fn refusal(bytes: &[u8]) -> String {
    let message = read(bytes).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message
}

/// Generates valid traces: blocks on disjoint addresses, freed in any order, among events of every other kind.
pub(crate) fn any_trace() -> impl Strategy<Value = Trace> {
    let step = (
        0u8..8,
        any::<prop::sample::Index>(),
        0u64..1 << 40,
        0u64..5,
        prop_oneof![Just(0), 0u64..1000, any::<u32>().prop_map(u64::from)],
    );
    (any_settings(), "[a-z ä/]{0,12}", 0..Trace::DEVICES, any::<u32>(), prop::collection::vec(step, 0..200)).prop_map(
        |(settings, source, device, start, steps)| {
            let mut events = Vec::new();
            let mut live: Vec<(TraceEvent, bool)> = Vec::new();
            let mut time_us = u64::from(start);
            let mut top = 0x7000_0000_0000;
            for (kind, index, number, stream, elapsed_us) in steps {
                time_us += elapsed_us;
                let pick = (!live.is_empty()).then(|| index.index(live.len().max(1)));
                let at = |action, address, bytes, stream| TraceEvent { time_us, address, bytes, stream, action };
                let stream = StreamId(stream * 0x1234_5678_9abc);
                match (kind, pick) {
                    (0..=2, Some(pick)) if live[pick].1 => {
                        let (block, _) = live.swap_remove(pick);
                        events.push(TraceEvent { time_us, action: TraceAction::FreeCompleted, ..block });
                    }
                    (0..=2, Some(pick)) => {
                        live[pick].1 = true;
                        events.push(TraceEvent { time_us, action: TraceAction::FreeRequested, ..live[pick].0 });
                    }
                    (0..=4, _) => {
                        let block = at(TraceAction::Alloc, top, number % 100_000, stream);
                        top += (number % 100_000).max(1).next_multiple_of(if kind == 4 { 512 } else { 1 });
                        live.push((block, false));
                        events.push(block);
                    }
                    (5, _) => events.push(at(TraceAction::SegmentMap, number, number, stream)),
                    (6, _) => events.push(at(TraceAction::Oom, u64::MAX - number, u64::MAX, stream)),
                    _ => events.push(at(TraceAction::UserDefined, 0, number, stream)),
                }
            }
            Trace::new(source, device, settings, events).unwrap()
        },
    )
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (".{0,20}", any::<Option<u32>>(), 0.0..=1.0, any::<bool>(), any::<[u32; 16]>()).prop_map(
        |(conf, max_split_size, garbage_collection_threshold, expandable_segments, roundup_power2_divisions)| {
            Settings {
                conf,
                max_split_size_bytes: max_split_size.map(u64::from),
                garbage_collection_threshold,
                expandable_segments,
                roundup_power2_divisions,
            }
        },
    )
}
