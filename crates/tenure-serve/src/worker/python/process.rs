//! A Python process, seen from its server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::WorkerCommand;
use super::super::life::{Life, LifePatience, LifeStep};
use super::super::link::{LostOrder, lost};
use super::super::message::{MessageError, unpack};
use super::super::socket::{Incoming, Outgoing, receive_json};
use super::super::subprocess::Subprocess;
use super::message::{PythonOrder, PythonReport};
use crate::executor::RawTensor;
use crate::niceness::{self, BatchMeter, Niceness};

/// The patience with a Python process. PyTorch may take long to import, and native code may hold the interpreter's lock
/// while it computes.
const PATIENCE: LifePatience = LifePatience { start: Duration::from_secs(300), answer: Duration::from_secs(60) };

/// The server's handle of a Python process, and the orders that it has not answered.
pub(super) struct Process {
    subprocess: Subprocess,
    state: Mutex<ProcessState>,
    /// The bytes of modules in the memory that they are computed in, or on their way there.
    resident: AtomicU64,
    /// The bytes of images in pinned memory.
    host: AtomicU64,
    /// The niceness of the thread that computes.
    niceness: Mutex<Niceness>,
}

struct ProcessState {
    is_ready: bool,
    life: Life,
    /// The calls without an answer yet, by number.
    calls: HashMap<u64, PythonCall>,
    /// The reason why the process ended, once it has.
    end: Option<String>,
}

/// An order that the process has not answered.
struct PythonCall {
    has_begun: bool,
    answered: Answered,
}

/// An answer to an order.
pub(super) enum PythonAnswer {
    Opened { bytes: u64 },
    Loaded { took: Duration },
    Freed { resident_bytes: u64 },
    Computed { outputs: Vec<RawTensor>, took: Duration, copy: Duration },
    Failed(String),
    OutOfMemory(String),
}

/// The end of a process.
pub(super) enum ProcessEnd {
    /// It ended by itself before it was ready, as another would.
    Unable { reason: String },
    /// It was killed, or ended later.
    Lost { reason: String },
}

/// A callback that receives one answer, on a thread that must not wait for another answer.
pub(super) type Answered = Box<dyn FnOnce(Result<PythonAnswer, LostOrder>) + Send>;

impl ProcessEnd {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Unable { reason } | Self::Lost { reason } => reason,
        }
    }
}

impl Process {
    /// Starts a process. `ended` is called when it is gone, before its open calls are answered. The thread that starts the
    /// process must live as long as the process.
    pub(super) fn start(
        command: &WorkerCommand,
        ended: impl FnOnce(&ProcessEnd) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let resident = AtomicU64::default();
        let host = AtomicU64::default();
        let subprocess = Subprocess::start(command)?;
        let life = Life::new(Instant::now(), PATIENCE);
        let state = Mutex::new(ProcessState { is_ready: false, life, calls: HashMap::new(), end: None });
        let process = Arc::new(Self { subprocess, state, resident, host, niceness: Mutex::default() });
        let listening = Arc::clone(&process);
        let program = command.program.display().to_string();
        let spawned = thread::Builder::new().name("serve: python".into()).spawn(move || {
            let end = listening.listen(&program);
            ended(&end);
            listening.mark_ended(end.reason());
        });
        spawned.map(|_| Arc::clone(&process)).inspect_err(|_| drop(process.subprocess.reap()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.subprocess.pid()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Returns the bytes of modules in the memory that they are computed in, or on their way there.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Changes the count of resident bytes by one module's: it had `before` bytes, and has `now`.
    pub(super) fn count_resident(&self, before: u64, now: u64) {
        // The sum wraps around if the number fell.
        self.resident.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the bytes of images in pinned memory.
    pub(super) fn host_bytes(&self) -> u64 {
        self.host.load(Ordering::Relaxed)
    }

    /// Sends an order, and returns a receiver of its answer.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    pub(super) fn ask(
        &self,
        call: u64,
        order: &PythonOrder<'_>,
        payload: Vec<Bytes>,
    ) -> Result<mpsc::Receiver<Result<PythonAnswer, LostOrder>>, MessageError> {
        let (sender, receiver) = mpsc::channel();
        // This fails if the receiver was dropped.
        self.call(call, order, payload, Box::new(move |answer| drop(sender.send(answer))))?;
        Ok(receiver)
    }

    /// Sends an order, and passes the answer to `answered` later.
    ///
    /// # Errors
    /// The order cannot be sent. Then there is no answer.
    pub(super) fn call(
        &self,
        call: u64,
        order: &PythonOrder<'_>,
        payload: Vec<Bytes>,
        answered: Answered,
    ) -> Result<(), MessageError> {
        let outgoing = Outgoing::json(order, payload)?;
        let mut state = self.state.lock();
        if let Some(reason) = state.end.clone() {
            drop(state);
            answered(Err(LostOrder::NotBegun { reason }));
            return Ok(());
        }
        state.calls.insert(call, PythonCall { has_begun: false, answered });
        drop(state);
        // The listening thread answers for a process that is gone.
        self.subprocess.send(outgoing);
        Ok(())
    }

    /// Asks for a sign of life if that is due, and kills a process that has given none for too long. Returns when to call
    /// this again. `call` is the number of the question.
    pub(super) fn ask_for_life(&self, now: Instant, call: u64) -> Instant {
        let mut state = self.state.lock();
        loop {
            match state.life.step(now) {
                LifeStep::Wait { until } => return until,
                LifeStep::Ask => self.tell(&PythonOrder::Ask { call }),
                LifeStep::Kill => {
                    tracing::error!("Python {} gives no sign of life and is killed", self.pid());
                    self.kill();
                }
            }
        }
    }

    /// Returns whether the process responds, as far as is known.
    pub(super) fn is_answering(&self) -> bool {
        self.state.lock().life.is_answering(Instant::now())
    }

    /// Looks at the batch that the process computes. If it takes long, it yields to other processes.
    pub(super) fn look(&self, meter: &mut BatchMeter) {
        let mut niceness = self.niceness.lock();
        if meter.look(Instant::now(), niceness::processor_time(self.pid())) && !niceness.is_raised() {
            *niceness = Niceness::RAISED;
            self.tell(&PythonOrder::Yield { niceness: niceness::raised() });
        }
    }

    /// Records that a batch is over. If the last batches were short, later ones compete with other processes again.
    pub(super) fn after(&self, batch: &BatchMeter) {
        let mut niceness = self.niceness.lock();
        niceness.after(batch);
        if niceness.is_raised_needlessly() {
            *niceness = Niceness::Normal;
            self.tell(&PythonOrder::Compete);
        }
    }

    /// Sends an order that has no answer.
    pub(super) fn tell(&self, order: &PythonOrder<'_>) {
        // The order has no payload, so it is never too long.
        if let Ok(order) = Outgoing::json(order, Vec::new()) {
            self.subprocess.send(order);
        }
    }

    pub(super) fn kill(&self) {
        self.subprocess.kill();
    }

    /// Handles reports until the process ends, and returns what became of it.
    fn listen(&self, program: &str) -> ProcessEnd {
        let ended = self.subprocess.listen(receive_json::<PythonReport>, |incoming| self.take(incoming));
        let status = ended.status();
        if ended.is_by_itself() && !self.state.lock().is_ready {
            let reason = format!("{status}: can {program} import tenure and torch? name another with --python");
            return ProcessEnd::Unable { reason };
        }
        ProcessEnd::Lost { reason: ended.fault.unwrap_or(status) }
    }

    /// Handles a report.
    fn take(&self, Incoming { message, payload, .. }: Incoming<PythonReport>) -> Result<(), MessageError> {
        let (call, answer) = match message {
            PythonReport::Ready => {
                let mut state = self.state.lock();
                state.is_ready = true;
                state.life.answered(Instant::now());
                return Ok(());
            }
            PythonReport::Alive => {
                self.state.lock().life.answered(Instant::now());
                return Ok(());
            }
            PythonReport::Begun { call } => {
                if let Some(call) = self.state.lock().calls.get_mut(&call) {
                    call.has_begun = true;
                }
                return Ok(());
            }
            PythonReport::Opened { call, bytes, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, PythonAnswer::Opened { bytes })
            }
            PythonReport::Loaded { call, seconds, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, PythonAnswer::Loaded { took: duration(seconds) })
            }
            PythonReport::Freed { call, resident_bytes, host_bytes } => {
                self.host.store(host_bytes, Ordering::Relaxed);
                (call, PythonAnswer::Freed { resident_bytes })
            }
            PythonReport::Computed { call, outputs, seconds, copy_seconds } => {
                let took = duration(seconds);
                let copy = duration(copy_seconds);
                (call, PythonAnswer::Computed { outputs: unpack(outputs, payload)?, took, copy })
            }
            PythonReport::Failed { call, reason, is_out_of_memory: true } => (call, PythonAnswer::OutOfMemory(reason)),
            PythonReport::Failed { call, reason, .. } => (call, PythonAnswer::Failed(reason)),
        };
        let open = self.state.lock().calls.remove(&call);
        if let Some(open) = open {
            (open.answered)(Ok(answer));
        }
        Ok(())
    }

    /// Answers all open calls with an error.
    fn mark_ended(&self, reason: &str) {
        self.subprocess.forget();
        let mut state = self.state.lock();
        state.end = Some(reason.into());
        let was_memory_short = state.life.was_memory_short();
        let left: Vec<PythonCall> = state.calls.drain().map(|(_, call)| call).collect();
        drop(state);
        for PythonCall { has_begun, answered } in left {
            answered(Err(lost(has_begun, was_memory_short, reason.into())));
        }
    }
}

/// Converts seconds that another process measured; an invalid number becomes zero.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
