//! Tests of programs in the background of a server, from the programs' side.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use tempfile::TempDir;
use tenure_serve::serving::{Serving, ServingError, ServingOptions};

use crate::served::Served;
use crate::served::probe::{self, Control, ask};

/// A server of one model that can have programs in its background.
struct Server {
    served: Served,
    control: Arc<Control>,
    folder: TempDir,
}

impl Server {
    fn new() -> Self {
        let [models, folder] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        probe::write(models.path(), "model", "");
        let control = Arc::new(Control::default());
        let mut options = ServingOptions::new(models.path(), 1 << 30);
        options.background = Some(folder.path().join("socket"));
        let served = Served::start(models, options, probe::architectures(&control));
        Self { served, control, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Connects the first program. It is told to yield, since the server does not know yet that there are no requests.
    fn program(&self) -> Program {
        let mut program = self.connect();
        assert_eq!(program.line(), "yield");
        program
    }

    fn connect(&self) -> Program {
        Program(BufReader::new(UnixStream::connect(self.socket()).unwrap()))
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, metrics) = self.served.get("/metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }
}

struct Program(BufReader<UnixStream>);

impl Program {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn answer(&mut self) {
        self.0.get_mut().write_all(b"yielded\n").unwrap();
    }
}

#[test]
fn programs_yield_to_requests_and_run_when_nothing_is_asked() {
    let server = Server::new();
    let mut programs = [0, 1].map(|_| server.connect());
    // The second program may connect when the first one runs already.
    let must_wait = programs.each_mut().map(|program| program.line() == "yield");
    let waiting = || must_wait.into_iter().enumerate().filter_map(|(number, waits)| waits.then_some(number));
    waiting().for_each(|number| programs[number].answer());
    waiting().for_each(|number| assert_eq!(programs[number].line(), "run"));
    for asked in 1..=3 {
        server.control.hold();
        thread::scope(|scope| {
            let answered = scope.spawn(|| server.served.infer(&ask("model", 1.0)).unwrap());
            programs.iter_mut().for_each(|program| assert_eq!(program.line(), "yield"));
            programs.iter_mut().for_each(Program::answer);
            server.control.release();
            answered.join().unwrap();
        });
        programs.iter_mut().for_each(|program| assert_eq!(program.line(), "run"));
        // On a busy machine they may yield too late.
        let yields = ["tenure_background_yield_seconds_count", "tenure_background_late_yields_total"];
        assert_eq!(yields.map(|name| server.metric(name)).iter().sum::<u64>(), asked);
        assert_eq!(server.metric("tenure_background_running"), 1);
    }
}

#[test]
fn a_request_is_answered_beside_a_program_that_does_not_yield() {
    let server = Server::new();
    let mut program = server.program();
    assert_eq!(program.line(), "run");
    server.served.infer(&ask("model", 1.0)).unwrap();
    assert_eq!(program.line(), "yield");
    assert_eq!(server.metric("tenure_background_late_yields_total"), 1);
}

#[test]
fn programs_are_let_go_of_when_the_server_ends() {
    let server = Server::new();
    let mut program = server.program();
    let socket = server.socket();
    drop(server.served);
    assert!(["run", ""].contains(&program.line().as_str()));
    drop(server.folder);
    assert!(!socket.exists());
}

#[test]
fn two_servers_cannot_have_one_background() {
    let server = Server::new();
    let mut options = ServingOptions::new(server.served.folder.path(), 1 << 30);
    options.background = Some(server.socket());
    let refused = Serving::start(options, probe::architectures(&server.control)).err().unwrap();
    assert!(matches!(refused, ServingError::Background { .. }));
    assert!(refused.to_string().contains("another server listens there"), "{refused}");
    server.program();
}
