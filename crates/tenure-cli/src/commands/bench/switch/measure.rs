//! Measures the times of one model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tenure::nn::switched::{Grouping, StoredTensors, SwitchedModel, Switcher, SwitcherOptions};
use tenure::tensor::cuda::CapturedCall;
use tenure::tensor::{Device, Tensor};
use tenure_device::graph::GraphPool;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventKind};

use super::super::plain::{Plain, bytes};
use super::super::workload::Workload;
use crate::figures::median;
use crate::{platform, signals};

/// The stages of a measurement: files, ready, searched, no pool, three other groupings, two without a switcher.
pub(super) const STAGES: u64 = 9;

/// The number of calls until a model has been learned and captured.
const LEARNING: usize = 4;

/// The chunk size of a device that is full of models. The switcher's default depends on the budget, which is smaller
/// here with few models.
const CHUNK_BYTES: u64 = 64 << 20;

/// The figures of a model. Times are medians.
#[derive(Debug, Serialize)]
pub(super) struct SwitchTimes {
    pub(super) model: String,
    pub(super) device: String,
    pub(super) bytes: u64,
    ready_ms: f64,
    cold_ms: f64,
    resident_ms: f64,
    pub(super) copy_ms: f64,
    pub(super) compute_ms: f64,
    pub(super) groups: usize,
    peak_bytes: u64,
    pub(super) equal: bool,
    /// A lower bound on a cold start: the longer of copying and computing, plus the shorter of the two parts that
    /// nothing can hide, the first group's copy or the last group's computing.
    floor_ms: f64,
    first_group_bytes: u64,
    /// The first group's copy, and the computing with the last group.
    first_copy_ms: f64,
    last_compute_ms: Option<f64>,
    /// The time of computing while another model is copied.
    compute_beside_copies_ms: Option<f64>,
    /// The time of copying all weights at once.
    whole_copy_ms: f64,
    ready_plainly_ms: f64,
    whole_ms: f64,
    per_layer_ms: f64,
    per_block_ms: f64,
    no_pool_ms: Option<f64>,
    no_pinning_ms: Option<f64>,
    one_process_ms: Option<f64>,
}

impl SwitchTimes {
    /// Returns the times from a request to its answer.
    pub(super) fn times(&self) -> Vec<(&'static str, f64)> {
        let always = [
            ("ready", self.ready_ms),
            ("resident", self.resident_ms),
            ("cold", self.cold_ms),
            ("whole", self.whole_ms),
            ("per layer", self.per_layer_ms),
            ("per block", self.per_block_ms),
        ];
        let maybe =
            [("no pool", self.no_pool_ms), ("no pinning", self.no_pinning_ms), ("one process", self.one_process_ms)];
        always.into_iter().chain(maybe.into_iter().filter_map(|(name, ms)| Some((name, ms?)))).collect()
    }
}

/// A model, and the state that its measurements share.
struct SwitchBench<'a> {
    workload: Workload,
    device: Device,
    memory: Option<&'static DeviceMemory>,
    repeats: u32,
    inputs: Vec<Tensor>,
    paths: Vec<PathBuf>,
    /// The expected answers of each model.
    expected: Vec<Vec<Vec<u8>>>,
    equal: bool,
    bar: &'a ProgressBar,
}

/// Measures a model; returns `None` if interrupted.
pub(super) fn measure(
    workload: Workload,
    device: Device,
    repeats: u32,
    folder: &Path,
    bar: &ProgressBar,
) -> anyhow::Result<Option<SwitchTimes>> {
    bar.set_message(format!("{}: weights", workload.name()));
    let paths: Vec<PathBuf> =
        (0..workload.models()).map(|seed| folder.join(format!("{}-{seed}.safetensors", workload.name()))).collect();
    for (path, seed) in paths.iter().zip(0..) {
        workload.write_weights(path, seed)?;
    }
    bar.inc(1);
    let option = format!("--device {device}");
    let memory = (!device.is_cpu()).then(|| platform::memory(&option, device)).transpose()?;
    let inputs = workload.inputs(device)?;
    let mut bench =
        SwitchBench { workload, device, memory, repeats, inputs, paths, expected: Vec::new(), equal: true, bar };
    let row = bench.row();
    for path in &bench.paths {
        // Remove the file in any case; the folder is removed too.
        let _ = std::fs::remove_file(path);
    }
    if signals::was_received() { Ok(None) } else { row.map(Some) }
}

impl SwitchBench<'_> {
    fn row(&mut self) -> anyhow::Result<SwitchTimes> {
        let Ready { ready_ms, compute_ms, plainly_ms, no_pinning_ms, one_process_ms } = self.ready()?;
        let searched = self.switched(Grouping::Searched)?;
        let [whole, per_layer, per_block] =
            [Grouping::Whole, Grouping::PerLayer, Grouping::PerBlock].map(|grouping| self.switched(grouping));
        let whole = whole?;
        let per_layer = per_layer?;
        let per_block = per_block?;
        let first_copy_ms = whole.copy_ms * searched.first_group_bytes as f64 / searched.bytes as f64;
        Ok(SwitchTimes {
            model: self.workload.name(),
            device: self.device.to_string(),
            bytes: searched.bytes,
            ready_ms,
            cold_ms: searched.cold_ms,
            resident_ms: searched.resident_ms,
            copy_ms: searched.copy_ms,
            compute_ms,
            groups: searched.groups,
            peak_bytes: searched.peak_bytes,
            equal: self.equal,
            floor_ms: whole.copy_ms.max(compute_ms)
                + searched.last_compute_ms.unwrap_or(f64::INFINITY).min(first_copy_ms),
            first_group_bytes: searched.first_group_bytes,
            first_copy_ms,
            last_compute_ms: searched.last_compute_ms,
            compute_beside_copies_ms: searched.compute_beside_copies_ms,
            whole_copy_ms: whole.copy_ms,
            ready_plainly_ms: plainly_ms,
            whole_ms: whole.cold_ms,
            per_layer_ms: per_layer.cold_ms,
            per_block_ms: per_block.cold_ms,
            no_pool_ms: searched.no_pool_ms,
            no_pinning_ms,
            one_process_ms,
        })
    }

    /// Waits until the device has finished all work.
    fn finish(&self) -> anyhow::Result<()> {
        Ok(self.memory.map_or(Ok(()), |memory| memory.driver().synchronize())?)
    }

    /// Returns the median time of a call until its answer is complete, in ms. `before` is not timed.
    fn timed(
        &self,
        mut before: impl FnMut(usize) -> anyhow::Result<()>,
        mut call: impl FnMut(usize) -> anyhow::Result<Vec<Tensor>>,
    ) -> anyhow::Result<f64> {
        let mut times = Vec::new();
        for turn in 0..self.repeats as usize {
            anyhow::ensure!(!signals::was_received(), "interrupted");
            before(turn)?;
            self.finish()?;
            let begun = Instant::now();
            let answers = call(turn)?;
            self.finish()?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            drop(answers);
        }
        Ok(median(times))
    }

    /// Measures a model that has the device's memory for itself.
    fn ready(&mut self) -> anyhow::Result<Ready> {
        self.bar.set_message(format!("{}: ready", self.workload.name()));
        for path in self.paths.clone().iter().rev() {
            let plain = Plain::open(self.workload, path, self.device)?;
            let answers = plain.forward(&self.inputs)?;
            self.expected.insert(0, bytes(&answers)?);
        }
        let mut plain = Plain::open(self.workload, &self.paths[0], self.device)?;
        plain.forward(&self.inputs)?;
        let plainly_ms = self.timed(|_| Ok(()), |_| plain.forward(&self.inputs))?;
        let Some(memory) = self.memory else {
            self.bar.inc(3);
            let ready_ms = plainly_ms;
            let compute_ms = plainly_ms;
            return Ok(Ready { ready_ms, compute_ms, plainly_ms, no_pinning_ms: None, one_process_ms: None });
        };
        let mut captured =
            CapturedCall::new(&GraphPool::new(memory)?, &self.inputs, |inputs| plain.network.forward(inputs))?;
        captured.call(&self.inputs)?;
        let ready_ms = self.timed(|_| Ok(()), |_| Ok(captured.call(&self.inputs)?))?;
        let mut computed = Vec::new();
        for _ in 0..self.repeats {
            let [mut begun, mut ended] = [(); 2].map(|()| Event::new(memory.driver().clone(), EventKind::Timing));
            let stream = memory.streams().current();
            begun.record(&stream)?;
            captured.call(&self.inputs)?;
            ended.record(&stream)?;
            ended.synchronize()?;
            computed.push(begun.elapsed_us(&ended)? / 1e3);
        }
        drop(captured);
        self.bar.inc(1);
        self.bar.set_message(format!("{}: without a switcher", self.workload.name()));
        plain.leave()?;
        let again = std::cell::RefCell::new(plain);
        let come = |_| {
            let mut plain = again.borrow_mut();
            plain.come(self.device)?;
            plain.forward(&self.inputs)
        };
        let no_pinning_ms = self.timed(|_| again.borrow_mut().leave(), come)?;
        self.bar.inc(1);
        let leave = |_| {
            again.borrow_mut().leave()?;
            self.finish()?;
            Ok(memory.allocator().release_cached()?)
        };
        let one_process_ms = self.timed(leave, come)?;
        drop(again);
        self.finish()?;
        memory.allocator().release_cached()?;
        self.bar.inc(1);
        Ok(Ready {
            ready_ms,
            compute_ms: median(computed),
            plainly_ms,
            no_pinning_ms: Some(no_pinning_ms),
            one_process_ms: Some(one_process_ms),
        })
    }

    /// Measures models of which all but one fit on the device.
    fn switched(&mut self, grouping: Grouping) -> anyhow::Result<Switched> {
        self.bar.set_message(format!("{}: {grouping:?}", self.workload.name()));
        let count = self.paths.len();
        let options = self.options(grouping)?;
        let switcher = Switcher::new(self.device, options)?;
        let mut models: Vec<SwitchedModel> = Vec::new();
        for path in &self.paths {
            models.push(switcher.add(&path.to_string_lossy(), self.workload.network()?, &[path])?);
        }
        for (model, expected) in models.iter().zip(&self.expected) {
            for _ in 0..LEARNING {
                self.equal &= bytes(&model.forward(&self.inputs)?)? == *expected;
                if self.memory.is_none() {
                    // The next image has the learned order.
                    model.evict()?;
                }
            }
        }
        let mut copies = Vec::new();
        let mut times = Vec::new();
        let mut is_equal = true;
        for turn in 0..self.repeats as usize {
            anyhow::ensure!(!signals::was_received(), "interrupted");
            let model = &models[turn % count];
            // The device is full of the other models.
            model.evict()?;
            models.iter().filter(|other| other.name() != model.name()).try_for_each(SwitchedModel::load)?;
            anyhow::ensure!(model.resident_bytes()? == 0, "{} is there already", model.name());
            self.finish()?;
            let begun = Instant::now();
            let answers = model.forward(&self.inputs)?;
            self.finish()?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            copies.extend(model.copy_time()?.map(|time| time.as_secs_f64() * 1e3));
            is_equal &= bytes(&answers)? == self.expected[turn % count];
        }
        let cold_ms = median(times);
        self.equal &= is_equal;
        let group_bytes = models[0].group_bytes()?;
        let table_bytes = models[0].table_bytes()?;
        // Weights that no operation uses are the last group.
        let times_ms = models[0].compute_times()?.unwrap_or_default().into_iter().map(|time| time.as_secs_f64() * 1e3);
        let last_compute_ms = times_ms.rev().find(|ms| *ms > 0.0);
        let mut resident_ms = cold_ms;
        let mut no_pool_ms = None;
        let mut beside_ms = None;
        if grouping == Grouping::Searched {
            // Load as many as fit, in turn.
            models.iter().take(count - 1).try_for_each(SwitchedModel::load)?;
            resident_ms = self.timed(|_| Ok(()), |turn| Ok(models[turn % (count - 1)].forward(&self.inputs)?))?;
            if let Some(memory) = self.memory {
                // With two models, one evicts the other.
                beside_ms = (count > 2).then(|| self.beside_copies(memory, &models)).transpose()?;
                let empty = |turn: usize| {
                    models.iter().try_for_each(SwitchedModel::evict)?;
                    switcher.trim()?;
                    let others = (1..count - 1).map(|other| &models[(turn + other) % count]);
                    Ok(others.into_iter().try_for_each(SwitchedModel::load)?)
                };
                no_pool_ms = Some(self.timed(empty, |turn| Ok(models[turn % count].forward(&self.inputs)?))?);
            }
            self.bar.inc(1);
        }
        let peak_bytes = switcher.report().peak_bytes;
        models.iter().try_for_each(SwitchedModel::remove)?;
        switcher.trim()?;
        self.bar.inc(1);
        Ok(Switched {
            cold_ms,
            resident_ms,
            no_pool_ms,
            copy_ms: median(copies),
            groups: group_bytes.len(),
            first_group_bytes: group_bytes.first().copied().unwrap_or(0),
            last_compute_ms,
            compute_beside_copies_ms: beside_ms,
            bytes: group_bytes.iter().sum::<u64>() + table_bytes,
            peak_bytes,
        })
    }

    /// Returns the median time in ms in which a resident model computes while the last one is copied.
    fn beside_copies(&self, memory: &DeviceMemory, models: &[SwitchedModel]) -> anyhow::Result<f64> {
        let [there, .., copied] = models else { anyhow::bail!("it needs another model") };
        let mut computed = Vec::new();
        for _ in 0..self.repeats {
            copied.evict()?;
            there.forward(&self.inputs)?;
            self.finish()?;
            copied.load()?;
            let [mut begun, mut ended] = [(); 2].map(|()| Event::new(memory.driver().clone(), EventKind::Timing));
            let stream = memory.streams().current();
            begun.record(&stream)?;
            there.forward(&self.inputs)?;
            ended.record(&stream)?;
            self.finish()?;
            computed.push(begun.elapsed_us(&ended)? / 1e3);
        }
        Ok(median(computed))
    }

    /// Returns options with room for one model less than there are.
    fn options(&self, grouping: Grouping) -> anyhow::Result<SwitcherOptions> {
        let image_bytes = StoredTensors::find(&self.paths[..1], &self.workload.network()?.state())?.bytes();
        let count = self.paths.len() as u64;
        let of_room = |room: u64| {
            let options = SwitcherOptions::new((count - 1) * room, (count + 1) * image_bytes);
            SwitcherOptions { chunk_bytes: CHUNK_BYTES, grouping, orders: None, ..options }
        };
        if self.device.is_cpu() {
            return Ok(of_room(image_bytes));
        }
        // The bytes that stay on the host are known only after a model has been learned.
        let switcher = Switcher::new(self.device, of_room(image_bytes.next_multiple_of(CHUNK_BYTES)))?;
        let model = switcher.add("model", self.workload.network()?, &self.paths[..1])?;
        for _ in 0..LEARNING {
            model.forward(&self.inputs)?;
        }
        let copied: u64 = model.group_bytes()?.iter().sum();
        model.remove()?;
        // Until it has been learned, a model needs room for all of it.
        Ok(of_room(copied.max(image_bytes.div_ceil(count - 1)).next_multiple_of(CHUNK_BYTES)))
    }
}

struct Ready {
    ready_ms: f64,
    compute_ms: f64,
    plainly_ms: f64,
    no_pinning_ms: Option<f64>,
    one_process_ms: Option<f64>,
}

struct Switched {
    cold_ms: f64,
    resident_ms: f64,
    no_pool_ms: Option<f64>,
    copy_ms: f64,
    groups: usize,
    first_group_bytes: u64,
    last_compute_ms: Option<f64>,
    compute_beside_copies_ms: Option<f64>,
    bytes: u64,
    peak_bytes: u64,
}
