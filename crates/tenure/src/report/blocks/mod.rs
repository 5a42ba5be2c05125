//! The interactive part of a trace's page: every block over time.
//!
//! [`BlockHistory`] reads the blocks out of the events, [`pack`] writes them into the page as compressed columns,
//! [`overview`] adds a picture that a browser draws before it has read them, and `viewer.js` draws the blocks. A page
//! has a size limit: the blocks with most bytes × events are kept whole, and the others are summed.

mod annotations;
mod columns;
mod history;
#[cfg(test)]
mod label_tests;
mod labels;
mod overview;
mod pack;
mod page;
mod tables;
#[cfg(test)]
mod tests;
mod times;
#[cfg(test)]
mod unpack;

use history::BlockHistory;

use maud::Markup;
use tenure_plan::Trace;

/// Settings of a trace's page: its size limit, and the events whose blocks it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// The most bytes of the page. Blocks and segments that do not fit are left out; its charts stay, and take up to
    /// 500,000 bytes.
    pub page_bytes: u64,
    /// The first event to show, as an index into [`Trace::events`].
    pub from: usize,
    /// The event before which to stop.
    pub to: usize,
}

impl Default for PageOptions {
    /// Returns the options of a page of at most 4 MB that shows the whole history.
    fn default() -> Self {
        Self { page_bytes: 4_000_000, from: 0, to: usize::MAX }
    }
}

/// Returns the section of the page, with its script and its data. The page's other sections take `rest_bytes`. If the
/// size limit is too small for any block, the section is as small as possible, and the page exceeds the limit.
pub(super) fn section(trace: &Trace, options: &PageOptions, rest_bytes: usize) -> Markup {
    let history = BlockHistory::of(trace, options.from, options.to);
    let budget = usize::try_from(options.page_bytes).unwrap_or(usize::MAX);
    let budget = budget.saturating_sub(rest_bytes + page::frame_bytes(trace, &history));
    page::section(trace, &history, &pack::within(trace, &history, budget))
}
