//! A learned planner, and planners as a process: [`serve`].
//!
//! A problem is treated as a *market*. At each kernel a *seller* sets a price for room in the fast tier. Each tensor is
//! a *buyer*, which wants room for its whole life if that is worth the sum of the prices. All sellers share the weights
//! of one small network, which sees the demand at each kernel and returns the change of its price; a round of the
//! market is one plan. Where tensors may move or be recomputed, *groups* of tensors share another network. It sees the
//! costs of each tensor at these prices and returns a leaning to each treatment. A [`Policy`] is both networks.
//! [`train`](train::train) trains it on made-up problems, and the planner [`Marl`] applies it to any other. A
//! [`Learner`] corrects a problem's costs by times that its program reports.
//!
//! ```
//! use std::{ops::ControlFlow, time::Duration};
//! use tenure_agent::Marl;
//! use tenure_plan::planner::{Objective, Planner, PlannerOptions};
//! use tenure_plan::problem::generate::Family;
//!
//! let problem = Family::Layered.fixed(1)?;
//! let options =
//!     PlannerOptions { objective: Objective::Score, time_limit: Duration::from_secs(60), evaluations: Some(5), seed: 0 };
//! let planned = Marl::trained()?.plan(&problem, &options, &mut |_| ControlFlow::Continue(()))?;
//! assert!(planned.evaluations <= 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![forbid(unsafe_code)]

mod choices;
mod features;
mod learning;
mod market;
mod marl;
mod play;
mod policy;
mod random;
pub mod serve;
pub mod train;

use tenure_plan::Rule;
use tenure_plan::planner::{Evolutionary, FlashNeuron, Planner, Scheduled, milp};

pub use learning::{LearnedError, Learner, Measured, ReportError};
pub use marl::Marl;
pub use policy::{Policy, PolicyError};

/// Returns all planners of this build in the order of reports, each with a line that describes it. `milp` is there only
/// with that feature. [`Marl`] uses `policy`.
pub fn planners(policy: Policy) -> Vec<(Box<dyn Planner + Send + Sync>, &'static str)> {
    let mut planners: Vec<(Box<dyn Planner + Send + Sync>, &str)> = vec![
        (Box::new(Rule::FirstTouch), "tensors in the order of their creation"),
        (Box::new(Rule::WeightsFirst), "weights, then the others, by first use"),
        (Box::new(Rule::ActivationsFirst), "all tensors but weights, then weights, by first use"),
        (Box::new(Rule::Hotness), "the tensors with the most accesses for each byte first"),
        (Box::new(Rule::Density), "the most accessed for each byte and kernel of their life first"),
        (Box::new(FlashNeuron), "FlashNeuron's two phases"),
        (Box::new(Scheduled), "prices of room, then evolutionary search; the default"),
    ];
    planners.extend(milp().map(|milp| (milp, "a mixed-integer program, solved by HiGHS")));
    planners.push((Box::new(Evolutionary::default()), "evolutionary search"));
    planners.push((Box::new(Marl::new(policy)), "networks trained for placement on other programs"));
    planners
}
