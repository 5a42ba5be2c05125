//! Placement of tensors on the CPU: records them as a problem for `tenure plan`, or places them by a mapping.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::nn::train::{Score, Task};
use tenure::nn::{self, Module};
use tenure::plan::Mapping;
use tenure::tensor::Tensor;
use tenure::tier::{Medium, Placement, PlacementGuard, PlacementOptions, Recorder, RecorderGuard, Report, Tier};

use super::args::TrainArgs;
use super::models::{AnyTask, Batch};

/// The step of this process that is recorded or inspected: by then the optimizer has its state.
const STEP: usize = 3;

/// A tier of a mapping, and its medium.
#[derive(Clone, Debug)]
pub(super) struct TierSpec {
    name: String,
    medium: Medium,
    capacity: Option<u64>,
}

impl FromStr for TierSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, medium) = text.split_once('=').ok_or("expected NAME=MEDIUM, as in DRAM=dram@8GiB")?;
        let (medium, capacity) = Medium::with_capacity(medium).map_err(|error| error.to_string())?;
        Ok(Self { name: name.to_owned(), medium, capacity })
    }
}

/// The memory settings of a run's training thread: a recorder, or a mapping.
#[derive(Default)]
pub(super) struct Memory {
    recording: Option<Recording>,
    placed: Option<Placed>,
    steps: usize,
}

struct Recording {
    recorder: Recorder,
    /// Records until the step is over.
    _guard: RecorderGuard,
    path: PathBuf,
    name: String,
}

struct Placed {
    look: Arc<Look>,
    _guard: PlacementGuard,
}

/// Inspects the tensors' tiers when the forward pass of one step is over.
struct Look {
    placement: Placement,
    passes: AtomicUsize,
    seen: OnceLock<Report>,
}

impl Memory {
    /// Sets up the calling thread as the options say.
    pub(super) fn enter(args: &TrainArgs) -> anyhow::Result<Self> {
        let mut memory = Self::default();
        if let Some(path) = &args.problem {
            let recorder = Recorder::new()?;
            let path = path.clone();
            let name = args.model.name();
            memory.recording = Some(Recording { _guard: recorder.enter(), recorder, path, name });
        }
        if let Some(path) = &args.mapping {
            let mapping = Mapping::read(path)?;
            let open = |TierSpec { name, medium, capacity }: &TierSpec| Tier::open(name, medium, *capacity);
            let tiers = args.tiers.iter().map(open).collect::<Result<_, _>>()?;
            let placement = Placement::open(mapping, tiers, PlacementOptions::default())?;
            let guard = placement.enter();
            let look = Arc::new(Look { placement, passes: AtomicUsize::new(0), seen: OnceLock::new() });
            memory.placed = Some(Placed { look, _guard: guard });
        }
        Ok(memory)
    }

    /// Returns a function that wraps a task so that it is inspected, if there is anything to inspect.
    pub(super) fn watching(&self) -> impl Fn(AnyTask) -> AnyTask + Send + Sync + 'static {
        let look = self.placed.as_ref().map(|placed| Arc::clone(&placed.look));
        move |task| match &look {
            Some(look) => Box::new(Watched { task, look: Arc::clone(look) }),
            None => task,
        }
    }

    /// Counts a step.
    pub(super) fn step(&mut self) -> anyhow::Result<()> {
        self.steps += 1;
        match (&self.recording, self.steps) {
            (Some(recording), steps) if steps + 1 == STEP => recording.recorder.begin_iteration(),
            (Some(_), STEP) => return self.write(),
            _ => {}
        }
        Ok(())
    }

    /// Writes the recorded problem unless that is done, and stops recording.
    pub(super) fn write(&mut self) -> anyhow::Result<()> {
        let Some(Recording { recorder, path, name, .. }) = self.recording.take() else { return Ok(()) };
        Ok(recorder.problem(&name, Vec::new(), Vec::new())?.write(path)?)
    }

    /// Returns the tensors' tiers, in that step or the last one.
    pub(super) fn report(&self) -> Option<Report> {
        let look = &self.placed.as_ref()?.look;
        Some(look.seen.get().cloned().unwrap_or_else(|| look.placement.report()))
    }
}

struct Watched {
    task: AnyTask,
    look: Arc<Look>,
}

impl Task for Watched {
    type Batch = Batch;

    fn examples(&self, batch: &Batch) -> usize {
        self.task.examples(batch)
    }

    fn model(&self) -> &dyn Module {
        self.task.model()
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        self.task.model_mut()
    }

    fn loss(&self, batch: &Batch) -> nn::Result<Tensor> {
        let loss = self.task.loss(batch)?;
        let Look { placement, passes, seen } = &*self.look;
        if passes.fetch_add(1, Ordering::Relaxed) + 1 == STEP {
            seen.get_or_init(|| placement.report());
        }
        Ok(loss)
    }

    fn score(&self, batch: &Batch) -> nn::Result<Score> {
        self.task.score(batch)
    }
}
