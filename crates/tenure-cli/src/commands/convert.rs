//! `tenure trace convert`: writes a trace in another format.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tenure::plan::Format;
use tenure::units::{Bytes, Count};

use crate::values::TraceSource;
use crate::{files, output};

/// Write a trace in another format: PyTorch's, or Tenure's compact one
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure trace convert snapshot.pickle -o small.ttrace
  tenure trace convert small.ttrace -o for_memory_viz.pickle")]
pub(crate) struct ConvertArgs {
    /// A PyTorch memory snapshot or a compact trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to write; its extension chooses the format: .ttrace, .pickle, .pickle.xz or .pickle.gz
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    source: TraceSource,
}

pub(crate) fn run(args: &ConvertArgs) -> ExitCode {
    files::for_each(std::slice::from_ref(&args.file), |path| {
        let target = &args.output;
        let format = Format::from_path(target).with_context(|| {
            let known = Format::ALL.map(Format::extension).join(", ");
            format!("{}: the name does not say the format: it must end in one of {known}", target.display())
        })?;
        output::keep_input(target, path)?;
        let trace = files::read(path, &args.source)?;
        for left_out in trace.left_out_of(format) {
            files::complain(&format!("{}: {left_out}", target.display()));
        }
        output::write(target, |out| trace.write_to(out, format))?;
        let bytes = fs::metadata(target).map_err(|error| files::about(target, error))?.len();
        Ok(format!("{}: {} events in {}\n", target.display(), Count(trace.events().len() as u64), Bytes(bytes)))
    })
}
