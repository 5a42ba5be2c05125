//! The list of planners.

use tenure_plan::Rule;
use tenure_plan::planner::{Evolutionary, FlashNeuron, Planner, Scheduled, milp};

use crate::{Marl, Policy};

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
