//! Plans: where tensors are created, and when they move, are dropped and are recomputed.

use serde::{Deserialize, Serialize};

/// A plan for the tensors of a problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The number of the tier in which each tensor is created.
    pub places: Vec<usize>,
    /// The steps of tensors, in the order in which they are requested.
    pub steps: Vec<PlanStep>,
}

/// One action on a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanStep {
    /// The tensor's number.
    pub tensor: usize,
    /// The number of the kernel at which it happens.
    pub kernel: usize,
    /// The action.
    pub action: PlanAction,
}

/// An action on a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanAction {
    /// Moves it to a tier: it is copied, then freed where it was. The copy starts as soon as the kernel has begun,
    /// earlier moves on the same link are done, and there is room. Until it ends, kernels read the tensor where it was.
    Move {
        /// The tier's number.
        to: usize,
    },
    /// Drops it when the kernel has ended, and cancels its moves that were requested before.
    Drop,
    /// Recomputes it before the kernel begins, which comes after the kernel at which it was dropped.
    Recompute {
        /// The number of the tier in which it is created.
        to: usize,
    },
}

/// The reason why a plan cannot be played. Always one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem has no tiers.
    #[error("the problem has no tiers: give it some")]
    NoTiers,
    /// The plan belongs to another problem.
    #[error("the plan has places for {found} tensors, and the problem has {tensors}")]
    Places {
        /// The number of places in the plan.
        found: usize,
        /// The number of tensors in the problem.
        tensors: usize,
    },
    /// A tier number is too large.
    #[error("tier {tier} does not exist: there are {tiers}")]
    Tier {
        /// The tier number in the plan.
        tier: usize,
        /// The number of tiers.
        tiers: usize,
    },
    /// A tensor or kernel number is too large.
    #[error("a step of tensor {tensor} at kernel {kernel}: the tensor or the kernel does not exist")]
    Step {
        /// The tensor number in the plan.
        tensor: usize,
        /// The kernel number in the plan.
        kernel: usize,
    },
    /// No link leads from one tier to the other.
    #[error("tensor {tensor} cannot move from tier {from} to {to}: no link goes there")]
    NoLink {
        /// The tensor.
        tensor: usize,
        /// The tier where it is.
        from: usize,
        /// The tier to which it is to move.
        to: usize,
    },
    /// A step names a tensor that does not exist at that time.
    #[error(
        "the plan moves or drops tensor {tensor} at kernel {kernel}, when it is in no tier: it was dropped, or is made later"
    )]
    Nowhere {
        /// The tensor.
        tensor: usize,
        /// The step's kernel.
        kernel: usize,
    },
    /// A tensor that still exists is to be recomputed.
    #[error("the plan computes tensor {tensor} again before kernel {kernel}, but did not drop it before that")]
    StillThere {
        /// The tensor.
        tensor: usize,
        /// The step's kernel.
        kernel: usize,
    },
    /// A tensor that always exists is dropped and not recomputed.
    #[error("the plan drops tensor {tensor}, which must exist throughout, and never recomputes it")]
    Lost {
        /// The tensor.
        tensor: usize,
    },
    /// A tensor that always exists would begin the next iteration in another tier.
    #[error("tensor {tensor}, which must exist throughout, does not end in tier {tier}, where it begins: move it back")]
    Displaced {
        /// The tensor.
        tensor: usize,
        /// Its place.
        tier: usize,
    },
    /// The problem does not say how to recompute the tensor.
    #[error("tensor {tensor} cannot be computed again: the problem does not say how")]
    NoRecompute {
        /// The tensor.
        tensor: usize,
    },
    /// A kernel needs a tensor that is in no tier.
    #[error("kernel {kernel} needs tensor {tensor}, which is in no tier then: it was dropped, or is made later")]
    Gone {
        /// The tensor.
        tensor: usize,
        /// The kernel.
        kernel: usize,
    },
    /// A kernel needs a tensor that never arrives.
    #[error("kernel {kernel} needs tensor {tensor}, which never comes to a tier that kernels reach")]
    NeverReached {
        /// The tensor.
        tensor: usize,
        /// The kernel.
        kernel: usize,
    },
    /// A tensor is written in a tier that kernels do not reach.
    #[error("tensor {tensor} cannot be made in tier {tier}, which kernels do not reach")]
    Unreachable {
        /// The tensor.
        tensor: usize,
        /// Its place.
        tier: usize,
    },
    /// A kernel needs more bytes than a tier has.
    #[error(
        "kernel {kernel} needs more room in tier {tier} than there is, and no move or release frees any: give the tier more bytes"
    )]
    NoRoom {
        /// The tier.
        tier: usize,
        /// The kernel.
        kernel: usize,
    },
}
