//! `tenure bench switch`: measures how soon a model answers whose weights are not on the device.

mod measure;

use std::process::ExitCode;

use tenure::report::{ModelTimes, SwitchReport};
use tenure::units::Bytes;

use super::BenchFiles;
use super::workload::Workload;
use crate::figures::table;
use crate::platform::DeviceArgs;
use crate::{files, progress, signals};
use measure::SwitchTimes;

/// Measure how soon a model answers whose weights are not on the device
#[derive(clap::Args)]
#[command(after_help = "\
Several copies of each model are made with random weights, and all but one fit on the device: so the next one to be \
called is absent, unless a row says otherwise. On a GPU its weights come from pinned host memory, on the CPU from a \
file. Times are in ms, from a request to its answer, and the median of --repeats:

  ready        the weights are resident, and no other model was called before
  resident     the weights are resident, and another model was called before
  cold         the weights are not resident
  whole, per layer, per block
               the same in one group, in one for each layer or each block, where `cold` searches for the best groups
  no pool      the device's memory is allocated from the driver each time
  no pinning   tensors come one by one from memory that is not pinned, before the computation
  one process  the same, and the memory was returned to the driver before

--json prints a line for each model: {\"model\",\"device\",\"bytes\",\"ready_ms\",\"cold_ms\",\"resident_ms\", \
\"copy_ms\",\"compute_ms\", \"groups\",\"peak_bytes\",\"equal\"} and the other times. copy_ms is the time to copy all \
weights, compute_ms the time that the device computes. peak_bytes is the most device memory that weights took. equal \
says whether every answer of a model that was learned or cold was its own, bit for bit.

Examples:
  tenure bench switch --model resnet18
  tenure bench switch --device cuda --report switch.html --figure switch.svg
  tenure bench switch --device cuda --model llama_8b --repeats 5 --json")]
pub(crate) struct BenchSwitchArgs {
    /// A model; may be repeated [default: resnet152, inception_v3, bert_base]
    #[arg(long, value_enum, value_name = "NAME")]
    model: Vec<Workload>,
    #[command(flatten)]
    compute: DeviceArgs,
    /// The number of times that each figure is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    repeats: u32,
    #[command(flatten)]
    files: BenchFiles,
    /// Print one JSON object per line for each model
    #[arg(long)]
    json: bool,
}

const DEFAULT: [Workload; 3] = [Workload::Resnet152, Workload::InceptionV3, Workload::BertBase];

pub(crate) fn run(args: &BenchSwitchArgs) -> ExitCode {
    signals::note("ending when this answer is there");
    let printed = files::print(measure(args));
    signals::exit_code_or(printed)
}

fn measure(args: &BenchSwitchArgs) -> anyhow::Result<String> {
    args.files.check()?;
    args.compute.open()?;
    let models = if args.model.is_empty() { &DEFAULT[..] } else { &args.model };
    let folder = args.files.make_folder()?;
    let bar = progress::cases(models.len() as u64 * measure::STAGES);
    let mut rows = Vec::new();
    for &model in models {
        match measure::measure(model, args.compute.device, args.repeats, folder.path(), &bar)? {
            Some(row) => rows.push(row),
            None => break,
        }
    }
    bar.finish_and_clear();
    draw(args, &rows)?;
    if args.json {
        return rows.iter().map(|row| Ok(serde_json::to_string(row)? + "\n")).collect();
    }
    Ok(describe(&rows))
}

fn draw(args: &BenchSwitchArgs, rows: &[SwitchTimes]) -> anyhow::Result<()> {
    let models: Vec<ModelTimes> = rows
        .iter()
        .map(|row| ModelTimes { model: format!("{}, {}", row.model, Bytes(row.bytes)), times: row.times() })
        .collect();
    let facts = [("device", args.compute.device.to_string()), ("repeats", args.repeats.to_string())];
    let report = SwitchReport::new("Answers of models that come when they are asked", &facts, &models);
    args.files.write(&report.svg(), &report.html())
}

fn describe(rows: &[SwitchTimes]) -> String {
    let mut text = String::new();
    for row in rows {
        let times = row.times();
        let cells: Vec<_> = times.iter().map(|(name, ms)| [(*name).to_owned(), format!("{ms:.2}")]).collect();
        text += &format!(
            "{} on {}: {} in {} groups, copied in {:.2} ms, computed in {:.2} ms; answers {}\n\n{}\n",
            row.model,
            row.device,
            Bytes(row.bytes),
            row.groups,
            row.copy_ms,
            row.compute_ms,
            if row.equal { "equal" } else { "DIFFER" },
            table(&["weights", "ms"], &cells)
        );
    }
    text
}
