//! All that a training run needs to go on as if it had not been interrupted.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tenure_tensor::Tensor;
use tenure_tensor::random::State;

use super::{CheckpointError, Under, Weights, save};
use crate::optim::{Optimizer, ScalerState, Schedule};
use crate::{Module, Result};

const MODEL: &str = "model.";
const OPTIMIZER: &str = "optimizer.";
const KEY: &str = "tenure";

/// A checkpoint that was opened: the model's tensors under `model.`, the optimizer's under `optimizer.`, and how far
/// the run was, in one file.
///
/// ```no_run
/// # use tenure_nn::{Module, Result, checkpoint::{Checkpoint, Progress}, optim::Optimizer};
/// # fn go_on(model: &dyn Module, optimizer: &mut Optimizer) -> Result<()> {
/// let path = std::path::Path::new("run.safetensors");
/// Checkpoint::save(path, model, optimizer, &Progress { step: 100, ..Progress::default() })?;
///
/// let checkpoint = Checkpoint::open(path)?;
/// checkpoint.load(model, optimizer)?;
/// assert_eq!(checkpoint.progress().step, 100);
/// # Ok(())
/// # }
/// ```
pub struct Checkpoint {
    weights: Weights,
    progress: Progress,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps made.
    pub step: u64,
    /// The epoch that it is in.
    pub epoch: u64,
    /// The epoch's next batch.
    pub batch: u64,
    /// Learning rates over time.
    pub schedule: Option<Schedule>,
    /// Of the loss's scale.
    pub scaler: Option<ScalerState>,
    /// Where random generators are: seed and offset, by name.
    pub random: std::collections::BTreeMap<String, (u64, u64)>,
    /// What the program wants to know again, such as losses.
    pub notes: serde_json::Value,
}

impl Progress {
    /// Notes where a generator is.
    pub fn set_random(&mut self, name: &str, state: State) {
        self.random.insert(name.to_owned(), (state.seed, state.offset));
    }

    /// Where a generator was.
    pub fn random(&self, name: &str) -> Option<State> {
        self.random.get(name).map(|(seed, offset)| State { seed: *seed, offset: *offset })
    }
}

impl Checkpoint {
    /// Writes a checkpoint, [atomically](super::write_atomically).
    ///
    /// # Errors
    /// [`CheckpointError`]; `path` is then as it was.
    pub fn save(path: &Path, model: &dyn Module, optimizer: &Optimizer, progress: &Progress) -> Result<()> {
        let progress = serde_json::to_string(progress).map_err(|error| CheckpointError::format(path, error))?;
        let optimizer = optimizer.state()?;
        let of_model = model.state().into_iter().map(|(name, tensor)| (format!("{MODEL}{name}"), tensor));
        let of_optimizer =
            optimizer.iter().map(|(name, tensor): &(String, Tensor)| (format!("{OPTIMIZER}{name}"), tensor));
        save(path, of_model.chain(of_optimizer), (KEY, &progress))
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError`]: it cannot be read, or is none.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = Weights::open(path)?;
        let said = weights.metadata(KEY).ok_or_else(|| {
            CheckpointError::format(path, "weights, but no checkpoint: nothing says how far a run was")
        })?;
        let progress = serde_json::from_str(said).map_err(|error| CheckpointError::format(path, error))?;
        Ok(Self { weights, progress })
    }

    /// How far the run was.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Brings the model and the optimizer, made as they were for the run, to where they were.
    ///
    /// # Errors
    /// [`StateError`](crate::StateError): another model, or another rule. Both are then as they were.
    pub fn load(&self, model: &dyn Module, optimizer: &mut Optimizer) -> Result<()> {
        let state = optimizer.read(&Under::new(&self.weights, OPTIMIZER))?;
        model.load(&self.model())?;
        optimizer.go_on(state);
        Ok(())
    }

    /// The model alone, to be [loaded](Module::load).
    pub fn model(&self) -> Under<'_> {
        Under::new(&self.weights, MODEL)
    }
}
