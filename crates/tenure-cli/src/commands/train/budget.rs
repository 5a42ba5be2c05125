//! Training within a budget of memory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use tenure::nn;
use tenure::nn::train::{Pass, Step, StepReport, TrainError, Trainer};
use tenure::offload::Memory::Host as OnCpu;
use tenure::offload::{Engine, Link, Memory, Needed, OffloadError, ProfileError, Setup};
use tenure::plan::Planner;
use tenure::plan::planner::{Evolutionary, FlashNeuron, Scheduled};
use tenure::tier::codec::Choice;
use tenure::tier::{Disk, DiskStatistics};
use tenure::units::{Bytes, Micros};

use super::Examples;
use super::args::TrainArgs;
use super::models::AnyTask;
use super::outcome::median;
use crate::commands::plan::{FastBytes, milp};
use crate::resident;

/// What has fewer bytes is kept on the CPU, where they are worth more than on a device.
const LEAST_BYTES_ON_CPU: u64 = 128 << 10;

/// Added to the least budget that was found, before it is named: the least grows a little with the budget, as pieces of an
/// optimizer's state do, and differs between processes.
const MARGIN_BYTES: u64 = 1 << 20;
/// On the CPU, a process takes some MiB beside tensors. Two runs differed by up to 2.7 MB in them; this covers it.
const VARIES_BYTES: u64 = 4 << 20;
const MARGIN: u64 = 32;

/// For disks' wear.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Who plans what is kept, and what is spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PlannerName {
    /// FlashNeuron's two phases
    Flashneuron,
    /// Ours: prices of room and links, then evolution
    Scheduled,
    /// Random plans, and what becomes of the best
    Evolutionary,
    /// A mixed-integer program, solved by HiGHS, in a build with the feature `milp`
    Milp,
}

impl PlannerName {
    fn planner(self) -> anyhow::Result<Box<dyn Planner + Send + Sync>> {
        Ok(match self {
            Self::Flashneuron => Box::new(FlashNeuron),
            Self::Scheduled => Box::new(Scheduled),
            Self::Evolutionary => Box::new(Evolutionary::default()),
            Self::Milp => milp()?,
        })
    }
}

/// A run's budget.
pub(super) struct Budget {
    engine: Engine,
    /// Of this process, before there was a model.
    resident_bytes: u64,
    /// When the first step began, and what the disk had done before.
    began: (Instant, DiskStatistics),
}

/// What it took to keep to a budget: of a step, the median over steps; of disks, all steps.
#[derive(Serialize)]
pub(super) struct Offloaded {
    budget_bytes: u64,
    /// Of the process, beyond what it had before there was a model. None where the system does not say.
    resident_bytes: Option<u64>,
    spilled_bytes: u64,
    recomputed_us: u64,
    stall_us: u64,
    /// Of all steps: moves that no plan asked for.
    unplanned: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// If it went on at this pace.
    written_bytes_per_day: u64,
    #[serde(serialize_with = "by_name")]
    codec: Choice,
    is_lossy: bool,
    /// Bytes that went to disk, for each that was written there.
    compression: f64,
    /// The kind of disk, in words.
    disk: Option<String>,
    tiers: BTreeMap<String, TierUse>,
}

/// The use of a tier that bytes are spilled to.
#[derive(Serialize)]
struct TierUse {
    /// Bytes per second on the way out, as measured.
    out_bandwidth: u64,
    /// Bytes per second on the way back.
    back_bandwidth: u64,
    /// Bytes per second both ways together, if they are in each other's way.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_bandwidth: Option<u64>,
}

impl Budget {
    /// What the options ask for, before there is a model.
    pub(super) fn open(args: &TrainArgs) -> anyhow::Result<Option<Self>> {
        if args.budget.is_none() {
            return Ok(None);
        }
        let resident_bytes = resident::now().unwrap_or(0);
        let Some(memory) = Memory::of(args.device) else {
            anyhow::bail!("--budget: Tenure does not manage the memory of {}", args.device)
        };
        let setup = Setup {
            folders: if args.spill.is_empty() { vec![Setup::default_folder()] } else { args.spill.clone() },
            disk_bytes: args.spill_bytes.map(NonZeroU64::get),
            daily_bytes: args.spill_daily_bytes.map(NonZeroU64::get),
            least_bytes: if args.device.is_cpu() { LEAST_BYTES_ON_CPU } else { Setup::default().least_bytes },
            planner: args.planner.planner()?,
            seed: args.seed,
            ..Setup::default()
        };
        if args.device.is_cpu() {
            for folder in setup.folders.iter().filter(|folder| Disk::is_in_memory(folder)) {
                let folder = folder.display();
                say(&format!(
                    "{folder} is in memory itself: what is spilled there takes some; --spill a folder on a disk"
                ));
            }
        }
        let engine = setup.engine(memory)?;
        engine.set_codec(args.codec);
        Ok(Some(Self { engine, resident_bytes, began: (Instant::now(), DiskStatistics::default()) }))
    }

    /// Has a run keep to it: a plain step is measured first, or one within the budget, so that one that is too small is
    /// refused.
    pub(super) fn enter<D: Examples>(
        &mut self,
        args: &TrainArgs,
        run: Trainer<AnyTask, D>,
    ) -> anyhow::Result<Trainer<AnyTask, D>> {
        let mut run = run.within(self.engine.clone())?;
        let Some(budget) = args.budget else { return Ok(run) };
        let bytes = match budget {
            FastBytes::Bytes(bytes) => bytes,
            FastBytes::Percent(percent) => {
                let plain = self.plain_bytes(&mut run)?;
                let bytes = (plain as f64 * percent / 100.0) as u64;
                say(&format!("a plain step takes {}; {percent}% of it are {}", Bytes(plain), Bytes(bytes)));
                bytes
            }
        };
        match self.settle(&mut run, bytes) {
            Err(error) if too_small(&error).is_some() => return Err(self.refuse(&mut run, bytes, error)),
            settled => settled?,
        }
        self.began = (Instant::now(), self.disk_now());
        resident::forget_most();
        Ok(run)
    }

    /// Bytes that a step takes without a budget, counted as a budget is: with the growth of the process beside tensors.
    fn plain_bytes<D: Examples>(&self, run: &mut Trainer<AnyTask, D>) -> anyhow::Result<u64> {
        resident::forget_most();
        let rehearsed = run.rehearse(Pass::Plain)?;
        Ok(rehearsed.peak_bytes.unwrap_or(0) + self.beside_bytes(&rehearsed))
    }

    /// Bytes that the process grew by beside tensors; 0 where these are no part of the budget.
    fn beside_bytes(&self, rehearsed: &StepReport) -> u64 {
        let most = resident::most().filter(|_| matches!(self.engine.memory(), OnCpu(_))).unwrap_or(0);
        most.saturating_sub(self.resident_bytes + rehearsed.reserved_bytes.unwrap_or(0))
    }

    /// Has steps keep to so many bytes from now on, by a plan.
    fn settle<D: Examples>(&self, run: &mut Trainer<AnyTask, D>, bytes: u64) -> anyhow::Result<()> {
        self.engine.set_budget(bytes);
        let mut rehearsed = run.rehearse(Pass::Budgeted)?;
        if let OnCpu(_) = self.engine.memory() {
            // Once more, with nothing of what others have left.
            self.engine.enforce()?;
            resident::forget_most();
            rehearsed = run.rehearse(Pass::Budgeted)?;
        }
        self.engine.set_aside(self.beside_bytes(&rehearsed).max(self.engine.aside_bytes()));
        if self.engine.prepare().is_err() {
            // With what is set aside since, the optimizer's state may have to leave, too.
            run.rehearse(Pass::Budgeted)?;
            self.engine.prepare()?;
        }
        Ok(self.engine.enforce()?)
    }

    /// Why so many bytes are too few, with a budget that would do: one that was tried, and what varies. What is set aside,
    /// and which pieces of an optimizer's state there are, depends on it.
    fn refuse<D: Examples>(
        &self,
        run: &mut Trainer<AnyTask, D>,
        budget_bytes: u64,
        error: anyhow::Error,
    ) -> anyhow::Error {
        say("this budget is too small: looking for the least that would do");
        let (mut error, mut tried) = (error, budget_bytes);
        while let Some((least, when, needed)) = too_small(&error) {
            tried = least.max(tried) + least / MARGIN + MARGIN_BYTES;
            let Err(next) = self.settle(run, tried) else {
                let varies_bytes = if let OnCpu(_) = self.engine.memory() { VARIES_BYTES } else { 0 };
                let least_bytes = tried + varies_bytes;
                let needed = Needed { aside_bytes: needed.aside_bytes + least_bytes - least, ..needed.clone() };
                let when = when.to_owned();
                return ProfileError::TooSmall { budget_bytes, least_bytes, when, needed }.into();
            };
            error = next;
        }
        error
    }

    fn disk_now(&self) -> DiskStatistics {
        self.engine.mover().disk().map(Disk::statistics).unwrap_or_default()
    }

    /// What it took.
    pub(super) fn offloaded(&self, history: &[Step]) -> Offloaded {
        let reports: Vec<_> = history.iter().filter_map(|step| step.offload).collect();
        let of =
            |figure: fn(&tenure::nn::train::StepReport) -> f64| median(reports.iter().map(figure).collect()) as u64;
        let ((began, before), after, codec) = (self.began, self.disk_now(), self.engine.codec());
        let [written_bytes, raw_bytes] =
            [after.written_bytes - before.written_bytes, after.raw_bytes - before.raw_bytes];
        let tiers = Link::of(self.engine.mover()).into_iter().map(|(link, _)| {
            let Link { name, out_bandwidth, back_bandwidth, shared_bandwidth, .. } = link;
            (name, TierUse { out_bandwidth, back_bandwidth, shared_bandwidth })
        });
        Offloaded {
            budget_bytes: self.engine.budget_bytes().unwrap_or(0),
            resident_bytes: resident::most().map(|most| most.saturating_sub(self.resident_bytes)),
            spilled_bytes: of(|report| report.spilled_bytes as f64),
            recomputed_us: of(|report| report.recomputed.as_micros() as f64),
            stall_us: of(|report| report.stalled.as_micros() as f64),
            unplanned: reports.iter().map(|report| report.unplanned).sum(),
            read_bytes: after.read_bytes - before.read_bytes,
            written_bytes,
            written_bytes_per_day: (written_bytes as f64 * DAY.as_secs_f64() / began.elapsed().as_secs_f64()) as u64,
            codec,
            is_lossy: codec.is_lossy(),
            compression: if written_bytes == 0 { 1.0 } else { raw_bytes as f64 / written_bytes as f64 },
            disk: self.engine.mover().disk().map(Disk::nature),
            tiers: tiers.collect(),
        }
    }
}

impl Offloaded {
    /// In words.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("Budget", Bytes(self.budget_bytes).to_string())];
        facts
            .extend(self.resident_bytes.map(|bytes| ("Resident memory", format!("{} more than before", Bytes(bytes)))));
        let stalled = Micros(self.stall_us as f64);
        facts.push(("Spilled", format!("{} a step, for which it waits {stalled}", Bytes(self.spilled_bytes))));
        let tier = |(name, TierUse { out_bandwidth, back_bandwidth, shared_bandwidth }): (&String, &TierUse)| {
            let together = shared_bandwidth.map_or(String::new(), |shared| format!(", {}/s together", Bytes(shared)));
            format!("{name} {}/s out, {}/s back{together}", Bytes(*out_bandwidth), Bytes(*back_bandwidth))
        };
        let (written, daily) = (Bytes(self.written_bytes), Bytes(self.written_bytes_per_day));
        facts.extend((self.written_bytes > 0).then(|| ("Written", format!("{written} to disk, {daily} a day"))));
        let recomputed = Micros(self.recomputed_us as f64);
        facts.extend((self.recomputed_us > 0).then(|| ("Recomputed", format!("what takes {recomputed} a step"))));
        if self.codec != Choice::default() {
            let lossy = if self.is_lossy { ", which is lossy: losses are others than without" } else { "" };
            facts.push(("Codec", format!("{}{lossy}; {:.2} times smaller on disk", self.codec, self.compression)));
        }
        if self.unplanned > 0 {
            facts.push(("Unplanned", format!("{} moves, since there was no room otherwise", self.unplanned)));
        }
        facts.extend(self.disk.iter().map(|disk| ("Disk", disk.clone())));
        facts.push(("Spilled to", self.tiers.iter().map(tier).collect::<Vec<_>>().join("; ")));
        facts
    }
}

/// If an error is that a budget is too small: the least that would do, the moment that needs it, and its parts.
fn too_small(error: &anyhow::Error) -> Option<(u64, &str, &Needed)> {
    let offload = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(nn::Error::Train(TrainError::Budget(error))) => Some(&**error),
        _ => cause.downcast_ref(),
    });
    match offload? {
        OffloadError::Profile(ProfileError::TooSmall { least_bytes, when, needed, .. }) => {
            Some((*least_bytes, when, needed))
        }
        _ => None,
    }
}

/// Nobody is left to tell of a failure here.
fn say(words: &str) {
    let _ = writeln!(io::stderr(), "tenure: {words}");
}

fn by_name<S: Serializer>(codec: &Choice, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(codec)
}
