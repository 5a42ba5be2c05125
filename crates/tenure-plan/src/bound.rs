//! Bounds that no plan can surpass. They are found in milliseconds unless an item says otherwise.
//!
//! Both arguments are about the room of the first tier. *For one kernel*: the tensors of the kernel that fit there
//! serve it best, a knapsack problem in which parts of tensors may be taken. *For one moment*: bytes that exist when a
//! kernel begins and do not fit are either used elsewhere before and after, or cross a link before and after, or are
//! recomputed. Links carry no more than their bandwidth, so the rest costs time. Transfers in progress only slow other
//! accesses down, and waits only add to the cost.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Problem;
use crate::problem::ProblemLink;
use crate::uses::{Use, uses};

/// Returns an upper bound on the share of accessed bytes that the first tier serves in any valid plan, with moves and
/// recomputation: 0 to 1. It is 1 if the problem has no tiers.
pub fn score_bound(problem: &Problem) -> f64 {
    capacity(problem).map_or(1.0, |capacity| kernels_score(problem, &MovableRoom::new(problem, capacity)))
}

/// Returns an upper bound, 0 to 1, on the share of accessed bytes that the first tier serves if tensors stay where they
/// are. With the feature `milp` it is the optimum over placements that may split tensors between tiers, to the solver's
/// tolerance of a millionth; that takes a tenth of a second instead of milliseconds.
pub fn static_score_bound(problem: &Problem) -> f64 {
    let Some(capacity) = capacity(problem) else { return 1.0 };
    let bound = joined_score_bound(problem, capacity);
    #[cfg(feature = "milp")]
    let bound = crate::planner::relaxed_score(problem, capacity).map_or(bound, |relaxed| relaxed.min(bound));
    bound
}

/// Returns the same bound without the solver, within milliseconds. Kernels at which not everything fits are joined: one
/// knapsack of room times kernels.
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
    if all == 0.0 {
        1.0
    } else {
        (fast / all).min(1.0).min(kernels_score(problem, &MovableRoom::whole(problem, capacity)))
    }
}

/// Returns the least time in nanoseconds that a plan can take in the simulator, with moves and recomputation. Infinite
/// if it is clear that no plan is valid.
pub fn makespan_bound_ns(problem: &Problem) -> f64 {
    let kernels = problem.kernels();
    if problem.tiers().is_empty() || kernels.is_empty() {
        return problem.kernels_ns() as f64;
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

/// Returns the bytes of the first tier; `None` if there is no tier or its capacity is unlimited.
fn capacity(problem: &Problem) -> Option<u64> {
    problem.tiers().first()?.capacity
}

/// Returns the share of accessed bytes that the first tier serves if each kernel finds there the tensors of most worth
/// to it.
fn kernels_score(problem: &Problem, room: &MovableRoom) -> f64 {
    let mut fast = 0.0;
    for (number, kernel) in problem.kernels().iter().enumerate() {
        let mut accesses: Vec<(usize, u64)> = kernel.accesses().map(|access| (access.tensor, access.bytes)).collect();
        accesses.sort_unstable();
        let mut items: Vec<(f64, f64)> = Vec::new();
        for same in accesses.chunk_by(|left, right| left.0 == right.0) {
            let value: f64 = same.iter().map(|(_, bytes)| *bytes as f64).sum();
            if room.must_stay(same[0].0) {
                fast += value;
            } else {
                items.push((problem.tensors()[same[0].0].bytes as f64, value));
            }
        }
        fast += worth(room.bytes_at(number), items);
    }
    let all = problem.all_accessed_bytes() as f64;
    if all == 0.0 { 1.0 } else { (fast / all).min(1.0) }
}

/// Returns the sum over kernels of the least extra time for the bytes that have no room in the first tier.
fn kernels_extra_ns(problem: &Problem, capacity: u64, uses: &[Vec<Use>]) -> f64 {
    let room = MovableRoom::new(problem, capacity);
    // For each kernel: the tensors that gain from the first tier, and the bytes that must be in it.
    let mut items: Vec<Vec<(f64, f64)>> = vec![Vec::new(); problem.kernels().len()];
    let mut needed = vec![0.0; problem.kernels().len()];
    for (tensor, uses) in uses.iter().enumerate().filter(|(tensor, _)| !room.must_stay(*tensor)) {
        let bytes = problem.tensors()[tensor].bytes as f64;
        for a_use in uses {
            match a_use.penalty_ns() {
                f64::INFINITY => needed[a_use.kernel] += bytes,
                penalty_ns => items[a_use.kernel].push((bytes, penalty_ns)),
            }
        }
    }
    let extra = items.into_iter().zip(needed).enumerate().map(|(kernel, (items, needed))| {
        let left = room.bytes_at(kernel) - needed;
        let all: f64 = items.iter().map(|(_, penalty_ns)| penalty_ns).sum();
        if left < 0.0 { f64::INFINITY } else { all - worth(left, items) }
    });
    extra.sum()
}

/// Returns the maximum over kernels of the cost of fitting into the first tier the bytes that exist when the kernel
/// begins.
fn moments_extra_ns(problem: &Problem, capacity: u64, uses: &[Vec<Use>], least_ns: &[f64]) -> f64 {
    let away = Links::at(problem, |link| link.from);
    let back = Links::at(problem, |link| link.to);
    let (mut gone, mut to_come) = (Vec::new(), Vec::new());
    for (number, tensor) in problem.tensors().iter().enumerate().filter(|(_, tensor)| tensor.bytes > 0) {
        let item = |kernels, links: &Links, otherwise_ns| IdleTensor {
            kernels,
            bytes: tensor.bytes as f64,
            moved: links.moved_bytes(problem, number) as f64 / tensor.bytes as f64,
            otherwise_ns,
        };
        let again_ns = tensor.recompute.as_ref().map_or(f64::INFINITY, |again| again.time_ns as f64);
        // A tensor that is never used again may be dropped.
        if let Some(first) = uses[number].first() {
            let begin = if tensor.is_always_there() { 0 } else { first.kernel };
            to_come.push(item(begin..first.kernel + 1, &back, first.penalty_ns().min(again_ns)));
        }
        for pair in uses[number].windows(2) {
            let kernels = pair[0].kernel + 1..pair[1].kernel + 1;
            to_come.push(item(kernels.clone(), &back, pair[1].penalty_ns().min(again_ns)));
            if tensor.recompute.is_none() {
                gone.push(item(kernels, &away, pair[0].penalty_ns()));
            }
        }
    }
    let total_ns: f64 = least_ns.iter().sum();
    let mut gone = Excess::new(gone, capacity);
    let mut to_come = Excess::new(to_come, capacity);
    let (mut before_ns, mut most_ns) = (0.0, 0.0_f64);
    for (kernel, least_ns) in least_ns.iter().enumerate() {
        let extra_ns = gone.extra_ns(kernel, &away, before_ns) + to_come.extra_ns(kernel, &back, total_ns - before_ns);
        most_ns = most_ns.max(extra_ns);
        before_ns += least_ns;
    }
    most_ns
}

/// Room of the first tier for tensors that can be elsewhere.
struct MovableRoom {
    /// For each tensor, whether it can only be in the first tier.
    must_stay: Vec<bool>,
    /// The bytes left to the others at each kernel; negative if even those that must stay do not fit.
    left: Vec<f64>,
}

impl MovableRoom {
    fn new(problem: &Problem, capacity: u64) -> Self {
        let has_a_way_out = problem.tiers()[1..].iter().any(|tier| tier.is_reachable)
            || problem.links().iter().any(|link| link.from == 0);
        let stuck = problem.tensors().iter().map(|tensor| {
            // A tensor that always exists may begin elsewhere.
            !has_a_way_out && tensor.recompute.is_none() && !tensor.is_always_there()
        });
        let must_stay: Vec<bool> = stuck.collect();
        let live = problem.live_bytes(|tensor| must_stay[tensor]);
        Self { must_stay, left: live.into_iter().map(|live| capacity as f64 - live as f64).collect() }
    }

    /// Returns all of the first tier, for any tensor.
    fn whole(problem: &Problem, capacity: u64) -> Self {
        let must_stay = vec![false; problem.tensors().len()];
        Self { must_stay, left: vec![capacity as f64; problem.kernels().len()] }
    }

    /// Returns whether a tensor can only be in the first tier.
    fn must_stay(&self, tensor: usize) -> bool {
        self.must_stay[tensor]
    }

    /// Returns the bytes left at a kernel; negative if nothing fits.
    fn bytes_at(&self, kernel: usize) -> f64 {
        self.left[kernel]
    }
}

/// All links that begin, or all that end, at the first tier.
pub(crate) struct Links {
    pub(crate) numbers: Vec<usize>,
    /// Their bandwidths together.
    pub(crate) bytes_per_ns: f64,
}

impl Links {
    /// Returns the links of which `end` returns the first tier.
    pub(crate) fn at(problem: &Problem, end: fn(&ProblemLink) -> usize) -> Self {
        let links = problem.links().iter().enumerate().filter(|(_, link)| end(link) == 0);
        let (numbers, bandwidths): (Vec<usize>, Vec<f64>) =
            links.map(|(number, link)| (number, link.bandwidth as f64)).unzip();
        Self { numbers, bytes_per_ns: bandwidths.iter().sum::<f64>() / 1e9 }
    }

    /// Returns the least number of bytes of a tensor that cross one of the links.
    pub(crate) fn moved_bytes(&self, problem: &Problem, tensor: usize) -> u64 {
        let moved = self.numbers.iter().map(|link| problem.moved_bytes(tensor, *link));
        moved.min().unwrap_or(problem.tensors()[tensor].bytes)
    }
}

/// A tensor between two of its uses.
struct IdleTensor {
    /// The kernels at whose beginning it exists.
    kernels: Range<usize>,
    bytes: f64,
    /// The least number of bytes that cross a link for each byte of the tensor.
    moved: f64,
    /// The cost in nanoseconds if no bytes cross a link.
    otherwise_ns: f64,
}

/// The items that exist when a kernel begins; the first tier has room for a part of them. Kernels are visited in order.
struct Excess {
    /// The items, sorted by their cost per byte, ascending.
    items: Vec<IdleTensor>,
    /// For each kernel, the items that exist from it on, and the items that existed until it.
    begin: Vec<Vec<usize>>,
    end: Vec<Vec<usize>>,
    /// Bytes of the existing items, minus the capacity.
    bytes: f64,
    /// The number of existing items for each value of [`IdleTensor::moved`], keyed by its bits. No value is negative,
    /// so the bits sort like the values.
    moved: BTreeMap<u64, usize>,
    /// Sums of bytes and costs of the existing items, as a Fenwick tree: entry i covers the last items before i, as
    /// many as the lowest set bit of i.
    sums: Vec<[f64; 2]>,
}

impl Excess {
    fn new(mut items: Vec<IdleTensor>, capacity: u64) -> Self {
        items.sort_by(|left, right| (left.otherwise_ns / left.bytes).total_cmp(&(right.otherwise_ns / right.bytes)));
        let kernels = items.iter().map(|item| item.kernels.end).max().unwrap_or(0);
        let mut begin = vec![Vec::new(); kernels + 1];
        let mut end = vec![Vec::new(); kernels + 1];
        for (number, item) in items.iter().enumerate() {
            begin[item.kernels.start].push(number);
            end[item.kernels.end].push(number);
        }
        let sums = vec![[0.0; 2]; items.len() + 1];
        Self { items, begin, end, bytes: -(capacity as f64), moved: BTreeMap::new(), sums }
    }

    /// Adds an item if `sign` is 1, removes it if it is -1.
    fn add(&mut self, number: usize, sign: f64) {
        let IdleTensor { bytes, moved, otherwise_ns, .. } = self.items[number];
        self.bytes += sign * bytes;
        let alike = self.moved.entry(moved.to_bits()).or_default();
        if sign > 0.0 {
            *alike += 1;
        } else if *alike > 1 {
            *alike -= 1;
        } else {
            self.moved.remove(&moved.to_bits());
        }
        if otherwise_ns.is_finite() {
            let mut at = number + 1;
            while at < self.sums.len() {
                self.sums[at][0] += sign * bytes;
                self.sums[at][1] += sign * otherwise_ns;
                at += at & at.wrapping_neg();
            }
        }
    }

    /// Returns the nanoseconds beyond `free_ns` until the excess bytes have crossed links or were paid for in another
    /// way.
    fn extra_ns(&mut self, kernel: usize, links: &Links, free_ns: f64) -> f64 {
        for number in self.end.get_mut(kernel).map(std::mem::take).unwrap_or_default() {
            self.add(number, -1.0);
        }
        for number in self.begin.get_mut(kernel).map(std::mem::take).unwrap_or_default() {
            self.add(number, 1.0);
        }
        let Some(least) = self.moved.keys().next().filter(|_| self.bytes > 0.0) else { return 0.0 };
        let bytes_per_ns = links.bytes_per_ns / f64::from_bits(*least);
        let mut left = self.bytes - bytes_per_ns * free_ns;
        let mut extra_ns = 0.0;
        if left <= 0.0 {
            return 0.0;
        }
        // Pay for the items that cost least for each byte, as many as are needed. Links carry bytes during that time.
        let gained = |sums: [f64; 2]| sums[0] + bytes_per_ns * sums[1];
        let mut paid = 0;
        let mut step = (self.sums.len() - 1).checked_ilog2().map_or(0, |bits| 1 << bits);
        while step > 0 {
            if let Some(sums) = self.sums.get(paid + step).filter(|sums| gained(**sums) < left) {
                (left, extra_ns, paid) = (left - gained(*sums), extra_ns + sums[1], paid + step);
            }
            step /= 2;
        }
        // A part of the next item; if there is none, links carry the rest.
        match self.items.get(paid).filter(|item| item.otherwise_ns.is_finite()) {
            Some(item) => extra_ns + item.otherwise_ns * (left / gained([item.bytes, item.otherwise_ns])).min(1.0),
            None => extra_ns + left / bytes_per_ns,
        }
    }
}

/// Returns the highest worth of parts of `items`, each of a size and a worth, that fit into a room.
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
