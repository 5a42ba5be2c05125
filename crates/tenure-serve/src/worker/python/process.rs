//! One process of Python, as its server has it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::WorkerCommand;
use super::super::link::Lost;
use super::super::message::{MessageError, unpack};
use super::super::socket::{Incoming, Outgoing, receive_json};
use super::super::subprocess::{Ended, Subprocess};
use super::message::{Order, Report};
use crate::executor::RawTensor;

pub(super) struct Process {
    subprocess: Subprocess,
    state: Mutex<ProcessState>,
    /// Bytes of modules in the memory that they are computed in, or on their way there.
    resident: AtomicU64,
    /// Bytes of images in pinned memory.
    host: AtomicU64,
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
    Opened { bytes: u64 },
    Loaded { took: Duration },
    Freed { resident_bytes: u64 },
    Computed { outputs: Vec<RawTensor>, took: Duration, copy: Duration },
    Failed(String),
}

/// Is told of an answer, once, on a thread that must not wait for another one.
pub(super) type Answered = Box<dyn FnOnce(Result<Answer, Lost>) + Send>;

impl Process {
    /// Starts a process. `ended` is told why it is gone, before all whose calls it has. The thread that starts it must live as long
    /// as it may.
    pub(super) fn start(command: &WorkerCommand, ended: impl FnOnce(&str) + Send + 'static) -> io::Result<Arc<Self>> {
        let (resident, host) = (AtomicU64::default(), AtomicU64::default());
        let subprocess = Subprocess::start(command)?;
        let process = Arc::new(Self { subprocess, state: Mutex::default(), resident, host });
        let (listening, program) = (Arc::clone(&process), command.program.display().to_string());
        let listen = move || {
            let reason = listening.listen(&program);
            ended(&reason);
            listening.give_up(&reason);
        };
        let spawned = thread::Builder::new().name("serve: python".into()).spawn(listen);
        spawned.map(|_| Arc::clone(&process)).inspect_err(|_| drop(process.subprocess.reap()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.subprocess.pid()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Bytes of modules in the memory that they are computed in, or on their way there.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// A module that had so many bytes there has others now.
    pub(super) fn count_resident(&self, before: u64, now: u64) {
        // Wraps around where it falls.
        self.resident.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Bytes of images in pinned memory.
    pub(super) fn host_bytes(&self) -> u64 {
        self.host.load(Ordering::Relaxed)
    }

    /// Gives an order whose answer is sent to the receiver.
    ///
    /// # Errors
    /// As of [`call`](Self::call).
    pub(super) fn ask(
        &self,
        call: u64,
        order: &Order<'_>,
        payload: Vec<Bytes>,
    ) -> Result<mpsc::Receiver<Result<Answer, Lost>>, MessageError> {
        let (sender, receiver) = mpsc::channel();
        // Fails where nobody waits for the answer any more.
        self.call(call, order, payload, Box::new(move |answer| drop(sender.send(answer))))?;
        Ok(receiver)
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
        // The other thread answers for a process that is gone.
        self.subprocess.send(outgoing);
        Ok(())
    }

    pub(super) fn kill(&self) {
        self.subprocess.kill();
    }

    /// Takes reports until there are no more, and says why.
    fn listen(&self, program: &str) -> String {
        let Ended { fault, status } = self.subprocess.listen(receive_json::<Report>, |incoming| self.take(incoming));
        match fault {
            Some(fault) => fault,
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
            Report::Opened { call, bytes, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, Answer::Opened { bytes })
            }
            Report::Loaded { call, seconds, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, Answer::Loaded { took: duration(seconds) })
            }
            Report::Freed { call, resident_bytes, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, Answer::Freed { resident_bytes })
            }
            Report::Computed { call, outputs, seconds, copy_seconds } => {
                let (took, copy) = (duration(seconds), duration(copy_seconds));
                (call, Answer::Computed { outputs: unpack(outputs, payload)?, took, copy })
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
        self.subprocess.forget();
        let mut state = self.state.lock();
        state.end = Some(reason.into());
        let left: Vec<Call> = state.calls.drain().map(|(_, call)| call).collect();
        drop(state);
        for Call { has_begun, answered } in left {
            answered(Err(Lost { has_begun, reason: reason.into() }));
        }
    }
}

/// Seconds that another process measured.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
