//! Plans: where tensors come to be, and what happens to them then.

use serde::{Deserialize, Serialize};

/// What is done with the tensors of a problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The number of the tier in which each tensor comes to be.
    pub places: Vec<usize>,
    /// What happens to tensors, in the order in which it is asked for.
    pub steps: Vec<Step>,
}

/// Something that happens to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The tensor's number.
    pub tensor: usize,
    /// The number of the kernel that it has to do with.
    pub kernel: usize,
    /// What happens.
    pub action: Action,
}

/// What happens to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is copied to a tier, and then no longer where it was: as soon as the kernel has begun, those before it on the same
    /// link are done, and there is room. Until then kernels read it where it is.
    Move {
        /// The tier's number.
        to: usize,
    },
    /// It is given up when the kernel has ended, and so are moves of it that were asked for before.
    Drop,
    /// It is computed again before the kernel begins, which comes after the one that it was given up after.
    Recompute {
        /// The number of the tier that it comes to be in.
        to: usize,
    },
}

/// Why a plan cannot be played. Always one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem says nothing of memory.
    #[error("the problem has no tiers: give it some")]
    NoTiers,
    /// A plan of another problem.
    #[error("the plan has places for {found} tensors, and the problem has {tensors}")]
    Places {
        /// Places of the plan.
        found: usize,
        /// Tensors of the problem.
        tensors: usize,
    },
    /// A number too large.
    #[error("there is no tier {tier}: there are {tiers}")]
    Tier {
        /// The plan's number.
        tier: usize,
        /// How many there are.
        tiers: usize,
    },
    /// A number too large.
    #[error("a step of tensor {tensor} at kernel {kernel}: there is no such tensor or kernel")]
    Step {
        /// The plan's number.
        tensor: usize,
        /// The plan's number.
        kernel: usize,
    },
    /// Two tiers without a way.
    #[error("tensor {tensor} cannot move from tier {from} to {to}: no link goes there")]
    NoLink {
        /// The tensor.
        tensor: usize,
        /// Where it is.
        from: usize,
        /// Where it is to be.
        to: usize,
    },
    /// A step of what was given up.
    #[error(
        "tensor {tensor} is to move or to be dropped at kernel {kernel}, and is not there: it was dropped, or comes later"
    )]
    Nowhere {
        /// The tensor.
        tensor: usize,
        /// The step's kernel.
        kernel: usize,
    },
    /// What is there is not computed again.
    #[error("tensor {tensor} is to be computed again before kernel {kernel}, and was not dropped before that")]
    StillThere {
        /// The tensor.
        tensor: usize,
        /// The step's kernel.
        kernel: usize,
    },
    /// What is there all the time is given up for good.
    #[error("tensor {tensor} is there all the time, and the plan drops it and does not compute it again")]
    Lost {
        /// The tensor.
        tensor: usize,
    },
    /// What is there all the time would begin the next iteration elsewhere.
    #[error("tensor {tensor} is there all the time, and does not end in tier {tier}, where it begins: move it back")]
    Displaced {
        /// The tensor.
        tensor: usize,
        /// Its place.
        tier: usize,
    },
    /// Nobody knows how.
    #[error("tensor {tensor} cannot be computed again: the problem does not say how")]
    NoRecompute {
        /// The tensor.
        tensor: usize,
    },
    /// What a kernel needs is nowhere.
    #[error("kernel {kernel} needs tensor {tensor}, which is nowhere: it was dropped, or comes later")]
    Gone {
        /// The tensor.
        tensor: usize,
        /// The kernel.
        kernel: usize,
    },
    /// What a kernel needs never comes.
    #[error("kernel {kernel} needs tensor {tensor}, which never comes to a tier that kernels reach")]
    NeverReached {
        /// The tensor.
        tensor: usize,
        /// The kernel.
        kernel: usize,
    },
    /// A tensor is written where kernels do not reach.
    #[error("tensor {tensor} cannot come to be in tier {tier}: kernels do not reach it")]
    Unreachable {
        /// The tensor.
        tensor: usize,
        /// Its place.
        tier: usize,
    },
    /// Too many bytes.
    #[error("kernel {kernel} waits for room in tier {tier}, and nothing under way makes any")]
    NoRoom {
        /// The tier.
        tier: usize,
        /// The kernel.
        kernel: usize,
    },
}
