//! A budget: how much memory steps may take, and where the rest goes.

use std::path::PathBuf;
use std::str::FromStr;

use tenure_core::{Amount, AmountError};
use tenure_plan::Planner;
use tenure_tier::codec::Choice;

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::memory::Memory;
use crate::setup::Setup;

/// Saved tensors smaller than this stay in the host's memory, where bytes are worth more than on a device.
const LEAST_BYTES_ON_HOST: u64 = 128 << 10;

/// How much memory steps may take, where the rest is spilled to, and who plans it.
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
    /// None: as suits the memory.
    least_bytes: Option<u64>,
    codec: Choice,
    process: Option<Box<dyn ProcessMemory>>,
    progress: Option<Box<dyn Fn(BudgetProgress) + Send + Sync>>,
}

/// Measures what a process has in memory, tensors included, where a budget of the host's memory is to cover all of it.
pub trait ProcessMemory: Send + Sync {
    /// Resets the peak, so that it covers only what follows.
    fn reset_peak(&self);

    /// The most bytes that counted against the budget since then.
    fn peak_bytes(&self) -> u64;
}

/// Progress of a trainer that settles a budget before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum BudgetProgress {
    /// A plain step was measured, as the budget is a share of it.
    Plain {
        /// Bytes that the plain step takes.
        plain_bytes: u64,
        /// The share, in percent.
        percent: f64,
        /// The share, in bytes.
        budget_bytes: u64,
    },
    /// The budget is too small, and the least that works is looked for.
    TooSmall {
        /// The budget that was asked for.
        budget_bytes: u64,
    },
}

impl Budget {
    /// A budget of this amount, which spills as a [`Setup`] does by default.
    pub fn new(amount: Amount) -> Self {
        let (setup, codec) = (Setup::default(), Choice::default());
        Self { amount, setup, least_bytes: None, codec, process: None, progress: None }
    }

    /// A budget of so many bytes.
    pub fn bytes(bytes: u64) -> Self {
        Self::new(Amount::Bytes(bytes))
    }

    /// A budget of a share of what a plain step takes, in percent. The plain step is measured first.
    pub fn percent(percent: f64) -> Self {
        Self::new(Amount::Percent(percent))
    }

    /// How much it is.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// Spills to this folder, on a disk; several share the load. Default: for the host's memory
    /// [`Setup::default_folder`], for a device's memory none.
    pub fn spill(mut self, folder: impl Into<PathBuf>) -> Self {
        self.setup.folders.push(folder.into());
        self
    }

    /// Takes so many bytes of those disks together. See [`Setup::disk_bytes`].
    pub fn spill_bytes(mut self, bytes: u64) -> Self {
        self.setup.disk_bytes = Some(bytes);
        self
    }

    /// Writes at most so many bytes to disks in 24 hours. See [`Setup::daily_bytes`].
    pub fn spill_daily_bytes(mut self, bytes: u64) -> Self {
        self.setup.daily_bytes = Some(bytes);
        self
    }

    /// Spills a device's bytes to so many bytes of pinned memory. See [`Setup::pinned_bytes`].
    pub fn pinned_bytes(mut self, bytes: u64) -> Self {
        self.setup.pinned_bytes = Some(bytes);
        self
    }

    /// Keeps saved tensors smaller than this in memory. Default: 1 MiB on a device, 128 KiB in the host's memory.
    pub fn least_bytes(mut self, bytes: u64) -> Self {
        self.least_bytes = Some(bytes);
        self
    }

    /// Plans by this planner. Default: [`Scheduled`](tenure_plan::planner::Scheduled).
    pub fn planner(mut self, planner: Box<dyn Planner + Send + Sync>) -> Self {
        self.setup.planner = planner;
        self
    }

    /// Seeds planners that try at random. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.setup.seed = seed;
        self
    }

    /// Encodes what goes to a disk. See [`Engine::set_codec`].
    pub fn codec(mut self, codec: Choice) -> Self {
        self.codec = codec;
        self
    }

    /// Has a budget of the host's memory cover what the process takes beside tensors, too.
    pub fn process(mut self, process: impl ProcessMemory + 'static) -> Self {
        self.process = Some(Box::new(process));
        self
    }

    /// Calls `tell` while the budget is settled, which takes several passes over a batch.
    pub fn on_progress(mut self, tell: impl Fn(BudgetProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    /// Opens an engine for a memory. The engine has no budget yet, which may be a share of a step that was not made.
    ///
    /// # Errors
    /// As of [`Setup::engine`].
    pub fn open(self, memory: Memory) -> Result<OpenBudget, OffloadError> {
        let Self { amount, mut setup, least_bytes, codec, process, progress } = self;
        let is_on_host = memory.device().is_none();
        if is_on_host && setup.folders.is_empty() {
            setup.folders.push(Setup::default_folder());
        }
        let default = if is_on_host { LEAST_BYTES_ON_HOST } else { setup.least_bytes };
        setup.least_bytes = least_bytes.unwrap_or(default);
        let engine = setup.engine(memory)?;
        engine.set_codec(codec);
        Ok(OpenBudget { amount, engine, process: process.filter(|_| is_on_host), progress })
    }
}

impl FromStr for Budget {
    type Err = AmountError;

    /// Reads bytes with a unit, or a share of a plain step: `12GiB`, `60%`.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        text.parse().map(Self::new)
    }
}

/// An opened [`Budget`]. A front end measures steps, and sets the engine's budget by them.
#[non_exhaustive]
pub struct OpenBudget {
    /// How much it is.
    pub amount: Amount,
    /// Its engine, which has no budget yet.
    pub engine: Engine,
    /// Measures the process, if the budget covers it. None for a device's memory.
    pub process: Option<Box<dyn ProcessMemory>>,
    /// Receives the progress.
    pub progress: Option<Box<dyn Fn(BudgetProgress) + Send + Sync>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_from_text() {
        let read = |text: &str| text.parse::<Budget>().map(|budget| budget.amount());
        assert_eq!(read("12GiB"), Ok(Amount::Bytes(12 << 30)));
        assert_eq!(read("60%"), Ok(Amount::Percent(60.0)));
        let said = read("much").unwrap_err().to_string();
        assert!(said.contains("12GiB") && said.contains("60%"), "{said}");
    }
}
