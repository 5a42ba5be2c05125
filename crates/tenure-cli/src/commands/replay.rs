//! `tenure replay`: replays traces on other allocators.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use tenure::Error;
use tenure::device::Driver;
use tenure::plan::Trace;
use tenure::replay::{self, AllocatorKind, OnDevice, Replay, ReplayOutcome};
use tenure::units::{Bytes, Count, Micros, Nanos, Percent};

use crate::figures::table;
use crate::files;
use crate::platform;
use crate::progress::Replaying;
use crate::values::{Allocators, DriverKind, TraceSource};

/// Replay a trace's allocations on another allocator, and report the memory and time
#[derive(clap::Args)]
#[command(after_help = "\
After each pass the blocks still live are freed in address order, and all streams complete.

On a real device (--driver cuda) memory and mappings are real: every block is written at both ends, the allocator's \
calls are timed and compared with the model, and the device's own count of used memory is compared with the \
allocator's. Use a device that no other process uses: its allocations and frees would be counted too. The device \
chooses the addresses of blocks, so they are not compared with the recorded ones.

Examples:
  tenure replay snapshot.pickle
  tenure replay *.pickle.xz --allocator paged --repeat 3 --lag-us 10000 --json
  tenure replay snapshot.pickle --driver cuda --allocator paged")]
pub(crate) struct ReplayArgs {
    /// PyTorch memory snapshots (.pickle, also as .xz or .gz) or compact traces (.ttrace), detected by content; - is
    /// standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The allocator to replay on
    #[arg(long, value_enum, default_value_t = Allocators::All, value_name = "NAME")]
    allocator: Allocators,
    /// The number of times to play each trace, one after the other on the same allocator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    repeat: u32,
    /// The time after a block's free at which the simulated device completes its work on the block, in µs of the trace
    #[arg(long, default_value_t = 0, value_name = "L")]
    lag_us: u64,
    /// The driver to use
    #[arg(long, value_enum, default_value_t = DriverKind::Sim, value_name = "NAME")]
    driver: DriverKind,
    /// The number of the device to replay on, with --driver cuda
    #[arg(long, default_value_t = 0, value_name = "N")]
    on_device: u8,
    /// Print one JSON object per line for each file and allocator
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: TraceSource,
}

pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let device = match real_device(args) {
        Ok(device) => device,
        Err(error) => return files::print(Err(error)),
    };
    let mut names = files::distinct_names(&args.files).into_iter();
    files::for_each(&args.files, |path| {
        let name = names.next().unwrap_or_else(|| Trace::source_of(path));
        let trace = files::read_named(path, name, &args.source)?;
        let outcomes = args.allocator.kinds().into_iter().map(|kind| replay_on(device.as_ref(), kind, &trace, args));
        let outcomes: Vec<ReplayOutcome> =
            outcomes.collect::<Result<_, _>>().map_err(|error| files::about(path, error))?;
        if args.json {
            let lines = outcomes.iter().map(|outcome| Ok(serde_json::to_string(outcome)? + "\n"));
            return lines.collect();
        }
        Ok(describe(&outcomes, args.repeat))
    })
}

/// Returns the device to replay on; `None` for a simulated one, which is made anew for each trace.
fn real_device(args: &ReplayArgs) -> anyhow::Result<Option<Arc<dyn Driver>>> {
    match args.driver {
        DriverKind::Sim => Ok(None),
        DriverKind::Cuda => {
            anyhow::ensure!(
                args.lag_us == 0,
                "--lag-us is for --driver sim: the work of a real device ends when it ends"
            );
            platform::device(args.driver, args.on_device).map(Some)
        }
    }
}

fn replay_on(
    device: Option<&Arc<dyn Driver>>,
    allocator: AllocatorKind,
    trace: &Trace,
    args: &ReplayArgs,
) -> Result<ReplayOutcome, Error> {
    let bar = Replaying::new(
        trace.events().len(),
        u64::from(args.repeat),
        format!("replaying {} on {allocator}", trace.source()),
    );
    let replay = Replay { allocator, repeat: args.repeat, lag_us: args.lag_us };
    let observe = |progress| {
        bar.update(0, progress);
        ControlFlow::Continue(())
    };
    match device {
        Some(device) => replay.run_on(device, trace, observe),
        None => replay.run_observed(trace, observe),
    }
}

fn describe(outcomes: &[ReplayOutcome], repeat: u32) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let unknown = || "an unknown time (times were not recorded)".into();
    let duration = first.trace_duration_us.map_or_else(unknown, |us| Micros(us as f64).to_string());
    let title = format!(
        "{}: {} events in {duration}, {} requested at the peak",
        first.trace,
        Count(first.events as u64),
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
    let memory = table(&heads, &memory);
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
    let driver = table(&heads, &driver);
    let measured: String =
        outcomes.iter().filter_map(|outcome| Some(call_times(outcome, outcome.device.as_ref()?))).collect();
    let remarks = outcomes.iter().filter_map(addresses);
    let remarks = remarks.chain(outcomes.iter().filter_map(on_device)).chain(replay::verdict(outcomes));
    let remarks = remarks.chain(replay::recorded(first)).chain(replay::before_history(first.earlier_bytes));
    let remarks: String = remarks.map(|remark| remark + ".\n").collect();
    format!("{title}\n\n{memory}\n{driver}\n{measured}{remarks}\n")
}

/// Returns a table of the time of each kind of call on a real device, next to the model's.
fn call_times(outcome: &ReplayOutcome, device: &OnDevice) -> String {
    let each = |us: f64, count: u64| Micros(us / count.max(1) as f64).to_string();
    let rows: Vec<_> = device
        .calls
        .iter()
        .map(|call| {
            let [modelled, modelled_each] = match call.modelled_us {
                Some(us) => [Micros(us).to_string(), each(us, call.count)],
                None => ["-".into(), "-".into()],
            };
            let measured = Micros(call.measured_us).to_string();
            let name = format!("{}: {}", outcome.allocator, call.call);
            [name, Count(call.count).to_string(), measured, modelled, each(call.measured_us, call.count), modelled_each]
        })
        .collect();
    table(&["call", "count", "measured", "modelled", "each", "modelled each"], &rows) + "\n"
}

/// Compares the memory of a real device with the requested bytes, and with the allocator's own count.
fn on_device(outcome: &ReplayOutcome) -> Option<String> {
    let device = outcome.device.as_ref()?;
    let [peak, end] = [device.at_peak, device.at_end].map(|held| {
        let difference = held.difference_bytes();
        let word = if difference < 0 { "less" } else { "more" };
        format!("{} {word}", Bytes(difference.unsigned_abs()))
    });
    Some(format!(
        "{}: {} reserved for {} requested, {} than 1% or 64 MiB more; the device counts {peak} at the peak and {end} at \
         the end, which {}; driver calls took {} ({} modelled); {} blocks were read and held what was written",
        outcome.allocator,
        Bytes(outcome.peak_reserved_bytes),
        Bytes(outcome.peak_requested_bytes),
        if outcome.is_close() { "not more" } else { "MORE" },
        if device.agrees() { "agrees within 64 MiB" } else { "does NOT agree within 64 MiB" },
        Micros(device.measured_driver_us),
        Micros(outcome.modelled_driver_us),
        Count(device.blocks_checked),
    ))
}

/// Says whether PyTorch's allocator chose the same addresses as in the recording.
fn addresses(outcome: &ReplayOutcome) -> Option<String> {
    Some(match outcome.mismatched_addresses? {
        0 => format!("{}: every block is at the address that PyTorch gave it", outcome.allocator),
        count => format!(
            "{}: {} blocks are not at the address that PyTorch gave them",
            outcome.allocator,
            Count(count as u64)
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tenure::core::StreamId;
    use tenure::device::sim::{SimConfig, SimDriver};
    use tenure::plan::{Settings, TraceAction, TraceEvent};

    use super::*;

    #[test]
    fn the_figures_of_a_device_are_shown() {
        let event = |time_us, name| TraceEvent {
            time_us,
            address: 1 << 30,
            bytes: 1 << 30,
            stream: StreamId::NULL,
            action: TraceAction::from_name(name).unwrap(),
        };
        let events = vec![event(0, "alloc"), event(1, "free_requested"), event(2, "free_completed")];
        let trace = Trace::new("made", 0, Settings::default(), events).unwrap();
        let device: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
        let outcome = Replay::new(AllocatorKind::Paged).run_on(&device, &trace, |_| ControlFlow::Continue(())).unwrap();
        let text = describe(&[outcome], 1);
        for part in [
            "paged: cuMemCreate",
            "modelled each",
            "not more than 1% or 64 MiB more; the device counts 0 B more at the peak and 0 B more at the end",
            "agrees within 64 MiB",
            "1 blocks were read",
        ] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }
}
