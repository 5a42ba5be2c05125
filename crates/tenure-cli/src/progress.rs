//! Progress bars on stderr, if it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use tenure::replay::ReplayProgress;

/// Events between two updates.
const EVENTS: usize = 4096;

/// Returns a bar of bytes read.
pub(crate) fn bytes(length: u64, message: String) -> ProgressBar {
    bar(length, message, "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}")
}

/// Returns a bar of cases measured.
pub(crate) fn cases(count: u64) -> ProgressBar {
    bar(count, String::new(), "{msg:30} {wide_bar} {pos}/{len} cases")
}

/// Returns a bar of steps, of which `done` are made.
pub(crate) fn steps(done: u64, count: u64) -> ProgressBar {
    bar(count, String::new(), "{msg} {wide_bar} {pos}/{len}, {eta} left").with_position(done)
}

/// Returns a bar of time in ms.
pub(crate) fn time(time: Duration) -> ProgressBar {
    bar(time.as_millis() as u64, String::new(), "{wide_bar} {eta} left")
}

/// Returns a bar of texts, with their number if it is known.
pub(crate) fn texts(count: Option<u64>) -> ProgressBar {
    match count {
        Some(count) => bar(count, String::new(), "{wide_bar} {human_pos}/{human_len} texts"),
        None => line(),
    }
}

/// A bar of events replayed.
pub(crate) struct Replaying {
    bar: ProgressBar,
    events: usize,
}

impl Replaying {
    /// Makes a bar for `passes` passes over `events` events.
    pub(crate) fn new(events: usize, passes: u64, message: String) -> Self {
        Self { bar: bar(events as u64 * passes, message, "{msg} {wide_bar} {human_pos}/{human_len} events"), events }
    }

    /// Moves the bar; `earlier` passes came before.
    pub(crate) fn update(&self, earlier: u64, progress: ReplayProgress) {
        if progress.event.is_multiple_of(EVENTS) {
            let passes = earlier + u64::from(progress.pass);
            self.bar.set_position(passes * self.events as u64 + progress.event as u64);
        }
    }
}

/// Returns a line that describes the current activity.
pub(crate) fn line() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg}").expect("a template of ours");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

fn bar(length: u64, message: String, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a template of ours");
    ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
        .with_style(style)
        .with_message(message)
        .with_finish(ProgressFinish::AndClear)
}
