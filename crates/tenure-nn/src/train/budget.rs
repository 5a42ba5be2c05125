//! Steps of a trainer within a memory budget.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_offload::{Engine, OffloadError, Pass, ProfileError, StepReport};

use super::{TrainError, captured};
use crate::data::Tensors;
use crate::offload::Offload;
use crate::optim::Optimizer;
use crate::{Error as AnyError, Module, Result};

/// The divisor for the size of the pieces in which an optimizer's state is moved in and out: a piece has 1/256 of the
/// bytes that stay allocated from step to step. Weights, which never leave, are at least a quarter of these, so a piece
/// is at most 1/64 of a budget that works.
const PIECES: u64 = 256;

/// The engine that keeps a trainer's steps within a budget, and what it may offload.
pub(super) struct OffloadedSteps {
    offload: Offload,
    /// Whether the optimizer's state is offloaded too. Parameters are then updated during backward.
    spills_state: bool,
}

impl OffloadedSteps {
    pub(super) fn new(engine: Engine, model: &dyn Module) -> Self {
        let offload = Offload::new(engine, model.state().into_iter().map(|(_, tensor)| tensor));
        Self { offload, spills_state: false }
    }

    pub(super) fn spills_state(&self) -> bool {
        self.spills_state
    }

    /// Offloads the optimizer's state too, from now on. `resident_bytes` are the bytes that stay allocated from step to
    /// step. The size of the pieces does not depend on the budget, so a step needs the same memory under any budget.
    pub(super) fn spill_state(&mut self, optimizer: &mut Optimizer, resident_bytes: u64) -> Result<()> {
        let least = self.engine().min_tensor_bytes();
        optimizer.spill(self.engine(), least as usize, least.max(resident_bytes / PIECES) as usize)?;
        self.spills_state = true;
        Ok(())
    }

    pub(super) fn engine(&self) -> &Engine {
        self.offload.engine()
    }

    /// Runs `work`, the step of a batch, under the engine. Returns the result and the engine's report.
    pub(super) fn step<B: Tensors, R>(
        &self,
        batch: &mut B,
        pass: Pass,
        work: impl FnOnce(&B) -> Result<R>,
    ) -> Result<(R, StepReport)> {
        let engine = self.engine();
        let mut hasher = DefaultHasher::new();
        for (sizes, dtype, _) in captured::kind(batch)? {
            (sizes, dtype.name()).hash(&mut hasher);
        }
        let step = engine.begin(hasher.finish(), pass).map_err(train_error)?;
        let result = {
            let _entered = self.offload.enter();
            work(batch)
        };
        // An error of the engine is the cause of the error of `work`.
        let result = match (result, engine.take_cause()) {
            (Err(_), Some(failure)) => return Err(train_error(failure)),
            (result, _) => result?,
        };
        let report = step.finish().map_err(train_error)?;
        if pass == Pass::Budgeted && report.peak_bytes.is_some() {
            engine.check().map_err(train_error)?;
        }
        Ok((result, report))
    }
}

/// Returns whether the budget is too small for any plan.
pub(super) fn is_too_small(error: &AnyError) -> bool {
    let AnyError::Train(TrainError::Budget(error)) = error else { return false };
    matches!(**error, OffloadError::Profile(ProfileError::TooSmall { .. }))
}

/// Converts an offload error into an error of training.
pub(super) fn train_error(error: OffloadError) -> crate::Error {
    TrainError::from(Arc::new(error)).into()
}
