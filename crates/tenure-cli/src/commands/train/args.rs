//! The command line of a training run.

use std::num::{NonZeroU8, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use tenure::tensor::Device;

use super::budget::BudgetArgs;
use super::data;
use super::models::ModelKind;
use crate::platform::DeviceArgs;
use crate::values::{DataSpec, DriverKind, TierSpec, parse_above_zero, parse_positive, parse_seed};
use crate::{output, platform};

/// Train a model
#[derive(clap::Args)]
#[command(after_help = "\
Models for images: resnet18, resnet34, resnet50, resnet101, resnet152, densenet121, densenet201, inception_v3 (not \
for fashion-mnist: it takes 299 pixels), and r3d18, which takes each image as a video of one frame: there is no \
reader of videos. They are made for as many classes and channels as the data has. A last batch of fewer than two \
images for each device is left out, because the models normalise over the batch.

Models for text, whose tokens are bytes: gpt2-mini and llama-mini, which train in a minute or two; gpt2, and llama, \
of TinyLlama's size.

Data: fashion-mnist is Debian's package dataset-fashion-mnist; accuracy is measured on its test set. images:DIR has \
a folder for each class, in DIR/train (or training) and DIR/val (or valid, validation, dev, eval, evaluation, test \
or testing, the first of them that exists), or in DIR itself, of which every tenth image is held out. The names of \
these folders may end with a number, and may contain set, images or data: train2017, val_images. Images are JPEG, \
PNG, WebP, GIF, BMP, TIFF and PNM files, in the folder of their class or in folders inside of it; hidden files and \
folders, pipes, devices, empty files, and links to nothing or to themselves are left out. The first line of output \
says what was found, and what was left out. text:FILE is a text in UTF-8, or a pipe from which one comes, also \
compressed up to three times with gzip, xz, lzma, bzip2 or zstd, but no archive; its last tenth is held out, and \
accuracy is the share of its bytes that the model predicts correctly from the bytes before. Training reads windows \
that begin at other bytes in each epoch.

Ctrl-C, SIGTERM or SIGHUP ends the run after the current step, writes a checkpoint, and prints how to continue; a \
second signal, or one before the first step, ends it at once. The exit status is 128 plus the number of the signal. \
An error in the middle of a run, such as an image that cannot be read, leaves a checkpoint too. After errors other \
than of reading, batch normalisation may have seen the batch, and dropout have drawn, once more. If the loss is no \
longer a finite number, the run ends, and --checkpoint's file stays that of the last whole epoch: --resume with a \
smaller --lr continues from there. The results until then are printed and reported in any case. The same seed gives \
the same losses, bit for bit, for any number of threads, whether interrupted or not.

On several devices the losses are those of one, except for rounding and dropout: the loss is the mean over the \
examples, however they are divided. Batch normalisation sees each device's own examples, and dropout draws other \
numbers on each. A run continues from its checkpoint on any number of devices with as many steps in an epoch.

The last line of --json is {\"model\",\"device\",\"devices\",\"steps\",\"losses\":[...], \"step_ms_median\", \
\"peak_bytes\",\"accuracy\"}. peak_bytes is the most that tensors held during a step, on the device where that was \
most; accuracy is from 0 to 1, and null if no example was held out or the run was interrupted.

With --budget, there are also \"budget_bytes\"; \"resident_bytes\", the growth of the process; \"uncounted_bytes\", \
the part of it beyond the budget; medians over the steps: \"spilled_bytes\", \"recomputed_us\", \"stall_us\"; over \
all steps: \"unplanned\", moves that no plan asked for, and \"read_bytes\", \"written_bytes\" of disks; \
\"written_bytes_per_day\" at this pace; \"codec\", \"is_lossy\"; \"compression\", bytes that went to disk divided by \
bytes written there; \"disk\", its kind and its connection; and \"tiers\": \
{\"disk\":{\"out_bandwidth\",\"back_bandwidth\"},...}, measured bytes per second. With --mapping, placement lists \
the contents of each tier after the third step's forward pass, and says that they were verified. With --profile, \
profile has a row for each operation: calls, times in µs, and bytes allocated less those freed.

On the CPU, --problem writes the allocations of the third step as a problem (of a run of at least three steps), for \
which `tenure plan --objective score` makes a mapping; with --mapping tensors live where it says, and the losses are \
the same, bit for bit.

Examples:
  tenure train --model llama-mini --data text:README.md
  tenure train --model resnet18 --data fashion-mnist --report run.html
  tenure train --model resnet50 --data images:photos --epochs 10 \\
    --checkpoint run.safetensors
  tenure train --model resnet50 --data images:photos --epochs 10 \\
    --resume run.safetensors
  tenure train --model resnet50 --data images:photos --device cuda \\
    --devices 2 --batch-size 256
  tenure train --model resnet18 --data fashion-mnist --batch-size 256 \\
    --budget 80% --spill /mnt/ssd
  tenure train --model llama-mini --data text:README.md --steps 3 \\
    --problem llama.json
  tenure plan llama.json --fast-bytes 50% --objective score -o mapping.json
  tenure train --model llama-mini --data text:README.md --mapping mapping.json \\
    --tier device=dram --tier host=/mnt/pmem@8GiB")]
pub(crate) struct TrainArgs {
    /// The model: one of those below
    #[arg(long, value_enum, hide_possible_values = true, value_name = "NAME")]
    pub(super) model: ModelKind,
    /// The data: fashion-mnist, fashion-mnist:DIR, images:DIR or text:FILE
    #[arg(long, value_name = "DATA")]
    pub(super) data: DataSpec,
    #[command(flatten)]
    pub(super) compute: DeviceArgs,
    /// The number of devices to compute on, from that of --device on: each holds the model, and computes a part of each
    /// batch
    #[arg(long, value_parser = parse_above_zero::<NonZeroU8>, allow_negative_numbers = true, value_name = "N")]
    pub(super) devices: Option<NonZeroU8>,
    /// With --device cuda, run each step in one launch: the first steps of each batch size run one kernel after the
    /// other, and are then captured. The losses are the same
    #[arg(long)]
    pub(super) captured: bool,
    /// The number of examples in a step [default: by model and data]
    #[arg(long, value_parser = parse_above_zero::<NonZeroUsize>, allow_negative_numbers = true, value_name = "N")]
    pub(super) batch_size: Option<NonZeroUsize>,
    /// The number of passes over the data [default: by model and data]
    #[arg(long, conflicts_with = "steps", value_parser = parse_above_zero::<NonZeroU64>, allow_negative_numbers = true, value_name = "N")]
    pub(super) epochs: Option<NonZeroU64>,
    /// The number of steps [default: by model and data]
    #[arg(long, value_parser = parse_above_zero::<NonZeroU64>, allow_negative_numbers = true, value_name = "N")]
    pub(super) steps: Option<NonZeroU64>,
    /// The seed of the parameters, the order of the examples, and dropout
    #[arg(long, default_value_t = 0, value_parser = parse_seed, allow_negative_numbers = true, value_name = "N")]
    pub(super) seed: u64,
    /// The number of threads [default: one for each processor]
    #[arg(long, value_parser = parse_above_zero::<NonZeroUsize>, allow_negative_numbers = true, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
    /// The largest learning rate; the schedule rises to it and falls again [default: the checkpoint's with --resume,
    /// else by model and data]
    #[arg(long, value_parser = parse_positive, allow_negative_numbers = true, value_name = "X")]
    pub(super) lr: Option<f64>,
    /// Continue from a checkpoint of a run with the same model, data, batch size and seed. The data is compared by its
    /// contents, wherever it is: of images, the names and sizes of all, and the contents of up to 1024
    #[arg(long, value_name = "FILE")]
    pub(super) resume: Option<PathBuf>,
    /// With --resume, continue although the data is not as before, such as after an image was removed
    #[arg(long, requires = "resume")]
    pub(super) changed_data: bool,
    /// Write a checkpoint after each epoch and at the end [default: only when interrupted, to the FILE of --resume or
    /// one in the current directory]
    #[arg(long, value_name = "FILE")]
    pub(super) checkpoint: Option<PathBuf>,
    /// Write a page with loss, memory and step time; with --budget, also the bytes in each tier during a step, the
    /// traffic on links, and the tensors that were kept, recomputed and spilled
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    /// Profile five steps after the first: write a Chrome trace, which https://ui.perfetto.dev opens, and print a table
    /// of the operations. These steps take longer
    #[arg(long, value_name = "FILE.json")]
    pub(super) profile: Option<PathBuf>,
    #[command(flatten)]
    pub(super) budget: BudgetArgs,
    /// On the CPU, write the allocations of a step as a problem, for `tenure plan`
    #[arg(long, value_name = "FILE.json")]
    pub(super) problem: Option<PathBuf>,
    /// On the CPU, place tensors by a mapping, which `tenure plan -o` wrote
    #[arg(long, requires = "tiers", conflicts_with = "problem", value_name = "FILE.json")]
    pub(super) mapping: Option<PathBuf>,
    /// The medium of a tier in the mapping: dram, numa:N, a DAX device, or a folder or file that stands for persistent
    /// memory, then @BYTES to limit it. Once for each tier
    #[arg(long = "tier", requires = "mapping", value_name = "NAME=MEDIUM")]
    pub(super) tiers: Vec<TierSpec>,
    /// Write an event file for TensorBoard into a folder
    #[arg(long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl TrainArgs {
    /// Returns the devices to compute on, in order. Fails if one does not exist.
    pub(super) fn devices(&self) -> anyhow::Result<Vec<Device>> {
        let first = self.compute.device;
        let count = self.devices.map_or(1, NonZeroU8::get);
        anyhow::ensure!(
            !first.is_cpu() || count == 1,
            "--devices {count}: the CPU is one device, however many processors it has; --device cuda computes on GPUs"
        );
        if first.is_cpu() {
            return Ok(vec![first]);
        }
        let numbers: Vec<u8> = (first.index()..=u8::MAX).take(count.into()).collect();
        if matches!(self.compute.driver, DriverKind::Sim) {
            platform::simulate(&numbers)?;
        }
        let option = if count > 1 { format!("--devices {count}") } else { format!("--device {first}") };
        for number in &numbers {
            let device = Device::cuda(*number);
            let asked = if count > 1 { format!("{option}: {device}") } else { option.clone() };
            platform::memory(&asked, device)?;
        }
        Ok(numbers.into_iter().map(Device::cuda).collect())
    }

    /// Refuses to overwrite an input, or to write two files to one place.
    pub(super) fn check_files(&self) -> anyhow::Result<()> {
        let written = [
            ("--report", &self.report),
            ("--checkpoint", &self.checkpoint),
            ("--problem", &self.problem),
            ("--profile", &self.profile),
        ];
        for (option, path) in written {
            if let Some(path) = path.as_ref().filter(|path| data::contains(&self.data, path)) {
                anyhow::bail!("{option} {}: it is of --data, and would be written over: name another", path.display());
            }
        }
        for (option, path) in [written[0], written[2], written[3]] {
            let Some(path) = path else { continue };
            for (other, file) in written.into_iter().chain([("--resume", &self.resume)]) {
                let is_same = file.as_ref().is_some_and(|file| output::canonical(file) == output::canonical(path));
                if other != option && is_same {
                    anyhow::bail!("{option} {}: it is the file of {other} too: name another", path.display());
                }
            }
        }
        Ok(())
    }

    /// Returns the path of the checkpoint of a run that was interrupted after `steps` steps.
    pub(super) fn checkpoint_when_interrupted(&self, steps: usize) -> PathBuf {
        let given = self.checkpoint.as_ref().or(self.resume.as_ref());
        given.cloned().unwrap_or_else(|| format!("{}-step{steps}.safetensors", self.model.name()).into())
    }
}
