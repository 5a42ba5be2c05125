//! The workers of a server, as the system has them.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use tenure_serve::protocol::Encoding;

use super::{Served, probe, until};

pub(crate) fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

/// Whether a process is there, also if it has ended and nobody has looked at how.
pub(crate) fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Whether none of its threads does anything: a signal is there some time before it is obeyed.
pub(crate) fn is_stopped(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let state = |task: io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
    tasks.map(state).all(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
}

/// The active worker and the other, when there are two.
pub(crate) fn workers(served: &Served) -> [u32; 2] {
    until("two workers", || served.serving.workers().len() == 2);
    served.serving.workers().try_into().unwrap()
}

/// Asks a model what it computes for ever, and goes away meanwhile.
pub(crate) fn leave_computing(served: &Served, model: &str, number: f32) {
    let encoded = probe::ask(model, number).encode(Encoding::Json).unwrap();
    let mut leaving = TcpStream::connect(served.address).unwrap();
    let path = format!("/v2/models/{model}/infer");
    leaving.write_all(&served.request("POST", &path, "", &encoded.body)).unwrap();
    until("it computes", || served.is_endless(model));
}
