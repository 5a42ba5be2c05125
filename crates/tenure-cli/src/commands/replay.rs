use std::process::ExitCode;

use tenure::prelude::*;
use tenure::replay;
use tenure::units::{Count, Percent};

use crate::args::{DriverKind, ReplayArgs};
use crate::files;
use crate::progress::Replaying;
use crate::table::table;

pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let DriverKind::Sim = args.driver;
    files::for_each(&args.files, |path| {
        let trace = files::read(path, &args.source)?;
        let outcomes = args.allocator.kinds().into_iter().map(|kind| replay_on(kind, &trace, args));
        let outcomes: Vec<Outcome> = outcomes.collect::<Result<_, _>>().map_err(|error| files::about(path, error))?;
        if args.json {
            let lines = outcomes.iter().map(|outcome| Ok(serde_json::to_string(outcome)? + "\n"));
            return lines.collect();
        }
        Ok(describe(&outcomes, args.repeat))
    })
}

fn replay_on(allocator: AllocatorKind, trace: &Trace, args: &ReplayArgs) -> Result<Outcome, Error> {
    let bar = Replaying::new(
        trace.events().len(),
        u64::from(args.repeat),
        format!("replaying {} on {allocator}", trace.source()),
    );
    let replay = Replay { allocator, repeat: args.repeat, lag_us: args.lag_us };
    replay.run_observed(trace, |progress| bar.update(0, progress))
}

fn describe(outcomes: &[Outcome], repeat: u32) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let title = format!(
        "{}: {} events in {}, {} requested at the peak",
        first.trace,
        Count(first.events as u64),
        Micros(first.trace_duration_us as f64),
        Bytes(first.peak_requested_bytes)
    );
    let memory: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            [
                outcome.allocator.to_string(),
                Bytes(outcome.peak_reserved_bytes).to_string(),
                Percent(outcome.overhead()).to_string(),
                // PyTorch counts no segments where they grow in place.
                if outcome.peak_segments == 0 { "-".into() } else { Count(outcome.peak_segments).to_string() },
                Nanos(outcome.alloc_ns_median.into()).to_string(),
                Nanos(outcome.alloc_ns_p99.into()).to_string(),
                Nanos(outcome.free_ns_median.into()).to_string(),
            ]
        })
        .collect();
    let heads = ["allocator", "reserved", "over requested", "segments", "alloc median", "alloc p99", "free median"];
    let memory = table(heads, &memory);
    let driver: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            [
                outcome.allocator.to_string(),
                Count(outcome.driver_calls.total()).to_string(),
                Micros(outcome.modelled_driver_us).to_string(),
                Count(outcome.driver_calls_last_repeat.total()).to_string(),
                Micros(outcome.modelled_driver_us_last_repeat).to_string(),
                Count(outcome.host_syncs).to_string(),
                Count(outcome.cross_stream_waits).to_string(),
            ]
        })
        .collect();
    let [calls, time] = ["calls", "time"].map(|what| format!("{what} in pass {repeat}"));
    let heads = ["allocator", "driver calls", "driver time", &calls, &time, "host waits", "stream waits"];
    let driver = table(heads, &driver);
    let remarks: String =
        outcomes.iter().filter_map(addresses).chain(replay::verdict(outcomes)).map(|remark| remark + ".\n").collect();
    format!("{title}\n\n{memory}\n{driver}\n{remarks}\n")
}

/// Whether PyTorch's allocator did here what it did in the recording.
fn addresses(outcome: &Outcome) -> Option<String> {
    Some(match outcome.mismatched_addresses? {
        0 => format!("{}: every block is at the address that PyTorch gave it", outcome.allocator),
        count => format!(
            "{}: {} blocks are not at the address that PyTorch gave them",
            outcome.allocator,
            Count(count as u64)
        ),
    })
}
