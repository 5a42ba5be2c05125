//! `tenure bench`: measures speed.

mod alloc;
mod plain;
mod serve;
mod switch;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tempfile::TempDir;

pub(crate) use alloc::BenchAllocArgs;
use serve::BenchServeArgs;
use switch::BenchSwitchArgs;

use crate::{files, output};

/// The files of a benchmark of models.
#[derive(Args)]
struct BenchFiles {
    /// The folder for models while the benchmark runs [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Write the times as a figure
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
    /// Write a page with the figure
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

impl BenchFiles {
    /// Checks that the files can be written, so that the error comes before the work.
    fn check(&self) -> anyhow::Result<()> {
        self.figure.iter().chain(&self.report).try_for_each(|path| output::check(path))
    }

    /// Makes a folder for models, which is removed when it is dropped.
    fn make_folder(&self) -> anyhow::Result<TempDir> {
        match &self.folder {
            Some(folder) => tempfile::tempdir_in(folder).map_err(|error| files::about(folder, error)),
            None => tempfile::tempdir().context("no folder for models can be made: name one with --folder"),
        }
    }

    fn write(&self, figure: &str, report: &str) -> anyhow::Result<()> {
        for (path, text) in [(&self.figure, figure), (&self.report, report)] {
            if let Some(path) = path {
                output::write(path, |out| out.write_all(text.as_bytes()))?;
            }
        }
        Ok(())
    }
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    Alloc(BenchAllocArgs),
    Serve(BenchServeArgs),
    Switch(BenchSwitchArgs),
}

pub(crate) fn run(command: &BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Alloc(args) => alloc::run(args),
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Switch(args) => switch::run(args),
    }
}
