//! Training within a budget of memory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;

use serde::{Serialize, Serializer};
use tenure::nn::train::{Pass, Step, Trainer};
use tenure::offload::Memory::Host as OnCpu;
use tenure::offload::{Engine, Link, Memory, Setup};
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
    /// What the disk did before the first step.
    disk: DiskStatistics,
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
    #[serde(serialize_with = "by_name")]
    codec: Choice,
    is_lossy: bool,
    /// Bytes that went to disk, for each that was written there.
    compression: f64,
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
            folders: if args.spill.is_empty() { vec![std::env::temp_dir()] } else { args.spill.clone() },
            disk_bytes: args.spill_bytes.map(NonZeroU64::get),
            least_bytes: if args.device.is_cpu() { LEAST_BYTES_ON_CPU } else { Setup::default().least_bytes },
            planner: args.planner.planner()?,
            seed: args.seed,
            ..Setup::default()
        };
        let engine = setup.engine(memory)?;
        engine.set_codec(args.codec);
        let disk = DiskStatistics::default();
        Ok(Some(Self { engine, resident_bytes, disk }))
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
        match budget {
            FastBytes::Bytes(bytes) => self.engine.set_budget(bytes),
            FastBytes::Percent(percent) => {
                let plain = run.rehearse(Pass::Plain)?.peak_bytes.unwrap_or(0);
                let bytes = (plain as f64 * percent / 100.0) as u64;
                self.engine.set_budget(bytes);
                // Nobody is left to tell of a failure here.
                let _ = writeln!(
                    io::stderr(),
                    "tenure: a plain step takes {}; {percent}% of it are {}",
                    Bytes(plain),
                    Bytes(bytes)
                );
            }
        }
        let mut rehearsed = run.rehearse(Pass::Budgeted)?;
        if let OnCpu(_) = self.engine.memory() {
            // Once more, with nothing of what others have left.
            self.engine.enforce()?;
            resident::forget_most();
            rehearsed = run.rehearse(Pass::Budgeted)?;
        }
        if let (OnCpu(_), Some(most)) = (self.engine.memory(), resident::most()) {
            // What the process grew by beside tensors is a part of the budget as well.
            let beside = most.saturating_sub(self.resident_bytes + rehearsed.reserved_bytes.unwrap_or(0));
            self.engine.set_aside(beside.max(self.engine.aside_bytes()));
        }
        self.engine.prepare()?;
        self.engine.enforce()?;
        self.disk = self.disk_now();
        resident::forget_most();
        Ok(run)
    }

    fn disk_now(&self) -> DiskStatistics {
        self.engine.mover().disk().map(Disk::statistics).unwrap_or_default()
    }

    /// What it took.
    pub(super) fn offloaded(&self, history: &[Step]) -> Offloaded {
        let reports: Vec<_> = history.iter().filter_map(|step| step.offload).collect();
        let of =
            |figure: fn(&tenure::nn::train::StepReport) -> f64| median(reports.iter().map(figure).collect()) as u64;
        let (before, after, codec) = (self.disk, self.disk_now(), self.engine.codec());
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
            codec,
            is_lossy: codec.is_lossy(),
            compression: if written_bytes == 0 { 1.0 } else { raw_bytes as f64 / written_bytes as f64 },
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
        let recomputed = Micros(self.recomputed_us as f64);
        facts.extend((self.recomputed_us > 0).then(|| ("Recomputed", format!("what takes {recomputed} a step"))));
        if self.codec != Choice::default() {
            let lossy = if self.is_lossy { ", which is lossy: losses are others than without" } else { "" };
            facts.push(("Codec", format!("{}{lossy}; {:.2} times smaller on disk", self.codec, self.compression)));
        }
        if self.unplanned > 0 {
            facts.push(("Unplanned", format!("{} moves, since there was no room otherwise", self.unplanned)));
        }
        facts.push(("Spilled to", self.tiers.iter().map(tier).collect::<Vec<_>>().join("; ")));
        facts
    }
}

fn by_name<S: Serializer>(codec: &Choice, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(codec)
}
