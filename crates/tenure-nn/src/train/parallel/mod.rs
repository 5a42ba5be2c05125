//! Training on several devices at once: a replica of the model on each, a thread for each, a part of every batch each.
//! PyTorch's `DistributedDataParallel`, in one process.

mod crew;
mod lockstep;
mod reducer;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::Device;
use tenure_device::collective::CollectiveError;
use tenure_tensor::autocast;
use tenure_tensor::collective::{Collective, Reduction};
use tenure_tensor::random::{State, default_generator};
use tenure_tensor::{DType, Tensor, TensorError};

use self::crew::{Crew, Order};
use self::lockstep::Lockstep;
use self::reducer::Reducer;
use super::memory::Meter;
use super::{Step, StepMemory, Task, TrainError, Trainer, update};
use crate::data::{Collate, Dataset, Part};
use crate::optim::Optimizer;
use crate::{Module, Result, purpose};

const OP: &str = "Trainer::on_devices";

/// A device's part in a run on several.
pub(super) struct Rank {
    collective: Arc<Collective>,
    reducer: Reducer,
    lockstep: Arc<Lockstep<Word>>,
    /// Whether others wait for what this device exchanges.
    is_exchanging: AtomicBool,
    /// The first's: the others.
    crew: Option<Crew>,
}

/// What devices tell one another.
enum Word {
    /// How many examples it has of the batch; none if there is no batch.
    Batch(Option<usize>),
    /// Parameters that got a gradient, in order.
    Gradients(Vec<usize>),
    /// All gradients are on their way.
    Sent,
}

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// The same run on several devices, of which the first is the one that the model is on. `replica` makes the same
    /// task, with its own optimizer, on each other device, in a thread of its own there; their parameters and buffers
    /// become the first's.
    ///
    /// Each device gets a part of each batch, as equal as can be, and the gradients are averaged over all examples
    /// while backward goes on; so losses and parameters are those of one device with the whole batch, but for rounding,
    /// where examples do not depend on one another and the loss is a mean over them. Parameters stay the same bits on
    /// all devices.
    ///
    /// - Where the thread that calls [`step`](Self::step) is in an [autocast], all devices are.
    /// - A parameter without a gradient on every device keeps none; one that has it on some gets zeros from the others.
    /// - Batch normalisation sees a device's own part. What it keeps is the first's in checkpoints and in use.
    /// - Dropout draws other numbers on each device: the first's are the default generator's, the others' follow from
    ///   its state. So a run goes on from its checkpoint with the same numbers, also on other devices, or on one.
    /// - Each step is told with the loss over the whole batch, and the first device's memory: see
    ///   [`device_peaks`](Self::device_peaks).
    /// - An error of one device ends the step for all. If data could not be read, the next step begins with the same
    ///   batch; after other errors the devices no longer work together ([`TrainError::Apart`]), and what was learned
    ///   before can be saved.
    ///
    /// # Errors
    /// The run has begun, or its optimizer has; its steps are to be captured; the first device is not the model's; a device
    /// that is not there, or no CUDA device, or twice; no NCCL; those of `replica`, or one that is not the same.
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
        if self.plan.is_captured {
            return Err(TensorError::argument(OP, "steps are captured on one device, not on several").into());
        }
        let mut collectives = Collective::group(devices)?.into_iter();
        let first = collectives.next().ok_or_else(|| TensorError::argument(OP, "no device"))?;
        let lockstep = Arc::new(Lockstep::new(devices.len()));
        let mut rank = Rank::new(first, self.task.model(), Arc::clone(&lockstep))?;
        let crew = Crew::new(&self, collectives, &lockstep, replica)?;
        self.loader = self.loader.share(0, devices.len(), here);
        crew.tell(|| Order::Begin)?;
        let begun = rank.begin(self.task.model());
        let others = crew.hear();
        rank.crew = Some(crew);
        self.rank = Some(rank);
        begun.and(others.map(drop))?;
        Ok(self)
    }

    /// The most that tensors held on each device of a run [on several](Self::on_devices), in the steps of this process.
    pub fn device_peaks(&self) -> &[(Device, u64)] {
        self.crew().map_or(&[], |crew| &crew.peaks)
    }

    /// The other devices, if this is the first of several.
    fn crew(&self) -> Option<&Crew> {
        self.rank.as_ref()?.crew.as_ref()
    }

    /// As another than the first device of a run.
    fn of_rank(mut self, collective: Collective, lockstep: Arc<Lockstep<Word>>) -> Result<Self> {
        self.rank = Some(Rank::new(collective, self.task.model(), lockstep)?);
        Ok(self)
    }

    /// A step of all devices, by the first.
    pub(super) fn make_step_of_all(&mut self) -> Result<Step> {
        let lrs: Vec<f64> = self.optimizer.groups().iter().map(|group| group.lr()).collect();
        let (random, lower) = (default_generator().state(), autocast::dtype());
        let Some(crew) = self.crew() else { return self.make_step() };
        crew.tell(|| Order::Step { random, lower, lrs: lrs.clone() })?;
        let own = catch_unwind(AssertUnwindSafe(|| self.make_step()));
        let own = own.unwrap_or_else(|panic| {
            self.rank.iter().for_each(Rank::fail);
            resume_unwind(panic)
        });
        let Some(crew) = self.rank.as_mut().and_then(|rank| rank.crew.as_mut()) else { return own };
        let others = crew.hear();
        let step = match own {
            // What really happened is another's to tell.
            Err(error) if is_consequence(&error) => return Err(others.err().unwrap_or(error)),
            own => own?,
        };
        crew.note(&step, &others?);
        Ok(step)
    }

    /// Makes the other devices go on from the same checkpoint.
    pub(super) fn resume_others(&self, path: &std::path::Path) -> Result<()> {
        let Some(crew) = self.crew() else { return Ok(()) };
        let resumed = crew.tell(|| Order::Resume(path.to_owned())).and_then(|()| crew.hear());
        if resumed.is_err() {
            // Some are where the checkpoint was, and some are not.
            self.rank.iter().for_each(Rank::fail);
        }
        resumed.map(drop)
    }

    /// Forward, backward and the parameters' step on this device's part of a batch. The loss over all of it, and what
    /// tensors held here.
    pub(super) fn learn_part(&mut self, part: &Part<T::Batch>, meter: Meter) -> Result<(f32, StepMemory)> {
        let learned = self.try_learn_part(part, meter);
        if let (Err(_), Some(rank)) = (&learned, &self.rank) {
            rank.fail();
        }
        learned
    }

    fn try_learn_part(&mut self, part: &Part<T::Batch>, mut meter: Meter) -> Result<(f32, StepMemory)> {
        let Some(rank) = &self.rank else { return Err(TrainError::Apart.into()) };
        // What all devices have is averaged over devices, as if each had as many examples.
        let weight = (part.examples * rank.collective.size()) as f64 / part.of as f64;
        self.optimizer.set_lr_scale(self.plan.schedule.scale(self.step));
        let loss = match &part.batch {
            Some(batch) => {
                let loss = purpose::forward(|| self.task.loss(batch))?;
                meter.look();
                purpose::backward_by(&loss, weight)?;
                Some(loss.detach().to_dtype(DType::F64)?.mul(weight)?)
            }
            None => None,
        };
        let loss = rank.finish(loss)?;
        meter.look();
        update(&mut self.optimizer, self.plan.clip_norm)?;
        meter.look();
        self.optimizer.zero_grad();
        Ok((self.value(&loss)?, meter.finish()))
    }
}

impl Rank {
    fn new(collective: Collective, model: &dyn Module, lockstep: Arc<Lockstep<Word>>) -> Result<Self> {
        let collective = Arc::new(collective);
        let reducer = Reducer::new(model, Arc::clone(&collective))?;
        Ok(Self { collective, reducer, lockstep, is_exchanging: AtomicBool::new(false), crew: None })
    }

    /// Whether it is the first of the run.
    pub(super) fn leads(&self) -> bool {
        self.crew.is_some()
    }

    /// Takes over the first device's parameters and buffers. Waits until that is done, and the devices have found their
    /// ways to one another.
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
        // NCCL finds other ways for many bytes than for few: now, rather than in the first step.
        for elements in [1, reducer::BUCKET_BYTES / size_of::<f32>()] {
            let zeros = Tensor::zeros(&[elements], DType::F32, self.collective.device())?;
            self.collective.all_reduce(std::slice::from_ref(&zeros), Reduction::Average)?;
            self.collective.join()?;
            zeros.narrow(0, 0, 1)?.to_vec::<f32>()?;
        }
        Ok(())
    }

    /// The batch, if all devices have theirs: a pass begins.
    pub(super) fn agree<B>(&self, part: Result<Part<B>>) -> Result<Part<B>> {
        let words = self.meet(Word::Batch(part.as_ref().ok().map(|part| part.examples)));
        let (part, words) = (part?, words?);
        if !words.iter().all(|word| matches!(word, Word::Batch(Some(_)))) {
            return Err(TrainError::Apart.into());
        }
        self.is_exchanging.store(true, Ordering::Relaxed);
        // A device without examples sends when the others are through: nothing of theirs is to wait for it on the way.
        self.reducer.begin(words.iter().all(|word| matches!(word, Word::Batch(Some(1..)))));
        Ok(part)
    }

    /// Ends a backward pass: the thread's stream has the gradients of all, and the loss over all, that this device has
    /// a part of.
    fn finish(&self, loss: Option<Tensor>) -> Result<Tensor> {
        let words = self.meet(Word::Gradients(self.reducer.arrived()))?;
        let arrived = |word: &Word| match word {
            Word::Gradients(arrived) => arrived.clone(),
            Word::Batch(_) | Word::Sent => Vec::new(),
        };
        self.reducer.finish(&words.iter().map(arrived).collect::<Vec<_>>())?;
        let loss = loss.map_or_else(|| Tensor::zeros(&[], DType::F64, self.collective.device()), Ok)?;
        self.collective.all_reduce(std::slice::from_ref(&loss), Reduction::Average)?;
        self.collective.join()?;
        // Nobody steps by gradients that somebody else may not send.
        self.meet(Word::Sent)?;
        self.is_exchanging.store(false, Ordering::Relaxed);
        Ok(loss)
    }

    fn meet(&self, word: Word) -> Result<Arc<Vec<Word>>> {
        self.lockstep.meet(self.collective.rank(), word).ok_or_else(|| TrainError::Apart.into())
    }

    /// Makes sure that nobody waits for this device.
    fn fail(&self) {
        self.lockstep.end();
        self.reducer.give_up();
        if self.is_exchanging.swap(false, Ordering::Relaxed) {
            self.collective.abort();
        }
        // A device that failed has said so.
        let _ = self.collective.join();
    }
}

impl Drop for Rank {
    /// Also of a thread that panics.
    fn drop(&mut self) {
        self.fail();
    }
}

/// Whether an error only says that there is one elsewhere.
fn is_consequence(error: &crate::Error) -> bool {
    use crate::Error::{Tensor, Train};
    let is_alone = |error: &CollectiveError| matches!(error, CollectiveError::Alone);
    match error {
        Train(TrainError::Apart) => true,
        Tensor(TensorError::Collective { error, .. }) => is_alone(error),
        _ => false,
    }
}

/// Where the generator of a rank is, if the first's is there: elsewhere for each.
fn generator_state(rank: usize, first: State) -> State {
    let mut state = first;
    state.seed ^= (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state
}
