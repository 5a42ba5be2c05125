//! `tenure embed`: prints a vector for each text.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use indicatif::ProgressBar;
use tenure::tensor::Device;
use tenure_nn::sentence::SentenceEncoder;

use crate::files::{self, NotFinite};
use crate::{platform, progress};

/// Print a vector for each text: one JSON list of numbers per line
#[derive(clap::Args)]
#[command(after_help = "\
DIR is a sentence encoder in Hugging Face's layout: config.json, tokenizer.json, model.safetensors. The model is a \
BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT or ModernBERT. modules.json says how the vectors of tokens \
become the vector of a text. Without it the mean is taken and scaled to length 1, so that the product of two vectors \
measures how similar the texts are.

Examples:
  tenure embed --weights all-MiniLM-L6-v2 \"a cat on a mat\" \"a dog on a rug\"
  tenure embed --weights all-MiniLM-L6-v2 <sentences.txt >vectors.jsonl")]
pub(crate) struct EmbedArgs {
    /// The encoder's folder
    #[arg(long, value_name = "DIR")]
    weights: PathBuf,
    /// Texts [default: the lines of standard input]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// The device to compute on: cpu, cuda, or cuda:N
    #[arg(long, default_value_t = Device::CPU, value_name = "DEVICE")]
    device: Device,
    /// The number of texts to compute at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    batch_size: u16,
}

pub(crate) fn run(args: EmbedArgs) -> ExitCode {
    let encoder = match open(&args) {
        Ok(encoder) => encoder,
        Err(error) => return files::print(Err(error)),
    };
    let batch_size = usize::from(args.batch_size);
    if args.texts.is_empty() {
        let lines = io::stdin().lines().zip(1_u64..);
        let lines = lines.map(|(line, number)| line.map_err(|error| anyhow!("standard input, line {number}: {error}")));
        print(&encoder, lines, batch_size, &bar(None))
    } else {
        let bar = bar(Some(args.texts.len() as u64));
        print(&encoder, args.texts.into_iter().map(Ok), batch_size, &bar)
    }
}

fn open(args: &EmbedArgs) -> anyhow::Result<SentenceEncoder> {
    if !args.device.is_cpu() {
        platform::memory(&format!("--device {}", args.device), args.device)?;
    }
    let mut encoder = SentenceEncoder::open(&args.weights)?;
    encoder.to_device(args.device)?;
    Ok(encoder)
}

/// Prints the vectors of each batch when it is done, so that neither texts nor vectors accumulate. An unreadable text
/// ends it after the vectors of the texts before.
fn print(
    encoder: &SentenceEncoder,
    mut texts: impl Iterator<Item = anyhow::Result<String>>,
    batch_size: usize,
    bar: &ProgressBar,
) -> ExitCode {
    let mut stopped = None;
    let batches = std::iter::from_fn(|| {
        if let Some(error) = stopped.take() {
            return Some(Err(error));
        }
        let batch: Vec<String> = texts
            .by_ref()
            .take(batch_size)
            .map_while(|text| text.map_err(|error| stopped = Some(error)).ok())
            .collect();
        if batch.is_empty() { stopped.take().map(Err) } else { Some(Ok(batch)) }
    });
    files::print_each(batches.map(|batch| {
        let batch = batch?;
        let lines = lines(encoder, &batch)?;
        bar.inc(batch.len() as u64);
        Ok(lines)
    }))
}

fn lines(encoder: &SentenceEncoder, texts: &[String]) -> anyhow::Result<String> {
    let vectors = encoder.embed(texts)?.to_vec::<f32>()?;
    if !vectors.iter().all(|number| number.is_finite()) {
        return Err(NotFinite.into());
    }
    let lines = vectors.chunks(encoder.width()).map(|vector| Ok(serde_json::to_string(vector)? + "\n"));
    lines.collect()
}

/// Returns a progress bar, hidden if the vectors themselves show the progress.
fn bar(count: Option<u64>) -> ProgressBar {
    if io::stdout().is_terminal() { ProgressBar::hidden() } else { progress::texts(count) }
}
