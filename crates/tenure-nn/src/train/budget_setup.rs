//! Setup of a memory budget before the first step: measures and plans a step, enforces the budget, and refuses one that
//! is too small.

use tenure_core::Amount;
use tenure_offload::{
    Budget, BudgetProgress, LeastBudget, Memory, OffloadError, OpenBudget, Pass, ProfileError, StepReport,
};
use tenure_tensor::TensorError;

use super::budget::train_error;
use super::{Task, TrainError, Trainer};
use crate::data::{Collate, Dataset};
use crate::{Error, Result};

/// The margin that is added to a budget that was too small before the next attempt: 1/32 of it, then 2/32, and so on,
/// plus a number of bytes.
const MARGIN_DIVISOR: u64 = 32;
const MARGIN_BYTES: u64 = 1 << 20;
/// The bytes that an attempted larger budget must leave unused, since the memory of a process other than its tensors
/// differs between two runs by up to 2.7 MB.
const SPARE_BYTES: u64 = 4 << 20;
/// The most budgets that are tried between the largest that was refused and the smallest that works.
const MAX_BISECTIONS: u32 = 6;
/// The search ends when those two differ by this part of the smallest that works.
const PRECISION_DIVISOR: u64 = 64;
/// The number of budgets that are tried before a search is given up. The last is more than 1000 times the first.
const MAX_ATTEMPTS: u64 = 24;

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Keeps steps within a budget: tensors saved for backward are spilled to other memory, or dropped and computed
    /// again, and are back in time for backward. The losses are the same, bit for bit.
    ///
    /// First, passes over the next batch, without lasting effects, measure a step, plan it, and follow the plan within
    /// the budget. A budget that is too small is refused with an error that names the smallest one found to work. That
    /// one was tried in the same way, and is an [estimate](LeastBudget::Estimate) if the budget covers the process.
    ///
    /// ```no_run
    /// use tenure_nn::train::Budget;
    /// # use tenure_nn::train::{Task, Trainer};
    /// # use tenure_nn::data::{Collate, Dataset};
    ///
    /// # fn run<T: Task, D: Dataset + 'static>(trainer: Trainer<T, D>) -> tenure_nn::Result<()>
    /// # where D::Item: Collate<Batch = T::Batch> {
    /// let mut trainer = trainer.within(Budget::percent(50.0).spill("/mnt/ssd"))?;
    /// while let Some(step) = trainer.step()? {
    ///     println!("step {}: loss {:.3}, {} at the peak", step.number, step.loss, step.memory.peak_bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TrainError::Budget`]: the budget is too small, or there is no room to spill to. [`TrainError::NoBudget`]: no
    /// larger budget works either. Steps are to be captured, or made on several devices; Tenure does not manage the
    /// device's memory. The errors of [`step`](Self::step).
    pub fn within(self, budget: Budget) -> Result<Self> {
        let device = self.device();
        let Some(memory) = Memory::of(device) else {
            let reason =
                format!("Tenure does not manage the memory of {device}, and cannot keep steps within a budget");
            return Err(TensorError::argument("Trainer::within", reason).into());
        };
        self.check_budget("Trainer::within")?;
        let open = budget.open(memory).map_err(train_error)?;
        let mut trainer = self.with_engine(open.engine.clone())?;
        BudgetSetup { min_reserved_bytes: open.engine.aside_bytes(), open: &open, trainer: &mut trainer }.run()?;
        Ok(trainer)
    }
}

/// A trainer whose budget is being set up.
struct BudgetSetup<'a, T: Task, D: Dataset> {
    open: &'a OpenBudget,
    trainer: &'a mut Trainer<T, D>,
    /// The bytes that the engine reserves in any case for memory other than tensors.
    min_reserved_bytes: u64,
}

/// The reason why a budget does not work.
enum BudgetFailure {
    /// The budget is too small. This is a lower bound of the bytes that it must have.
    TooSmall(u64),
    /// There is too little room to spill to.
    NoRoom(Error),
    /// Another error.
    Failed(Error),
}

impl<T: Task, D: Dataset + 'static> BudgetSetup<'_, T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Sets up the requested budget, or returns the error that refuses it.
    fn run(mut self) -> Result<()> {
        let budget_bytes = match self.open.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => self.budget_of_percent(percent)?,
        };
        match self.try_budget(budget_bytes, 0) {
            Ok(()) => Ok(()),
            Err(BudgetFailure::TooSmall(least_bytes)) => Err(self.refuse(budget_bytes, least_bytes)),
            Err(BudgetFailure::NoRoom(error) | BudgetFailure::Failed(error)) => Err(error),
        }
    }

    /// Measures a step without a budget, and returns the budget of `percent` of its memory and the memory that the engine
    /// itself reserves, in bytes.
    fn budget_of_percent(&mut self, percent: f64) -> Result<u64> {
        self.reset_peak();
        let plain = self.trainer.rehearse(Pass::Plain)?;
        let non_tensor_bytes = self.non_tensor_bytes(&plain);
        let plain_bytes = plain.peak_bytes.unwrap_or(0) + non_tensor_bytes;
        // Room that only a budget takes comes on top: a step must fit into all of its own memory.
        let reserved_bytes = self.min_reserved_bytes.saturating_sub(non_tensor_bytes);
        let engine_bytes = reserved_bytes + self.open.engine.memory().slack_bytes();
        let budget_bytes = Amount::Percent(percent).of(plain_bytes) + engine_bytes;
        self.report(BudgetProgress::Plain { plain_bytes, percent, budget_bytes });
        Ok(budget_bytes)
    }

    /// Tries a budget of which `spare_bytes` stay unused. If it works, the trainer keeps to it from now on. A budget
    /// that was tried earlier has no effect any more, except that an optimizer's state that was spilled stays spilled.
    fn try_budget(&mut self, budget_bytes: u64, spare_bytes: u64) -> Result<(), BudgetFailure> {
        let engine = &self.open.engine;
        engine.remove_budget()?;
        engine.set_budget(budget_bytes);
        if self.trainer.resident_bytes() > budget_bytes {
            self.trainer.spill_state()?;
        }
        match self.measure_and_follow(spare_bytes) {
            // Spilling the optimizer's state is the last resort, since it is moved in and out in each step.
            Err(BudgetFailure::TooSmall(_) | BudgetFailure::NoRoom(_)) if self.trainer.spill_state()? => {
                self.measure_and_follow(spare_bytes)
            }
            followed => followed,
        }
    }

    /// Measures steps, plans them, and runs one by its plan.
    fn measure_and_follow(&mut self, spare_bytes: u64) -> Result<(), BudgetFailure> {
        let engine = &self.open.engine;
        engine.set_aside(self.min_reserved_bytes);
        self.trainer.measure(Pass::Budgeted)?;
        if self.open.process.is_some() {
            // A second measurement, which does not count memory of the process that earlier passes left behind.
            engine.enforce()?;
            self.reset_peak();
            let measured = self.trainer.measure(Pass::Budgeted)?;
            engine.set_aside(self.non_tensor_bytes(&measured).max(self.min_reserved_bytes) + spare_bytes);
        }
        engine.prepare()?;
        engine.enforce()?;
        let ooms = engine.memory().statistics().num_ooms;
        if let Err(error) = self.trainer.rehearse_once(Pass::Budgeted) {
            // The plan needs few enough bytes, but the free memory is fragmented.
            let is_out_of_memory = engine.memory().statistics().num_ooms > ooms;
            return Err(if is_out_of_memory { BudgetFailure::TooSmall(0) } else { error.into() });
        }
        // The step was timed, and may have had less room than its plan, so the plan is made again.
        Ok(engine.prepare()?)
    }

    /// Searches for the smallest budget that works, and returns the error that refuses this budget and names that one.
    /// First tries larger and larger budgets until one works, then halves the distance to the largest that was refused.
    fn refuse(&mut self, budget_bytes: u64, mut least_bytes: u64) -> Error {
        self.report(BudgetProgress::TooSmall { budget_bytes });
        let spare_bytes = if self.open.process.is_some() { SPARE_BYTES } else { 0 };
        let mut tried_bytes = budget_bytes;
        for attempt in 1..=MAX_ATTEMPTS {
            let least = least_bytes.max(tried_bytes);
            tried_bytes = least.saturating_add(least / MARGIN_DIVISOR * attempt + MARGIN_BYTES);
            match self.try_budget(tried_bytes, spare_bytes) {
                Ok(()) => return self.refuse_between(budget_bytes, least, tried_bytes, spare_bytes),
                Err(BudgetFailure::TooSmall(least)) => least_bytes = least,
                Err(BudgetFailure::NoRoom(_)) => {}
                Err(BudgetFailure::Failed(error)) => return error,
            }
        }
        TrainError::NoBudget { budget_bytes, tried_bytes }.into()
    }

    /// Returns the error that refuses a budget, when one of `refused_bytes` does not work either and one of `works_bytes`
    /// does. It names the smallest that works of those that are tried in between.
    fn refuse_between(
        &mut self,
        budget_bytes: u64,
        mut refused_bytes: u64,
        mut works_bytes: u64,
        spare_bytes: u64,
    ) -> Error {
        for _ in 0..MAX_BISECTIONS {
            let distance_bytes = works_bytes - refused_bytes;
            if distance_bytes <= works_bytes / PRECISION_DIVISOR {
                break;
            }
            let tried_bytes = refused_bytes + distance_bytes / 2;
            match self.try_budget(tried_bytes, spare_bytes) {
                Ok(()) => works_bytes = tried_bytes,
                Err(BudgetFailure::TooSmall(_) | BudgetFailure::NoRoom(_)) => refused_bytes = tried_bytes,
                Err(BudgetFailure::Failed(error)) => return error,
            }
        }
        let least = if spare_bytes == 0 { LeastBudget::Tried } else { LeastBudget::Estimate { spare_bytes } };
        train_error(self.open.engine.refusal(budget_bytes, works_bytes, least))
    }

    /// Resets the peak of the process's memory, if the budget covers it.
    fn reset_peak(&self) {
        self.open.process.iter().for_each(|process| process.reset_peak());
    }

    /// Returns the process's peak in bytes less the memory reserved for tensors; 0 if the budget does not cover the
    /// process.
    fn non_tensor_bytes(&self, report: &StepReport) -> u64 {
        let reserved_bytes = report.reserved_bytes.unwrap_or(0);
        self.open.process.as_ref().map_or(0, |process| process.peak_bytes().saturating_sub(reserved_bytes))
    }

    /// Reports progress to the caller.
    fn report(&self, progress: BudgetProgress) {
        self.open.progress.iter().for_each(|report| report(progress));
    }
}

impl From<Error> for BudgetFailure {
    fn from(error: Error) -> Self {
        let Error::Train(TrainError::Budget(budget)) = &error else { return Self::Failed(error) };
        match **budget {
            OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) => Self::TooSmall(least_bytes),
            OffloadError::NoPlan { .. } => Self::NoRoom(error),
            _ => Self::Failed(error),
        }
    }
}

impl From<OffloadError> for BudgetFailure {
    fn from(error: OffloadError) -> Self {
        train_error(error).into()
    }
}
