//! The steps of a budget: which of them are measured, and where each begins and ends.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tenure::offload::{self, Engine, OffloadError, Pass, Signature};
use tenure::tier::Disk;
use tenure::tier::codec::{Choice, UnknownCodec};

use super::told;
use crate::errors::complaint;

/// The number of first steps that are measured: two, as the first compiles kernels and creates the optimizer's state.
const PASSES: u64 = 2;

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
}

#[derive(Default)]
struct StepsState {
    /// The budget in percent of the plain peak, while that is not known.
    percent: Option<f64>,
    plain_bytes: u64,
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
    is_planned: bool,
    predicted_us: Option<u64>,
    codec: String,
}

impl Steps {
    /// Returns the steps of a budget that `engine` keeps to. `on_end` is called at the end of each step, with no lock
    /// held.
    pub(super) fn new(engine: Engine, on_end: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let (state, phase, begun, has_first, is_needed) = Default::default();
        Arc::new(Self { engine, state, phase, begun, has_first, is_needed, on_end: Box::new(on_end) })
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

    /// Begins a step. Unless its end `is_told`, it is over when backward has freed the first tensor that it saved.
    /// Returns whether it runs unwatched.
    fn begin(&self, signature: Signature, is_told: bool) -> Result<bool, OffloadError> {
        self.is_needed.store(false, Ordering::Relaxed);
        let is_unwatched = self.begin_in_engine(signature)?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.has_first.store(is_told, Ordering::Relaxed);
        self.enter(if is_unwatched { BudgetPhase::Unwatched } else { BudgetPhase::Watched });
        Ok(is_unwatched)
    }

    /// Begins a step of the engine. It is measured if its kind is unknown, or if more bytes are held now than when it
    /// was measured, such as an optimizer's state. Returns whether it runs unwatched.
    fn begin_in_engine(&self, signature: Signature) -> Result<bool, OffloadError> {
        let held_bytes = self.engine.memory().statistics().all.allocated_bytes.current;
        self.interrupt();
        let mut state = self.state();
        let StepsState { percent, plain_bytes, kinds, passes, .. } = &mut *state;
        if kinds.len() == MOST_KINDS {
            kinds.clear();
            self.engine.forget();
        }
        let kind = kinds.entry(signature.id).or_default();
        // A step that holds more each time is measured less and less often.
        let tolerance =
            (self.engine.min_tensor_bytes() + (kind.held_bytes >> 8)) << kind.passes.saturating_sub(1).min(16);
        let is_plain_known = *passes >= PASSES;
        let is_renewed = !is_plain_known || (kind.passes > 0 && held_bytes > kind.held_bytes + tolerance);
        kind.renewals += u64::from(is_renewed);
        // Whatever the kind of the step: there may be programs in which none comes twice.
        if is_plain_known && let Some(percent) = percent.take() {
            self.engine.set_budget((*plain_bytes as f64 * percent / 100.0) as u64);
        }
        let mut hasher = DefaultHasher::new();
        (signature.id, kind.renewals).hash(&mut hasher);
        let pass = if percent.is_some() { Pass::Plain } else { Pass::Budgeted };
        drop(state);
        let step = self.engine.begin(Signature { id: hasher.finish(), ..signature }, pass)?;
        let is_unwatched = step.is_unwatched();
        let measures = (is_renewed || step.is_measured()).then_some(signature.id);
        let mut state = self.state();
        if let Some(kind) = measures.and_then(|id| state.kinds.get_mut(&id)) {
            kind.passes += 1;
            kind.held_bytes = kind.held_bytes.max(held_bytes);
            state.passes += 1;
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
        let passes = {
            let mut state = self.state();
            if pass == Pass::Plain {
                state.plain_bytes = state.plain_bytes.max(report.peak_bytes.unwrap_or(0));
            }
            state.passes
        };
        // After only one step, an optimizer's state is still missing.
        if pass == Pass::Budgeted && report.peak_bytes.is_some() && passes >= PASSES {
            self.engine.check()?;
        }
        Ok(Some(self.report(&report, pass)))
    }

    /// Ends the open step without learning from it.
    fn interrupt(&self) {
        let Some(OpenStep { step, measures, .. }) = self.end() else { return };
        drop(step);
        let Some(signature) = measures else { return };
        let mut state = self.state();
        state.passes -= 1;
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
            is_planned: report.is_planned,
            predicted_us: report.predicted.map(|predicted| predicted.as_micros() as u64),
            codec: report.codec.to_string(),
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
        py.detach(|| engine.enforce()).map_err(told)
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

    /// The smallest budget in bytes that the measured steps can keep to, if any was measured.
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
    /// step is over when backward has freed the first tensor that it saved. Returns whether the step runs unwatched.
    fn begin(&self, py: Python<'_>, signature: (u64, u64, u64), is_told: bool) -> PyResult<bool> {
        let (id, kind, input_bytes) = signature;
        let signature = Signature { id, kind, input_bytes };
        py.detach(|| self.steps.begin(signature, is_told)).map_err(told)
    }

    /// Ends the step, if one is open, and returns its report.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<StepReport>> {
        py.detach(|| self.steps.finish()).map_err(told)
    }

    /// Ends the step, which has failed, without learning from it. Returns the engine's reason, if it has one.
    fn abandon(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| {
            self.steps.interrupt();
            self.steps.engine.take_cause().map(|error| error.to_string())
        })
    }

    /// Ends the step without learning from it. Its error, if any, is reported later.
    fn interrupt(&self, py: Python<'_>) {
        py.detach(|| self.steps.interrupt());
    }

    /// Ends the step, and lifts the budget. Saved tensors can still be fetched.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.steps.close()).map_err(told)
    }

    /// Returns the effort of the last plan as a line for logs, once for each plan.
    fn take_planning(&self) -> Option<String> {
        self.steps.engine.take_planning().map(|planning| planning.to_string())
    }

    /// Writes the problem that the planner of the last step solved. Returns whether there was one.
    fn write_problem(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let Some(problem) = py.detach(|| self.steps.engine.problem()).map_err(told)? else {
            return Ok(false);
        };
        problem.write(path).map_err(|error| complaint(error.to_string()))?;
        Ok(true)
    }
}
