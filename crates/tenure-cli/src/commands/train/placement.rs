//! Placement of tensors on the CPU: records them as a problem for `tenure plan`, or places them by a mapping.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::nn::train::{Score, Task};
use tenure::nn::{self, Module};
use tenure::plan::Mapping;
use tenure::tensor::Tensor;
use tenure::tier::{Placement, PlacementGuard, PlacementOptions, Recorder, RecorderGuard, Report, Tier};

use super::models::{AnyTask, Batch};
use crate::values::TierSpec;

/// The step of this process that is recorded or inspected: by then the optimizer has its state.
pub(super) const STEP: usize = 3;

/// The memory settings of a run's training thread: a recorder, or a mapping.
#[derive(Default)]
pub(super) struct RunPlacement {
    recording: Option<ProblemRecording>,
    placed: Option<Placed>,
    steps: usize,
}

struct ProblemRecording {
    recorder: Recorder,
    /// Records until the step is over.
    _guard: RecorderGuard,
    path: PathBuf,
    name: String,
}

struct Placed {
    look: Arc<PlacementLook>,
    _guard: PlacementGuard,
}

/// Inspects the tensors' tiers when the forward pass of one step is over.
struct PlacementLook {
    placement: Placement,
    passes: AtomicUsize,
    seen: OnceLock<Report>,
}

impl RunPlacement {
    /// Records the calling thread's tensors as the problem `name`, to be written to `path`.
    pub(super) fn record(&mut self, path: &Path, name: &str) -> anyhow::Result<()> {
        let recorder = Recorder::new()?;
        let path = path.to_owned();
        self.recording = Some(ProblemRecording { _guard: recorder.enter(), recorder, path, name: name.to_owned() });
        Ok(())
    }

    /// Places the calling thread's tensors in `tiers` by a mapping, which is a file.
    pub(super) fn place(&mut self, mapping: &Path, tiers: &[TierSpec]) -> anyhow::Result<()> {
        let mapping = Mapping::read(mapping)?;
        let tiers = tiers.iter().map(|TierSpec { name, medium, capacity }| Tier::open(name, medium, *capacity));
        let placement = Placement::open(mapping, tiers.collect::<Result<_, _>>()?, PlacementOptions::default())?;
        let guard = placement.enter();
        let look = Arc::new(PlacementLook { placement, passes: AtomicUsize::new(0), seen: OnceLock::new() });
        self.placed = Some(Placed { look, _guard: guard });
        Ok(())
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

    /// Writes the recorded problem, and stops recording.
    fn write(&mut self) -> anyhow::Result<()> {
        let Some(ProblemRecording { recorder, path, name, .. }) = self.recording.take() else { return Ok(()) };
        Ok(recorder.problem(&name, Vec::new(), Vec::new())?.write(path)?)
    }

    /// Returns the path of a problem that was not recorded, because the run ended before its step.
    pub(super) fn unrecorded(&self) -> Option<&Path> {
        self.recording.as_ref().map(|recording| &*recording.path)
    }

    /// Returns the tensors' tiers, in that step or the last one.
    pub(super) fn report(&self) -> Option<Report> {
        let look = &self.placed.as_ref()?.look;
        Some(look.seen.get().cloned().unwrap_or_else(|| look.placement.report()))
    }
}

struct Watched {
    task: AnyTask,
    look: Arc<PlacementLook>,
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
        let PlacementLook { placement, passes, seen } = &*self.look;
        if passes.fetch_add(1, Ordering::Relaxed) + 1 == STEP {
            seen.get_or_init(|| placement.report());
        }
        Ok(loss)
    }

    fn score(&self, batch: &Batch) -> nn::Result<Score> {
        self.task.score(batch)
    }
}
