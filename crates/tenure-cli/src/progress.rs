//! Progress bars on stderr, when that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use tenure::replay::Progress;

/// Events between two updates.
const EVENTS: usize = 4096;

/// A bar of bytes read.
pub(crate) fn bytes(length: u64, message: String) -> ProgressBar {
    bar(length, message, "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}")
}

/// A bar of cases measured.
pub(crate) fn cases(count: u64) -> ProgressBar {
    bar(count, String::new(), "{msg:30} {wide_bar} {pos}/{len} cases")
}

/// A bar of steps, of which `done` are made.
pub(crate) fn steps(done: u64, count: u64) -> ProgressBar {
    bar(count, String::new(), "{msg} {wide_bar} {pos}/{len}, {eta} left").with_position(done)
}

/// A bar of time in ms.
pub(crate) fn time(time: Duration) -> ProgressBar {
    bar(time.as_millis() as u64, String::new(), "{wide_bar} {eta} left")
}

/// A bar of texts, of as many as are known.
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
    /// For `passes` passes over `events` events.
    pub(crate) fn new(events: usize, passes: u64, message: String) -> Self {
        Self { bar: bar(events as u64 * passes, message, "{msg} {wide_bar} {human_pos}/{human_len} events"), events }
    }

    /// Moves on; `earlier` passes came before.
    pub(crate) fn update(&self, earlier: u64, progress: Progress) {
        if progress.event.is_multiple_of(EVENTS) {
            let passes = earlier + u64::from(progress.pass);
            self.bar.set_position(passes * self.events as u64 + progress.event as u64);
        }
    }
}

/// A line of what is going on.
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
