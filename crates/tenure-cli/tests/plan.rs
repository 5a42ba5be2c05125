//! `tenure plan`, run as its users run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tenure::packing::PackingProblem;

/// At no moment is more alive than 8 bytes, and 9 are needed.
const ODD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-plan/tests/data/odd.csv");

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
        let answer = answer(&[ODD, "--capacity", &capacity.to_string()]);
        assert_eq!(answer["feasible"], feasible, "{answer}");
        assert_eq!((&answer["buffers"], &answer["capacity"]), (&9.into(), &capacity.into()));
        assert_eq!(answer["height"].as_u64().unwrap() <= capacity, feasible);
        assert!(answer["seconds"].as_f64().unwrap() < 60.0 && answer["nodes"].is_u64());
    }
}

#[test]
fn without_a_capacity_the_lowest_packing_is_found() {
    let answer = answer(&[ODD]);
    assert_eq!((&answer["feasible"], &answer["height"], &answer["lower_bound"]), (&true.into(), &9.into(), &9.into()));
    assert_eq!(answer["capacity"], Value::Null);
}

#[test]
fn what_is_not_known_in_time_is_null() {
    let folder = here();
    let answer = answer(&[&hard(folder.path()), "--seconds", "0"]);
    let (height, bound) = (answer["height"].as_u64().unwrap(), answer["lower_bound"].as_u64().unwrap());
    assert!(bound < height, "{answer}");
    let capacity = bound.to_string();
    assert_eq!(
        self::answer(&[&hard(folder.path()), "--capacity", &capacity, "--seconds", "0"])["feasible"],
        Value::Null
    );
}

#[test]
fn a_table_says_the_same() {
    let output = plan(here().path(), &[ODD, "--capacity", "8"]);
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
    let output = plan(folder.path(), &[ODD, "--capacity", "9", "-o", "out.csv"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = fs::read_to_string(folder.path().join("out.csv")).unwrap();
    assert!(written.starts_with("id,lower,upper,size,offset\n0,1,5,2,"), "{written}");
    let again = PackingProblem::from_csv(written.as_bytes()).unwrap();
    assert_eq!(again.buffers(), PackingProblem::read(ODD).unwrap().buffers());
}

#[test]
fn offsets_that_do_not_fit_are_not_written() {
    let folder = here();
    let output = plan(folder.path(), &[ODD, "--capacity", "8", "-o", "out.csv", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).starts_with("{\"feasible\":false,"));
    assert_eq!(text(&output.stderr), "tenure: out.csv: not written: no packing that fits was found\n");
    assert!(!folder.path().join("out.csv").exists());
}

#[test]
fn what_cannot_be_used_gets_one_line_and_no_output() {
    let folder = here();
    fs::write(folder.path().join("bad.csv"), "id,lower,upper,size\na,0,3,4\nb,3,3,4\n").unwrap();
    for (args, said) in [
        (&["bad.csv"][..], "tenure: bad.csv: line 3: it begins at 3 and ends at 3: "),
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
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was written");
}

#[cfg(unix)]
#[test]
fn an_interruption_answers_with_the_best_so_far() {
    let folder = here();
    let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["plan", &hard(folder.path()), "--seconds", "1000", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["height"].as_u64() > answer["lower_bound"].as_u64(), "{answer}");
}
