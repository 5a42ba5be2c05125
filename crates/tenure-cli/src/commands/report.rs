use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use tenure::prelude::*;
use tenure::report::PageOptions;

use crate::args::ReportArgs;
use crate::progress::Replaying;
use crate::{files, output};

pub(crate) fn run(args: &ReportArgs) -> ExitCode {
    files::for_each(std::slice::from_ref(&args.file), |path| {
        let trace = files::read(path, &args.source)?;
        let options = page_options(args, trace.events().len()).map_err(|error| files::about(path, error))?;
        let report = draw(&trace).map_err(|error| files::about(path, error))?;
        let page = args.output.clone().unwrap_or_else(|| PathBuf::from(Trace::source_of(path) + ".html"));
        let mut text = write(&page, &report.html_with(&options))?;
        if let Some(picture) = &args.svg {
            text += &write(picture, &report.comparison_svg())?;
        }
        Ok(text)
    })
}

/// # Errors
/// One line, if no event is left to show.
fn page_options(args: &ReportArgs, events: usize) -> anyhow::Result<PageOptions> {
    let (from, to) = (args.from, args.to.unwrap_or(events));
    if (args.from, args.to) != (0, None) && from >= to.min(events) {
        bail!("--from {from} --to {to} shows nothing: the trace has events 0 to {}", events.saturating_sub(1));
    }
    Ok(PageOptions { page_bytes: args.page_size, from, to })
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

/// Writes a file, and says so.
fn write(path: &Path, content: &str) -> anyhow::Result<String> {
    output::write(path, |out| out.write_all(content.as_bytes()))?;
    Ok(format!("{}: {}\n", path.display(), Bytes(content.len() as u64)))
}
