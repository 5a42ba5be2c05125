//! Tiers of problems, and agents that end with their clients.
#![allow(dead_code, reason = "each test uses some of it")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_agent::serve::Serving;
use tenure_plan::problem::ProblemTier;

/// Returns a tier without latency that kernels reach.
pub(crate) fn tier(name: &str, capacity: Option<u64>, bandwidth: u64) -> ProblemTier {
    ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        latency_ns: 0,
        loaded: Vec::new(),
    }
}

/// Returns an example of the protocol's documentation by its number.
pub(crate) fn example(number: usize) -> &'static str {
    let document = include_str!("../../../../docs/reference/agent-protocol.md");
    document.split("```json\n").nth(number + 1).unwrap().split("```").next().unwrap()
}

/// Returns a function that lets an agent go on until it is to end.
pub(crate) fn until(is_done: &AtomicBool) -> impl FnMut(&Serving) -> ControlFlow<()> {
    |_| if is_done.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Ends an agent or a planner when dropped, also if its client panics.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
