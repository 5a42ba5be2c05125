//! The profile of some steps of a run.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tenure::tensor::observe;
use tenure::tensor::profile::{Average, Profile, Profiler, ProfilerOptions, SortBy};

use crate::output;

/// The number of steps of this process that are left out at first: they allocate what later ones use again.
const LEFT_OUT: u64 = 1;
/// The number of steps that are profiled.
const STEPS: u64 = 5;
/// The number of rows of the table.
const ROWS: usize = 20;

/// The profile of a run: the steps after the first, or the only one.
pub(super) struct RunProfile {
    path: Option<PathBuf>,
    /// The steps of this process to profile.
    steps: Range<u64>,
    made: u64,
    profiler: Option<Profiler>,
    profile: Option<Profile>,
}

impl RunProfile {
    /// Profiles steps of a process that has `planned` steps to make, for a trace at `path`.
    pub(super) fn new(path: Option<&Path>, planned: u64) -> Self {
        let first = LEFT_OUT.min(planned.saturating_sub(1));
        let steps = first..planned.min(first + STEPS);
        Self { path: path.map(Path::to_owned), steps, made: 0, profiler: None, profile: None }
    }

    /// Makes a step.
    pub(super) fn step<T>(&mut self, make: impl FnOnce() -> T) -> T {
        if self.path.is_some() && self.made == self.steps.start && !self.steps.is_empty() {
            let options = ProfilerOptions { record_shapes: true, profile_memory: true, ..ProfilerOptions::default() };
            self.profiler = Profiler::start(options).ok();
        }
        let made = {
            let _section = observe::section("training step");
            make()
        };
        self.made += 1;
        if self.made == self.steps.end {
            self.finish();
        }
        made
    }

    /// Ends the profile of a run that ended before the last step to profile.
    pub(super) fn finish(&mut self) {
        if let Some(profiler) = self.profiler.take() {
            self.profile = Some(profiler.stop());
        }
    }

    /// Writes the trace.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let (Some(path), Some(profile)) = (&self.path, &self.profile) else { return Ok(()) };
        output::write(path, |out| profile.chrome_trace(out))
    }

    /// Returns the sums by name, and the same as a table.
    pub(super) fn sums(&self) -> Option<(Vec<Average>, String)> {
        let profile = self.profile.as_ref()?;
        Some((profile.averages(false), profile.table(SortBy::OwnTime, ROWS)))
    }
}
