//! Training within a memory budget.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use tenure::nn::train::{Budget, BudgetProgress, ProcessMeter, Step, Trainer};
use tenure::offload::{Engine, Memory, Setup, SpillLink};
use tenure::tensor::Device;
use tenure::tier::codec::Choice;
use tenure::tier::{Disk, DiskStatistics};
use tenure::units::{Amount, Bytes, Micros};

use super::data::Examples;
use super::models::AnyTask;
use crate::figures::median;
use crate::values::{PlannerName, parse_size_above_zero};
use crate::{planners, resident};

/// The period for the daily write limit of disks.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The options of a run within a budget.
#[derive(clap::Args)]
pub(super) struct BudgetArgs {
    /// Keep steps within this much device memory, such as 12GiB, or within a share of a step's memory without a budget
    /// (P%), which is measured first. On the CPU the rest of this process counts as far as a rehearsal of the step took
    /// it. Memory beyond that does not count, and is reported. Tensors saved for backward are spilled; the
    /// losses are the same
    #[arg(id = "budget", long = "budget", conflicts_with_all = ["mapping", "problem"], value_parser = Amount::of_budget, value_name = "SIZE|P%")]
    pub(super) amount: Option<Amount>,
    /// A folder to spill to, on a disk; several share the load [default: the folder for temporary files, or /var/tmp if
    /// that is in memory]
    #[arg(long, requires = "budget", value_name = "DIR")]
    spill: Vec<PathBuf>,
    /// The bytes to use on those disks together, allocated at the start [default: half of the free bytes, at most 64
    /// GiB]
    #[arg(long, requires = "budget", value_parser = parse_size_above_zero, allow_negative_numbers = true, value_name = "SIZE")]
    spill_bytes: Option<NonZeroU64>,
    /// The most bytes that this run may write to them in 24 hours, as disks wear out. Counts bytes before encoding, and
    /// the writes that measure the disks first; a write beyond the limit ends the run [default: no limit]
    #[arg(long, requires = "budget", value_parser = parse_size_above_zero, allow_negative_numbers = true, value_name = "SIZE")]
    spill_daily_bytes: Option<NonZeroU64>,
    /// The planner that decides which tensors are spilled, and when
    #[arg(long, requires = "budget", value_parser = PlannerName::of_a_budget(), default_value = "scheduled", value_name = "NAME")]
    planner: PlannerName,
    /// The codec of tensors on their way to a disk: none; zeros or planes, which are lossless; auto, which picks one of
    /// these if measurements say that it saves time; or fp16 or csr-fp16, which round f32 to f16 and so change the
    /// losses
    #[arg(long, requires = "budget", default_value_t = Choice::Auto, value_name = "NAME")]
    codec: Choice,
}

impl BudgetArgs {
    fn folders(&self) -> Vec<PathBuf> {
        if self.spill.is_empty() { vec![Setup::default_folder()] } else { self.spill.clone() }
    }
}

/// The budget of a run.
pub(super) struct RunBudget {
    amount: Amount,
    /// The bytes of this process before the model was made.
    resident_bytes: u64,
    /// The time when the first step began, and the disk's counters at that time.
    began: (Instant, DiskStatistics),
}

/// Counts the memory that this process has gained since before the model was made.
struct Growth {
    before_bytes: u64,
}

impl ProcessMeter for Growth {
    fn reset_peak(&self) {
        resident::forget_most();
    }

    fn peak_bytes(&self) -> u64 {
        resident::most().unwrap_or(0).saturating_sub(self.before_bytes)
    }
}

/// The cost of keeping to a budget. Times of steps are medians over the steps; disk figures cover all steps.
#[derive(Serialize)]
pub(super) struct Offloaded {
    budget_bytes: u64,
    /// The growth of the process since before the model was made. `None` if the system does not report it.
    resident_bytes: Option<u64>,
    /// The bytes of that growth beyond the budget, which do not count in it. `None` on a device, too.
    uncounted_bytes: Option<u64>,
    spilled_bytes: u64,
    recomputed_us: u64,
    stall_us: u64,
    /// Moves in all steps that no plan asked for.
    unplanned: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// The bytes per day at the run's pace.
    written_bytes_per_day: u64,
    #[serde(serialize_with = "by_name")]
    codec: Choice,
    is_lossy: bool,
    /// The bytes that went to disk, divided by the bytes written there.
    compression: f64,
    /// The kind of disk, in words.
    disk: Option<String>,
    tiers: BTreeMap<String, TierUse>,
}

/// The figures of a tier that tensors are spilled to.
#[derive(Serialize)]
struct TierUse {
    /// The measured bytes per second on the way out.
    out_bandwidth: u64,
    /// The measured bytes per second on the way back.
    back_bandwidth: u64,
    /// The bytes per second of both ways together, if they slow each other down.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_bandwidth: Option<u64>,
}

impl RunBudget {
    /// Opens the budget that the options ask for, before the model is made.
    pub(super) fn open(args: &BudgetArgs, device: Device) -> anyhow::Result<Option<Self>> {
        let Some(amount) = args.amount else { return Ok(None) };
        let resident_bytes = resident::now().unwrap_or(0);
        anyhow::ensure!(Memory::of(device).is_some(), "--budget: Tenure does not manage the memory of {device}");
        for folder in args.folders() {
            check_folder(&folder, args.spill.is_empty())?;
        }
        for folder in args.folders().iter().filter(|folder| device.is_cpu() && Disk::is_in_memory(folder)) {
            let folder = folder.display();
            say(&format!("{folder} is in memory itself: what is spilled there takes some; --spill a folder on a disk"));
        }
        Ok(Some(Self { amount, resident_bytes, began: (Instant::now(), DiskStatistics::default()) }))
    }

    /// Makes a run keep to the budget.
    pub(super) fn enter<D: Examples>(
        &mut self,
        args: &BudgetArgs,
        seed: u64,
        run: Trainer<AnyTask, D>,
    ) -> anyhow::Result<Trainer<AnyTask, D>> {
        let budget =
            Budget::new(self.amount).planner(planners::of_a_budget(args.planner)?).seed(seed).codec(args.codec);
        let budget = budget.process(Growth { before_bytes: self.resident_bytes }).on_progress(tell);
        let budget = args.folders().into_iter().fold(budget, Budget::spill);
        let budget = args.spill_bytes.into_iter().fold(budget, |budget, bytes| budget.spill_bytes(bytes.get()));
        let daily = args.spill_daily_bytes.into_iter();
        let run = run.within(daily.fold(budget, |budget, bytes| budget.spill_daily_bytes(bytes.get())))?;
        self.began = (Instant::now(), run.engine().map(disk_now).unwrap_or_default());
        resident::forget_most();
        Ok(run)
    }

    /// Returns the cost of keeping to the budget.
    pub(super) fn offloaded(&self, engine: &Engine, history: &[Step]) -> Offloaded {
        let reports: Vec<_> = history.iter().filter_map(|step| step.offload).collect();
        let of = |figure: fn(&tenure::nn::train::StepReport) -> f64| median(reports.iter().map(figure)) as u64;
        let ((began, before), after, codec) = (self.began, disk_now(engine), engine.codec());
        let [written_bytes, raw_bytes] =
            [after.written_bytes - before.written_bytes, after.raw_bytes - before.raw_bytes];
        let tiers = SpillLink::of(engine.mover()).into_iter().map(|(link, _)| {
            let SpillLink { name, out_bandwidth, back_bandwidth, shared_bandwidth, .. } = link;
            (name, TierUse { out_bandwidth, back_bandwidth, shared_bandwidth })
        });
        let budget_bytes = engine.budget_bytes().unwrap_or(0);
        let resident_bytes = resident::most().map(|most| most.saturating_sub(self.resident_bytes));
        let is_on_host = engine.memory().device().is_none();
        Offloaded {
            budget_bytes,
            resident_bytes,
            uncounted_bytes: resident_bytes.filter(|_| is_on_host).map(|bytes| bytes.saturating_sub(budget_bytes)),
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
            disk: engine.mover().disk().map(Disk::description),
            tiers: tiers.collect(),
        }
    }
}

impl Offloaded {
    /// Describes the cost in words.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("Budget", Bytes(self.budget_bytes).to_string())];
        facts
            .extend(self.resident_bytes.map(|bytes| ("Resident memory", format!("{} more than before", Bytes(bytes)))));
        let uncounted = self.uncounted_bytes.filter(|bytes| *bytes > 0);
        facts.extend(uncounted.map(|bytes| {
            let words = format!("{} beyond the budget: the process took more than in the rehearsal", Bytes(bytes));
            ("Uncounted", words)
        }));
        let stalled = Micros(self.stall_us as f64);
        facts.push(("Spilled", format!("{} a step, for which it waits {stalled}", Bytes(self.spilled_bytes))));
        let written = Bytes(self.written_bytes);
        let daily = Bytes(self.written_bytes_per_day);
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
        facts.push((
            "Spilled to",
            self.tiers
                .iter()
                .map(|(name, TierUse { out_bandwidth, back_bandwidth, shared_bandwidth })| {
                    let together =
                        shared_bandwidth.map_or(String::new(), |shared| format!(", {}/s together", Bytes(shared)));
                    format!("{name} {}/s out, {}/s back{together}", Bytes(*out_bandwidth), Bytes(*back_bandwidth))
                })
                .collect::<Vec<_>>()
                .join("; "),
        ));
        facts
    }
}

/// Refuses a folder in which no file can be made.
fn check_folder(folder: &Path, is_default: bool) -> anyhow::Result<()> {
    let Err(error) = tempfile::tempfile_in(folder) else { return Ok(()) };
    let reason = if folder.is_dir() {
        format!("no file can be made there ({error})")
    } else {
        "the folder does not exist".into()
    };
    let folder = folder.display();
    if is_default {
        anyhow::bail!(
            "{folder}, the folder for temporary files: {reason}: set TMPDIR to another, or add --spill DIR, a folder on a disk"
        );
    }
    anyhow::bail!("--spill {folder}: {reason}: name a folder on a disk in which this user may write");
}

fn disk_now(engine: &Engine) -> DiskStatistics {
    engine.mover().disk().map(Disk::statistics).unwrap_or_default()
}

fn tell(progress: BudgetProgress) {
    match progress {
        BudgetProgress::Plain { plain_bytes, percent, budget_bytes } => {
            let [plain, budget] = [plain_bytes, budget_bytes].map(Bytes);
            say(&format!("a plain step takes {plain}; {percent}% of it are {budget}"));
        }
        BudgetProgress::TooSmall { .. } => say("this budget is too small: looking for a larger one that works"),
        _ => {}
    }
}

/// Prints a line to stderr; a failure to print cannot be reported.
fn say(words: &str) {
    let _ = writeln!(io::stderr(), "tenure: {words}");
}

fn by_name<S: Serializer>(codec: &Choice, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(codec)
}
