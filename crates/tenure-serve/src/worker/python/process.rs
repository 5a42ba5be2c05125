//! One process of Python, as its server has it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::link::Lost;
use super::super::message::{MessageError, unpack};
use super::super::socket::{Incoming, Outgoing, receive_json};
use super::super::{IS_WORKER, WorkerCommand};
use super::message::{Order, Report};
use crate::executor::RawTensor;

pub(super) struct Process {
    pid: u32,
    child: Mutex<Child>,
    /// To the thread that sends them. Gone with the process.
    orders: Mutex<Option<mpsc::Sender<Outgoing>>>,
    state: Mutex<ProcessState>,
}

#[derive(Default)]
struct ProcessState {
    is_ready: bool,
    /// By number, those that have no answer yet.
    calls: HashMap<u64, Call>,
    /// Why it is gone.
    end: Option<String>,
}

struct Call {
    has_begun: bool,
    answered: Answered,
}

/// An answer to an order.
pub(super) enum Answer {
    Loaded { bytes: u64, took: Duration },
    Evicted,
    Computed { outputs: Vec<RawTensor>, took: Duration },
    Failed(String),
}

/// Is told of an answer, once, on a thread that must not wait for another one.
pub(super) type Answered = Box<dyn FnOnce(Result<Answer, Lost>) + Send>;

impl Process {
    /// Starts a process. `ended` is told why it is gone, before all whose calls it has. The thread that starts it must live as long
    /// as it may.
    pub(super) fn start(command: &WorkerCommand, ended: impl FnOnce(&str) + Send + 'static) -> io::Result<Arc<Self>> {
        let (stream, theirs) = UnixStream::pair()?;
        let writing = stream.try_clone()?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .env(IS_WORKER, "1")
            .stdin(OwnedFd::from(theirs))
            // What a module prints is not what the server says.
            .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
            .spawn()?;
        let (orders, receiver) = mpsc::channel::<Outgoing>();
        let process = Arc::new(Self {
            pid: child.id(),
            child: Mutex::new(child),
            orders: Mutex::new(Some(orders)),
            state: Mutex::default(),
        });
        let spawned = thread::Builder::new().name("serve: python orders".into()).spawn(move || {
            // The other thread finds out why nothing more can be sent.
            let _ = receiver.iter().try_for_each(|order| order.send(&writing));
        });
        let (listening, program) = (Arc::clone(&process), command.program.display().to_string());
        let listen = move || {
            let reason = listening.listen(&stream, &program);
            ended(&reason);
            listening.give_up(&reason);
        };
        let spawned = spawned.and_then(|_| thread::Builder::new().name("serve: python".into()).spawn(listen));
        spawned.map(|_| Arc::clone(&process)).inspect_err(|_| drop(process.reap()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Gives an order, whose answer comes later.
    ///
    /// # Errors
    /// The order cannot be sent. Then there is no answer.
    pub(super) fn call(
        &self,
        call: u64,
        order: &Order<'_>,
        payload: Vec<Bytes>,
        answered: Answered,
    ) -> Result<(), MessageError> {
        let outgoing = Outgoing::json(order, payload)?;
        let mut state = self.state.lock();
        if let Some(reason) = state.end.clone() {
            drop(state);
            answered(Err(Lost { has_begun: false, reason }));
            return Ok(());
        }
        state.calls.insert(call, Call { has_begun: false, answered });
        drop(state);
        if let Some(orders) = &*self.orders.lock() {
            // The other thread answers for a process that is gone.
            let _ = orders.send(outgoing);
        }
        Ok(())
    }

    pub(super) fn kill(&self) {
        if let Err(error) = self.child.lock().kill() {
            tracing::error!("the Python of process {} cannot be ended: {error}", self.pid);
        }
    }

    /// Takes reports until there are no more, and says why.
    fn listen(&self, stream: &UnixStream, program: &str) -> String {
        let reason = loop {
            match receive_json::<Report>(stream) {
                Ok(Some(incoming)) => {
                    if let Err(error) = self.take(incoming) {
                        break Some(error.to_string());
                    }
                }
                Ok(None) => break None,
                // A socket that is reset is one that is closed.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => break Some(error.to_string()),
                Err(_) => break None,
            }
        };
        let status = self.reap();
        match reason {
            Some(reason) => reason,
            None if self.state.lock().is_ready => status,
            None => format!("{status}: can {program} import tenure and torch? name another with --python"),
        }
    }

    fn take(&self, Incoming { message, payload, .. }: Incoming<Report>) -> Result<(), MessageError> {
        let (call, answer) = match message {
            Report::Ready => {
                self.state.lock().is_ready = true;
                return Ok(());
            }
            Report::Begun { call } => {
                if let Some(call) = self.state.lock().calls.get_mut(&call) {
                    call.has_begun = true;
                }
                return Ok(());
            }
            Report::Loaded { call, bytes, seconds } => (call, Answer::Loaded { bytes, took: duration(seconds) }),
            Report::Evicted { call } => (call, Answer::Evicted),
            Report::Computed { call, outputs, seconds } => {
                (call, Answer::Computed { outputs: unpack(outputs, payload)?, took: duration(seconds) })
            }
            Report::Failed { call, reason } => (call, Answer::Failed(reason)),
        };
        let asked = self.state.lock().calls.remove(&call);
        if let Some(asked) = asked {
            (asked.answered)(Ok(answer));
        }
        Ok(())
    }

    /// Answers all calls that it leaves.
    fn give_up(&self, reason: &str) {
        *self.orders.lock() = None;
        let mut state = self.state.lock();
        state.end = Some(reason.into());
        let left: Vec<Call> = state.calls.drain().map(|(_, call)| call).collect();
        drop(state);
        for Call { has_begun, answered } in left {
            answered(Err(Lost { has_begun, reason: reason.into() }));
        }
    }

    /// Ends the process, if it has not ended, and says how it did.
    fn reap(&self) -> String {
        let mut child = self.child.lock();
        // One that has ended as well as closed its socket is not changed by that.
        let _ = child.kill();
        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

/// Seconds that another process measured.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
