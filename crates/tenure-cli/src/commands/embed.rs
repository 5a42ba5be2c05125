//! `tenure embed`: prints a vector for each text.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::anyhow;
use indicatif::ProgressBar;
use tenure_nn::sentence::SentenceEncoder;

use crate::args::EmbedArgs;
use crate::{files, platform, progress};

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
    let lines = vectors.chunks(encoder.width()).map(|vector| Ok(serde_json::to_string(vector)? + "\n"));
    lines.collect()
}

/// Returns a progress bar, hidden if the vectors themselves show the progress.
fn bar(count: Option<u64>) -> ProgressBar {
    if io::stdout().is_terminal() { ProgressBar::hidden() } else { progress::texts(count) }
}
