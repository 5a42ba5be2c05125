//! Checkpoints of training runs: all that a run needs to continue as if it had not been interrupted.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tenure_tensor::Tensor;
use tenure_tensor::random::GeneratorState;

use super::weights::{Entry, write};
use super::{CheckpointError, Under, Weights};
use crate::optim::{Group, Optimizer, ScalerState, Schedule};
use crate::{Module, Result, Source, StateError};

const MODEL: &str = "model.";
const OPTIMIZER: &str = "optimizer.";
const SERIES: &str = "series.";
const KEY: &str = "tenure";

/// The version of the format below. `open` refuses any other.
const FORMAT: u32 = 1;

/// An opened checkpoint, one file: the model's tensors under `model.`, the optimizer's under `optimizer.`, and the
/// run's progress.
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
    groups: Vec<GroupNotes>,
    progress: Progress,
}

/// The JSON metadata in the file's header.
#[derive(Serialize, Deserialize)]
struct Header<P> {
    format: u32,
    groups: Vec<GroupNotes>,
    progress: P,
}

/// The format number in a header of any version.
#[derive(Deserialize)]
struct HeaderFormat {
    #[serde(default)]
    format: u32,
}

/// The rule and learning rate of one group of the optimizer.
#[derive(Serialize, Deserialize)]
struct GroupNotes {
    rule: String,
    lr: f64,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of steps made.
    pub step: u64,
    /// The epoch that the run is in.
    pub epoch: u64,
    /// The index of the next batch in the epoch.
    pub batch: u64,
    /// The schedule of the learning rates.
    pub schedule: Option<Schedule>,
    /// The state of the [`GradScaler`](crate::optim::GradScaler).
    pub scaler: Option<ScalerState>,
    /// The states of the random generators: seed and offset, by name.
    pub random: BTreeMap<String, (u64, u64)>,
    /// Other values of the program, as JSON.
    pub notes: serde_json::Value,
    /// Number series of the program, such as all losses, by name. Each is a tensor `series.NAME` of the file.
    #[serde(skip)]
    pub series: BTreeMap<String, Vec<f64>>,
}

impl Progress {
    /// Records the state of a generator.
    pub fn set_random(&mut self, name: &str, state: GeneratorState) {
        self.random.insert(name.to_owned(), (state.seed, state.offset));
    }

    /// Returns the recorded state of a generator.
    pub fn random(&self, name: &str) -> Option<GeneratorState> {
        self.random.get(name).map(|(seed, offset)| GeneratorState::new(*seed, *offset))
    }
}

impl Checkpoint {
    /// Writes a checkpoint, [atomically](super::write_atomically).
    ///
    /// # Errors
    /// [`CheckpointError`]. `path` is unchanged then.
    pub fn save(path: &Path, model: &dyn Module, optimizer: &Optimizer, progress: &Progress) -> Result<()> {
        let groups = optimizer.groups().iter();
        let groups = groups.map(|group| GroupNotes { rule: group.rule_name().to_owned(), lr: group.lr() }).collect();
        let header = Header { format: FORMAT, groups, progress };
        let header = serde_json::to_string(&header).map_err(|error| CheckpointError::format(path, error))?;
        check_readable(&header).map_err(|reason| CheckpointError::format(path, reason))?;
        let series = progress
            .series
            .iter()
            .map(|(name, numbers)| Ok((format!("{SERIES}{name}"), Tensor::from_slice(numbers, &[numbers.len()])?)));
        let series = series.collect::<Result<Vec<_>>>()?;
        let of_model = model.state().into_iter().map(|(name, tensor)| Entry::of(format!("{MODEL}{name}"), tensor));
        let of_optimizer = optimizer.entries().into_iter();
        let of_optimizer = of_optimizer.map(|entry| Entry { name: format!("{OPTIMIZER}{}", entry.name), ..entry });
        let of_series = series.iter().map(|(name, tensor)| Entry::of(name.clone(), tensor));
        write(path, of_model.chain(of_optimizer).chain(of_series).collect(), (KEY, &header))
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError`]: the file cannot be read, is not a checkpoint, or has another version's format.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = Weights::open(path)?;
        let metadata = weights.metadata(KEY).ok_or_else(|| {
            CheckpointError::format(path, "weights, but no checkpoint: nothing says how far a run was")
        })?;
        let HeaderFormat { format } = parse(path, metadata)?;
        if format != FORMAT {
            let reason = format!(
                "a checkpoint of format {format}, where this version of Tenure reads format {FORMAT}: go on with the \
                 version that wrote it"
            );
            return Err(CheckpointError::format(path, reason).into());
        }
        let Header::<Progress> { groups, mut progress, .. } = parse(path, metadata)?;
        let series = Under::new(&weights, SERIES);
        for name in series.names() {
            let numbers = series.tensor(&name)?.to_vec::<f64>();
            let numbers = numbers.map_err(|error| CheckpointError::format(path, format!("{SERIES}{name}: {error}")))?;
            progress.series.insert(name, numbers);
        }
        Ok(Self { weights, groups, progress })
    }

    /// Returns the progress of the run.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Restores the states of the model and the optimizer, and the saved learning rates. The caller must have built
    /// both as for the run.
    ///
    /// # Errors
    /// [`StateError`]: the checkpoint is of another model or another rule. Neither is changed then.
    pub fn load(&self, model: &dyn Module, optimizer: &mut Optimizer) -> Result<()> {
        self.check_rules(optimizer)?;
        let state = optimizer.read(&Under::new(&self.weights, OPTIMIZER))?;
        model.load(&self.model())?;
        optimizer.set_state(state);
        for (group, saved) in optimizer.groups_mut().iter_mut().zip(&self.groups) {
            group.set_lr(saved.lr);
        }
        Ok(())
    }

    /// Returns only the model's tensors, for [`Module::load`].
    pub fn model(&self) -> Under<'_> {
        Under::new(&self.weights, MODEL)
    }

    /// Checks that the optimizer's rules are the saved ones. Two rules, such as Adam and AdamW, may keep slots of the
    /// same names with different meanings.
    fn check_rules(&self, optimizer: &Optimizer) -> Result<(), StateError> {
        let expected: Vec<&str> = optimizer.groups().iter().map(Group::rule_name).collect();
        let found: Vec<&str> = self.groups.iter().map(|group| &*group.rule).collect();
        if expected == found {
            return Ok(());
        }
        Err(StateError::Rules { expected: expected.join(", "), found: found.join(", ") })
    }
}

/// Checks that the header can be read again: JSON writes a non-finite number as `null`, which does not parse as a
/// number.
fn check_readable(header: &str) -> Result<(), String> {
    let read = serde_json::from_str::<Header<Progress>>(header);
    read.map(drop).map_err(|error| {
        format!("not written: a learning rate, or a number of the schedule or the scaler, is not finite: {error}")
    })
}

/// Parses JSON, with an error that names the file.
fn parse<'a, T: Deserialize<'a>>(path: &Path, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| CheckpointError::format(path, error).into())
}
