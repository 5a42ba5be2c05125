//! The socket for background programs, and the programs that are connected to it.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::{ioctl_fionbio, retry_on_intr};
use rustix::net::{self, SendFlags, Shutdown, SocketFlags, SocketType};
use tenure_ipc::{ClaimError, Listener};

/// The time after an error until the server accepts again.
const RETRY: Duration = Duration::from_millis(100);

/// The programs that are connected to a socket. Dropping this removes the socket file.
pub(in crate::serving) struct Programs {
    listener: Listener,
    connected: Mutex<ConnectedPrograms>,
    /// Notified when a program has yielded or is gone.
    answered: Condvar,
}

/// The connected programs, and whether they may run.
#[derive(Default)]
struct ConnectedPrograms {
    programs: Vec<Program>,
    may_run: bool,
    is_ending: bool,
    /// The number of the next program.
    next: u64,
}

struct Program {
    number: u64,
    stream: Arc<UnixStream>,
    /// The number of yield requests that the program has not answered.
    unanswered: u32,
}

impl Programs {
    /// Listens at `path`, accessible to this user only. Replaces the socket of a server that has died.
    ///
    /// # Errors
    /// Another server listens there, another kind of file is there, or no socket can be created.
    pub(in crate::serving) fn listen(path: &Path) -> io::Result<Self> {
        let listener = Listener::bind(path, SocketType::STREAM).map_err(|error| match error {
            ClaimError::Taken { .. } => {
                io::Error::new(ErrorKind::AddrInUse, "another server listens there: choose another path, or end it")
            }
            ClaimError::Failed { doing, reason, .. } => io::Error::new(reason.kind(), format!("{doing}: {reason}")),
        })?;
        // The thread that accepts waits for programs.
        ioctl_fionbio(&listener, false)?;
        Ok(Self { listener, connected: Mutex::default(), answered: Condvar::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connected.lock().programs.is_empty()
    }

    /// Sends `run` to all programs.
    pub(super) fn run(&self) {
        let mut connected = self.connected.lock();
        connected.may_run = true;
        connected.programs.retain(|program| program.say("run\n"));
    }

    /// Sends `yield` to all programs, waits for at most `patience`, and returns whether all have yielded. It does not
    /// wait again for a program that still owes an earlier answer.
    pub(super) fn yield_now(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut connected = self.connected.lock();
        connected.may_run = false;
        connected.programs.retain_mut(Program::yield_now);
        while connected.programs.iter().any(|program| program.unanswered == 1) {
            if self.answered.wait_until(&mut connected, end).timed_out() {
                tracing::warn!("a background program does not yield within {patience:?}: requests run beside it");
                break;
            }
        }
        connected.programs.iter().all(|program| program.unanswered == 0)
    }

    /// Accepts programs until the [end](Self::end). Calls `changed` when a program comes or goes.
    pub(super) fn accept(self: &Arc<Self>, changed: impl Fn() + Clone + Send + 'static) {
        loop {
            let accepted = retry_on_intr(|| net::accept_with(&self.listener, SocketFlags::CLOEXEC));
            if self.connected.lock().is_ending {
                return;
            }
            let accepted = accepted.map_err(io::Error::from);
            let added = accepted.and_then(|stream| self.add(stream.into(), changed.clone()));
            if let Err(error) = added {
                tracing::warn!("a background program is not accepted: {error}");
                thread::sleep(RETRY);
            }
        }
    }

    /// Adds a connected program, and starts a thread that reads its answers.
    fn add(self: &Arc<Self>, stream: UnixStream, changed: impl Fn() + Send + 'static) -> io::Result<()> {
        let stream = Arc::new(stream);
        let mut connected = self.connected.lock();
        let number = connected.next;
        connected.next += 1;
        let mut program = Program { number, stream: Arc::clone(&stream), unanswered: 0 };
        let is_sent = if connected.may_run { program.say("run\n") } else { program.yield_now() };
        if is_sent {
            connected.programs.push(program);
        }
        drop(connected);
        changed();
        let programs = Arc::clone(self);
        let spawned = thread::Builder::new().name("serve: background".into()).spawn(move || {
            programs.follow(number, &stream);
            changed();
        });
        spawned.map(drop).inspect_err(|_| self.remove(number))
    }

    /// Reads a program's answers until it is gone.
    fn follow(&self, number: u64, stream: &UnixStream) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut connected = self.connected.lock();
            if let Some(program) = connected.programs.iter_mut().find(|program| program.number == number)
                && line == "yielded"
            {
                program.unanswered = program.unanswered.saturating_sub(1);
                self.answered.notify_all();
            }
        }
        self.remove(number);
    }

    fn remove(&self, number: u64) {
        self.connected.lock().programs.retain(|program| program.number != number);
        self.answered.notify_all();
    }

    /// Disconnects all programs, which then run freely, and accepts no more.
    pub(in crate::serving) fn end(&self) {
        let mut connected = self.connected.lock();
        connected.is_ending = true;
        for program in connected.programs.drain(..) {
            program.close();
        }
        // Wakes the accepting thread.
        let _ = net::shutdown(&self.listener, Shutdown::Both);
        self.answered.notify_all();
    }
}

impl Program {
    /// Sends `yield`, and returns whether the program accepted it.
    fn yield_now(&mut self) -> bool {
        self.unanswered += 1;
        self.say("yield\n")
    }

    /// Sends a line and returns whether the program accepted it. If not, the program is disconnected.
    fn say(&self, line: &str) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let is_sent = net::send(&*self.stream, line.as_bytes(), flags) == Ok(line.len());
        if !is_sent {
            self.close();
        }
        is_sent
    }

    fn close(&self) {
        // This fails only if the stream is closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    use tempfile::TempDir;

    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(3600);

    /// A socket on which programs are accepted until it is dropped.
    struct Listening {
        folder: TempDir,
        programs: Arc<Programs>,
        /// Receives a message when a program has come or gone.
        changes: mpsc::Receiver<()>,
        accepting: Option<thread::JoinHandle<()>>,
    }

    impl Listening {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let programs = Arc::new(Programs::listen(&folder.path().join("socket")).unwrap());
            let (changed, changes) = mpsc::channel();
            let accepting = Arc::clone(&programs);
            let accepting = Some(thread::spawn(move || {
                accepting.accept(move || {
                    let _ = changed.send(());
                })
            }));
            Self { folder, programs, changes, accepting }
        }

        /// Connects a program, which has been told to yield.
        fn program(&self) -> ConnectedProgram {
            let stream = UnixStream::connect(self.folder.path().join("socket")).unwrap();
            self.changes.recv().unwrap();
            let mut program = ConnectedProgram { lines: BufReader::new(stream) };
            assert_eq!(program.line(), "yield");
            program
        }
    }

    impl Programs {
        /// Waits until every `yield` is answered.
        fn wait_for_answers(&self) {
            let mut connected = self.connected.lock();
            while connected.programs.iter().any(|program| program.unanswered > 0) {
                self.answered.wait(&mut connected);
            }
        }
    }

    impl Drop for Listening {
        fn drop(&mut self) {
            self.programs.end();
            self.accepting.take().unwrap().join().unwrap();
        }
    }

    struct ConnectedProgram {
        lines: BufReader<UnixStream>,
    }

    impl ConnectedProgram {
        fn line(&mut self) -> String {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            line.trim_end().into()
        }

        fn answer(&mut self) {
            self.lines.get_mut().write_all(b"yielded\n").unwrap();
        }
    }

    #[test]
    fn all_programs_have_to_yield() {
        let listening = Listening::new();
        let mut programs = [0, 1].map(|_| listening.program());
        programs.iter_mut().for_each(ConnectedProgram::answer);
        listening.programs.wait_for_answers();
        for _ in 0..3 {
            listening.programs.run();
            programs.iter_mut().for_each(|program| assert_eq!(program.line(), "run"));
            thread::scope(|scope| {
                let yielding = scope.spawn(|| listening.programs.yield_now(LONG));
                programs.iter_mut().for_each(|program| assert_eq!(program.line(), "yield"));
                assert!(!yielding.is_finished());
                programs[0].answer();
                assert!(!yielding.is_finished());
                programs[1].answer();
                assert!(yielding.join().unwrap());
            });
        }
    }

    #[test]
    fn a_program_that_does_not_answer_is_waited_for_once() {
        let listening = Listening::new();
        let mut program = listening.program();
        // It has not answered since it was accepted.
        assert!(!listening.programs.yield_now(LONG));
        listening.programs.run();
        assert!(!listening.programs.yield_now(LONG));
        thread::scope(|scope| {
            ["yield", "run", "yield"].iter().for_each(|line| assert_eq!(program.line(), *line));
            (0..3).for_each(|_| program.answer());
            listening.programs.wait_for_answers();
            let yielding = scope.spawn(|| listening.programs.yield_now(LONG));
            assert_eq!(program.line(), "yield");
            program.answer();
            assert!(yielding.join().unwrap());
        });
    }

    #[test]
    fn a_program_that_is_gone_is_not_waited_for() {
        let listening = Listening::new();
        let mut program = listening.program();
        program.answer();
        listening.programs.wait_for_answers();
        listening.programs.run();
        thread::scope(|scope| {
            let yielding = scope.spawn(|| listening.programs.yield_now(LONG));
            ["run", "yield"].iter().for_each(|line| assert_eq!(program.line(), *line));
            drop(program);
            assert!(yielding.join().unwrap());
        });
        listening.changes.recv().unwrap();
        assert!(listening.programs.is_empty());
    }

    #[test]
    fn programs_see_that_their_server_ends() {
        let listening = Listening::new();
        let mut program = listening.program();
        listening.programs.end();
        assert_eq!(program.line(), "");
    }

    #[test]
    fn the_socket_is_its_user_s_and_replaces_that_of_a_dead_server_only() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, file] = ["socket", "file"].map(|name| folder.path().join(name));
        drop(UnixListener::bind(&socket).unwrap());
        let programs = Programs::listen(&socket).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
        let refused = |path: &Path| Programs::listen(path).err().unwrap().to_string();
        assert!(refused(&socket).starts_with("another server listens there"));
        fs::write(&file, "mine").unwrap();
        assert!(refused(&file).starts_with("a file that is not a socket"));
        drop(programs);
        assert!(!socket.exists());
    }
}
