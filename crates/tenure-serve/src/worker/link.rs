//! A worker process, seen from its server.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::WorkerCommand;
use super::life::{Life, LifePatience, LifeStep};
use super::message::{Failure, MessageError, WorkerAnswer, WorkerOrder, WorkerReport};
use super::socket::{Descriptor, Incoming, Outgoing, receive};
use super::subprocess::Subprocess;
use crate::executor::BatchControl;
use crate::niceness::{self, BatchMeter, Niceness};

/// The time after its start within which a worker must be ready for orders.
const START: Duration = Duration::from_secs(30);

/// The time after which a worker is killed if it gives no sign of life or does not unmap an image.
const PATIENCE: Duration = Duration::from_secs(10);

/// An abandoned batch has as long to end as it has run, within these limits. Then its worker is killed.
const SHORTEST_END: Duration = Duration::from_secs(1);
const LONGEST_END: Duration = Duration::from_secs(10);

/// The server's handle of a worker process, and what the worker has reported.
pub(super) struct Worker {
    subprocess: Subprocess,
    started: Instant,
    /// Whether long batches raise its niceness.
    yields: bool,
    state: Mutex<WorkerState>,
    /// Notified when the state changes.
    changed: Condvar,
}

struct WorkerState {
    is_ready: bool,
    has_answered: bool,
    /// The numbers of the images and loans that it was told to map and has not unmapped.
    images: HashSet<u64>,
    batch: Option<SentBatch>,
    niceness: Niceness,
    life: Life,
    /// The reason for its end that the worker itself reported.
    reported_end: Option<String>,
    /// Whether the server has ended it, as it is not needed any more.
    is_retired: bool,
    /// The reason why the process ended, once it has.
    end: Option<String>,
}

/// A batch that the worker was told to run.
struct SentBatch {
    number: u64,
    sent: Instant,
    has_begun: bool,
    outcome: Option<BatchOutcome>,
    /// The time at which the worker is killed if the batch still runs. Set when the batch is abandoned.
    kill_at: Option<Instant>,
}

/// A worker's answer, and its payload.
pub(super) type BatchOutcome = (Result<WorkerAnswer, Failure>, Bytes);

/// The error of an order that a process did not answer before it ended.
#[derive(Debug)]
pub(super) enum LostOrder {
    /// The process had not begun to compute: the order may be sent to another process.
    NotBegun {
        /// The reason why the process ended.
        reason: String,
    },
    /// The process had begun to compute.
    Begun {
        /// The reason why the process ended.
        reason: String,
    },
    /// The system ended the process while it computed, since memory ran out.
    OutOfMemory {
        /// The system's exit status as text.
        reason: String,
    },
}

impl Worker {
    /// Starts a worker with its first order. When it ends, `ended` is called with the reason on a separate thread,
    /// before waiting threads are notified. The thread that starts the worker must live as long as the worker.
    pub(super) fn start(
        command: &WorkerCommand,
        first: &WorkerOrder,
        ended: impl FnOnce(&Arc<Self>, &str) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let order = Outgoing::new(first, Vec::new(), None).map_err(io::Error::other)?;
        let worker = Arc::new(Self {
            subprocess: Subprocess::start(command)?,
            started: Instant::now(),
            // What the host does for a device must not wait for other processes.
            yields: matches!(first, WorkerOrder::Start { device: None }),
            state: Mutex::new(WorkerState {
                is_ready: false,
                has_answered: false,
                images: HashSet::new(),
                batch: None,
                niceness: Niceness::Normal,
                life: Life::new(Instant::now(), LifePatience { start: START, answer: PATIENCE }),
                reported_end: None,
                is_retired: false,
                end: None,
            }),
            changed: Condvar::new(),
        });
        worker.subprocess.send(order);
        let listening = Arc::clone(&worker);
        let spawned = thread::Builder::new().name("serve: reports".into()).spawn(move || {
            let reason = listening.listen();
            ended(&listening, &reason);
            listening.mark_ended(reason);
        });
        spawned.map(|_| Arc::clone(&worker)).inspect_err(|_| drop(worker.subprocess.reap()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.subprocess.pid()
    }

    /// Returns whether it answered a batch or ran for more than a second. Otherwise its program probably cannot start.
    pub(super) fn was_useful(&self) -> bool {
        self.state.lock().has_answered || self.started.elapsed() > Duration::from_secs(1)
    }

    /// Waits until the worker accepts orders.
    pub(super) fn ready(&self) -> Result<(), String> {
        let end = self.started + START;
        let mut state = self.state.lock();
        while !state.is_ready {
            if let Some(end) = &state.end {
                return Err(format!("the first one ended with {end}"));
            }
            if self.changed.wait_until(&mut state, end).timed_out() {
                return Err(format!("the first one was not ready in {START:?}: its program is to call `worker::run`"));
            }
        }
        Ok(())
    }

    /// Sends an order. A worker that is gone ignores it.
    pub(super) fn send(
        &self,
        order: &WorkerOrder,
        payload: Vec<Bytes>,
        descriptor: Option<Descriptor>,
    ) -> Result<(), MessageError> {
        // If the worker is gone, the thread that waits for the answer learns it there.
        self.subprocess.send(Outgoing::new(order, payload, descriptor)?);
        Ok(())
    }

    /// Returns whether the worker was told to map an image or loan, and has not unmapped it.
    pub(super) fn has_mapped(&self, image: u64) -> bool {
        self.state.lock().images.contains(&image)
    }

    /// Makes the worker map an image, or start a loan.
    pub(super) fn map(&self, image: u64, order: &WorkerOrder, memory: Option<OwnedFd>) -> Result<(), MessageError> {
        self.send(order, Vec::new(), memory.map(Descriptor::Open))?;
        self.state.lock().images.insert(image);
        Ok(())
    }

    /// Makes the worker unmap an image, and waits until it has.
    pub(super) fn unmap(&self, image: u64) {
        if !self.has_mapped(image) || self.send(&WorkerOrder::Unmap { image }, Vec::new(), None).is_err() {
            return;
        }
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.images.contains(&image) && state.end.is_none() {
            if self.changed.wait_until(&mut state, end).timed_out() {
                tracing::error!("worker {} does not unmap weights and is killed", self.pid());
                self.subprocess.kill();
                self.changed.wait(&mut state);
            }
        }
    }

    /// Runs a batch and waits for its outcome. Only one batch may run at a time. The inner error says that the worker
    /// ended.
    pub(super) fn run(
        self: &Arc<Self>,
        number: u64,
        order: &WorkerOrder,
        payload: Vec<Bytes>,
        control: &BatchControl,
    ) -> Result<Result<BatchOutcome, LostOrder>, MessageError> {
        let sent = Instant::now();
        let mut meter = BatchMeter::new(sent);
        self.state.lock().batch = Some(SentBatch { number, sent, has_begun: false, outcome: None, kill_at: None });
        self.send(order, payload, None)?;
        let running = Arc::clone(self);
        control.on_abandon(move || running.abandon(number));
        let mut guard = self.state.lock();
        loop {
            let state = &mut *guard;
            if let Some(outcome) = state.batch.as_mut().and_then(|batch| batch.outcome.take()) {
                state.batch = None;
                state.niceness.after(&meter);
                return Ok(Ok(outcome));
            }
            if let Some(end) = state.end.clone() {
                let has_begun = state.batch.take().is_some_and(|batch| batch.has_begun);
                return Ok(Err(lost(has_begun, state.life.was_memory_short(), end)));
            }
            let kill_at = state.batch.as_ref().and_then(|batch| batch.kill_at);
            let look_at = if self.yields { meter.next_look() } else { None };
            let Some(end) = kill_at.into_iter().chain(look_at).min() else {
                self.changed.wait(&mut guard);
                continue;
            };
            if !self.changed.wait_until(&mut guard, end).timed_out() {
                continue;
            }
            if kill_at == Some(end) {
                tracing::error!("worker {} does not stop an abandoned batch and is killed", self.pid());
                self.subprocess.kill();
                self.changed.wait(&mut guard);
            } else {
                // Reports are handled meanwhile.
                let used = MutexGuard::unlocked(&mut guard, || niceness::processor_time(self.pid()));
                if meter.look(Instant::now(), used) && !guard.niceness.is_raised() {
                    guard.niceness = Niceness::RAISED;
                    MutexGuard::unlocked(&mut guard, || niceness::raise(self.pid()));
                }
            }
        }
    }

    /// Abandons a batch, if it is the current one: no request waits for it any more.
    fn abandon(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch.as_mut().filter(|batch| batch.number == number) {
            let now = Instant::now();
            batch.kill_at.get_or_insert(now + time_to_end(now - batch.sent));
            // The message is too short to exceed the limit.
            let _ = self.send(&WorkerOrder::Abandon { batch: batch.number }, Vec::new(), None);
            self.changed.notify_all();
        }
    }

    /// Asks for a sign of life if that is due, and kills a worker that has given none for too long. Returns when to call
    /// this again.
    pub(super) fn ask_for_life(&self, now: Instant) -> Instant {
        let mut state = self.state.lock();
        loop {
            match state.life.step(now) {
                LifeStep::Wait { until } => return until,
                // The message is too short to exceed the limit.
                LifeStep::Ask => drop(self.send(&WorkerOrder::Ask, Vec::new(), None)),
                LifeStep::Kill => {
                    tracing::error!("worker {} gives no sign of life and is killed", self.pid());
                    self.subprocess.kill();
                }
            }
        }
    }

    /// Returns whether the worker responds, as far as is known.
    pub(super) fn is_answering(&self) -> bool {
        self.state.lock().life.is_answering(Instant::now())
    }

    pub(super) fn niceness(&self) -> Niceness {
        self.state.lock().niceness
    }

    /// Ends the worker, which the server does not need any more.
    pub(super) fn retire(&self) {
        self.state.lock().is_retired = true;
        self.end();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().is_retired
    }

    /// Ends the worker by closing its socket.
    pub(super) fn end(&self) {
        self.subprocess.close();
    }

    /// Handles reports until the process ends, and returns the reason of its end.
    fn listen(&self) -> String {
        let mut ended = self.subprocess.listen(receive::<WorkerReport>, |incoming| {
            self.take(incoming);
            Ok(())
        });
        ended.fault.take().or(self.state.lock().reported_end.take()).unwrap_or_else(|| ended.status())
    }

    /// Records that the worker is gone, and wakes all threads that wait for it.
    fn mark_ended(&self, reason: String) {
        self.subprocess.forget();
        let mut state = self.state.lock();
        state.end = Some(reason);
        state.images.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Handles a report.
    fn take(&self, Incoming { message, payload, .. }: Incoming<WorkerReport>) {
        let mut state = self.state.lock();
        let is_current = |batch: &&mut SentBatch, number| batch.number == number;
        match message {
            WorkerReport::Ready => {
                state.is_ready = true;
                state.life.answered(Instant::now());
            }
            WorkerReport::Begun { batch: number } => {
                if let Some(batch) = state.batch.as_mut().filter(|batch| is_current(batch, number)) {
                    batch.has_begun = true;
                }
                // No thread waits for the begin of a batch.
                return;
            }
            WorkerReport::Done { batch: number, outcome } => {
                state.has_answered = true;
                if let Some(batch) = state.batch.as_mut().filter(|batch| is_current(batch, number)) {
                    batch.outcome = Some((outcome, payload));
                }
            }
            WorkerReport::Unmapped { image } => {
                state.images.remove(&image);
            }
            WorkerReport::Alive => {
                state.life.answered(Instant::now());
                return;
            }
            WorkerReport::Ends { reason } => state.reported_end = Some(reason),
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl LostOrder {
    /// Returns the reason why the process ended.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::NotBegun { reason } | Self::Begun { reason } | Self::OutOfMemory { reason } => reason,
        }
    }
}

/// Returns what became of a batch whose process ended for this reason.
pub(super) fn lost(has_begun: bool, was_memory_short: bool, reason: String) -> LostOrder {
    match (has_begun, was_memory_short) {
        (true, true) => LostOrder::OutOfMemory { reason },
        (true, false) => LostOrder::Begun { reason },
        (false, _) => LostOrder::NotBegun { reason },
    }
}

/// Returns how long an abandoned batch that has run for this long may go on. Then its process is killed.
pub(super) fn time_to_end(ran: Duration) -> Duration {
    ran.clamp(SHORTEST_END, LONGEST_END)
}
