//! An engine with all that it works with.

use std::path::PathBuf;
use std::time::Duration;

use tenure_plan::Planner;
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{self as tier, Disk, DiskOptions, Mover, MoverOptions, TierError};

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::inner::Options;
use crate::machine::Link;
use crate::memory::Memory;

/// What bytes of the host pass through on their way to a disk: a part of a budget.
const STAGING_BYTES: usize = 4 << 20;
/// Bytes of disks that are taken, if nobody says how many.
const MOST_SPILLED: u64 = 64 << 30;
/// With fewer it is said that there is no room.
const LEAST_SPILLED: u64 = 64 << 20;
/// How long a planner may think.
const PLANNING: Duration = Duration::from_secs(10);

/// Where an engine spills to, and who plans.
pub struct Setup {
    /// Folders on disks to spill to, which share the load; no disk, if there are none.
    pub folders: Vec<PathBuf>,
    /// Bytes of these disks together, set aside at once: if they are not given, half of what is free, and at most 64 GiB.
    pub disk_bytes: Option<u64>,
    /// How many bytes the engine may write to them in 24 hours, before they are encoded and with those by which they are
    /// measured, if not any number: disks wear out.
    pub daily_bytes: Option<u64>,
    /// Pinned memory to spill a device's bytes to: if it is not given, half of what is available.
    pub pinned_bytes: Option<u64>,
    /// What has fewer bytes is kept.
    pub least_bytes: u64,
    /// Who makes plans.
    pub planner: Box<dyn Planner + Send + Sync>,
    /// For planners that try at random.
    pub seed: u64,
}

impl Default for Setup {
    /// Pinned memory and no disk, for what has a MiB or more; planned by [`Scheduled`].
    fn default() -> Self {
        let planner = Box::new(Scheduled);
        Self {
            folders: Vec::new(),
            disk_bytes: None,
            daily_bytes: None,
            pinned_bytes: None,
            least_bytes: 1 << 20,
            planner,
            seed: 0,
        }
    }
}

impl Setup {
    /// Where a budget of the host's memory spills to if nobody says where: the folder for temporary files, or one on a disk
    /// where that is in memory itself.
    pub fn default_folder() -> PathBuf {
        let (usual, on_disk) = (std::env::temp_dir(), PathBuf::from("/var/tmp"));
        if Disk::is_in_memory(&usual) && on_disk.is_dir() { on_disk } else { usual }
    }

    /// An engine for a memory. How fast bytes move is measured.
    ///
    /// # Errors
    /// A folder cannot be used or has too little room; there is too little pinned memory; the device fails.
    pub fn engine(self, memory: Memory) -> Result<Engine, OffloadError> {
        let disk = self.disk(&memory)?;
        let memory_bytes = match self.pinned_bytes {
            // Its bytes are in memory as it is, until they are written.
            _ if memory.device().is_none() => usize::MAX >> 1,
            Some(bytes) => bytes as usize,
            None => (tier::available_bytes() / 2) as usize,
        };
        let mover = Mover::new(memory.device(), MoverOptions { disk, ..MoverOptions::new(memory_bytes) })?;
        mover.probe()?;
        let Self { least_bytes, planner, seed, .. } = self;
        let planning = PlannerOptions { objective: Objective::Makespan, time_limit: PLANNING, evaluations: None, seed };
        let options = Options { least_bytes, links: Link::of(&mover), planner, planning };
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
                // Processes that train together take their halves at the same time.
                Err(TierError::NoRoom { .. }) if self.disk_bytes.is_none() && capacity > LEAST_SPILLED => capacity /= 2,
                opened => return Ok(Some(opened?)),
            }
        }
    }
}
