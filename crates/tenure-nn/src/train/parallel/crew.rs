//! The worker threads of a run on several devices, one for each device except the first, and the barrier at which they
//! exchange messages.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tenure_core::{DType, Device};
use tenure_tensor::TensorError;
use tenure_tensor::autocast::Autocast;
use tenure_tensor::collective::Collective;
use tenure_tensor::random::{DefaultGenerator, Generator, GeneratorState};

use super::{OP, RankMessage, generator_state, is_consequence};
use crate::data::{Collate, Dataset};
use crate::optim::Optimizer;
use crate::train::{Step, Task, TrainError, Trainer};
use crate::{Module, Result, panics};

/// A command from the first device to the others.
pub(super) enum CrewCommand {
    /// Takes over the first device's parameters.
    Begin,
    /// Makes the same step as the first device.
    Step {
        /// The state of the first device's random generator.
        random: GeneratorState,
        /// The lower dtype of the first device's autocast.
        lower: Option<DType>,
        /// The learning rate of each group of parameters.
        lrs: Vec<f64>,
    },
    /// Resumes from a checkpoint.
    Resume(PathBuf),
}

/// The result of a command, with the step if it made one.
type CommandResult = Result<Option<Step>>;

/// The worker threads of a run, as the first device's thread sees them.
pub(super) struct Crew {
    members: Vec<CrewMember>,
    lockstep: Arc<Lockstep<RankMessage>>,
    /// The peak in bytes of the memory that tensors held on each device, the first included.
    pub(super) peaks: Vec<(Device, u64)>,
}

/// One worker thread.
struct CrewMember {
    device: Device,
    commands: Sender<CrewCommand>,
    results: Receiver<CommandResult>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    /// Starts threads with replicas of a trainer. All replicas are built when this returns.
    pub(super) fn new<T: Task + 'static, D: Dataset + 'static>(
        first: &Trainer<T, D>,
        collectives: impl Iterator<Item = Collective>,
        lockstep: &Arc<Lockstep<RankMessage>>,
        replica: impl Fn(Device) -> Result<(T, Optimizer)> + Send + Sync + 'static,
    ) -> Result<Self>
    where
        D::Item: Collate<Batch = T::Batch>,
    {
        let replica = Arc::new(replica);
        let mut crew = Self { members: Vec::new(), lockstep: Arc::clone(lockstep), peaks: vec![(first.device(), 0)] };
        for collective in collectives {
            let device = collective.device();
            let (commands, received) = channel();
            let (result_sender, results) = channel();
            let replica = Arc::clone(&replica);
            let lockstep = Arc::clone(lockstep);
            let loader = first.loader.share(collective.rank(), collective.size(), device);
            let options = first.options.clone();
            let expected = signature(first.task.model(), &first.optimizer);
            let work = move || {
                // Each step's command brings the generator's state.
                let generator = Generator::new(0);
                let _own = DefaultGenerator::enter(generator.clone());
                let rank = collective.rank();
                let made = caught(|| {
                    let (task, optimizer) = replica(device)?;
                    same(&expected, &signature(task.model(), &optimizer))?;
                    Trainer::new(task, loader, optimizer, options).of_rank(collective, lockstep)
                });
                let mut trainer = match made {
                    Ok(trainer) => trainer,
                    Err(error) => return drop(result_sender.send(Err(error))),
                };
                if result_sender.send(Ok(None)).is_err() {
                    return;
                }
                for command in received {
                    let result = caught(|| {
                        let CrewCommand::Step { random, lower, .. } = &command else { return trainer.execute(command) };
                        generator.set_state(generator_state(rank, *random));
                        let _autocast = Autocast::enter(*lower);
                        trainer.execute(command)
                    });
                    if let (Err(crate::Error::Train(TrainError::Panicked(_))), Some(rank)) = (&result, &trainer.rank) {
                        rank.fail();
                    }
                    if result_sender.send(result).is_err() {
                        return;
                    }
                }
            };
            let name = format!("tenure-train-{}", device.index());
            let thread = std::thread::Builder::new().name(name).spawn(work);
            let thread =
                thread.map_err(|error| TensorError::argument(OP, format!("no thread for {device}: {error}")))?;
            crew.members.push(CrewMember { device, commands, results, thread: Some(thread) });
            crew.peaks.push((device, 0));
        }
        crew.wait_for_results()?;
        Ok(crew)
    }

    /// Sends a command to all threads.
    pub(super) fn send(&self, command: impl Fn() -> CrewCommand) -> Result<()> {
        let sent = self.members.iter().map(|member| member.commands.send(command()));
        // A thread that has ended has reported its error already.
        if sent.filter(std::result::Result::is_err).count() > 0 { Err(TrainError::Apart.into()) } else { Ok(()) }
    }

    /// Waits until all threads have done the command. Of several errors, it returns the first that is not the
    /// consequence of another, if there is one.
    pub(super) fn wait_for_results(&self) -> Result<Vec<Option<Step>>> {
        let answers: Vec<CommandResult> = self.members.iter().map(CrewMember::wait_for_result).collect();
        let mut steps = Vec::new();
        let mut first = None;
        for (member, answer) in self.members.iter().zip(answers) {
            match answer {
                Ok(step) => steps.push(step),
                Err(error) if is_consequence(&error) => _ = first.get_or_insert((true, error)),
                Err(error) if first.as_ref().is_none_or(|(is_consequence, _)| *is_consequence) => {
                    let device = member.device;
                    let message = error.to_string();
                    first = Some((false, TrainError::OnDevice { device, message }.into()));
                }
                Err(_) => {}
            }
        }
        first.map_or(Ok(steps), |(_, error)| Err(error))
    }

    /// Updates the peak memory of each device after a step.
    pub(super) fn record_peaks(&mut self, own: &Step, others: &[Option<Step>]) {
        let steps = std::iter::once(Some(own)).chain(others.iter().map(Option::as_ref));
        for ((_, peak), step) in self.peaks.iter_mut().zip(steps) {
            *peak = (*peak).max(step.map_or(0, |step| step.memory.peak_bytes));
        }
    }
}

impl CrewMember {
    /// Waits for the result of the last command.
    fn wait_for_result(&self) -> CommandResult {
        self.results.recv().unwrap_or_else(|_| Err(TrainError::Apart.into()))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.lockstep.end();
        for mut member in self.members.drain(..) {
            drop(member.commands);
            // The thread does not panic: its panics become results.
            drop(member.thread.take().map(JoinHandle::join));
        }
    }
}

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Executes a command on a device other than the first.
    fn execute(&mut self, command: CrewCommand) -> CommandResult {
        match command {
            CrewCommand::Begin => {
                let Some(rank) = &self.rank else { return Err(TrainError::Apart.into()) };
                rank.begin(self.task.model()).map(|()| None)
            }
            CrewCommand::Step { lrs, .. } => {
                for (group, lr) in self.optimizer.groups_mut().iter_mut().zip(lrs) {
                    group.set_lr(lr);
                }
                self.step()
            }
            CrewCommand::Resume(path) => self.resume(&path).map(|()| None),
        }
    }
}

/// Runs code that may panic, and turns a panic into an error.
fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    panics::caught(work).unwrap_or_else(|message| Err(TrainError::Panicked(message).into()))
}

/// The properties in which replicas must agree: names, sizes, strides and dtypes, and whether a tensor requires a
/// gradient, and whether the optimizer steps its name.
type Signature = Vec<(String, Vec<usize>, Vec<usize>, DType, [bool; 2])>;

fn signature(model: &dyn Module, optimizer: &Optimizer) -> Signature {
    let stepped: HashSet<&str> = optimizer.parameters().map(|parameter| parameter.name()).collect();
    model
        .state()
        .into_iter()
        .map(|(name, tensor)| {
            let sizes = tensor.sizes().to_vec();
            let strides = tensor.strides().to_vec();
            (name.to_owned(), sizes, strides, tensor.dtype(), [tensor.requires_grad(), stepped.contains(name)])
        })
        .collect()
}

fn same(expected: &Signature, found: &Signature) -> Result<()> {
    let differing = expected.iter().zip(found).find(|(expected, found)| expected != found);
    let reason = match differing {
        Some((expected, found)) => format!("a replica has {found:?} where the model has {expected:?}"),
        None if expected.len() != found.len() => {
            format!("a replica has {} tensors, and the model {}", found.len(), expected.len())
        }
        None => return Ok(()),
    };
    Err(TensorError::argument(OP, reason).into())
}

/// A reusable barrier: all threads of a run wait for one another, and each gets the messages of all. It does not wait
/// for work on the devices.
pub(super) struct Lockstep<M> {
    state: Mutex<LockstepState<M>>,
    changed: Condvar,
}

struct LockstepState<M> {
    /// The messages that threads have sent for the next exchange, by thread.
    sent: Vec<Option<M>>,
    /// The number of exchanges so far.
    exchanges: u64,
    /// The messages of the last exchange, by thread.
    received: Arc<Vec<M>>,
    is_over: bool,
}

impl<M> Lockstep<M> {
    pub(super) fn new(size: usize) -> Self {
        let sent = (0..size).map(|_| None).collect();
        let state = LockstepState { sent, exchanges: 0, received: Arc::default(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sends a message and waits until all other threads have sent theirs. Returns the messages of all, by thread;
    /// `None` after [`end`](Self::end).
    pub(super) fn meet(&self, rank: usize, message: M) -> Option<Arc<Vec<M>>> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let before = state.exchanges;
        state.sent[rank] = Some(message);
        if state.sent.iter().all(Option::is_some) {
            state.received = Arc::new(state.sent.iter_mut().filter_map(Option::take).collect());
            state.exchanges += 1;
            self.changed.notify_all();
        }
        while state.exchanges == before && !state.is_over {
            self.changed.wait(&mut state);
        }
        (state.exchanges > before).then(|| Arc::clone(&state.received))
    }

    /// Ends the exchanges: all threads that wait, now or later, return at once.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
