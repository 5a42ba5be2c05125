//! `tenure plan`, run as its users run it.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::plan::Mapping;
use tenure::plan::packing::{Buffer, PackingProblem};

use crate::program::allocation;

/// At no moment is more alive than 8 bytes, and 9 are needed.
const ODD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-plan/tests/data/odd.csv");

/// No search that ends by itself takes so many seconds.
const NO_LIMIT: &str = "1000000";

fn plan(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).current_dir(folder).arg("plan").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn here() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The one line of JSON of a plan that was made.
fn answer(args: &[&str]) -> Value {
    let output = plan(here().path(), &[args, &["--json"]].concat());
    assert_eq!(text(&output.stderr), "", "no progress in a pipe");
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().count(), 1);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Too many buffers to be sure of the lowest packing in a lifetime.
fn hard(folder: &Path) -> String {
    let draw = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let mut csv = String::from("id,lower,upper,size\n");
    for index in 0..400 {
        let start = draw(index) % 100;
        csv += &format!("{index},{start},{},{}\n", start + 1 + draw(index + 7000) % 30, 1 + draw(index + 9000) % 9973);
    }
    let path = folder.join("hard.csv");
    fs::write(&path, csv).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn json_says_whether_buffers_fit() {
    for (capacity, feasible) in [(8, false), (9, true), (100, true)] {
        let answer = answer(&[ODD, "--capacity", &capacity.to_string(), "--seconds", NO_LIMIT]);
        assert_eq!(answer["feasible"], feasible, "{answer}");
        assert_eq!((&answer["buffers"], &answer["capacity"]), (&9.into(), &capacity.into()));
        assert_eq!(answer["height"].as_u64().unwrap() <= capacity, feasible);
        assert!(answer["seconds"].as_f64() >= Some(0.0) && answer["nodes"].is_u64(), "{answer}");
    }
}

/// Runs `tenure plan` with `input` in a pipe.
fn plan_of_input(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("plan").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn standard_input_and_pipes_are_read_and_the_capacity_has_a_unit() {
    let buffers = "id,lower,upper,size\n\"a,1\",0,3,1024\n";
    for file in ["-", "/dev/stdin"] {
        let output = plan_of_input(&[file, "--capacity", "1KiB", "--json"], buffers);
        assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = (&answer["feasible"], &answer["capacity"], &answer["height"]);
        assert_eq!(found, (&true.into(), &1024.into(), &1024.into()));
    }
    let output = plan_of_input(&["-"], "id,lower,upper,size\na,0,x,1\n");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.starts_with("tenure: /dev/stdin: line 2: upper is \"x\""), "{said}");
}

#[test]
fn json_that_is_no_object_is_told_from_buffers() {
    for json in ["[]", "null", "[1]", " \n[\n{}]", "1.5", "true\n"] {
        let output = plan_of_input(&["-"], json);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{json}");
        let said = text(&output.stderr);
        assert!(said.contains("JSON but no problem") && said.contains("problem-format.md"), "{json}: {said}");
    }
    let output = plan_of_input(&["-"], "\"id\"");
    assert!(text(&output.stderr).contains("column \"lower\" is missing"), "{}", text(&output.stderr));
}

#[test]
fn buffers_and_problems_are_read_after_a_byte_order_mark_and_out_of_gzip() {
    let folder = here();
    let buffers = "id,lower,upper,size\r\na,0,3,8\r\n";
    let problem = r#"{"format": "tenure-problem", "version": 1, "name": "mine",
        "tiers": [{"name": "DRAM", "capacity": 100, "read_bandwidth": 100, "write_bandwidth": 80},
            {"name": "PM", "read_bandwidth": 30, "write_bandwidth": 8}],
        "tensors": [{"key": "w", "bytes": 8, "tag": "weight"}],
        "kernels": [{"name": "k", "time_ns": 1000, "reads": [{"tensor": 0, "bytes": 8}], "writes": []}]}"#;
    for (content, key, value) in [(buffers, "height", json!(8)), (problem, "problem", json!("mine"))] {
        let marked = format!("\u{feff}{content}").into_bytes();
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&marked).unwrap();
        for bytes in [marked, packed.finish().unwrap()] {
            let path = folder.path().join("file");
            fs::write(&path, bytes).unwrap();
            assert_eq!(answer(&[path.to_str().unwrap()])[key], value);
        }
    }
}

#[test]
fn a_memory_snapshot_is_planned_from_with_its_notes() {
    let folder = here();
    let later = "(dVaction\nVlater\nsVaddr\nI512\nsVsize\nI512\nsVstream\nI0\nsa";
    let snapshot = format!("(dVdevice_traces\n(l(l{}a(l{}{later}as.", allocation(512), allocation(1024));
    fs::write(folder.path().join("two.pickle"), [b"\x80\x02", snapshot.as_bytes()].concat()).unwrap();
    for (device, bytes, notes) in [(0, 512, 1), (1, 1024, 2)] {
        let args = ["two.pickle", "--device", &device.to_string(), "--fast-bytes", "100%", "--json"];
        let output = plan(folder.path(), &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["capacity_bytes"], bytes, "{answer}");
        let said = text(&output.stderr);
        assert!(said.contains("devices with allocations: 0 (512 bytes at the peak), 1 (1024 bytes"), "{said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("tenure: two.pickle: ")).count(), notes, "{said}");
    }
    let refused = plan(folder.path(), &[ODD, "--device", "0"]);
    assert!(text(&refused.stderr).contains("--device is for memory traces, and this is not one"));
}

#[test]
fn a_buffer_with_an_offset_stays_there() {
    let folder = here();
    fs::write(folder.path().join("fixed.csv"), "id,lower,upper,size,offset\nio,0,10,4,64\na,0,5,4,\n").unwrap();
    let packed = plan(folder.path(), &["fixed.csv", "-o", "packed.csv", "--json"]);
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    assert!(text(&packed.stdout).contains("\"height\":68"), "{}", text(&packed.stdout));
    let written = fs::read_to_string(folder.path().join("packed.csv")).unwrap();
    assert_eq!(written, "id,lower,upper,size,offset\nio,0,10,4,64\na,0,5,4,0\n");
    let too_low = plan(folder.path(), &["fixed.csv", "--capacity", "67", "--json"]);
    assert!(text(&too_low.stdout).contains("\"feasible\":false"), "{}", text(&too_low.stdout));
}

#[test]
fn without_a_capacity_the_lowest_packing_is_found() {
    let answer = answer(&[ODD, "--seconds", NO_LIMIT]);
    assert_eq!((&answer["feasible"], &answer["height"], &answer["lower_bound"]), (&true.into(), &9.into(), &9.into()));
    assert_eq!(answer["capacity"], Value::Null);
}

#[test]
fn an_answer_not_known_in_time_is_null() {
    let folder = here();
    let answer = answer(&[&hard(folder.path()), "--seconds", "0"]);
    let height = answer["height"].as_u64().unwrap();
    let bound = answer["lower_bound"].as_u64().unwrap();
    assert!(bound < height, "{answer}");
    let capacity = bound.to_string();
    assert_eq!(
        self::answer(&[&hard(folder.path()), "--capacity", &capacity, "--seconds", "0"])["feasible"],
        Value::Null
    );
}

#[test]
fn a_table_says_the_same() {
    let output = plan(here().path(), &[ODD, "--capacity", "8", "--seconds", NO_LIMIT]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    for part in
        ["odd.csv\n", "buffers      9\n", "no: it is proven", "9 B (9 bytes), the lowest there is", "lower bound  9 B"]
    {
        assert!(shown.contains(part), "{part} is missing from\n{shown}");
    }
}

#[test]
fn offsets_are_written_beside_the_buffers() {
    let folder = here();
    let output = plan(folder.path(), &[ODD, "--capacity", "9", "-o", "out.csv", "--seconds", NO_LIMIT]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = fs::read_to_string(folder.path().join("out.csv")).unwrap();
    assert!(written.starts_with("id,lower,upper,size,offset\n0,1,5,2,"), "{written}");
    let again = PackingProblem::from_csv(written.as_bytes()).unwrap();
    assert!(again.buffers().iter().all(|buffer| buffer.offset.is_some()));
    let free = again.buffers().iter().map(|buffer| Buffer { offset: None, ..buffer.clone() });
    assert_eq!(free.collect::<Vec<_>>(), PackingProblem::read(ODD).unwrap().buffers());
}

#[test]
fn offsets_that_do_not_fit_are_not_written() {
    let folder = here();
    let output = plan(folder.path(), &[ODD, "--capacity", "8", "-o", "out.csv", "--seconds", NO_LIMIT, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).starts_with("{\"feasible\":false,"));
    assert_eq!(text(&output.stderr), "tenure: out.csv: not written: no packing that fits was found\n");
    assert!(!folder.path().join("out.csv").exists());
}

#[test]
fn unusable_input_gets_one_line_and_no_output() {
    let folder = here();
    let utf_16: Vec<u8> = "id,lower".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let files: [(&str, &[u8]); 5] = [
        ("bad.csv", b"id,lower,upper,size\na,0,3,4\nb,3,3,4\n"),
        ("wide.csv", &utf_16),
        ("marked.json", &[b"\xff\xfe", &utf_16[..]].concat()),
        ("zip.pickle", b"PK\x03\x04\x14\0\0\0"),
        ("data.db", b"SQLite format 3\0"),
    ];
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    for (args, said) in [
        (&["bad.csv"][..], "tenure: bad.csv: line 3: it begins at 3 and ends at 3: "),
        (&["wide.csv"], "tenure: wide.csv: this is UTF-16, not UTF-8: convert it"),
        (&["marked.json"], "tenure: marked.json: this is UTF-16, not UTF-8: convert it"),
        (&["zip.pickle", "--fast-bytes", "50%"], "tenure: zip.pickle: it is a zip archive"),
        (&["data.db", "--fast-bytes", "50%"], "tenure: data.db: it is an SQLite database"),
        (&["absent.csv"], "tenure: absent.csv: No such file"),
        (&["."], "tenure: .: Is a directory"),
        (&[ODD, "-o", "missing/out.csv"], "tenure: missing/out.csv: "),
        (&[ODD, "--seconds", "-1"], "error: "),
        (&[ODD, "--seconds", "nan"], "error: "),
        (&[ODD, "--capacity", "1.5"], "error: "),
        (&[], "error: "),
    ] {
        let output = plan(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).starts_with(said), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), files.len(), "nothing was written");
}

/// Two layers forward and back, two of whose activations do not fit at once.
const LAYERS: &str = r#"{"name": "layers", "tensors": [
  {"id": 0, "bytes": 1000, "role": "weight"}, {"id": 1, "bytes": 4000, "role": "activation"},
  {"id": 2, "bytes": 4000, "role": "activation"}, {"id": 3, "bytes": 1000, "role": "activation"}],
 "kernels": [
  {"name": "a_Forward", "time_ns": 1000, "inputs": [0], "outputs": [1]},
  {"name": "b_Forward", "time_ns": 1000, "inputs": [0, 1], "outputs": [2]},
  {"name": "b_Backward", "time_ns": 1000, "inputs": [0, 2], "outputs": [3]},
  {"name": "a_Backward", "time_ns": 1000, "inputs": [0, 1, 3], "outputs": []}]}"#;

/// `x` has to make room for `y`, and kernels do not reach where to.
const MOVES: &str = r#"{"format": "tenure-problem", "version": 1, "name": "moves", "tiers": [
  {"name": "fast", "capacity": 100, "read_bandwidth": 1000000000, "write_bandwidth": 1000000000},
  {"name": "disk", "is_reachable": false, "read_bandwidth": 1000000000, "write_bandwidth": 1000000000}],
 "links": [{"from": 0, "to": 1, "bandwidth": 1000000000}, {"from": 1, "to": 0, "bandwidth": 1000000000}],
 "tensors": [{"key": "x", "bytes": 100, "tag": "activation"}, {"key": "y", "bytes": 100, "tag": "activation"}],
 "kernels": [
  {"name": "k", "time_ns": 1000, "reads": [], "writes": [{"tensor": 0, "bytes": 100}]},
  {"name": "k", "time_ns": 1000, "reads": [], "writes": []},
  {"name": "k", "time_ns": 1000, "reads": [], "writes": [{"tensor": 1, "bytes": 100}]},
  {"name": "k", "time_ns": 1000, "reads": [], "writes": []},
  {"name": "k", "time_ns": 1000, "reads": [{"tensor": 0, "bytes": 100}], "writes": []}]}"#;

fn layers(folder: &Path) -> String {
    let path = folder.join("layers.json");
    fs::write(&path, LAYERS).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn json_says_what_came_of_a_plan() {
    let folder = here();
    // Of 10000 bytes at once, 6000: the weight, the second activation and the gradient.
    let answer = answer(&[&layers(folder.path()), "--fast-bytes", "60%", "--planner", "density"]);
    assert_eq!((&answer["problem"], &answer["planner"]), (&"layers".into(), &"density".into()));
    assert_eq!((&answer["capacity_bytes"], &answer["peak_fast_bytes"]), (&6000.into(), &6000.into()));
    // Accessed are 4000, 8000 and 2000 bytes of these, and 12000 of the first activation.
    let score = answer["score"].as_f64().unwrap();
    assert!((score - 14.0 / 26.0).abs() < 1e-9, "{answer}");
    let bound = answer["bound"].as_f64().unwrap();
    let gap = answer["gap"].as_f64().unwrap();
    assert!(bound >= score && (gap - (bound - score) / bound).abs() < 1e-12, "{answer}");
    assert!(answer["makespan_us"].as_f64() >= answer["bound_makespan_us"].as_f64());
    assert!(answer["bound_makespan_us"].as_f64().unwrap() >= 4.0);
    assert_eq!(answer["evaluations"], 1);
    assert!(answer["seconds"].as_f64() >= Some(0.0), "{answer}");
}

#[test]
fn a_memory_trace_is_a_problem() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");
    let answer = answer(&[trace, "--fast-bytes", "50%", "--planner", "first-touch"]);
    assert_eq!(answer["problem"], "resnet50_step");
    assert!(answer["peak_fast_bytes"].as_u64() <= answer["capacity_bytes"].as_u64(), "{answer}");
}

#[test]
fn a_mapping_is_written_by_key() {
    let folder = here();
    let file = layers(folder.path());
    let output = plan(folder.path(), &[&file, "--fast-bytes", "60%", "--planner", "density", "-o", "map.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mapping = Mapping::read(folder.path().join("map.json")).unwrap();
    assert_eq!((mapping.program(), mapping.tiers()), ("layers", &["device".to_owned(), "host".to_owned()][..]));
    assert_eq!(["0", "1", "2", "3"].map(|key| mapping.place(key)), [0, 1, 0, 0].map(Some));
}

#[test]
fn all_planners_have_a_line_each() {
    let folder = here();
    let file = layers(folder.path());
    let output = plan(folder.path(), &[&file, "--fast-bytes", "5400", "--planner", "all", "--seed", "3", "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line["planner"].as_str().unwrap()).collect();
    let first = ["first-touch", "weights-first", "activations-first", "hotness", "density", "flashneuron", "scheduled"];
    assert_eq!(names[..7], first);
    assert!(lines.iter().all(|line| line["bound"].as_f64() >= line["score"].as_f64()), "{lines:?}");
    let table = plan(folder.path(), &[&file, "--fast-bytes", "5400", "--planner", "all"]);
    let shown = text(&table.stdout);
    assert!(shown.starts_with("layers\n  tensors"), "{shown}");
    assert!(names.iter().all(|name| shown.contains(name)), "{shown}");
}

#[test]
fn problems_that_cannot_be_planned_get_one_line() {
    let folder = here();
    let file = layers(folder.path());
    let path = folder.path();
    fs::write(path.join("bad.json"), "{\"name\": 3}").unwrap();
    fs::write(path.join("moves.json"), MOVES).unwrap();
    for (args, said) in [
        (&[&*file][..], "it names no tiers: say with --fast-bytes how large the first is"),
        (&["bad.json", "--fast-bytes", "1"], "bad.json: "),
        (&[&file, "--fast-bytes", "101%"], "from 0% to 100%"),
        (&[&file, "--fast-bytes", "1", "--planner", "magic"], "invalid value 'magic'"),
        (&[&file, "--capacity", "5"], "--capacity is of buffers"),
        (&[&file, "--fast-bytes", "1", "--planner", "all", "-o", "out.json"], "say with --planner whose"),
        (&["moves.json", "-o", "out.json"], "plan with --objective score"),
        (&[ODD, "--objective", "score"], "--objective is of problems"),
        (&[ODD, "--fast-bytes", "1"], "--fast-bytes is of problems"),
        (&[ODD, "--planner", "density"], "--planner is of problems"),
        (&[ODD, "--seed", "1"], "--seed is of problems"),
        (&[&file, "--fast-bytes", "1", "--capacity", "5"], "cannot be used with"),
    ] {
        let output = plan(path, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).contains(said), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(fs::read_dir(path).unwrap().count(), 3, "nothing was written");
}

#[test]
fn a_policy_is_trained_and_used() {
    let folder = here();
    let path = folder.path();
    let few = ["--problems", "4", "--price-steps", "2", "--leaning-steps", "2", "-o", "policy.safetensors"];
    let output = plan(path, &[&["train", "--report", "curve.html", "--json"][..], &few].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["policy"], "policy.safetensors");
    let curve = answer["curve"].as_array().unwrap();
    assert!(curve.iter().any(|point| point["stage"] == "leanings" && point["step"] == 2), "{answer}");
    assert!(fs::read_to_string(path.join("curve.html")).unwrap().contains("<svg"));
    let again = plan(path, &[&["train"][..], &few[..6], &["-o", "again.safetensors"][..]].concat());
    assert!(again.status.success() && text(&again.stdout).contains("times as fast as density"));
    assert_eq!(fs::read(path.join("again.safetensors")).unwrap(), fs::read(path.join("policy.safetensors")).unwrap());
    let file = layers(path);
    let planned = [&file, "--fast-bytes", "6000", "--planner", "marl", "--policy"];
    assert!(plan(path, &[&planned[..], &["policy.safetensors"]].concat()).status.success());
    let other = plan(path, &[&planned[..], &["curve.html"]].concat());
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).starts_with("tenure: curve.html: "), "{}", text(&other.stderr));
}

/// Starts a program, sends it a signal once it handles signals and has computed for some hundredths of a second of its own
/// processor time, and returns its output.
#[cfg(target_os = "linux")]
fn interrupted(program: &mut Command, signal: &str, computing: u64) -> std::process::Output {
    use std::thread;
    use std::time::{Duration, Instant};

    const INTERRUPT: u32 = 2;
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |file| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let handles_interrupts = || {
        let status = read("status");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (INTERRUPT - 1) != 0
    };
    let ticks = || -> u64 {
        // The twelfth field behind the name: hundredths of a second in user mode.
        let stat = read("stat");
        stat.rsplit(") ").next().unwrap().split(' ').nth(11).unwrap().parse().unwrap()
    };
    let begun = Instant::now();
    while !handles_interrupts() || ticks() < computing {
        assert!(begun.elapsed() < Duration::from_secs(300), "it computes nothing");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    child.wait_with_output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn an_interruption_answers_with_the_best_so_far() {
    let folder = here();
    let mut program = Command::new(env!("CARGO_BIN_EXE_tenure"));
    program.args(["plan", &hard(folder.path()), "--seconds", NO_LIMIT, "--json"]);
    let output = interrupted(&mut program, "-INT", 10);
    assert_eq!(output.status.code(), Some(130));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["height"].as_u64() > answer["lower_bound"].as_u64(), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_training_writes_a_policy_that_has_learned() {
    let folder = here();
    let path = folder.path();
    // A billion problems take days to make. Steps of few problems begin long before a second of processor time is over.
    for (problems, computing, is_written) in [("1000000000", 10, false), ("1", 100, true)] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tenure"));
        program.current_dir(path).args(["plan", "train", "-o", "policy", "--problems", problems]);
        let output = interrupted(program.args(["--price-steps", "1000000000", "--json"]), "-TERM", computing);
        assert_eq!(output.status.code(), Some(143));
        assert_eq!(path.join("policy").exists(), is_written, "{}", text(&output.stderr));
        assert_eq!(!output.stdout.is_empty(), is_written);
    }
}
