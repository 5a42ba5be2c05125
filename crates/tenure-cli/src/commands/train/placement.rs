//! Where tensors of the CPU live: recorded as a problem for `tenure plan`, or as a mapping says.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::nn::train::{Score, Task};
use tenure::nn::{self, Module};
use tenure::plan::Mapping;
use tenure::tensor::Tensor;
use tenure::tier::{Medium, Options, Placement, PlacementGuard, Recorder, RecorderGuard, Report, Tier};

use super::args::TrainArgs;
use super::models::{AnyTask, Batch};

/// The step, of those that this process makes, that is recorded or looked at: the optimizer has its state by then.
const STEP: usize = 3;

/// A tier of a mapping, and what it is.
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

/// What is done about the memory of a run, by the thread that makes its steps.
#[derive(Default)]
pub(super) struct Memory {
    recording: Option<Recording>,
    placed: Option<Placed>,
    steps: usize,
}

struct Recording {
    recorder: Recorder,
    /// Until the step is over.
    _guard: RecorderGuard,
    path: PathBuf,
    name: String,
}

struct Placed {
    look: Arc<Look>,
    _guard: PlacementGuard,
}

/// Looks where everything is when the forward pass of one step is over.
struct Look {
    placement: Placement,
    passes: AtomicUsize,
    seen: OnceLock<Report>,
}

impl Memory {
    /// Enters the calling thread into what the options ask for.
    pub(super) fn enter(args: &TrainArgs) -> anyhow::Result<Self> {
        let mut memory = Self::default();
        if let Some(path) = &args.problem {
            let (recorder, path, name) = (Recorder::new()?, path.clone(), args.model.name());
            memory.recording = Some(Recording { _guard: recorder.enter(), recorder, path, name });
        }
        if let Some(path) = &args.mapping {
            let mapping = Mapping::read(path)?;
            let open = |TierSpec { name, medium, capacity }: &TierSpec| Tier::open(name, medium, *capacity);
            let tiers = args.tiers.iter().map(open).collect::<Result<_, _>>()?;
            let placement = Placement::open(mapping, tiers, Options::default())?;
            let guard = placement.enter();
            let look = Arc::new(Look { placement, passes: AtomicUsize::new(0), seen: OnceLock::new() });
            memory.placed = Some(Placed { look, _guard: guard });
        }
        Ok(memory)
    }

    /// Has `task` looked at, if there is anything to look at.
    pub(super) fn watching(&self) -> impl Fn(AnyTask) -> AnyTask + Send + Sync + 'static {
        let look = self.placed.as_ref().map(|placed| Arc::clone(&placed.look));
        move |task| match &look {
            Some(look) => Box::new(Watched { task, look: Arc::clone(look) }),
            None => task,
        }
    }

    /// A step was made.
    pub(super) fn step(&mut self) -> anyhow::Result<()> {
        self.steps += 1;
        match (&self.recording, self.steps) {
            (Some(recording), steps) if steps + 1 == STEP => recording.recorder.begin_iteration(),
            (Some(_), STEP) => return self.write(),
            _ => {}
        }
        Ok(())
    }

    /// Writes what is recorded, if it was not, and does not record any more.
    pub(super) fn write(&mut self) -> anyhow::Result<()> {
        let Some(Recording { recorder, path, name, .. }) = self.recording.take() else { return Ok(()) };
        Ok(recorder.problem(&name, Vec::new(), Vec::new())?.write(path)?)
    }

    /// Where everything was, in that step or at last.
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
