//! `tenure background`: runs a program that is stopped while a server has work.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, io, thread};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::process::{getpid, kill_process, kill_process_group, setsid, waitid};
use tenure_device::background::{self, Background};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::files;

/// A script that continues the command when the launcher has ended for any reason: then its input ends.
const GUARD: &str = r#"read _; kill -s CONT -- "-$1""#;

/// The exit codes that shells use for a command that does not exist, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Run a command that is stopped while `tenure serve --background SOCKET` has work
#[derive(clap::Args)]
#[command(after_help = "\
When a request comes, the command is stopped (SIGSTOP) with all processes of its session's first group. It continues \
when the server has been idle for a moment, or has ended. It loses nothing and does not notice. It has no controlling \
terminal; Ctrl-C, Ctrl-Z and requests to terminate reach it through this program, which ends with the same exit code.

A GPU still runs the work that it was given before. With tenure.torch.install(background=\"SOCKET\") PyTorch yields a \
GPU without this command.

Example:
  tenure serve models --background /run/user/1000/background.sock
  tenure background /run/user/1000/background.sock -- python train.py")]
pub(crate) struct BackgroundArgs {
    /// The server's socket
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Become the command, in a separate session
    #[arg(long, hide = true)]
    in_session: bool,
}

pub(crate) fn run(args: &BackgroundArgs) -> ExitCode {
    if args.in_session {
        return become_command(&args.command);
    }
    match launch(args) {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => files::print(Err(error)),
    }
}

/// Becomes the command in its own session: a stopped group there gets no SIGHUP when its launcher dies.
fn become_command(command: &[OsString]) -> ExitCode {
    // Fails only if the process leads a group, which is so if `launch` did not start it.
    let _ = setsid();
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    eprintln!("tenure: {}: {error}", command[0].display());
    let is_there = error.kind() != io::ErrorKind::NotFound;
    ExitCode::from(if is_there { NOT_EXECUTABLE } else { NOT_FOUND })
}

fn launch(args: &BackgroundArgs) -> anyhow::Result<ExitStatus> {
    let server = background::connect(&args.socket)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let signals = Signals::new()?;
    let mut child = Command::new(env::current_exe()?)
        .arg("background")
        .arg(&args.socket)
        .args(["--in-session", "--"])
        .args(&args.command)
        .spawn()?;
    let launched = Arc::new(Launched::new(&child)?);
    let guarded = guard(&child).and_then(|guard| {
        server.attend(Yielding(Arc::clone(&launched)))?;
        Ok(guard)
    });
    let mut guard = guarded.inspect_err(|_| {
        let _ = child.kill();
    })?;
    runtime.block_on(signals.relay(&launched, ended(&launched)?));
    let status = launched.reap(&mut child);
    drop(guard.stdin.take());
    guard.wait()?;
    Ok(status?)
}

/// Starts the process that continues the command when this process has ended.
fn guard(child: &Child) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", GUARD, "sh", &child.id().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // An interrupt from the terminal does not reach another process group.
        .process_group(0)
        .spawn()
}

/// Returns a channel that reports the end of the command without reaping it.
fn ended(launched: &Launched) -> io::Result<oneshot::Receiver<()>> {
    let pid = launched.pid;
    let (tell, told) = oneshot::channel();
    thread::Builder::new().name("wait".into()).spawn(move || {
        // The child exists, so this waits only for its end.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = tell.send(());
    })?;
    Ok(told)
}

/// Returns the command's exit code, or the code that shells use for a signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// A running command and the processes of its group.
struct Launched {
    pid: Pid,
    state: Mutex<LaunchedState>,
}

#[derive(Default)]
struct LaunchedState {
    has_yielded: bool,
    /// Whether the command was reaped. Then its process id may belong to another process.
    is_reaped: bool,
}

impl Launched {
    fn new(child: &Child) -> anyhow::Result<Self> {
        Ok(Self { pid: Pid::from_child(child), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, LaunchedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal if the process or its group may still exist.
    fn send(&self, state: &LaunchedState, signal: Signal) {
        if !state.is_reaped {
            // Before the command has its own group, there is only the process.
            let _ = kill_process_group(self.pid, signal).or_else(|_| kill_process(self.pid, signal));
        }
    }

    fn reap(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let mut state = self.state();
        state.is_reaped = true;
        child.wait()
    }

    /// Forwards a request to end, and continues a stopped command so that it can follow it.
    fn end(&self, signal: Signal) {
        let state = self.state();
        self.send(&state, signal);
        self.send(&state, Signal::CONT);
    }

    /// Stops the command and this program, until this program is continued.
    fn suspend(&self) {
        self.send(&self.state(), Signal::STOP);
        let _ = kill_process(getpid(), Signal::STOP);
        let state = self.state();
        if !state.has_yielded {
            self.send(&state, Signal::CONT);
        }
    }
}

/// A command that yields to a server.
struct Yielding(Arc<Launched>);

impl Background for Yielding {
    fn stop(&self) {
        let launched = &self.0;
        let mut state = launched.state();
        state.has_yielded = true;
        launched.send(&state, Signal::STOP);
        if !state.is_reaped {
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            // Fails only if there is no such child.
            let _ = waitid(WaitId::Pid(launched.pid), stopped);
        }
    }

    fn go_on(&self) {
        let mut state = self.0.state();
        state.has_yielded = false;
        self.0.send(&state, Signal::CONT);
    }
}

/// The signals that a terminal or a user sends.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    suspend: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            suspend: signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?,
        })
    }

    /// Forwards signals to the command until it ends.
    async fn relay(mut self, launched: &Launched, mut ended: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut ended => return,
                _ = self.interrupt.recv() => launched.end(Signal::INT),
                _ = self.terminate.recv() => launched.end(Signal::TERM),
                _ = self.hangup.recv() => launched.end(Signal::HUP),
                _ = self.quit.recv() => launched.end(Signal::QUIT),
                _ = self.suspend.recv() => launched.suspend(),
            }
        }
    }
}
