//! Bounds: what no plan surpasses, however clever, found in milliseconds where nothing else is said.
//!
//! Two arguments, both about the first tier's room. *A kernel* is served by what of its own tensors fits there: a knapsack
//! of which parts may be taken. *A moment*: what is there when a kernel begins and does not fit has either been used
//! elsewhere or crossed a link before, and will again, or is computed again; links take no more than their bandwidth, so
//! that the rest costs time. What is under way only slows down the others, and waits only cost more.

use crate::Problem;
use crate::problem::Link;
use crate::uses::{Use, uses};

/// The share of accessed bytes that the first tier can serve, in any plan that can be played, moves and recomputation
/// included: 0 to 1. 1 if the problem has no tiers.
pub fn score_bound(problem: &Problem) -> f64 {
    capacity(problem).map_or(1.0, |capacity| kernels_score(problem, &Room::new(problem, capacity)))
}

/// The share of accessed bytes that the first tier can serve if tensors stay where they are: 0 to 1. With the feature `milp`,
/// what it can if parts of tensors may be there, to the solver's tolerance of a millionth, which takes a tenth of a second
/// rather than milliseconds.
pub fn static_score_bound(problem: &Problem) -> f64 {
    let Some(capacity) = capacity(problem) else { return 1.0 };
    let bound = joined_score_bound(problem, capacity);
    #[cfg(feature = "milp")]
    let bound = crate::planner::relaxed_score(problem, capacity).map_or(bound, |relaxed| relaxed.min(bound));
    bound
}

/// The same in milliseconds. Kernels at which not everything fits are taken together: a knapsack of room times kernels.
pub(crate) fn joined_score_bound(problem: &Problem, capacity: u64) -> f64 {
    let is_full: Vec<bool> = problem.live_bytes(|_| true).into_iter().map(|live| live > capacity).collect();
    let mut full = 0_usize;
    let full_before: Vec<usize> = std::iter::once(0)
        .chain(is_full.iter().map(|is_full| {
            full += usize::from(*is_full);
            full
        }))
        .collect();
    let items = problem.tensors().iter().enumerate().filter_map(|(number, tensor)| {
        let life = problem.lifetime(number).filter(|_| tensor.bytes <= capacity)?;
        let kernels = full_before[life.end() + 1] - full_before[*life.start()];
        Some((tensor.bytes as f64 * kernels as f64, problem.accessed_bytes(number) as f64))
    });
    let all = problem.all_accessed_bytes() as f64;
    let fast = worth(capacity as f64 * full as f64, items.collect());
    if all == 0.0 { 1.0 } else { (fast / all).min(1.0).min(kernels_score(problem, &Room::whole(problem, capacity))) }
}

/// Nanoseconds that any plan takes in the simulator, moves and recomputation included; infinite if it can be seen that none
/// can be played.
pub fn makespan_bound_ns(problem: &Problem) -> f64 {
    let kernels = problem.kernels();
    if problem.tiers().is_empty() {
        return kernels.iter().map(|kernel| kernel.time_ns as f64).sum();
    }
    let uses = uses(problem);
    let mut least_ns: Vec<f64> = kernels.iter().map(|kernel| kernel.time_ns as f64).collect();
    for a_use in uses.iter().flatten() {
        least_ns[a_use.kernel] += a_use.least_ns();
    }
    let base_ns: f64 = least_ns.iter().sum();
    let Some(capacity) = capacity(problem).filter(|_| base_ns.is_finite()) else { return base_ns };
    base_ns + kernels_extra_ns(problem, capacity, &uses).max(moments_extra_ns(problem, capacity, &uses, &least_ns))
}

/// Bytes of the first tier; none if there is no tier, or no end.
fn capacity(problem: &Problem) -> Option<u64> {
    problem.tiers().first()?.capacity
}

/// The share of accessed bytes that the first tier serves if each kernel finds there what is worth most to it.
fn kernels_score(problem: &Problem, room: &Room) -> f64 {
    let mut fast = 0.0;
    for (number, kernel) in problem.kernels().iter().enumerate() {
        let accesses = kernel.reads.iter().chain(&kernel.writes);
        let mut accesses: Vec<(usize, u64)> = accesses.map(|access| (access.tensor, access.bytes)).collect();
        accesses.sort_unstable();
        let mut items: Vec<(f64, f64)> = Vec::new();
        for same in accesses.chunk_by(|left, right| left.0 == right.0) {
            let value: f64 = same.iter().map(|(_, bytes)| *bytes as f64).sum();
            if room.is_stuck(same[0].0) {
                fast += value;
            } else {
                items.push((problem.tensors()[same[0].0].bytes as f64, value));
            }
        }
        fast += worth(room.at(number), items);
    }
    let all = problem.all_accessed_bytes() as f64;
    if all == 0.0 { 1.0 } else { (fast / all).min(1.0) }
}

/// The sum over kernels of what cannot be where it costs least.
fn kernels_extra_ns(problem: &Problem, capacity: u64, uses: &[Vec<Use>]) -> f64 {
    let room = Room::new(problem, capacity);
    // Of each kernel: tensors that had better be in the first tier, and bytes of those that must be.
    let mut items: Vec<Vec<(f64, f64)>> = vec![Vec::new(); problem.kernels().len()];
    let mut needed = vec![0.0; problem.kernels().len()];
    for (tensor, uses) in uses.iter().enumerate().filter(|(tensor, _)| !room.is_stuck(*tensor)) {
        let bytes = problem.tensors()[tensor].bytes as f64;
        for a_use in uses {
            match a_use.penalty_ns() {
                f64::INFINITY => needed[a_use.kernel] += bytes,
                penalty_ns => items[a_use.kernel].push((bytes, penalty_ns)),
            }
        }
    }
    let extra = items.into_iter().zip(needed).enumerate().map(|(kernel, (items, needed))| {
        let left = room.at(kernel) - needed;
        let all: f64 = items.iter().map(|(_, penalty_ns)| penalty_ns).sum();
        if left < 0.0 { f64::INFINITY } else { all - worth(left, items) }
    });
    extra.sum()
}

/// How many moments are looked at.
const MOMENTS: usize = 1000;

/// The most, over kernels, that it costs to have less in the first tier when the kernel begins than there is.
fn moments_extra_ns(problem: &Problem, capacity: u64, uses: &[Vec<Use>], least_ns: &[f64]) -> f64 {
    let away = Links::at(problem, |link| link.from);
    let back = Links::at(problem, |link| link.to);
    let total_ns: f64 = least_ns.iter().sum();
    let (mut before_ns, mut most_ns) = (0.0, 0.0_f64);
    let live = problem.live_bytes(|_| true);
    // Any moments will do: not more than so many, as each takes a look at every tensor.
    let full = live.iter().filter(|live| **live > capacity).count();
    let is_looked_at = |kernel: usize| live[kernel] > capacity && kernel.is_multiple_of(full.div_ceil(MOMENTS));
    let lives = |tensor: usize, kernel| problem.lifetime(tensor).is_some_and(|life| life.contains(&kernel));
    for (kernel, least_ns) in least_ns.iter().enumerate() {
        if is_looked_at(kernel) {
            let (mut gone, mut to_come) = (Excess::new(capacity), Excess::new(capacity));
            for (number, tensor) in problem.tensors().iter().enumerate() {
                let split = uses[number].partition_point(|a_use| a_use.kernel < kernel);
                let (earlier, later) = uses[number].split_at(split);
                // What is never used again may be given up.
                let Some(next) = later.first().filter(|_| lives(number, kernel)) else { continue };
                let again_ns = tensor.recompute.as_ref().map_or(f64::INFINITY, |again| again.time_ns as f64);
                to_come.add(tensor.bytes, back.moved_bytes(problem, number), next.penalty_ns().min(again_ns));
                if let Some(last) = earlier.last().filter(|_| tensor.recompute.is_none()) {
                    gone.add(tensor.bytes, away.moved_bytes(problem, number), last.penalty_ns());
                }
            }
            let after_ns = total_ns - before_ns;
            most_ns = most_ns.max(gone.extra_ns(&away, before_ns) + to_come.extra_ns(&back, after_ns));
        }
        before_ns += least_ns;
    }
    most_ns
}

/// Room of the first tier for what can be elsewhere.
struct Room {
    is_stuck: Vec<bool>,
    left: Vec<f64>,
}

impl Room {
    fn new(problem: &Problem, capacity: u64) -> Self {
        let has_a_way_out = problem.tiers()[1..].iter().any(|tier| tier.is_reachable)
            || problem.links().iter().any(|link| link.from == 0);
        let stuck = problem.tensors().iter().map(|tensor| {
            // What is always there may begin elsewhere.
            !has_a_way_out && tensor.recompute.is_none() && !tensor.is_always_there()
        });
        let is_stuck: Vec<bool> = stuck.collect();
        let live = problem.live_bytes(|tensor| is_stuck[tensor]);
        Self { is_stuck, left: live.into_iter().map(|live| capacity as f64 - live as f64).collect() }
    }

    /// All of it, for whichever tensors.
    fn whole(problem: &Problem, capacity: u64) -> Self {
        let is_stuck = vec![false; problem.tensors().len()];
        Self { is_stuck, left: vec![capacity as f64; problem.kernels().len()] }
    }

    fn is_stuck(&self, tensor: usize) -> bool {
        self.is_stuck[tensor]
    }

    /// Bytes at a kernel; less than none if nothing fits.
    fn at(&self, kernel: usize) -> f64 {
        self.left[kernel]
    }
}

/// All links that begin or end at the first tier.
pub(crate) struct Links {
    pub(crate) numbers: Vec<usize>,
    pub(crate) bytes_per_ns: f64,
}

impl Links {
    pub(crate) fn at(problem: &Problem, end: fn(&Link) -> usize) -> Self {
        let links = problem.links().iter().enumerate().filter(|(_, link)| end(link) == 0);
        let (numbers, bandwidths): (Vec<usize>, Vec<f64>) =
            links.map(|(number, link)| (number, link.bandwidth as f64)).unzip();
        Self { numbers, bytes_per_ns: bandwidths.iter().sum::<f64>() / 1e9 }
    }

    /// Bytes of a tensor that cross one of them, at least.
    pub(crate) fn moved_bytes(&self, problem: &Problem, tensor: usize) -> u64 {
        let moved = self.numbers.iter().map(|link| problem.moved_bytes(tensor, *link));
        moved.min().unwrap_or(problem.tensors()[tensor].bytes)
    }
}

/// What is there at a moment, of which the first tier has room for a part.
struct Excess {
    bytes: f64,
    /// Bytes, and nanoseconds that it costs if they do not cross a link.
    items: Vec<(f64, f64)>,
    /// Bytes that cross a link for each byte, at least.
    moved: f64,
}

impl Excess {
    fn new(capacity: u64) -> Self {
        Self { bytes: -(capacity as f64), items: Vec::new(), moved: 1.0 }
    }

    fn add(&mut self, bytes: u64, moved_bytes: u64, otherwise_ns: f64) {
        if bytes > 0 {
            self.bytes += bytes as f64;
            self.moved = self.moved.min(moved_bytes as f64 / bytes as f64);
            self.items.push((bytes as f64, otherwise_ns));
        }
    }

    /// Nanoseconds beyond `free_ns` until what has no room has crossed links, or was paid for otherwise.
    fn extra_ns(mut self, links: &Links, free_ns: f64) -> f64 {
        if self.bytes <= 0.0 {
            return 0.0;
        }
        let bytes_per_ns = links.bytes_per_ns / self.moved;
        let (mut left, mut extra_ns) = (self.bytes - bytes_per_ns * free_ns, 0.0);
        self.items.sort_by(|left, right| (left.1 / left.0).total_cmp(&(right.1 / right.0)));
        for (bytes, otherwise_ns) in self.items.into_iter().filter(|(_, otherwise_ns)| otherwise_ns.is_finite()) {
            if left <= 0.0 {
                break;
            }
            // While that is paid for, links go on.
            let gained = bytes + bytes_per_ns * otherwise_ns;
            extra_ns += otherwise_ns * (left / gained).min(1.0);
            left -= gained;
        }
        if left <= 0.0 { extra_ns } else { extra_ns + left / bytes_per_ns }
    }
}

/// The most that parts of items, each of a size and a worth, are worth in a room.
fn worth(room: f64, mut items: Vec<(f64, f64)>) -> f64 {
    let density = |(size, worth): &(f64, f64)| if *size > 0.0 { worth / size } else { f64::INFINITY };
    items.sort_by(|left, right| density(right).total_cmp(&density(left)));
    let mut left = room.max(0.0);
    let taken = items.into_iter().map(|(size, worth)| {
        let share = if size <= left { 1.0 } else { left / size };
        left = (left - size).max(0.0);
        worth * share
    });
    taken.sum()
}
