//! `tenure trace report`: draws a trace as an HTML page.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use tenure::Error;
use tenure::plan::Trace;
use tenure::replay::AllocatorKind;
use tenure::report::{PageOptions, Report};
use tenure::units::{Bytes, parse_bytes};

use crate::progress::Replaying;
use crate::values::TraceSource;
use crate::{files, output};

/// Draw a trace, and every allocator's replay of it, as one HTML file
#[derive(clap::Args)]
#[command(after_help = "\
The page shows every block over time with its stack, and the segments at any moment. It works in any browser of 2023 \
or later, without a network. Stacks are those of PyTorch snapshots; compact traces have none. If the blocks do not \
fit into the page, those with most bytes × events are shown one by one, and the others are summed.

Examples:
  tenure trace report snapshot.pickle
  tenure trace report snapshot.pickle -o report.html --svg comparison.svg
  tenure trace report snapshot.pickle --from 1000000 --to 1200000")]
pub(crate) struct ReportArgs {
    /// PyTorch memory snapshots or compact traces; each gets a page of its own; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The file to write, if there is one FILE [default: FILE's name with .html, in the current directory; of files
    /// with the same name, folders are added, as in rank0-snapshot.html]
    #[arg(short, long, value_name = "OUT.html")]
    output: Option<PathBuf>,
    /// Also write the chart that compares the allocators, as a separate picture, if there is one FILE
    #[arg(long, value_name = "OUT.svg")]
    svg: Option<PathBuf>,
    /// Show blocks from this event on. The first event of the trace is 0; if blocks or segments existed before the
    /// history, the events that recreate them come first and count
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "EVENT")]
    from: usize,
    /// Show blocks before this event [default: to the end]
    #[arg(long, allow_negative_numbers = true, value_name = "EVENT")]
    to: Option<usize>,
    /// The largest size of the page; charts and tables take up to half a megabyte of it
    #[arg(long, default_value = "4MB", value_parser = parse_bytes, value_name = "SIZE")]
    page_size: u64,
    #[command(flatten)]
    source: TraceSource,
}

pub(crate) fn run(args: &ReportArgs) -> ExitCode {
    if args.files.len() > 1 && (args.output.is_some() || args.svg.is_some()) {
        return files::print(Err(anyhow!("-o and --svg name one file: leave them out to draw several traces")));
    }
    let names = files::distinct_names(&args.files);
    let mut outputs = match outputs(args, &names) {
        Ok(outputs) => outputs.into_iter(),
        Err(error) => return files::print(Err(error)),
    };
    let mut names = names.into_iter();
    files::for_each(&args.files, |path| {
        let name = names.next().unwrap_or_else(|| Trace::source_of(path));
        let page = outputs.next().unwrap_or_else(|| page_of(&name));
        let trace = files::read_named(path, name, &args.source)?;
        let options = page_options(args, &trace).map_err(|error| files::about(path, error))?;
        let report = draw(&trace).map_err(|error| files::about(path, error))?;
        let html = report.html_with(&options).map_err(|error| files::about(path, in_options(error)))?;
        let mut text = write(&page, &html)?;
        if let Some(picture) = &args.svg {
            text += &write(picture, &report.comparison_svg())?;
        }
        Ok(text)
    })
}

/// Returns the page of each file.
///
/// # Errors
/// One line if a page would replace an input, another page or the picture.
fn outputs(args: &ReportArgs, names: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    let pages: Vec<PathBuf> = match &args.output {
        Some(page) => vec![page.clone()],
        None => names.iter().map(|name| page_of(name)).collect(),
    };
    let mut written = HashSet::new();
    for target in pages.iter().chain(&args.svg) {
        for file in &args.files {
            output::keep_input(target, file)?;
        }
        if !written.insert(output::canonical(target)) {
            bail!("{}: two outputs would have this name: draw the traces one by one, with -o", target.display());
        }
    }
    if let Some(page) = pages.iter().find(|page| args.output.is_none() && page.exists()) {
        bail!("{0}: it exists, and may show another trace: give -o {0} to replace it, or another name", page.display());
    }
    Ok(pages)
}

/// Returns the page of the trace called `name`, in the current directory.
fn page_of(name: &str) -> PathBuf {
    PathBuf::from(name.trim_start_matches(['/', '.']).replace(['/', '\\'], "-") + ".html")
}

/// # Errors
/// One line if no event is left to show.
fn page_options(args: &ReportArgs, trace: &Trace) -> anyhow::Result<PageOptions> {
    let from = args.from;
    let events = trace.events().len();
    let to = args.to.unwrap_or(events);
    if (args.from, args.to) != (0, None) && from >= to.min(events) {
        let asked = args.to.map_or_else(|| format!("--from {from}"), |to| format!("--from {from} --to {to}"));
        let Some(last) = events.checked_sub(1) else { bail!("{asked} shows nothing: the trace has no events") };
        let earlier = match trace.earlier_events() {
            0 => String::new(),
            earlier => format!(", of which the first {earlier} are from before the history"),
        };
        bail!("{asked} shows nothing: the trace has events 0 to {last}{earlier}");
    }
    Ok(PageOptions { page_bytes: args.page_size, from, to })
}

/// Returns an error that names the option to change.
fn in_options(error: Error) -> anyhow::Error {
    match error {
        Error::PageTooSmall { page_bytes, least_bytes } => {
            anyhow!("the page does not fit into --page-size {page_bytes}: give --page-size {least_bytes} or more")
        }
        error => error.into(),
    }
}

fn draw(trace: &Trace) -> Result<Report<'_>, Error> {
    let kinds = AllocatorKind::ALL;
    let message = format!("replaying {}", trace.source());
    let bar = Replaying::new(trace.events().len(), kinds.len() as u64, message);
    Report::observed(trace, |kind, progress| {
        let earlier = kinds.iter().take_while(|&&other| other != kind).count() as u64;
        bar.update(earlier, progress);
        ControlFlow::Continue(())
    })
}

/// Writes a file, and returns a line that names it.
fn write(path: &Path, content: &str) -> anyhow::Result<String> {
    output::write(path, |out| out.write_all(content.as_bytes()))?;
    Ok(format!("{}: {}\n", path.display(), Bytes(content.len() as u64)))
}
