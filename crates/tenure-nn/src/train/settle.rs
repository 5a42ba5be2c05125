//! Setting up a budget before the first step: measures and plans steps, enforces the budget, and refuses one that is
//! too small.

use tenure_core::Amount;
use tenure_offload::{Budget, BudgetProgress, Memory, OffloadError, OpenBudget, Pass, ProfileError, StepReport};
use tenure_tensor::TensorError;

use super::budget::failed;
use super::{Task, TrainError, Trainer};
use crate::data::{Collate, Dataset};
use crate::{Error, Result};

/// The margin that is added to a too small budget before the next try: 1/32 of it, then 2/32, and so on, plus a number
/// of bytes.
const MARGIN: u64 = 32;
const MARGIN_BYTES: u64 = 1 << 20;
/// The bytes that a least budget leaves unused when it is tried: a process's memory beside tensors differs between two
/// runs by up to 2.7 MB.
const VARIES_BYTES: u64 = 4 << 20;
/// The number of budgets that are tried before a search is given up. The last is more than 1000 times the first.
const MOST_TRIED: u64 = 24;

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Keeps steps within a budget: tensors saved for backward leave the memory that steps compute in, and come back in
    /// time. The losses are the same, bit for bit.
    ///
    /// Passes over the next batch, without lasting effects, measure a step, plan it, and follow the plan within the
    /// budget. A budget that is too small is refused with the smallest one that is known to work, which was tried in
    /// the same way.
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
        let open = budget.open(memory).map_err(failed)?;
        let mut run = self.with_engine(open.engine.clone())?;
        Settling { aside_bytes: open.engine.aside_bytes(), open: &open, run: &mut run }.settle()?;
        Ok(run)
    }
}

/// A trainer whose budget is being set up.
struct Settling<'a, T: Task, D: Dataset> {
    open: &'a OpenBudget,
    run: &'a mut Trainer<T, D>,
    /// The bytes that the engine sets aside in any case.
    aside_bytes: u64,
}

/// The reason why steps do not keep to a budget.
enum Unkept {
    /// The budget is too small. It must have at least so many bytes, as far as is known.
    TooSmall(u64),
    /// There is too little room to spill to.
    NoRoom(Error),
    Failed(Error),
}

impl<T: Task, D: Dataset + 'static> Settling<'_, T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    fn settle(mut self) -> Result<()> {
        let budget_bytes = match self.open.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => self.share(percent)?,
        };
        match self.keep_to(budget_bytes, 0) {
            Ok(()) => Ok(()),
            Err(Unkept::TooSmall(least_bytes)) => Err(self.refuse(budget_bytes, least_bytes)),
            Err(Unkept::NoRoom(error) | Unkept::Failed(error)) => Err(error),
        }
    }

    /// Measures a plain step, and returns a share of its memory in bytes.
    fn share(&mut self, percent: f64) -> Result<u64> {
        self.reset_peak();
        let plain = self.run.rehearse(Pass::Plain)?;
        let plain_bytes = plain.peak_bytes.unwrap_or(0) + self.beside_bytes(&plain);
        let budget_bytes = Amount::Percent(percent).of(plain_bytes);
        self.tell(BudgetProgress::Plain { plain_bytes, percent, budget_bytes });
        Ok(budget_bytes)
    }

    /// Keeps steps within a budget from now on, with `spare_bytes` of it unused. A budget that was tried earlier has no
    /// effect, except that the optimizer's state does not return to memory once it has left.
    fn keep_to(&mut self, budget_bytes: u64, spare_bytes: u64) -> Result<(), Unkept> {
        let engine = &self.open.engine;
        engine.remove_budget()?;
        engine.set_budget(budget_bytes);
        if self.run.stays_bytes() > budget_bytes {
            self.run.spill_state()?;
        }
        match self.measure_and_follow(spare_bytes) {
            // Spilling the optimizer's state is the last resort, since it comes and goes in each step.
            Err(Unkept::TooSmall(_) | Unkept::NoRoom(_)) if self.run.spill_state()? => {
                self.measure_and_follow(spare_bytes)
            }
            followed => followed,
        }
    }

    fn measure_and_follow(&mut self, spare_bytes: u64) -> Result<(), Unkept> {
        let engine = &self.open.engine;
        engine.set_aside(self.aside_bytes);
        self.run.pass(Pass::Budgeted)?;
        if self.open.process.is_some() {
            // The second measurement does not contain what earlier passes left in the process.
            engine.enforce()?;
            self.reset_peak();
            let measured = self.run.pass(Pass::Budgeted)?;
            engine.set_aside(self.beside_bytes(&measured).max(self.aside_bytes) + spare_bytes);
        }
        engine.prepare()?;
        engine.enforce()?;
        let refused = engine.memory().statistics().num_ooms;
        if let Err(error) = self.run.rehearse_once(Pass::Budgeted) {
            // The plan fits by its bytes, but the free memory is in parts that are too small.
            let is_refused = engine.memory().statistics().num_ooms > refused;
            return Err(if is_refused { Unkept::TooSmall(0) } else { error.into() });
        }
        // The step was timed, and may have had less room than its plan, so the plan is made again.
        Ok(engine.prepare()?)
    }

    /// Searches for a larger budget that works, and returns the refusal of this one, which names it.
    fn refuse(&mut self, budget_bytes: u64, mut least_bytes: u64) -> Error {
        self.tell(BudgetProgress::TooSmall { budget_bytes });
        let spare_bytes = if self.open.process.is_some() { VARIES_BYTES } else { 0 };
        let mut tried_bytes = budget_bytes;
        for attempt in 1..=MOST_TRIED {
            let least = least_bytes.max(tried_bytes);
            tried_bytes = least.saturating_add(least / MARGIN * attempt + MARGIN_BYTES);
            match self.keep_to(tried_bytes, spare_bytes) {
                Ok(()) => return failed(self.open.engine.refusal(budget_bytes, tried_bytes)),
                Err(Unkept::TooSmall(least)) => least_bytes = least,
                Err(Unkept::NoRoom(_)) => {}
                Err(Unkept::Failed(error)) => return error,
            }
        }
        TrainError::NoBudget { budget_bytes, tried_bytes }.into()
    }

    fn reset_peak(&self) {
        self.open.process.iter().for_each(|process| process.reset_peak());
    }

    /// Returns the bytes at the process's peak beside the memory that tensors had reserved. It is 0 if the budget does
    /// not cover them.
    fn beside_bytes(&self, report: &StepReport) -> u64 {
        let reserved_bytes = report.reserved_bytes.unwrap_or(0);
        self.open.process.as_ref().map_or(0, |process| process.peak_bytes().saturating_sub(reserved_bytes))
    }

    fn tell(&self, progress: BudgetProgress) {
        self.open.progress.iter().for_each(|tell| tell(progress));
    }
}

impl From<Error> for Unkept {
    fn from(error: Error) -> Self {
        let Error::Train(TrainError::Budget(budget)) = &error else { return Self::Failed(error) };
        match **budget {
            OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) => Self::TooSmall(least_bytes),
            OffloadError::NoPlan { .. } => Self::NoRoom(error),
            _ => Self::Failed(error),
        }
    }
}

impl From<OffloadError> for Unkept {
    fn from(error: OffloadError) -> Self {
        failed(error).into()
    }
}
