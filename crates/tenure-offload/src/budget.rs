//! A budget: how much memory steps may take, where the excess is spilled to, and the engine's setup for it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::{Amount, AmountError};
use tenure_plan::Planner;
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::codec::Choice;
use tenure_tier::{self as tier, Disk, DiskError, DiskOptions, Mover, MoverError, MoverOptions, TierError};

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::inner::EngineOptions;
use crate::machine::{MIN_TENSOR_BYTES, Memory, SpillLink};

/// A memory budget for steps: its amount, the folders and memory to spill to, and the planner.
///
/// ```
/// use tenure_offload::Budget;
///
/// let half = Budget::percent(50.0).spill("/mnt/ssd");
/// let given: Budget = "12GiB".parse()?;
/// # assert_eq!((half.amount().of(10), given.amount().of(0)), (5, 12 << 30));
/// # Ok::<(), tenure_core::AmountError>(())
/// ```
#[must_use = "a trainer or an engine keeps to it"]
pub struct Budget {
    amount: Amount,
    setup: Setup,
    /// The default for the memory if None.
    min_tensor_bytes: Option<u64>,
    codec: Choice,
    process: Option<Box<dyn ProcessMeter>>,
    progress: Option<Box<dyn Fn(BudgetProgress) + Send + Sync>>,
}

/// Measures the memory of a process, tensors included, for a budget of the host's memory that covers all of it.
pub trait ProcessMeter: Send + Sync {
    /// Resets the peak, so that it covers only what follows.
    fn reset_peak(&self);

    /// Returns the most bytes that counted against the budget since then.
    fn peak_bytes(&self) -> u64;
}

/// The progress of a trainer that determines a budget in bytes before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum BudgetProgress {
    /// A plain step was measured, because the budget is a share of it.
    Plain {
        /// The bytes that the plain step takes.
        plain_bytes: u64,
        /// The share, in percent.
        percent: f64,
        /// The share, in bytes.
        budget_bytes: u64,
    },
    /// The budget is too small. The trainer looks for the least that works.
    TooSmall {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
    },
}

impl Budget {
    /// Returns a budget of this amount, which spills as a [`Setup`] does by default.
    pub fn new(amount: Amount) -> Self {
        let setup = Setup::default();
        let codec = Choice::default();
        Self { amount, setup, min_tensor_bytes: None, codec, process: None, progress: None }
    }

    /// Returns a budget of `bytes` bytes.
    pub fn bytes(bytes: u64) -> Self {
        Self::new(Amount::Bytes(bytes))
    }

    /// Returns a budget that is a share of the memory of a plain step, in percent. The plain step is measured first.
    pub fn percent(percent: f64) -> Self {
        Self::new(Amount::Percent(percent))
    }

    /// Returns the amount.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// Adds a folder on a disk to spill to. Several folders share the load. Default: [`Setup::default_folder`] for the
    /// host's memory, none for a device's memory.
    pub fn spill(mut self, folder: impl Into<PathBuf>) -> Self {
        self.setup.folders.push(folder.into());
        self
    }

    /// Sets aside `bytes` of the disks of all folders together. See [`Setup::disk_bytes`].
    pub fn spill_bytes(mut self, bytes: u64) -> Self {
        self.setup.disk_bytes = Some(bytes);
        self
    }

    /// Writes at most `bytes` to disks in 24 hours. See [`Setup::daily_bytes`].
    pub fn spill_daily_bytes(mut self, bytes: u64) -> Self {
        self.setup.daily_bytes = Some(bytes);
        self
    }

    /// Spills a device's bytes to at most `bytes` of pinned memory. See [`Setup::pinned_bytes`].
    pub fn pinned_bytes(mut self, bytes: u64) -> Self {
        self.setup.pinned_bytes = Some(bytes);
        self
    }

    /// Keeps saved tensors smaller than this in memory. Default: 1 MiB on a device, 128 KiB in the host's memory.
    pub fn min_tensor_bytes(mut self, bytes: u64) -> Self {
        self.min_tensor_bytes = Some(bytes);
        self
    }

    /// Makes plans with this planner. Default: [`Scheduled`](tenure_plan::planner::Scheduled).
    pub fn planner(mut self, planner: Box<dyn Planner + Send + Sync>) -> Self {
        self.setup.planner = planner;
        self
    }

    /// Sets the seed of planners that try at random. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.setup.seed = seed;
        self
    }

    /// Sets the codec for bytes that go to a disk. See [`Engine::set_codec`].
    pub fn codec(mut self, codec: Choice) -> Self {
        self.codec = codec;
        self
    }

    /// Makes a budget of the host's memory cover the rest of the process, too.
    pub fn process(mut self, process: impl ProcessMeter + 'static) -> Self {
        self.process = Some(Box::new(process));
        self
    }

    /// Calls `tell` while a trainer determines the budget in bytes, which takes several passes over a batch.
    pub fn on_progress(mut self, tell: impl Fn(BudgetProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    /// Opens an engine for a memory. The engine has no budget yet: the amount may be a share of a step that was not
    /// measured yet.
    ///
    /// # Errors
    /// See [`Setup::engine`].
    pub fn open(self, memory: Memory) -> Result<OpenBudget, OffloadError> {
        let Self { amount, mut setup, min_tensor_bytes, codec, process, progress } = self;
        let is_on_host = memory.device().is_none();
        if is_on_host && setup.folders.is_empty() {
            setup.folders.push(Setup::default_folder());
        }
        setup.min_tensor_bytes = min_tensor_bytes.unwrap_or_else(|| memory.min_tensor_bytes());
        let engine = setup.engine(memory)?;
        engine.set_codec(codec);
        Ok(OpenBudget { amount, engine, process: process.filter(|_| is_on_host), progress })
    }
}

impl FromStr for Budget {
    type Err = AmountError;

    /// Reads bytes with a unit, or a share of a plain step, which may be more than all of it: `12GiB`, `60%`, `150%`.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        Amount::of_budget(text).map(Self::new)
    }
}

/// An opened [`Budget`]. A front end measures steps, and sets the engine's budget by them.
#[non_exhaustive]
pub struct OpenBudget {
    /// The amount of the budget.
    pub amount: Amount,
    /// The engine, which has no budget yet.
    pub engine: Engine,
    /// The measure of the process, if the budget covers it. None for a device's memory.
    pub process: Option<Box<dyn ProcessMeter>>,
    /// The callback for progress.
    pub progress: Option<Box<dyn Fn(BudgetProgress) + Send + Sync>>,
}

/// The size in bytes of the buffers through which the host's bytes pass on their way to a disk. They are a part of a
/// budget.
const STAGING_BYTES: usize = 4 << 20;
/// The most bytes of disks that are taken by default.
const MOST_SPILLED: u64 = 64 << 30;
/// The capacity in bytes at or below which no smaller one is tried by default: opening the disk then fails.
const LEAST_SPILLED: u64 = 64 << 20;
/// The time limit of a planner.
const PLANNING: Duration = Duration::from_secs(10);

/// The settings of an engine: where it spills to, and the planner.
pub struct Setup {
    /// Folders on disks to spill to, which share the load. Without a folder, no disk is used.
    pub folders: Vec<PathBuf>,
    /// Bytes of these disks together, set aside at once. Default: half of the free bytes, but at most 64 GiB.
    pub disk_bytes: Option<u64>,
    /// The most bytes that the engine may write to the disks in 24 hours, since disks wear out. They are counted before
    /// they are encoded, and with the bytes written to measure the disks. Default: no limit.
    pub daily_bytes: Option<u64>,
    /// Bytes of pinned memory to spill a device's bytes to. Default: half of the available memory.
    pub pinned_bytes: Option<u64>,
    /// The size in bytes below which saved tensors stay in memory.
    pub min_tensor_bytes: u64,
    /// The planner.
    pub planner: Box<dyn Planner + Send + Sync>,
    /// The seed of planners that try at random.
    pub seed: u64,
}

impl Default for Setup {
    /// Returns a setup with pinned memory and no disk, for tensors of 1 MiB or more, planned by [`Scheduled`].
    fn default() -> Self {
        let planner = Box::new(Scheduled);
        Self {
            folders: Vec::new(),
            disk_bytes: None,
            daily_bytes: None,
            pinned_bytes: None,
            min_tensor_bytes: MIN_TENSOR_BYTES,
            planner,
            seed: 0,
        }
    }
}

impl Setup {
    /// Returns the folder that a budget of the host's memory spills to by default: the folder for temporary files, or
    /// `/var/tmp` if that is kept in memory.
    pub fn default_folder() -> PathBuf {
        let usual = std::env::temp_dir();
        let on_disk = PathBuf::from("/var/tmp");
        if Disk::is_in_memory(&usual) && on_disk.is_dir() { on_disk } else { usual }
    }

    /// Creates an engine for a memory, and measures how fast bytes move.
    ///
    /// # Errors
    /// A folder cannot be used or has too little room; there is too little pinned memory; the device fails.
    pub fn engine(self, memory: Memory) -> Result<Engine, OffloadError> {
        let disk = self.disk(&memory)?;
        let memory_bytes = match self.pinned_bytes {
            // The host's bytes are in memory as they are, until they are written to a disk.
            _ if memory.device().is_none() => usize::MAX >> 1,
            Some(bytes) => bytes as usize,
            None => (tier::available_bytes() / 2) as usize,
        };
        let mover = Mover::new(memory.device(), MoverOptions { disk, ..MoverOptions::new(memory_bytes) })?;
        mover.probe().map_err(|error| match (error, self.daily_bytes) {
            // The error of the write says nothing that its reader could know: it names a probe.
            (MoverError::Disk(reason), Some(daily_bytes)) if matches!(*reason, DiskError::Worn { .. }) => {
                OffloadError::DailyLimit { daily_bytes }
            }
            (error, _) => error.into(),
        })?;
        let Self { min_tensor_bytes, planner, seed, .. } = self;
        let planning = PlannerOptions { objective: Objective::Makespan, time_limit: PLANNING, evaluations: None, seed };
        let options = EngineOptions { min_tensor_bytes, links: SpillLink::of(&mover), planner, planning };
        let is_on_host = memory.device().is_none();
        let engine = Engine::new(memory, mover, options);
        if is_on_host && engine.mover().disk().is_some() {
            engine.set_aside(STAGING_BYTES as u64);
        }
        Ok(engine)
    }

    fn disk(&self, memory: &Memory) -> Result<Option<Disk>, OffloadError> {
        if self.folders.is_empty() {
            return Ok(None);
        }
        let mut capacity = match self.disk_bytes {
            Some(bytes) => bytes,
            None => (Disk::free_bytes_in(&self.folders)? / 2).min(MOST_SPILLED),
        };
        loop {
            let options = DiskOptions { daily_bytes: self.daily_bytes, ..DiskOptions::new(capacity) };
            let staging_bytes = if memory.device().is_none() { STAGING_BYTES } else { options.staging_bytes };
            match Disk::open(&self.folders, DiskOptions { staging_bytes, ..options }) {
                // Processes that train together each take half of the free bytes at the same time.
                Err(TierError::NoRoom { .. }) if self.disk_bytes.is_none() && capacity > LEAST_SPILLED => capacity /= 2,
                opened => return Ok(Some(opened?)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_from_text() {
        let read = |text: &str| text.parse::<Budget>().map(|budget| budget.amount());
        assert_eq!(read("12GiB"), Ok(Amount::Bytes(12 << 30)));
        assert_eq!(read("60%"), Ok(Amount::Percent(60.0)));
        assert_eq!(read("150%"), Ok(Amount::Percent(150.0)));
        let said = read("much").unwrap_err().to_string();
        assert!(said.contains("12GiB") && said.contains("60%"), "{said}");
    }
}
