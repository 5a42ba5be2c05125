//! The steps of a budget: which of them are measured, and where each begins and ends.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;
use tenure::offload::{self, Engine, OffloadError, Pass, ProfileError, Signature};
use tenure::tier::Disk;
use tenure::tier::codec::{Choice, UnknownCodec};

use crate::errors::complaint;

/// The number of first steps that are measured: two, as the first compiles kernels and creates the optimizer's state.
const PASSES: u64 = 2;

/// The most steps that are measured before a share is taken of them, for programs that add up gradients and never change
/// their parameters.
const MOST_PLAIN_PASSES: u64 = 64;

/// A share of at least this many percent refuses no step that runs without a budget.
const WHOLE_PERCENT: f64 = 100.0;

/// A share grows where a step takes more by one part in this many. What a step would take without a budget is computed,
/// and a little too much: a tensor that is released between two operations counts for both.
const GROWTH_PART: u64 = 16;

/// The number of signatures that are remembered. If there are more, all are forgotten and measured again.
const MOST_KINDS: usize = 1 << 16;

/// The phase of a step.
#[pyclass(eq, frozen, module = "tenure._native", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BudgetPhase {
    /// No step is open. The next begins where a tensor is saved or the model is called.
    NoStep,
    /// The open step reports all saved tensors to the budget.
    Watched,
    /// The open step reports none.
    Unwatched,
}

/// The steps of a budget.
pub(super) struct Steps {
    pub(super) engine: Engine,
    state: Mutex<StepsState>,
    /// A [`BudgetPhase`].
    phase: AtomicU8,
    /// The number of steps begun.
    begun: AtomicU64,
    /// Whether the step's first saved tensor is marked, or need not be because the end of the step is reported.
    has_first: AtomicBool,
    /// Whether backward needed a saved tensor since the step began.
    is_needed: AtomicBool,
    /// Called at the end of each step, to free what the front end keeps for it.
    on_end: Box<dyn Fn() + Send + Sync>,
    /// The advice that errors give where a budget is too small, if the model calls for one.
    advice: OnceLock<String>,
}

#[derive(Default)]
struct StepsState {
    /// The budget in percent of the plain peak, if it is a share.
    percent: Option<f64>,
    /// The most bytes that a step takes without a budget, as far as steps were measured.
    plain_bytes: u64,
    /// The rounds of a share's plain steps so far. A round ends where the parameters have changed, or where gradients do
    /// not add up.
    rounds: u64,
    /// The steps that were measured in the current round.
    round_passes: u64,
    step: Option<OpenStep>,
    /// Facts about steps, by signature.
    kinds: HashMap<u64, StepFacts>,
    passes: u64,
}

/// The step that is running.
struct OpenStep {
    step: offload::OffloadStep,
    pass: Pass,
    /// The step's signature, if the step counts as measured.
    measures: Option<u64>,
}

/// Facts about the steps of one signature.
#[derive(Default)]
struct StepFacts {
    /// The number of times they were measured.
    passes: u64,
    /// The number of times their measurements became useless. Each time they get another signature in the engine.
    renewals: u64,
    /// The bytes allocated at the beginning of the measured step.
    held_bytes: u64,
}

/// A mark on the first tensor that a step saves: when backward frees it, the step is over.
pub(super) struct FirstSaved {
    steps: Arc<Steps>,
    step: u64,
}

impl Drop for FirstSaved {
    fn drop(&mut self) {
        if self.steps.begun.load(Ordering::Relaxed) == self.step {
            self.steps.enter(BudgetPhase::NoStep);
        }
    }
}

/// The report on a step, a dictionary in Python.
#[derive(IntoPyObject)]
pub(crate) struct StepReport {
    budget_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    spilled_bytes: u64,
    fetched_bytes: u64,
    recomputed_bytes: u64,
    recomputed_us: u64,
    stalled_us: u64,
    unplanned: u64,
    zero_copy_bytes: u64,
    is_planned: bool,
    predicted_us: Option<u64>,
    codec: String,
}

impl Steps {
    /// Returns the steps of a budget that `engine` keeps to. `on_end` is called at the end of each step, with no lock
    /// held.
    pub(super) fn new(engine: Engine, on_end: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let (state, phase, begun, has_first, is_needed, advice) = Default::default();
        Arc::new(Self { engine, state, phase, begun, has_first, is_needed, on_end: Box::new(on_end), advice })
    }

    pub(super) fn phase(&self) -> BudgetPhase {
        let phases = [BudgetPhase::NoStep, BudgetPhase::Watched, BudgetPhase::Unwatched];
        phases[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    pub(super) fn is(&self, phase: BudgetPhase) -> bool {
        self.phase() == phase
    }

    pub(super) fn enter(&self, phase: BudgetPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Records that backward needs a saved tensor.
    pub(super) fn need(&self) {
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// Returns the mark for a step's first saved tensor, unless another tensor has it.
    pub(super) fn first(self: &Arc<Self>) -> Option<FirstSaved> {
        if self.is(BudgetPhase::NoStep) || self.has_first.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(FirstSaved { steps: Arc::clone(self), step: self.begun.load(Ordering::Relaxed) })
    }

    /// Begins a step. Unless its end `is_told`, it is over when backward has freed the first tensor that it saved. If it
    /// `adds_up`, it adds its gradients to those of the last step. Returns whether it runs unwatched.
    fn begin(&self, signature: Signature, is_told: bool, adds_up: bool) -> Result<bool, OffloadError> {
        self.is_needed.store(false, Ordering::Relaxed);
        let is_unwatched = self.begin_in_engine(signature, adds_up)?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.has_first.store(is_told, Ordering::Relaxed);
        self.enter(if is_unwatched { BudgetPhase::Unwatched } else { BudgetPhase::Watched });
        Ok(is_unwatched)
    }

    /// Begins a step of the engine. It is measured if its kind is unknown, or if more bytes are held now than when it
    /// was measured, such as an optimizer's state. Returns whether it runs unwatched.
    fn begin_in_engine(&self, signature: Signature, adds_up: bool) -> Result<bool, OffloadError> {
        let held_bytes = self.engine.memory().statistics().all.allocated_bytes.current;
        self.interrupt();
        let mut state = self.state();
        state.end_round(adds_up);
        let is_plain_known = state.is_plain_known();
        let percent = state.percent;
        // Whatever the kind of the step: there may be programs in which none comes twice.
        if is_plain_known && let Some(percent) = percent.filter(|_| self.engine.budget_bytes().is_none()) {
            self.set_share(percent, state.plain_bytes);
        }
        let StepsState { kinds, .. } = &mut *state;
        if kinds.len() == MOST_KINDS {
            kinds.clear();
            self.engine.forget();
        }
        let kind = kinds.entry(signature.id).or_default();
        // A step that holds more each time is measured less and less often.
        let tolerance =
            (self.engine.min_tensor_bytes() + (kind.held_bytes >> 8)) << kind.passes.saturating_sub(1).min(16);
        let is_renewed = !is_plain_known || (kind.passes > 0 && held_bytes > kind.held_bytes + tolerance);
        kind.renewals += u64::from(is_renewed);
        let mut hasher = DefaultHasher::new();
        (signature.id, kind.renewals).hash(&mut hasher);
        let pass = if percent.is_some() && !is_plain_known { Pass::Plain } else { Pass::Budgeted };
        drop(state);
        let step = self.engine.begin(Signature { id: hasher.finish(), ..signature }, pass)?;
        let is_unwatched = step.is_unwatched();
        let measures = (is_renewed || step.is_measured()).then_some(signature.id);
        let mut state = self.state();
        if let Some(kind) = measures.and_then(|id| state.kinds.get_mut(&id)) {
            kind.passes += 1;
            kind.held_bytes = kind.held_bytes.max(held_bytes);
            state.passes += 1;
            state.round_passes += 1;
        }
        state.step = Some(OpenStep { step, pass, measures });
        Ok(is_unwatched)
    }

    /// Ends the step, if one is open, and returns its report.
    fn finish(&self) -> Result<Option<StepReport>, OffloadError> {
        let is_needed = self.is_needed.swap(false, Ordering::Relaxed);
        if !is_needed && !self.is_unwatched() {
            // No backward pass ran: the step tells nothing about steps that train.
            self.interrupt();
            return self.engine.take_failure().map_or(Ok(None), Err);
        }
        let Some(OpenStep { step, pass, .. }) = self.end() else { return Ok(None) };
        let report = step.finish()?;
        self.learn(&report, pass);
        let passes = self.state().passes;
        // After only one step, an optimizer's state is still missing.
        if pass == Pass::Budgeted && report.peak_bytes.is_some() && passes >= PASSES {
            self.engine.check()?;
        }
        Ok(Some(self.report(&report, pass)))
    }

    /// Learns from a step what steps take without a budget. A share is of the largest: it grows with it.
    fn learn(&self, report: &offload::StepReport, pass: Pass) {
        let mut state = self.state();
        let plain_bytes = state.plain_bytes;
        if pass == Pass::Plain {
            state.plain_bytes = plain_bytes.max(report.peak_bytes.unwrap_or(0));
            return;
        }
        let Some(percent) = state.percent else { return };
        let is_sure = report.exceeded_bytes.is_some() || percent >= WHOLE_PERCENT;
        let tolerance_bytes = if is_sure { 0 } else { plain_bytes / GROWTH_PART };
        let taken_bytes = report.plain_bytes.max(report.exceeded_bytes).unwrap_or(0);
        if taken_bytes > plain_bytes + tolerance_bytes {
            state.plain_bytes = taken_bytes;
            self.set_share(percent, taken_bytes);
        }
    }

    /// Sets the budget to a share of the bytes that a step takes without one.
    fn set_share(&self, percent: f64, plain_bytes: u64) {
        let share_bytes = (plain_bytes as f64 * percent / 100.0) as u64;
        self.engine.set_budget(share_bytes + self.engine_bytes());
        self.engine.set_may_exceed(true);
    }

    /// Returns the bytes that the engine itself takes of a budget. A share does not pay for them.
    fn engine_bytes(&self) -> u64 {
        self.engine.aside_bytes() + self.engine.memory().slack_bytes()
    }

    /// Returns an error in words, with what can be done about it by what is known here.
    fn explain(&self, error: &OffloadError) -> String {
        let mut words = error.to_string();
        if let OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) = error {
            let state = self.state();
            if state.percent.is_some() && state.plain_bytes > 0 {
                let of_step = least_bytes.saturating_sub(self.engine_bytes());
                let percent = of_step as f64 / state.plain_bytes as f64 * 100.0;
                words += &format!("; as a share, that is \"{}%\"", percent.ceil());
            }
        }
        let is_too_small = matches!(
            error,
            OffloadError::Profile(ProfileError::TooSmall { .. })
                | OffloadError::TooSmallSoFar { .. }
                | OffloadError::NoPlan { .. }
        );
        if let Some(advice) = self.advice.get().filter(|_| is_too_small) {
            words += &format!("; {advice}");
        }
        words
    }

    fn told(&self, error: OffloadError) -> PyErr {
        complaint(self.explain(&error))
    }

    /// Ends the open step without learning from it.
    fn interrupt(&self) {
        let Some(OpenStep { step, measures, .. }) = self.end() else { return };
        drop(step);
        let Some(signature) = measures else { return };
        let mut state = self.state();
        state.passes -= 1;
        state.round_passes = state.round_passes.saturating_sub(1);
        if let Some(kind) = state.kinds.get_mut(&signature) {
            kind.passes -= 1;
        }
    }

    /// Ends the open step, and lifts the budget. Saved tensors can still be fetched.
    pub(super) fn close(&self) -> Result<(), OffloadError> {
        drop(self.end());
        self.engine.remove_budget()
    }

    /// Ends the open step and returns it.
    fn end(&self) -> Option<OpenStep> {
        self.enter(BudgetPhase::NoStep);
        let step = self.state().step.take();
        (self.on_end)();
        step
    }

    /// Returns whether the open step runs unwatched.
    fn is_unwatched(&self) -> bool {
        self.state().step.as_ref().is_some_and(|open| open.step.is_unwatched())
    }

    /// Returns whether a step is open.
    fn is_open(&self) -> bool {
        self.state().step.is_some()
    }

    fn state(&self) -> MutexGuard<'_, StepsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: &offload::StepReport, pass: Pass) -> StepReport {
        let is_budgeted = pass == Pass::Budgeted;
        let aside_bytes = if is_budgeted { self.engine.aside_bytes() } else { 0 };
        StepReport {
            budget_bytes: self.engine.budget_bytes().filter(|_| is_budgeted),
            peak_bytes: report.peak_bytes.map(|bytes| bytes + aside_bytes),
            spilled_bytes: report.spilled_bytes,
            fetched_bytes: report.fetched_bytes,
            recomputed_bytes: report.recomputed_bytes,
            recomputed_us: report.recomputed.as_micros() as u64,
            stalled_us: report.stalled.as_micros() as u64,
            unplanned: report.unplanned,
            zero_copy_bytes: self.engine.zero_copy().map_or(0, |memory| memory.bytes()),
            is_planned: report.is_planned,
            predicted_us: report.predicted.map(|predicted| predicted.as_micros() as u64),
            codec: report.codec.to_string(),
        }
    }
}

impl StepsState {
    /// Ends the round of plain steps if one was measured, and the step that begins does not add its gradients to theirs.
    fn end_round(&mut self, adds_up: bool) {
        if self.round_passes > 0 && !adds_up {
            self.rounds += 1;
            self.round_passes = 0;
        }
    }

    /// Returns whether enough steps were measured. For a share, the optimizer must have stepped twice, as far as the
    /// program changes its parameters: before that, gradients or the optimizer's state are missing.
    fn is_plain_known(&self) -> bool {
        match self.percent {
            Some(_) => self.rounds >= PASSES || self.passes >= MOST_PLAIN_PASSES,
            None => self.passes >= PASSES,
        }
    }
}

/// The part of a budget that does not depend on whose tensors it is for.
#[pyclass(frozen, subclass, module = "tenure._native")]
pub(crate) struct BudgetSteps {
    pub(super) steps: Arc<Steps>,
}

#[pymethods]
impl BudgetSteps {
    /// Returns whether a folder is itself in memory (such as tmpfs).
    #[staticmethod]
    fn is_in_memory(folder: PathBuf) -> bool {
        Disk::is_in_memory(&folder)
    }

    /// Sets the budget.
    fn set_bytes(&self, bytes: u64) {
        self.steps.engine.set_budget(bytes);
    }

    /// Sets the budget in percent of a step's plain peak. It takes effect when that peak is known.
    fn set_percent(&self, percent: f64) {
        self.steps.state().percent = Some(percent);
    }

    /// Sets the advice that errors give where the budget is too small.
    fn set_advice(&self, advice: String) {
        let _ = self.steps.advice.set(advice);
    }

    /// Sets the codec of bytes that are written to a disk.
    fn set_codec(&self, codec: &str) -> PyResult<()> {
        let codec: Choice = codec.parse().map_err(|error: UnknownCodec| complaint(error.to_string()))?;
        self.steps.engine.set_codec(codec);
        Ok(())
    }

    /// Enforces the budget from now on, if it is known.
    fn enforce(&self, py: Python<'_>) -> PyResult<()> {
        let engine = &self.steps.engine;
        if engine.budget_bytes().is_none() {
            return Ok(());
        }
        py.detach(|| engine.enforce()).map_err(|error| self.steps.told(error))
    }

    /// Makes measured steps move all that they save. For tests.
    fn move_all(&self) {
        self.steps.engine.move_all();
    }

    /// The budget in bytes, if it is known.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.steps.engine.budget_bytes()
    }

    /// The highest peak in bytes of a step without a budget, if one was measured.
    #[getter]
    fn plain_bytes(&self) -> Option<u64> {
        Some(self.steps.state().plain_bytes).filter(|bytes| *bytes > 0)
    }

    /// The smallest budget in bytes that the measured steps can keep to, if any was measured, and if there is room to
    /// spill to.
    #[getter]
    fn least_bytes(&self) -> Option<u64> {
        self.steps.engine.least_budget_bytes()
    }

    /// The phase of the step.
    #[getter]
    fn phase(&self) -> BudgetPhase {
        self.steps.phase()
    }

    /// Whether backward needed a saved tensor since the last step began or ended.
    #[getter]
    fn is_needed(&self) -> bool {
        self.steps.is_needed.load(Ordering::Relaxed)
    }

    /// Begins a step. `signature` is its identity, its kind, and the bytes of its inputs. Unless its end `is_told`, the
    /// step is over when backward has freed the first tensor that it saved. If it `adds_up`, it adds its gradients to
    /// those of the last step. Returns whether the step runs unwatched.
    fn begin(&self, py: Python<'_>, signature: (u64, u64, u64), is_told: bool, adds_up: bool) -> PyResult<bool> {
        let (id, kind, input_bytes) = signature;
        let signature = Signature { id, kind, input_bytes };
        py.detach(|| self.steps.begin(signature, is_told, adds_up)).map_err(|error| self.steps.told(error))
    }

    /// Ends the step, if one is open, and returns its report.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<StepReport>> {
        py.detach(|| self.steps.finish()).map_err(|error| self.steps.told(error))
    }

    /// Ends the step, which has failed, without learning from it. Returns the engine's reason, if it has one. Outside of
    /// a step, an allocation that found no room is a reason only if the program `is_out_of_memory`: it may have handled
    /// that.
    fn abandon(&self, py: Python<'_>, is_out_of_memory: bool) -> Option<String> {
        py.detach(|| {
            let is_cause = is_out_of_memory || self.steps.is_open();
            self.steps.interrupt();
            let engine = &self.steps.engine;
            let cause = if is_cause { engine.take_cause() } else { engine.take_failure() };
            cause.map(|error| self.steps.explain(&error))
        })
    }

    /// Ends the step without learning from it. Its error, if any, is reported later.
    fn interrupt(&self, py: Python<'_>) {
        py.detach(|| self.steps.interrupt());
    }

    /// Ends the step, and lifts the budget. Saved tensors can still be fetched.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.steps.close()).map_err(|error| self.steps.told(error))
    }

    /// Returns the effort of the last plan as a line for logs, once for each plan.
    fn take_planning(&self) -> Option<String> {
        self.steps.engine.take_planning().map(|planning| planning.to_string())
    }

    /// Writes the problem that the planner of the last step solved. Returns whether there was one.
    fn write_problem(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let Some(problem) = py.detach(|| self.steps.engine.problem()).map_err(|error| self.steps.told(error))? else {
            return Ok(false);
        };
        problem.write(path).map_err(|error| complaint(error.to_string()))?;
        Ok(true)
    }
}
