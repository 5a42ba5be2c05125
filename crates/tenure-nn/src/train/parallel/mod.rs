//! Training on several devices at once. Each has a replica of the model, a thread, and a part of every batch. PyTorch's
//! `DistributedDataParallel`, in one process.

mod crew;
mod reducer;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::Device;
use tenure_device::collective::CollectiveError;
use tenure_tensor::autocast;
use tenure_tensor::collective::{Collective, ReduceOp};
use tenure_tensor::random::{GeneratorState, default_generator};
use tenure_tensor::{DType, Tensor, TensorError};

use self::crew::{Crew, CrewCommand, Lockstep};
use self::reducer::Reducer;
use super::memory::Meter;
use super::{Step, StepMemory, Task, TrainError, Trainer, update};
use crate::data::{Collate, Dataset, Part};
use crate::optim::Optimizer;
use crate::{Module, Result, purpose};

const OP: &str = "Trainer::on_devices";

/// One device's part of a run on several devices.
pub(super) struct Rank {
    collective: Arc<Collective>,
    reducer: Reducer,
    lockstep: Arc<Lockstep<RankMessage>>,
    /// Whether other devices wait for data from this one.
    is_exchanging: AtomicBool,
    /// The threads of the other devices; `None` on all but the first.
    crew: Option<Crew>,
}

/// A message that devices exchange.
enum RankMessage {
    /// The number of the batch's examples that the device has; `None` if it could not read them.
    Batch(Option<usize>),
    /// The parameters that got a gradient, in order.
    Gradients(Vec<usize>),
    /// The device has submitted the averaging of all its gradients.
    Sent,
}

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Distributes the run over several devices. The first must be the model's device. `replica` makes the same task,
    /// with its own optimizer, on each other device, in a thread of its own; its parameters and buffers are then set to
    /// the first's.
    ///
    /// Each device gets a part of each batch, of nearly equal size, and the gradients are averaged over all examples
    /// while backward goes on. So losses and parameters are those of one device with the whole batch, except for
    /// rounding, if examples do not depend on one another and the loss is a mean over them. Parameters stay the same on
    /// all devices, bit for bit.
    ///
    /// - If the thread that calls [`step`](Self::step) is in an [autocast], all devices are.
    /// - A parameter that has no gradient on any device keeps none. One that has a gradient on some devices gets zeros
    ///   from the others.
    /// - Batch normalisation sees only a device's own part. In checkpoints and in evaluation, its averages are the
    ///   first device's.
    /// - Dropout draws different numbers on each device. The first uses the default generator, and the states of the
    ///   others follow from its state. So a run continues from its checkpoint with the same numbers, also on other
    ///   devices, or on one.
    /// - Each step reports the loss over the whole batch, and the first device's memory: see
    ///   [`device_peaks`](Self::device_peaks).
    /// - An error of one device ends the step for all. If data could not be read, the next step begins with the same
    ///   batch. After other errors the devices no longer work together ([`TrainError::Apart`]), but the training so far
    ///   can be saved.
    ///
    /// # Errors
    /// The run or its optimizer has begun; its steps are to be captured; the first device is not the model's; a device
    /// does not exist, is not a CUDA device, or is given twice; NCCL is missing; an error of `replica`, or its task or
    /// optimizer is not the same.
    pub fn on_devices(
        mut self,
        devices: &[Device],
        replica: impl Fn(Device) -> Result<(T, Optimizer)> + Send + Sync + 'static,
    ) -> Result<Self>
    where
        T: 'static,
    {
        let here = self.device();
        if devices.first() != Some(&here) {
            let reason = format!("the first device is to be the model's, {here}, got {devices:?}");
            return Err(TensorError::argument(OP, reason).into());
        }
        if self.step > 0 {
            return Err(TensorError::argument(OP, "the run has begun: call it before resume() and step()").into());
        }
        if let [_] = devices {
            return Ok(self);
        }
        if !self.optimizer.state()?.is_empty() {
            let reason = "the optimizer has made steps, of which the other devices' know nothing: resume() afterwards";
            return Err(TensorError::argument(OP, reason).into());
        }
        if self.options.is_captured {
            return Err(TensorError::argument(OP, "steps are captured on one device, not on several").into());
        }
        let mut collectives = Collective::group(devices)?.into_iter();
        let first = collectives.next().ok_or_else(|| TensorError::argument(OP, "no device"))?;
        let lockstep = Arc::new(Lockstep::new(devices.len()));
        let mut rank = Rank::new(first, self.task.model(), Arc::clone(&lockstep))?;
        let crew = Crew::new(&self, collectives, &lockstep, replica)?;
        self.loader = self.loader.share(0, devices.len(), here);
        crew.send(|| CrewCommand::Begin)?;
        let begun = rank.begin(self.task.model());
        let others = crew.wait_for_results();
        rank.crew = Some(crew);
        self.rank = Some(rank);
        begun.and(others.map(drop))?;
        Ok(self)
    }

    /// Returns the peak in bytes of the memory that tensors held on each device of a run [on
    /// several](Self::on_devices), in the steps of this process.
    pub fn device_peaks(&self) -> &[(Device, u64)] {
        self.crew().map_or(&[], |crew| &crew.peaks)
    }

    /// Returns the threads of the other devices, if this is the first of several.
    fn crew(&self) -> Option<&Crew> {
        self.rank.as_ref()?.crew.as_ref()
    }

    /// Makes this the trainer of a device other than the first.
    fn of_rank(mut self, collective: Collective, lockstep: Arc<Lockstep<RankMessage>>) -> Result<Self> {
        self.rank = Some(Rank::new(collective, self.task.model(), lockstep)?);
        Ok(self)
    }

    /// Makes a step on all devices. The first device's thread calls this.
    pub(super) fn make_step_of_all(&mut self) -> Result<Step> {
        let lrs: Vec<f64> = self.optimizer.groups().iter().map(|group| group.lr()).collect();
        let random = default_generator(self.device()).state();
        let lower = autocast::dtype();
        let Some(crew) = self.crew() else { return self.make_step() };
        crew.send(|| CrewCommand::Step { random, lower, lrs: lrs.clone() })?;
        let own = catch_unwind(AssertUnwindSafe(|| self.make_step()));
        let own = own.unwrap_or_else(|panic| {
            self.rank.iter().for_each(Rank::fail);
            resume_unwind(panic)
        });
        let Some(crew) = self.rank.as_mut().and_then(|rank| rank.crew.as_mut()) else { return own };
        let others = crew.wait_for_results();
        let step = match own {
            // The error of another device is the cause.
            Err(error) if is_consequence(&error) => return Err(others.err().unwrap_or(error)),
            own => own?,
        };
        crew.record_peaks(&step, &others?);
        Ok(step)
    }

    /// Makes the other devices resume from the same checkpoint.
    pub(super) fn resume_others(&self, path: &std::path::Path) -> Result<()> {
        let Some(crew) = self.crew() else { return Ok(()) };
        let resumed = crew.send(|| CrewCommand::Resume(path.to_owned())).and_then(|()| crew.wait_for_results());
        if resumed.is_err() {
            // Some devices are at the checkpoint, and others are not.
            self.rank.iter().for_each(Rank::fail);
        }
        resumed.map(drop)
    }

    /// Runs the forward pass, the backward pass and the parameters' step on this device's part of a batch. Returns the
    /// loss over the whole batch, and the memory of tensors on this device.
    pub(super) fn learn_part(&mut self, part: &Part<T::Batch>, meter: Meter) -> Result<(f32, StepMemory)> {
        let learned = self.try_learn_part(part, meter);
        if let (Err(_), Some(rank)) = (&learned, &self.rank) {
            rank.fail();
        }
        learned
    }

    fn try_learn_part(&mut self, part: &Part<T::Batch>, mut meter: Meter) -> Result<(f32, StepMemory)> {
        let Some(rank) = &self.rank else { return Err(TrainError::Apart.into()) };
        // The average over devices counts each device alike, so a device's part is weighted by its share of the
        // examples.
        let weight = (part.examples * rank.collective.size()) as f64 / part.of as f64;
        self.optimizer.set_lr_scale(self.options.schedule.scale(self.step));
        let loss = match &part.batch {
            Some(batch) => {
                let loss = purpose::forward(|| self.task.loss(batch))?;
                meter.sample();
                purpose::backward_by(&loss, weight)?;
                Some(loss.detach().to_dtype(DType::F64)?.mul(weight)?)
            }
            None => None,
        };
        let loss = rank.finish(loss)?;
        meter.sample();
        update(&mut self.optimizer, self.options.clip_norm)?;
        meter.sample();
        self.optimizer.zero_grad();
        Ok((self.value(&loss)?, meter.finish()))
    }
}

impl Rank {
    fn new(collective: Collective, model: &dyn Module, lockstep: Arc<Lockstep<RankMessage>>) -> Result<Self> {
        let collective = Arc::new(collective);
        let reducer = Reducer::new(model, Arc::clone(&collective))?;
        Ok(Self { collective, reducer, lockstep, is_exchanging: AtomicBool::new(false), crew: None })
    }

    /// Returns whether this is the first device of the run.
    pub(super) fn leads(&self) -> bool {
        self.crew.is_some()
    }

    /// Replaces the parameters and buffers by those of the first device. Waits until the copies are done and the
    /// devices have set up their connections.
    fn begin(&self, model: &dyn Module) -> Result<()> {
        self.is_exchanging.store(true, Ordering::Relaxed);
        let begun = self.try_begin(model);
        match begun {
            Ok(()) => self.is_exchanging.store(false, Ordering::Relaxed),
            Err(_) => self.fail(),
        }
        begun
    }

    fn try_begin(&self, model: &dyn Module) -> Result<()> {
        let state: Vec<Tensor> = model.state().into_iter().map(|(_, tensor)| tensor.clone()).collect();
        self.collective.broadcast(&state, 0)?;
        // NCCL uses other connections for many bytes than for few. Both are set up here rather than in the first step.
        for elements in [1, reducer::BUCKET_BYTES / size_of::<f32>()] {
            let zeros = Tensor::zeros(&[elements], DType::F32, self.collective.device())?;
            self.collective.all_reduce(std::slice::from_ref(&zeros), ReduceOp::Average)?;
            self.collective.join()?;
            zeros.narrow(0, 0, 1)?.to_vec::<f32>()?;
        }
        Ok(())
    }

    /// Begins a pass once all devices have their parts of the batch, and returns this device's. If one could not be
    /// read, all devices return an error.
    pub(super) fn begin_pass<B>(&self, part: Result<Part<B>>) -> Result<Part<B>> {
        let messages = self.exchange(RankMessage::Batch(part.as_ref().ok().map(|part| part.examples)));
        let part = part?;
        let messages = messages?;
        if !messages.iter().all(|message| matches!(message, RankMessage::Batch(Some(_)))) {
            return Err(TrainError::Apart.into());
        }
        self.is_exchanging.store(true, Ordering::Relaxed);
        // A device without examples sends its zeros at the end of the pass. The others' gradients would wait for them,
        // so gradients leave early only if all devices have examples.
        self.reducer.begin(messages.iter().all(|message| matches!(message, RankMessage::Batch(Some(1..)))));
        Ok(part)
    }

    /// Ends a backward pass. Afterwards the thread's stream has the averaged gradients and the loss over all devices.
    fn finish(&self, loss: Option<Tensor>) -> Result<Tensor> {
        let messages = self.exchange(RankMessage::Gradients(self.reducer.arrived()))?;
        let arrived = messages.iter().map(|message| match message {
            RankMessage::Gradients(arrived) => arrived.clone(),
            RankMessage::Batch(_) | RankMessage::Sent => Vec::new(),
        });
        self.reducer.finish(&arrived.collect::<Vec<_>>())?;
        let loss = loss.map_or_else(|| Tensor::zeros(&[], DType::F64, self.collective.device()), Ok)?;
        self.collective.all_reduce(std::slice::from_ref(&loss), ReduceOp::Average)?;
        self.collective.join()?;
        // A device steps only when all devices have sent their gradients.
        self.exchange(RankMessage::Sent)?;
        self.is_exchanging.store(false, Ordering::Relaxed);
        Ok(loss)
    }

    /// Sends this device's message to all devices, and waits for theirs.
    fn exchange(&self, message: RankMessage) -> Result<Arc<Vec<RankMessage>>> {
        self.lockstep.meet(self.collective.rank(), message).ok_or_else(|| TrainError::Apart.into())
    }

    /// Ends this device's part in the run after an error: makes the waits of other threads and devices for it return.
    fn fail(&self) {
        self.lockstep.end();
        self.reducer.give_up();
        if self.is_exchanging.swap(false, Ordering::Relaxed) {
            self.collective.abort();
        }
        // A device that failed has reported its error already.
        let _ = self.collective.join();
    }
}

impl Drop for Rank {
    /// Also runs when the thread panics.
    fn drop(&mut self) {
        self.fail();
    }
}

/// Returns whether an error is only the consequence of an error on another device.
fn is_consequence(error: &crate::Error) -> bool {
    use crate::Error::{Tensor, Train};
    match error {
        Train(TrainError::Apart) => true,
        Tensor(TensorError::Collective { error, .. }) => matches!(**error, CollectiveError::Alone),
        _ => false,
    }
}

/// Returns the state of a rank's random generator for a state of the first device's. It differs from rank to rank.
fn generator_state(rank: usize, first: GeneratorState) -> GeneratorState {
    let mut state = first;
    state.seed ^= (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state
}
