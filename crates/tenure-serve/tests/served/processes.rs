//! Helpers for the worker processes of a server.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, io, thread};

use tenure_serve::protocol::Encoding;

use super::{Served, probe, until};

pub(crate) fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

/// Returns whether a process exists, even if it has ended and was not reaped.
pub(crate) fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Returns whether all its threads are stopped: a signal takes effect some time after it is sent.
pub(crate) fn is_stopped(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .map(|task: io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("stat")).unwrap())
        .all(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
}

/// Returns the active worker and the standby, once there are two.
pub(crate) fn workers(served: &Served) -> [u32; 2] {
    until("two workers", || served.serving.workers().len() == 2);
    served.serving.workers().try_into().unwrap()
}

/// Sends a model a request that it computes forever, and disconnects meanwhile.
pub(crate) fn leave_computing(served: &Served, model: &str, number: f32) {
    let encoded = probe::ask(model, number).encode(Encoding::Json).unwrap();
    let mut leaving = TcpStream::connect(served.address).unwrap();
    let path = format!("/v2/models/{model}/infer");
    leaving.write_all(&served.request("POST", &path, "", &encoded.body)).unwrap();
    until("it computes", || served.is_endless(model));
}

/// Kills the active worker while it computes a batch of the model `killed`, and one of `other` waits. Asserts that the first
/// batch fails and the standby answers the second.
pub(crate) fn kill_while_computing(served: &Served, active: u32, standby: u32) {
    served.hold("killed");
    thread::scope(|scope| {
        let running = scope.spawn(|| served.mood("killed", 1.0));
        until("it computes", || served.has_begun("killed"));
        let waiting = scope.spawn(|| served.mood("other", 5.0));
        signal("KILL", active);
        let (status, reason) = running.join().unwrap().unwrap_err();
        assert!(status == 503 && reason.contains("SIGKILL") && reason.ends_with("ask again"), "{reason}");
        assert_eq!(waiting.join().unwrap(), Ok((15.0, standby)));
    });
    served.release("killed");
}

/// Kills this many workers while two clients ask three models, and waits for answers in between. Asserts that no answer
/// is lost or wrong.
pub(crate) fn kill_workers_under_load(served: &Served, names: [&'static str; 3], deaths: usize) {
    let is_over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        let is_over = &is_over;
        let answered = &answered;
        let client = |names: [&'static str; 2]| {
            scope.spawn(move || {
                for number in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    match served.mood(names[number % 2], 2.0) {
                        Ok((answer, _)) => {
                            assert_eq!(answer, 6.0);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err((status, reason)) => assert!(status == 503 && reason.contains("SIGKILL"), "{reason}"),
                    }
                }
            });
        };
        client([names[0], names[1]]);
        client([names[1], names[2]]);
        for kill in 0..deaths {
            until("a worker", || served.serving.workers().len() > kill % 2);
            let worker = served.serving.workers()[kill % 2].to_string();
            // The worker may have ended by itself.
            let _ = Command::new("kill").args(["-KILL", &worker]).status();
            let before = answered.load(Ordering::Relaxed);
            until("answers go on", || answered.load(Ordering::Relaxed) > before + 1);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
