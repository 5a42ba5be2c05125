//! The uses of tensors by kernels, and the extra time of each in every tier.

use crate::Problem;
use crate::problem::{ProblemAccess, ProblemTier};

/// The use of one tensor by one kernel.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) kernel: usize,
    /// The nanoseconds by which the kernel takes longer with the tensor in each tier and no transfer in progress;
    /// infinite where kernels do not reach.
    pub(crate) extra_ns: Box<[f64]>,
}

impl Use {
    /// Returns the least extra time over all tiers.
    pub(crate) fn least_ns(&self) -> f64 {
        self.extra_ns.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the least extra time if the tensor is not in the first tier.
    pub(crate) fn elsewhere_ns(&self) -> f64 {
        self.extra_ns[1..].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the extra time elsewhere minus the least extra time.
    pub(crate) fn penalty_ns(&self) -> f64 {
        let elsewhere_ns = self.elsewhere_ns();
        if elsewhere_ns.is_finite() { elsewhere_ns - self.least_ns() } else { f64::INFINITY }
    }
}

/// Returns for each tensor of a problem that has tiers its uses, in the order of kernels.
pub(crate) fn uses(problem: &Problem) -> Vec<Vec<Use>> {
    let tiers = problem.tiers();
    let mut uses: Vec<Vec<Use>> = vec![Vec::new(); problem.tensors().len()];
    let mut note = |kernel: usize, access: &ProblemAccess, bandwidth: fn(&ProblemTier) -> u64| {
        let uses = &mut uses[access.tensor];
        if uses.last().is_none_or(|last| last.kernel != kernel) {
            let nothing = tiers.iter().map(|tier| if tier.is_reachable { 0.0 } else { f64::INFINITY });
            uses.push(Use { kernel, extra_ns: nothing.collect() });
        }
        let Some(last) = uses.last_mut() else { return };
        for (extra_ns, tier) in last.extra_ns.iter_mut().zip(tiers) {
            *extra_ns += tier.extra_ns(&tiers[0], access.bytes, 1, bandwidth, 0.0);
        }
    };
    for (number, kernel) in problem.kernels().iter().enumerate() {
        kernel.reads.iter().for_each(|access| note(number, access, |tier| tier.read_bandwidth));
        kernel.writes.iter().for_each(|access| note(number, access, |tier| tier.write_bandwidth));
    }
    uses
}
