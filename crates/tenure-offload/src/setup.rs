//! The setup of an engine: its folders, its memory to spill to and its planner.

use std::path::PathBuf;
use std::time::Duration;

use tenure_plan::Planner;
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{self as tier, Disk, DiskOptions, Mover, MoverOptions, TierError};

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::inner::EngineOptions;
use crate::machine::SpillLink;
use crate::memory::{MIN_TENSOR_BYTES, Memory};

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
        mover.probe()?;
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
