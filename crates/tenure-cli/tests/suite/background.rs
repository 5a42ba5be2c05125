//! `tenure background` and `tenure serve --background`, run as their users run them.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn tenure(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn background(socket: &Path, command: &[&str]) -> Command {
    tenure(&[&["background", socket.to_str().unwrap(), "--"], command].concat())
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        sleep(Duration::from_millis(2));
    }
}

fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The state stands behind the name.
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

/// Tells programs what the test wants.
struct Server {
    folder: TempDir,
    listener: UnixListener,
}

impl Server {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        Self { folder, listener }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn accept(&self) -> UnixStream {
        self.listener.accept().unwrap().0
    }
}

fn have_yield(mut program: &UnixStream) {
    program.write_all(b"yield\n").unwrap();
    let mut answer = [0; 8];
    program.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"yielded\n");
}

/// A command with a child, their launcher, and the launcher's connection to a server.
fn launched(server: &Server) -> (Child, [u32; 2], UnixStream) {
    let mut launcher = background(&server.socket(), &["sh", "-c", "sleep 1000 & echo $$ $!; wait"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let processes: Vec<u32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (launcher, processes.try_into().unwrap(), server.accept())
}

#[test]
fn a_command_stands_still_with_all_its_processes_until_it_may_run() {
    let server = Server::new();
    let (mut launcher, processes, program) = launched(&server);
    for _ in 0..3 {
        have_yield(&program);
        until("all are stopped", || processes.into_iter().all(is_stopped));
        (&program).write_all(b"run\n").unwrap();
        until("all run", || !processes.into_iter().any(is_stopped));
    }
    // Also a request to end reaches a command that stands still.
    have_yield(&program);
    signal("TERM", launcher.id());
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_command_goes_on_without_its_launcher() {
    let server = Server::new();
    let (mut launcher, processes, program) = launched(&server);
    have_yield(&program);
    until("all are stopped", || processes.into_iter().all(is_stopped));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    until("all run", || !processes.into_iter().any(is_stopped));
    processes.into_iter().for_each(|process| signal("KILL", process));
}

#[test]
fn a_command_goes_on_without_its_server_and_yields_to_the_next_one() {
    let mut server = Server::new();
    let (mut launcher, processes, program) = launched(&server);
    have_yield(&program);
    until("all are stopped", || processes.into_iter().all(is_stopped));
    drop(program);
    until("all run", || !processes.into_iter().any(is_stopped));
    fs::remove_file(server.socket()).unwrap();
    server.listener = UnixListener::bind(server.socket()).unwrap();
    let program = server.accept();
    have_yield(&program);
    until("all are stopped", || processes.into_iter().all(is_stopped));
    signal("INT", launcher.id());
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 2));
}

#[test]
fn the_launcher_ends_as_its_command_does() {
    let server = Server::new();
    let ended = |command: &[&str]| {
        let output = background(&server.socket(), command).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(ended(&["true"]), (0, String::new()));
    assert_eq!(ended(&["sh", "-c", "exit 7"]), (7, String::new()));
    assert_eq!(ended(&["sh", "-c", "kill -KILL $$"]), (128 + 9, String::new()));
    let (code, error) = ended(&["/nowhere"]);
    assert!(code == 127 && error.starts_with("tenure: /nowhere: "), "{error}");

    let output = background(Path::new("/nowhere"), &["true"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.starts_with("tenure: /nowhere: ") && error.contains("start `tenure serve --background`"), "{error}");
}

/// `tenure serve`, and where it listens.
struct Served {
    folder: TempDir,
    server: Child,
    address: String,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [models, socket] = ["models", "socket"].map(|name| folder.path().join(name).display().to_string());
        assert!(tenure(&["models", "init", &models]).output().unwrap().status.success());
        let args = ["serve", &models, "--listen", "127.0.0.1:0", "--background", &socket];
        let mut server = tenure(&args).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.rsplit("http://").next().unwrap().trim().into();
        Self { folder, server, address }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn infer(&self) {
        let asked = r#"{"inputs": [{"name": "tokens", "datatype": "INT64", "shape": [1, 3], "data": [72, 101, 108]}]}"#;
        self.ask("POST", "/v2/models/next-byte/infer", asked);
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.ask("GET", "/metrics", "");
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn training_that_yields_to_requests_ends_with_the_same_losses() {
    let served = Served::new();
    let text = served.folder.path().join("text");
    fs::write(&text, "a rose is a rose is a rose. ".repeat(400)).unwrap();
    let data = format!("text:{}", text.display());
    let train = |steps: &str| -> Vec<String> {
        let args = ["train", "--model", "gpt2-mini", "--data", &data, "--batch-size", "2", "--steps", steps];
        args.iter().chain(&["--threads", "2", "--json"]).map(|arg| (*arg).to_owned()).collect()
    };
    let losses = |output: &[u8]| {
        let text = str::from_utf8(output).unwrap();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["losses"].clone()
    };
    const YIELDS: &str = "tenure_background_yield_seconds_count";
    for steps in ["8", "32", "128", "512"] {
        let args = train(steps);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let before = served.metric(YIELDS);
        let command = [&[env!("CARGO_BIN_EXE_tenure")], &args[..]].concat();
        let mut launcher = background(&served.socket(), &command).stderr(Stdio::null()).spawn().unwrap();
        while launcher.try_wait().unwrap().is_none() {
            if served.metric("tenure_background_running") == 1 {
                served.infer();
            }
        }
        let output = launcher.wait_with_output().unwrap();
        assert!(output.status.success());
        // On a fast machine, a short training is over too soon.
        if served.metric(YIELDS) >= before + 3 {
            let plain = tenure(&args).output().unwrap();
            assert_eq!(losses(&output.stdout), losses(&plain.stdout));
            return;
        }
    }
    panic!("no training was preempted three times");
}

#[test]
fn a_command_goes_on_when_its_server_is_killed() {
    let mut served = Served::new();
    let mut launcher = background(&served.socket(), &["sh", "-c", "echo $$; exec sleep 1000"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let process = line.trim().parse().unwrap();
    until("the program runs", || served.metric("tenure_background_running") == 1);
    served.infer();
    served.server.kill().unwrap();
    until("the program runs", || !is_stopped(process));
    signal("TERM", launcher.id());
    launcher.wait().unwrap();
}
