//! `tenure agent`, run as its users run it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tenure::plan::Mapping;

/// A kernel trace without tiers: its peak is 100 bytes.
const PROBLEM: &str = r#"{"name": "small", "source": "by hand",
    "tensors": [{"id": 0, "bytes": 60, "role": "weight"}, {"id": 1, "bytes": 40, "role": "activation"}],
    "kernels": [{"name": "k", "time_ns": 100, "inputs": [0], "outputs": [1]},
                {"name": "l", "time_ns": 100, "inputs": [1, 1], "outputs": []}]}"#;

/// The program's agent. Dropped, it is killed.
struct Agent {
    child: Child,
    said: String,
    folder: TempDir,
}

impl Agent {
    fn start(address: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("problem.json"), PROBLEM).unwrap();
        let mut command = agent(folder.path(), &[&["serve", "--results", "."], address].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self { child, said, folder }
    }

    fn ask(&self, args: &[&str]) -> Output {
        agent(self.folder.path(), &[&["ask", "problem.json"], args].concat()).output().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.current_dir(folder).arg("agent").args(args);
    command
}

fn text(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(str::from_utf8(&output.stderr).unwrap(), "", "no progress in a pipe");
    str::from_utf8(&output.stdout).unwrap()
}

/// The one line of a command that did not do what it was told.
fn complaint(output: &Output) -> &str {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let complaint = str::from_utf8(&output.stderr).unwrap();
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    complaint
}

#[test]
fn an_agent_says_where_it_serves_and_is_asked() {
    let agent = Agent::start(&["--socket", "agent.sock"]);
    assert!(agent.said.starts_with("serving at agent.sock, results in /"), "{}", agent.said);
    let asked = agent.ask(&["--socket", "agent.sock", "--fast-bytes", "60%", "--planner", "density", "--json"]);
    let answer: Value = serde_json::from_str(text(&asked)).unwrap();
    // 120 bytes of the 40 and 60 of the 60, for each byte and kernel: the 40 first, and then there is no room.
    assert_eq!((&answer["planner"], &answer["score"]), (&"density".into(), &(120.0 / 180.0).into()));
    assert_eq!((&answer["unplaced"], &answer["unknown"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    let mapping = Mapping::read(answer["mapping"].as_str().unwrap()).unwrap();
    assert_eq!((mapping.place("0"), mapping.place("1")), (Some(1), Some(0)));

    let asked = agent.ask(&["--socket", "agent.sock", "--fast-bytes", "100"]);
    for fact in ["small\n", "planner        scheduled", "score          1.0000", "search "] {
        assert!(text(&asked).contains(fact), "{fact} is missing from {}", text(&asked));
    }
}

#[test]
fn an_agent_serves_on_the_loopback_and_nowhere_else() {
    let agent = Agent::start(&["--tcp", "127.0.0.1:0"]);
    let address = agent.said.strip_prefix("serving at ").unwrap().split(',').next().unwrap();
    text(&agent.ask(&["--tcp", address, "--fast-bytes", "60"]));
    let folder = agent.folder.path();
    let refused = run(folder, &["serve", "--results", ".", "--tcp", "0.0.0.0:0"]);
    assert!(complaint(&refused).contains("other hosts can reach 0.0.0.0:0"));
}

fn run(folder: &Path, args: &[&str]) -> Output {
    agent(folder, args).output().unwrap()
}

#[test]
fn an_agent_that_is_told_to_end_removes_its_socket() {
    let mut agent = Agent::start(&["--socket", "agent.sock"]);
    assert!(agent.socket().exists());
    let pid = agent.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(agent.child.wait().unwrap().success());
    assert!(!agent.socket().exists());
}

#[test]
fn a_second_agent_is_refused_and_a_dead_ones_socket_replaced() {
    let mut first = Agent::start(&["--socket", "agent.sock"]);
    let serve = ["serve", "--results", ".", "--socket", "agent.sock"];
    let refused = run(first.folder.path(), &serve);
    assert!(complaint(&refused).contains("agent.sock: another agent serves here"));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(first.socket().exists(), "it had no time to remove it");
    let mut command = agent(first.folder.path(), &serve);
    first.child = command.stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(first.child.stdout.take().unwrap()).read_line(&mut first.said).unwrap();
    text(&first.ask(&["--socket", "agent.sock", "--fast-bytes", "60"]));
}

#[test]
fn an_impossible_request_gets_one_line() {
    let agent = Agent::start(&["--socket", "agent.sock"]);
    for (args, says) in [
        (&["--socket", "agent.sock"][..], "problem.json: it names no tiers: say with --fast-bytes"),
        (&["--socket", "absent.sock", "--fast-bytes", "60"], "absent.sock: no agent answers here"),
        (&["--socket", "agent.sock", "--fast-bytes", "60", "--planner", "x"], "unknown planner \"x\""),
        (&["--socket", "agent.sock", "--fast-bytes", "60", "--seconds", "1e9"], "1000000000 seconds are out of range"),
    ] {
        let asked = agent.ask(args);
        assert!(complaint(&asked).contains(says), "{says} is missing from {}", complaint(&asked));
    }
    let both = agent.ask(&["--socket", "agent.sock", "--tcp", "127.0.0.1:1"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn two_agents_do_not_learn_into_one_file_and_a_file_that_cannot_be_is_refused_at_the_start() {
    let first = Agent::start(&["--socket", "agent.sock", "--learn", "learned.json"]);
    let folder = first.folder.path();
    let serve = |file| run(folder, &["serve", "--results", ".", "--socket", "other.sock", "--learn", file]);
    let taken = "tenure: learned.json: another agent writes this file: name another one\n";
    assert_eq!(complaint(&serve("learned.json")), taken);
    assert!(complaint(&serve("missing/learned.json")).contains("missing/learned.json: it cannot be written: "));
    assert!(complaint(&serve("problem.json")).contains("problem.json: the file does not hold learned costs: "));
    assert!(!folder.join("other.sock").exists());
}
