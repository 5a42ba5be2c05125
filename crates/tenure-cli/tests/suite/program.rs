//! The program, run as its users run it.
#![expect(clippy::disallowed_methods, reason = "signals until the program ends")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tenure::core::StreamId;
use tenure::plan::{Format, Settings, Trace, TraceAction, TraceEvent};
use tenure::replay::AllocatorKind;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");

fn tenure(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).current_dir(folder).args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

fn here() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The names of the files in a folder, hidden ones included.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    files.sort();
    files
}

/// The keys of an object's outer level, or of an object in it, as they stand there.
fn keys(json: &str) -> Vec<&str> {
    let parts = json.split("\":").collect::<Vec<_>>();
    parts[..parts.len() - 1].iter().map(|part| part.rsplit('"').next().unwrap()).collect()
}

#[test]
fn info_says_what_a_trace_holds() {
    let output = tenure(here().path(), &["trace", "info", SAMPLE]);
    assert!(output.status.success());
    let text = stdout(&output);
    for fact in ["resnet50_step", "2,914", "1,259 on 1 stream", "5,954,812,784 bytes", "111", "256 MiB and up"] {
        assert!(text.contains(fact), "{fact} is missing from\n{text}");
    }
    assert_eq!(stderr(&output), "", "no progress bar in a pipe");
}

#[test]
fn every_format_holds_the_same_trace() {
    let folder = here();
    let mut source = SAMPLE.to_owned();
    for target in ["one.ttrace", "two.pickle", "three.pickle.gz", "four.pickle.xz", "five.ttrace"] {
        let output = tenure(folder.path(), &["trace", "convert", &source, "-o", target]);
        assert!(output.status.success(), "{}", stderr(&output));
        source = target.into();
    }
    let first = Trace::read(SAMPLE).unwrap();
    let last = Trace::read(folder.path().join("five.ttrace")).unwrap();
    assert_eq!(first.events(), last.events());
    assert_eq!(first.settings(), last.settings());
    assert_eq!(files(folder.path()).len(), 5, "nothing else is left");
}

#[test]
fn a_format_that_the_name_does_not_say_is_an_error() {
    let folder = here();
    let output = tenure(folder.path(), &["trace", "convert", SAMPLE, "-o", "trace.zip"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("tenure: trace.zip: the name does not say the format"));
    assert_eq!(files(folder.path()).len(), 0);
}

#[test]
fn a_file_that_can_not_be_written_is_named_as_it_was_given() {
    for (command, path) in [("convert", "missing/a.ttrace"), ("report", "missing/a.html")] {
        let output = tenure(here().path(), &["trace", command, SAMPLE, "-o", path]);
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains(path) && !said.contains(".tenure-"), "{said}");
    }
}

#[test]
fn replay_prints_one_json_object_for_each_allocator() {
    let args = ["replay", SAMPLE, "--repeat", "2", "--lag-us", "100", "--driver", "sim", "--json"];
    let output = tenure(here().path(), &args);
    let calls = ["malloc", "free", "create", "map", "set_access", "unmap", "release"];
    #[rustfmt::skip]
    let expected = [
        &["trace", "allocator", "events", "earlier_bytes", "recorded_reserved_bytes", "recorded_reserved_end_bytes",
         "operations",
          "peak_requested_bytes", "peak_allocated_bytes",
          "peak_reserved_bytes", "peak_segments", "created_bytes", "driver_calls"][..], &calls,
        &["driver_calls_last_repeat"], &calls,
        &["modelled_driver_us", "modelled_driver_us_last_repeat", "trace_duration_us", "host_syncs",
          "cross_stream_waits", "mismatched_addresses", "alloc_ns_median", "alloc_ns_p99", "free_ns_median"],
    ].concat();
    let mut allocators = Vec::new();
    for line in stdout(&output).lines() {
        assert_eq!(keys(line), expected);
        let outcome: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&outcome["trace"], &outcome["events"]), (&"resnet50_step".into(), &2914.into()));
        let is_native = outcome["allocator"] == "native";
        assert_eq!(outcome["mismatched_addresses"], if is_native { 0.into() } else { serde_json::Value::Null });
        allocators.push(outcome["allocator"].as_str().unwrap().to_owned());
    }
    assert_eq!(allocators, AllocatorKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>());
}

#[test]
fn replay_prints_a_table_and_a_verdict() {
    let output = tenure(here().path(), &["replay", SAMPLE]);
    assert!(output.status.success());
    let text = stdout(&output);
    for part in [
        "native       7.49 GB",
        "every block is at the address",
        "paged would have held",
        "a model of PyTorch's native allocator held",
        "saved.",
    ] {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
    let native = tenure(here().path(), &["replay", SAMPLE, "--allocator", "native"]);
    assert!(!stdout(&native).contains("paged"));
}

/// Copies the sample to `rank0/snapshot.pickle.xz` and `rank1/snapshot.pickle.xz`.
fn two_ranks(folder: &Path) -> [&'static str; 2] {
    let ranks = ["rank0/snapshot.pickle.xz", "rank1/snapshot.pickle.xz"];
    for rank in ranks {
        fs::create_dir(folder.join(rank).parent().unwrap()).unwrap();
        fs::copy(SAMPLE, folder.join(rank)).unwrap();
    }
    ranks
}

#[test]
fn files_of_one_name_are_told_apart() {
    let folder = here();
    let [first, second] = two_ranks(folder.path());
    let output = tenure(folder.path(), &["replay", first, second, "--allocator", "native", "--json"]);
    let replays = stdout(&output).lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let names: Vec<_> = replays.map(|replay| replay["trace"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["rank0/snapshot", "rank1/snapshot"]);
    let output = tenure(folder.path(), &["trace", "report", first, second]);
    assert!(output.status.success(), "{}", stderr(&output));
    let pages = ["rank0", "rank0-snapshot.html", "rank1", "rank1-snapshot.html"];
    assert_eq!(files(folder.path()), pages.map(PathBuf::from));
}

#[test]
fn no_output_replaces_an_input_or_another_page() {
    let folder = here();
    let [first, second] = two_ranks(folder.path());
    assert!(tenure(folder.path(), &["trace", "report", first]).status.success());
    let page = fs::read(folder.path().join("snapshot.html")).unwrap();
    let input = fs::read(folder.path().join(first)).unwrap();
    for args in [
        &["trace", "report", second][..],
        &["trace", "report", first, second, "-o", "both.html"],
        &["trace", "report", first, first],
        &["trace", "report", first, "-o", first],
        &["trace", "report", first, "-o", "a.html", "--svg", "a.html"],
        &["trace", "convert", first, "-o", "./rank0/../rank0/snapshot.pickle.xz"],
    ] {
        let output = tenure(folder.path(), args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
    }
    assert_eq!(fs::read(folder.path().join("snapshot.html")).unwrap(), page);
    assert_eq!(fs::read(folder.path().join(first)).unwrap(), input);
    assert_eq!(files(folder.path()), ["rank0", "rank1", "snapshot.html"].map(PathBuf::from));
}

const PLAN_DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-plan/tests/data");

fn info(file: &str) -> serde_json::Value {
    let output = tenure(here().path(), &["trace", "info", &format!("{PLAN_DATA}/{file}"), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(stdout(&output)).unwrap()
}

#[test]
fn info_prints_json() {
    let late = info("segment_free_without_segment_alloc.pickle");
    assert_eq!((&late["kind"], &late["reserved_at_end_bytes"]), (&"history".into(), &41943040.into()));
    assert_eq!((&late["live_at_end_bytes"], &late["duration_us"]), (&31457280.into(), &10.into()));
    assert_eq!(info("no_times.pickle")["duration_us"], serde_json::Value::Null);
    let moment = info("memory_snapshot_list.pickle");
    assert_eq!((&moment["kind"], &moment["reserved_bytes"]), (&"moment".into(), &2097152.into()));
    assert_eq!((&moment["live_bytes"], &moment["largest_free_bytes"]), (&400.into(), &2096640.into()));
}

#[test]
fn info_prints_the_holders_of_the_peak_and_failed_allocations() {
    let facts = info("out_of_memory.pickle");
    let failed = serde_json::json!({
        "event": 9, "requested_bytes": 8 << 20, "device_free_bytes": 1 << 20, "reserved_bytes": 20 << 20,
        "live_bytes": (13 << 20) + 512, "largest_free_bytes": 4 << 20,
        "stack": facts["peak_holders"]["by_stack"][1]["stack"],
    });
    assert_eq!(facts["out_of_memory"], serde_json::json!([failed]));
    let holder = |list: &str, index: usize| {
        let holder = &facts["peak_holders"][list][index];
        [&holder["blocks"], &holder["bytes"], &holder["stack"][0]].map(ToString::to_string).join(" ")
    };
    assert_eq!(facts["peak_holders"]["by_stack"][0]["frame"], "forward /app/model.py:12");
    assert_eq!(holder("by_stack", 0), "2 8388608 \"CUDACachingAllocator::malloc ??\"");
    assert_eq!(facts["peak_holders"]["by_module"][0]["function"], "/app/model.py/forward");
    assert_eq!(holder("by_module", 0), "3 14680064 \"CUDACachingAllocator::malloc ??\"");
    assert_eq!(facts["peak_holders"]["by_module"][1]["tag"], "optimizer");
    assert_eq!(facts["peak_holders"]["by_size"][1]["block_bytes"], 6 << 20);
    assert_eq!(holder("by_size", 1), "1 6291456 \"CUDACachingAllocator::malloc ??\"");
    let shares =
        facts["peak_holders"]["by_size"].as_array().unwrap().iter().map(|holder| holder["share"].as_f64().unwrap());
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn a_snapshot_without_a_history_is_shown_and_not_replayed() {
    let folder = here();
    let file = format!("{PLAN_DATA}/memory_snapshot_list.pickle");
    let shown = tenure(folder.path(), &["trace", "info", &file]);
    assert!(stdout(&shown).contains("none: these are the segments of one moment"), "{}", stdout(&shown));
    for args in [&["replay", &file][..], &["trace", "report", &file], &["trace", "convert", &file, "-o", "a.ttrace"]] {
        let output = tenure(folder.path(), args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
        assert!(stderr(&output).contains("torch.cuda.memory._record_memory_history()"), "{}", stderr(&output));
    }
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_conversion_says_what_it_leaves_out() {
    let folder = here();
    let file = format!("{PLAN_DATA}/with_stack.pickle");
    let output = tenure(folder.path(), &["trace", "convert", &file, "-o", "a.ttrace"]);
    assert!(stderr(&output).contains("lacks 1 call stacks, 1 segments"), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    let output = tenure(folder.path(), &["trace", "convert", &file, "-o", "a.pickle"]);
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_conversion_says_which_parts_were_not_read() {
    let folder = here();
    let snapshot = format!("(dVdevice_traces\n(l(l{}a(l{}asVhost_traces\n(l(las.", allocation(512), allocation(1024));
    fs::write(folder.path().join("two.pickle"), snapshot).unwrap();
    for target in ["one.pickle", "one.ttrace"] {
        let args = ["trace", "convert", "two.pickle", "--device", "0", "-o", target];
        let output = tenure(folder.path(), &args);
        for part in ["devices: 1 (1 events, 0 segments)", "entries of the snapshot: 1 \"host_traces\""] {
            let told = format!("tenure: {target}: left out, because they are not read: {part}");
            assert!(stderr(&output).lines().any(|line| line == told), "{}", stderr(&output));
        }
    }
}

#[test]
fn info_shows_the_holders_of_the_peak_and_failed_allocations_as_text() {
    let output = tenure(here().path(), &["trace", "info", &format!("{PLAN_DATA}/out_of_memory.pickle")]);
    let text = stdout(&output);
    let held = text.lines().find(|line| line.ends_with("  forward /app/model.py:12")).unwrap();
    assert!(held.contains("8.39 MB") && held.contains('%'), "{text}");
    let failed = "event 9: 8.39 MB asked for, 1.05 MB free on the device, 4.19 MB in the largest free block";
    assert!(text.lines().any(|line| line.ends_with(failed)), "{text}");
}

/// Runs the program with `input` in a pipe.
fn tenure_of_input(folder: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.current_dir(folder).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn every_command_that_reads_traces_reads_standard_input() {
    let folder = here();
    let input = fs::read(format!("{PLAN_DATA}/out_of_memory.pickle")).unwrap();
    for args in [
        &["trace", "info", "-"][..],
        &["replay", "-", "--allocator", "native"],
        &["trace", "convert", "-", "-o", "a.ttrace"],
        &["trace", "report", "-"],
        &["plan", "-", "--fast-bytes", "50%", "--planner", "density"],
    ] {
        let output = tenure_of_input(folder.path(), args, &input);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{args:?}");
    }
    assert_eq!(files(folder.path()), ["a.ttrace", "stdin.html"].map(PathBuf::from));
    let output = tenure_of_input(folder.path(), &["trace", "info", "-"], b"");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn times_that_were_not_recorded_are_not_zero() {
    let file = format!("{PLAN_DATA}/no_times.pickle");
    let output = tenure(here().path(), &["trace", "info", &file]);
    assert!(stdout(&output).contains("times were not recorded"), "{}", stdout(&output));
    let output = tenure(here().path(), &["replay", &file, "--allocator", "native"]);
    assert!(stdout(&output).contains("times were not recorded"), "{}", stdout(&output));
}

#[test]
fn report_writes_a_page_and_a_picture() {
    let folder = here();
    let output = tenure(folder.path(), &["trace", "report", SAMPLE, "--svg", "chart.svg"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(files(folder.path()), ["chart.svg", "resnet50_step.html"].map(PathBuf::from));
    let page = fs::read_to_string(folder.path().join("resnet50_step.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(fs::read_to_string(folder.path().join("chart.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn report_shows_a_part_of_the_history_that_has_events() {
    let folder = here();
    let part = ["--from", "1000", "--to", "1200", "--page-size", "1MB"];
    let output = tenure(folder.path(), &[&["trace", "report", SAMPLE, "-o", "part.html"][..], &part].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let page = fs::read_to_string(folder.path().join("part.html")).unwrap();
    assert!(page.contains("Shown are events 1,000 to 1,199 of") && page.len() <= 1_000_000);
    let output = tenure(folder.path(), &["trace", "report", SAMPLE, "--from", "9999999"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    let told = stderr(&output);
    assert!(told.contains(": --from 9999999 shows nothing: the trace has events 0 to "), "{told}");
    let output = tenure(folder.path(), &["trace", "report", SAMPLE, "--from=5", "--to", "5"]);
    assert!(stderr(&output).contains("--from 5 --to 5 shows nothing"), "{}", stderr(&output));
    let output = tenure(folder.path(), &["trace", "report", SAMPLE, "--from", "-1"]);
    assert!(stderr(&output).contains("invalid value '-1' for '--from <EVENT>'"), "{}", stderr(&output));
    assert_eq!(files(folder.path()), [PathBuf::from("part.html")]);
}

#[test]
fn report_says_how_large_a_page_has_to_be() {
    let folder = here();
    let report =
        |size: &str| tenure(folder.path(), &["trace", "report", SAMPLE, "--page-size", size, "-o", "page.html"]);
    let told = stderr(&report("10kB")).to_owned();
    assert!(told.contains("the page does not fit into --page-size 10000: give --page-size "), "{told}");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    let size = told.rsplit_once("--page-size ").unwrap().1.split(' ').next().unwrap();
    let output = report(size);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fs::metadata(folder.path().join("page.html")).unwrap().len() <= size.parse().unwrap());
}

/// Files that no command can use, and what is said of each.
fn bad_files(folder: &Path) -> Vec<(&'static str, &'static str)> {
    let sample = fs::read(SAMPLE).unwrap();
    let pickle = folder.join("whole.pickle");
    Trace::read(SAMPLE).unwrap().write(&pickle, Format::Pickle).unwrap();
    let text = fs::read(&pickle).unwrap();
    fs::remove_file(pickle).unwrap();
    let put = |name: &str, content: &[u8]| fs::write(folder.join(name), content).unwrap();
    put("truncated.pickle.xz", &sample[..sample.len() / 2]);
    put("notes.txt", b"not a snapshot at all");
    put("import.pickle", b"\x80\x04cos\nsystem\n(S'true'\ntR.");
    put("empty.pickle", b"");
    put("twice.pickle", &replace(&text, b"free_completed", b"free_requested"));
    put("early.pickle", &replace(&text, b"free_requested", b"free_completed"));
    fs::create_dir(folder.join("folder.pickle")).unwrap();
    vec![
        ("truncated.pickle.xz", "truncated: its xz data is cut off after "),
        ("notes.txt", "not a PyTorch memory snapshot: "),
        ("import.pickle", "refused: the pickle "),
        ("empty.pickle", "truncated: it is empty (0 bytes)"),
        ("twice.pickle", "event "),
        ("early.pickle", "event "),
        ("folder.pickle", "Is a directory"),
        ("absent.pickle", "No such file"),
    ]
}

fn replace(content: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut content = content.to_vec();
    for start in 0..content.len() - from.len() {
        if content[start..].starts_with(from) {
            content[start..start + to.len()].copy_from_slice(to);
        }
    }
    content
}

#[test]
fn a_bad_file_gets_one_line_and_no_output() {
    let folder = here();
    let bad = bad_files(folder.path());
    let before = files(folder.path());
    for (name, said) in bad {
        for args in [
            &["trace", "info", name][..],
            &["trace", "convert", name, "-o", "out.ttrace"],
            &["trace", "report", name, "-o", "out.html"],
            &["replay", name, "--json"],
            &["replay", name],
        ] {
            let output = tenure(folder.path(), args);
            assert_eq!(output.status.code(), Some(2), "{args:?}");
            assert_eq!(stdout(&output), "", "{args:?}");
            let line = stderr(&output);
            assert!(line.starts_with(&format!("tenure: {name}: {said}")), "{args:?}: {line}");
            assert_eq!((line.lines().count(), line.ends_with('\n')), (1, true), "{args:?}: {line}");
        }
    }
    assert_eq!(files(folder.path()), before, "nothing was written");
}

#[test]
fn an_event_that_an_allocator_refuses_is_named_with_its_file() {
    let folder = here();
    let event = |index, bytes| TraceEvent {
        time_us: index,
        address: index << 60,
        bytes,
        stream: StreamId::NULL,
        action: TraceAction::Alloc,
    };
    let trace = Trace::new("huge", 0, Settings::default(), vec![event(1, 512), event(2, 5 << 61)]).unwrap();
    trace.write(folder.path().join("huge.ttrace"), Format::Compact).unwrap();
    for args in [&["replay", "huge.ttrace"][..], &["trace", "report", "huge.ttrace"]] {
        let output = tenure(folder.path(), args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
        assert!(stderr(&output).starts_with("tenure: huge.ttrace: event 1: native: "), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
    assert_eq!(files(folder.path()).len(), 1);
}

#[test]
fn other_files_are_processed_all_the_same() {
    let folder = here();
    let args = ["replay", "--allocator", "native", "--json", SAMPLE, "absent.pickle", SAMPLE];
    let output = tenure(folder.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output).lines().count(), 2);
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn wrong_usage_is_explained() {
    for args in [
        &["replay"][..],
        &["replay", SAMPLE, "--repeat", "0"],
        &["trace"],
        &["replay", "--driver", "hip", SAMPLE],
        &["bench", "alloc", "--threads", "0"],
        &["bench", "alloc", "--allocator", "paged,none"],
    ] {
        let output = tenure(here().path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains("Usage:") || stderr(&output).contains("--help"), "{args:?}");
    }
    assert!(stdout(&tenure(here().path(), &["--version"])).starts_with("tenure "));
}

/// Pages of help: those of a command, and of each command inside of it.
fn helps(command: &[&str], pages: &mut Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(command).arg("--help").env("COLUMNS", "72").output();
    let page = String::from_utf8(output.unwrap().stdout).unwrap();
    let listed = page.split("Commands:\n").nth(1).unwrap_or("").lines().take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        helps(&[command, &[name]].concat(), pages);
    }
    pages.push(page);
}

#[test]
fn help_is_wrapped_once_at_the_terminals_width() {
    let mut pages = Vec::new();
    helps(&[], &mut pages);
    assert!(pages.len() > 20, "{}", pages.len());
    for page in pages {
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.iter().find(|line| line.chars().count() > 80), None, "{page}");
        for pair in lines.windows(2) {
            let is_prose = |line: &str| line.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '(');
            if !pair.iter().all(|line| is_prose(line)) {
                continue;
            }
            let next = pair[1].split(' ').next().unwrap_or("");
            assert!(pair[0].len() + 1 + next.len() > 72, "{:?} has room for {next:?} in\n{page}", pair[0]);
        }
    }
}

/// Whether there is a real device, so that a test of its absence shows nothing.
fn has_gpu() -> bool {
    let present = Path::new("/dev/nvidiactl").exists();
    if present {
        eprintln!("skipped: this machine has a GPU");
    }
    present
}

#[test]
fn devices_lists_the_cpu_and_says_why_there_is_no_gpu() {
    if has_gpu() {
        return;
    }
    let output = tenure(here().path(), &["devices"]);
    assert!(output.status.success());
    let text = stdout(&output);
    for part in ["cpu ", "cores", "memory", "no GPU: no CUDA driver was found", "everything that needs no GPU works"] {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
    let output = tenure(here().path(), &["devices", "--json"]);
    let listing: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert!(listing["cpu"]["cores"].as_u64().unwrap() > 0);
    assert!(listing["unavailable"].as_str().unwrap().starts_with("no CUDA driver"));
    assert_eq!(listing["devices"].as_array().unwrap().len(), 0);
}

#[test]
fn devices_lists_simulated_ones_too() {
    let output = tenure(here().path(), &["devices", "--driver", "sim", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let listing: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(listing["unavailable"], serde_json::Value::Null);
    let device = &listing["devices"][0];
    assert_eq!((&device["name"], &device["total_bytes"]), (&"Simulated H200".into(), &(143_771_u64 << 20).into()));
    assert_eq!((&device["compute_capability"], &device["has_virtual_memory"]), (&"9.0".into(), &true.into()));
}

#[test]
fn without_a_gpu_what_needs_one_is_one_line_of_complaint() {
    if has_gpu() {
        return;
    }
    for args in [&["replay", "--driver", "cuda", SAMPLE, SAMPLE][..], &["bench", "alloc", "--driver", "cuda"]] {
        let output = tenure(here().path(), args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
        let line = stderr(&output);
        assert!(line.starts_with("tenure: no CUDA driver was found"), "{args:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
    }
    let folder = here();
    fs::write(folder.path().join("text"), "a text").unwrap();
    let train = ["train", "--model", "gpt2-mini", "--data", "text:text", "--device", "cuda"];
    for args in [&train[..], &["embed", "--weights", ".", "--device", "cuda", "a text"]] {
        let output = tenure(folder.path(), args);
        let line = stderr(&output);
        assert!(line.starts_with("tenure: --device cuda:0: no CUDA driver was found"), "{args:?}: {line}");
        assert!(line.lines().count() == 1 && !line.contains(".rs"), "{args:?}: {line}");
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let output = tenure(here().path(), &["bench", "alloc", "--device", "7"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("tenure: device 7 does not exist: `tenure devices`"), "{}", stderr(&output));
}

#[test]
fn a_real_device_has_no_lag() {
    let output = tenure(here().path(), &["replay", "--driver", "cuda", "--lag-us", "5", SAMPLE]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("tenure: --lag-us is for --driver sim"), "{}", stderr(&output));
}

#[test]
fn bench_prints_one_json_object_for_each_case_and_allocator() {
    let args = ["bench", "alloc", "--driver", "sim", "--threads", "2", "--allocator", "paged", "--json"];
    let output = tenure(here().path(), &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut cases = Vec::new();
    for line in stdout(&output).lines() {
        let expected = ["case", "allocator", "median_ns", "fastest_ns", "slowest_ns", "pairs", "repeats"];
        assert_eq!(keys(line), expected);
        let figure: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(figure["median_ns"].as_f64().unwrap() > 0.0);
        cases.push(format!("{} {}", figure["case"].as_str().unwrap(), figure["allocator"].as_str().unwrap()));
    }
    assert_eq!((cases.len(), &*cases[0]), (10, "pair 512 B paged"));
    assert!(cases.contains(&"threads 2 paged".into()) && cases.contains(&"record_stream paged".into()));
    assert_eq!(stderr(&output), "", "no progress bar in a pipe");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["trace", "info", SAMPLE, SAMPLE])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}

#[cfg(unix)]
#[test]
fn an_interruption_leaves_no_part_of_a_file() {
    let folder = here();
    let large = folder.path().join("large.ttrace");
    let out = folder.path().join("out.pickle.xz");
    // Compressing this takes seconds. If it is over before the signal comes, a larger file is next.
    for events in (1..=8).map(|times| 300_000 * times) {
        let trace = Trace::new(
            "large",
            0,
            Settings::default(),
            (0..events)
                .map(|index| TraceEvent {
                    time_us: index * (index % 7919),
                    address: (index + 1) << 32 | index.wrapping_mul(0x9e37_79b9) & 0xffff_fe00,
                    bytes: 512 + index % 4093,
                    stream: StreamId::NULL,
                    action: TraceAction::Alloc,
                })
                .collect(),
        )
        .unwrap();
        trace.write(&large, Format::Compact).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .current_dir(folder.path())
            .args(["trace", "convert", "large.ttrace", "-o", "out.pickle.xz"])
            .spawn()
            .unwrap();
        while files(folder.path()).len() == 1 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        if out.exists() {
            assert_eq!(Trace::read(&out).unwrap().events().len() as u64, events, "it is there as a whole");
            fs::remove_file(&out).unwrap();
            continue;
        }
        assert!(killed.success());
        assert_eq!(code, Some(130));
        assert_eq!(files(folder.path()), [PathBuf::from("large.ttrace")]);
        return;
    }
    panic!("it was never caught in the middle");
}

#[test]
fn blocks_from_before_the_history_are_told_and_counted() {
    let late = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-plan/tests/data/late_start.pickle");
    let folder = here();
    let converted = tenure(folder.path(), &["trace", "convert", late, "-o", "late.ttrace"]);
    assert!(converted.status.success());
    for file in [late, "late.ttrace"] {
        let info = tenure(folder.path(), &["trace", "info", file]);
        for fact in ["1,074,790,400 bytes", "1.07 GB in 1 block were live before the history begins"] {
            assert!(stdout(&info).contains(fact), "{fact} is missing from\n{}", stdout(&info));
        }
        let replay = tenure(folder.path(), &["replay", file]);
        for fact in ["1.07 GB requested at the peak", "1.07 GB were live before the history begins"] {
            assert!(stdout(&replay).contains(fact), "{fact} is missing from\n{}", stdout(&replay));
        }
        let report = tenure(folder.path(), &["trace", "report", file, "-o", "late.html"]);
        assert!(report.status.success());
        let page = fs::read_to_string(folder.path().join("late.html")).unwrap();
        assert!(page.contains("1.07 GB were live before the history begins"), "{page}");
        assert!(page.contains("(2 from before the history)"), "{page}");
    }
}

/// The event of a memory snapshot, as a pickle's text, that so many bytes are allocated, at an address of that number.
pub(super) fn allocation(bytes: u64) -> String {
    format!("(dVaction\nValloc\nsVaddr\nI{bytes}\nsVsize\nI{bytes}\nsVstream\nI0\nsa")
}

#[test]
fn a_snapshot_of_several_devices_names_them() {
    let folder = here();
    let snapshot = format!("(dVdevice_traces\n(l(l{}a(l{}as.", allocation(512), allocation(1024));
    fs::write(folder.path().join("two.pickle"), snapshot).unwrap();
    let note = "devices with allocations: 0 (512 bytes at the peak), 1 (1024 bytes at the peak)";
    for (args, device) in [(&["--device", "0"][..], 0), (&[], 1)] {
        let output = tenure(folder.path(), &[&["trace", "info", "two.pickle"], args].concat());
        let told =
            format!("tenure: two.pickle: {note}; device {device} is read: choose another with the option `device`\n");
        assert_eq!(stderr(&output), told);
        let peak = format!("{} bytes), at event 0", ["512", "1,024"][device]);
        assert!(stdout(&output).contains(&peak), "{}", stdout(&output));
    }
}
