//! `tenure memory`, run as its users run it, on the simulated device.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use tenure_device::share::{DaemonClient, SharedPool};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{AccessMode, Driver};

/// The program's daemon. Dropped, it is killed.
struct Daemon {
    child: Child,
    said: String,
    socket: PathBuf,
    _folder: TempDir,
}

impl Daemon {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("memory.sock");
        let mut child = daemon(&socket, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self { child, said, socket, _folder: folder }
    }

    fn status(&self, args: &[&str]) -> Output {
        let mut status = Command::new(env!("CARGO_BIN_EXE_tenure"));
        status.args(["memory", "status", "--socket"]).arg(&self.socket).args(args).output().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn daemon(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["memory", "daemon", "--driver", "sim", "--socket"]).arg(socket).args(args);
    command
}

fn text(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn a_daemon_says_what_it_serves_and_status_who_has_it() {
    let daemon = Daemon::start(&["--pool-bytes", "16GiB", "--chunk-bytes", "8GiB", "--lease-bytes", "1GB"]);
    for fact in ["17.2 GB in 2 chunks", "1.00 GB in chunks", "cuda:0", daemon.socket.to_str().unwrap()] {
        assert!(daemon.said.contains(fact), "{fact} is missing from {}", daemon.said);
    }
    assert!(text(&daemon.status(&[])).ends_with("no leases\n"));

    let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
    let pool = SharedPool::attach(Arc::new(DaemonClient::connect(&daemon.socket).unwrap()), driver).unwrap();
    let mapped = format!("pool mapped by processes {}\n", std::process::id());
    assert!(text(&daemon.status(&[])).contains(&mapped));
    let _lease = pool.lease(0, 1 << 30, AccessMode::ReadWrite).unwrap();
    let status = daemon.status(&[]);
    let pid = std::process::id().to_string();
    let row = text(&status).lines().find(|line| line.starts_with(&pid)).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..6], [&*pid, "1", "pool", "writing", "1.07", "GB"]);
    assert_eq!(cells.last(), Some(&"held"));

    let json = daemon.status(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(text(&json)).unwrap();
    assert_eq!(json["terms"]["pool"], serde_json::json!([8u64 << 30, 8u64 << 30]));
    let holding = &json["holdings"][0];
    assert_eq!(
        (&holding["kind"], &holding["access"], &holding["state"]),
        (&"pool".into(), &"read_write".into(), &"held".into())
    );
}

#[test]
fn a_pool_has_the_chunks_that_were_asked_for_and_a_daemon_as_many_clients() {
    let daemon = Daemon::start(&["--chunks", "2MiB,6MiB", "--clients", "2", "--grace-ms", &u64::MAX.to_string()]);
    // The daemon's own client has the other place.
    let client = DaemonClient::connect(&daemon.socket).unwrap();
    assert_eq!(client.terms().pool, [2 << 20, 6 << 20]);
    let refused = daemon.status(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--clients"));
    drop(client);
    while !daemon.status(&[]).status.success() {}
}

#[test]
fn a_signal_ends_a_daemon_well() {
    for signal in ["-INT", "-TERM"] {
        let mut daemon = Daemon::start(&["--pool-bytes", "4MiB"]);
        assert!(daemon.socket.exists());
        Command::new("kill").args([signal, &daemon.child.id().to_string()]).status().unwrap();
        assert!(daemon.child.wait().unwrap().success());
        assert!(!daemon.socket.exists());
        let output = daemon.status(&[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("start one with `tenure memory daemon"));
    }
}

#[test]
fn a_second_daemon_is_one_line_of_complaint() {
    let first = Daemon::start(&[]);
    let output = daemon(&first.socket, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        complaint.contains(&format!("process {}", first.child.id())) && complaint.lines().count() == 1,
        "{complaint}"
    );
}
