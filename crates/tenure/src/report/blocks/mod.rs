//! Every block of a trace over time, as an interactive part of its page.
//!
//! [`BlockHistory`] reads the blocks out of the events, [`pack`] writes them into the page as compressed columns,
//! [`overview`] adds a picture that a browser draws before it has read them, and `viewer.js` draws the blocks. A page
//! has a budget of bytes: the blocks with most bytes × events are kept whole, and the others are summed.

mod annotations;
mod history;
#[cfg(test)]
mod label_tests;
mod labels;
mod overview;
mod pack;
mod page;
#[cfg(test)]
mod tests;
mod times;
#[cfg(test)]
mod unpack;

use history::BlockHistory;

use tenure_plan::Trace;

/// How much of a trace its page shows block by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Most bytes of the page. Blocks and segments that do not fit are left out; its charts stay, which take up to 500,000.
    pub page_bytes: u64,
    /// The first event to show, among those of [`Trace::events`].
    pub from: usize,
    /// The event before which to stop.
    pub to: usize,
}

impl Default for PageOptions {
    /// A page of at most 4 MB of the whole history.
    fn default() -> Self {
        Self { page_bytes: 4_000_000, from: 0, to: usize::MAX }
    }
}

/// The section of the page, with its script and its data. `rest_bytes` of the page are taken by its other sections. If
/// the budget is too small for anything, the section is as small as it can be, and the page larger than its options say.
pub(super) fn section(trace: &Trace, options: &PageOptions, rest_bytes: usize) -> String {
    let history = BlockHistory::of(trace, options.from, options.to);
    let budget = usize::try_from(options.page_bytes).unwrap_or(usize::MAX);
    let budget = budget.saturating_sub(rest_bytes + page::frame_bytes(trace, &history));
    page::section(trace, &history, &pack::within(trace, &history, budget))
}
