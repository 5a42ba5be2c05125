//! The simulator: computes the time and memory that a plan takes.
//!
//! Kernels run one after the other; on each link one tensor moves after the other, concurrently with the kernels.
//! Between two events all rates are constant: a moving tensor takes bandwidth of both its tiers, and kernels that use
//! these tiers take longer.

use std::collections::VecDeque;

use crate::plan::{Plan, PlanAction, PlanStep};
use crate::problem::{ProblemAccess, ProblemKernel, ProblemLink, ProblemTier};
use crate::{PlanError, Problem};

/// The outcome of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Nanoseconds from the beginning of the first kernel until the last has ended and every tensor that always exists
    /// is back where it began, so that the next iteration can begin.
    pub makespan_ns: f64,
    /// Nanoseconds in which a kernel or a recomputation ran.
    pub busy_ns: f64,
    /// The most bytes in each tier at once.
    pub peak_bytes: Vec<u64>,
    /// Bytes that kernels read and wrote in each tier.
    pub accessed_bytes: Vec<u64>,
    /// Bytes that crossed each link.
    pub moved_bytes: Vec<u64>,
    /// The waits of kernels, in their order.
    pub stalls: Vec<Stall>,
}

impl Outcome {
    /// Returns the share of accessed bytes that the first tier served, 0 to 1. Returns 1 if kernels read and wrote no
    /// bytes.
    pub fn score(&self) -> f64 {
        match self.accessed_bytes.iter().sum::<u64>() {
            0 => 1.0,
            all => self.accessed_bytes[0] as f64 / all as f64,
        }
    }
}

/// A wait before a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// The kernel's number; the number of kernels for the wait at the end.
    pub kernel: usize,
    /// Nanoseconds.
    pub ns: f64,
    /// The cause.
    pub cause: Cause,
}

/// The cause of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel waits until this tensor has arrived in a tier that kernels reach, or may be written to.
    Tensor(usize),
    /// The kernel waits for room in this tier.
    Room(usize),
}

/// Simulates an iteration of a problem by a plan.
///
/// # Errors
/// An error if the plan is not valid: an index is out of range, no link leads to the target of a move, a kernel needs a
/// tensor that is in no tier, or there is never enough room. Also if the plan cannot be repeated, because a tensor that
/// always exists ends in another tier than it began.
pub fn simulate(problem: &Problem, plan: &Plan) -> Result<Outcome, PlanError> {
    Simulation::new(problem, plan)?.run()
}

/// The state of a tensor.
#[derive(Clone, Copy, PartialEq)]
enum TensorState {
    /// Not created yet.
    Unallocated,
    /// In this tier.
    At(usize),
    /// Dropped, or never needed again.
    Freed,
}

/// A tensor in transfer.
#[derive(Clone, Copy)]
struct Transfer {
    tensor: usize,
    /// The bytes that have not arrived yet.
    left_bytes: f64,
}

/// A pending move.
#[derive(Clone, Copy)]
struct PendingMove {
    tensor: usize,
    /// The kernel that must have started.
    kernel: usize,
    /// The number of drops of the tensor that come before.
    drops: usize,
}

/// The accesses of the running kernel in a tier.
#[derive(Clone, Copy, Default)]
struct TierAccesses {
    bytes: u64,
    times: u64,
}

/// The state of a simulation.
struct Simulation<'a> {
    problem: &'a Problem,
    places: &'a [usize],
    states: Vec<TensorState>,
    /// The number of times that each tensor was dropped.
    drops: Vec<usize>,
    /// The link that carries each tensor.
    on_link: Vec<Option<usize>>,
    /// Bytes in each tier, with those of tensors on their way to it.
    used_bytes: Vec<u64>,
    /// Pending moves on each link.
    pending_moves: Vec<VecDeque<PendingMove>>,
    /// Pending and running moves of tensors that always exist.
    persistent_moves: usize,
    /// The running transfer on each link.
    active: Vec<Option<Transfer>>,
    /// The recomputations before each kernel: (tensor, tier).
    recomputed: Vec<Vec<(usize, usize)>>,
    /// The tensors dropped after each kernel.
    dropped: Vec<Vec<usize>>,
    /// Tensors whose lifetime begins with each kernel, and those whose lifetime ends with it.
    allocated_by: Vec<Vec<usize>>,
    freed_by: Vec<Vec<usize>>,
    /// The number of kernels that have begun.
    started_kernels: usize,
    /// The number of executions (of kernels and recomputations) that have begun.
    executions: usize,
    /// Whether the last execution is running. Tensors that it uses do not leave their tier before it has ended.
    is_running: bool,
    /// For each tensor, the value of `executions` at its last use.
    last_use: Vec<usize>,
    /// For each tensor, the value of `executions` at its last write.
    last_write: Vec<usize>,
    /// The reads and the writes of the last execution in each tier.
    reads: Vec<TierAccesses>,
    writes: Vec<TierAccesses>,
    now: f64,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(problem: &'a Problem, plan: &'a Plan) -> Result<Self, PlanError> {
        let tensors = problem.tensors().len();
        let kernels = problem.kernels().len();
        let tiers = problem.tiers().len();
        let links = problem.links().len();
        if tiers == 0 {
            return Err(PlanError::NoTiers);
        }
        if plan.places.len() != tensors {
            return Err(PlanError::Places { found: plan.places.len(), tensors });
        }
        if let Some(tier) = plan.places.iter().copied().find(|tier| *tier >= tiers) {
            return Err(PlanError::Tier { tier, tiers });
        }
        let mut simulation = Self {
            problem,
            places: &plan.places,
            states: vec![TensorState::Unallocated; tensors],
            drops: vec![0; tensors],
            on_link: vec![None; tensors],
            used_bytes: vec![0; tiers],
            pending_moves: vec![VecDeque::new(); links],
            persistent_moves: 0,
            active: vec![None; links],
            recomputed: vec![Vec::new(); kernels],
            dropped: vec![Vec::new(); kernels],
            allocated_by: vec![Vec::new(); kernels],
            freed_by: vec![Vec::new(); kernels],
            started_kernels: 0,
            executions: 0,
            is_running: false,
            last_use: vec![0; tensors],
            last_write: vec![0; tensors],
            reads: vec![TierAccesses::default(); tiers],
            writes: vec![TierAccesses::default(); tiers],
            now: 0.0,
            outcome: Outcome {
                makespan_ns: 0.0,
                busy_ns: 0.0,
                peak_bytes: vec![0; tiers],
                accessed_bytes: vec![0; tiers],
                moved_bytes: vec![0; links],
                stalls: Vec::new(),
            },
        };
        simulation.assign_steps(plan)?;
        for (number, tensor) in problem.tensors().iter().enumerate() {
            let Some(life) = problem.lifetime(number) else { continue };
            if tensor.is_always_there() {
                simulation.allocate(number, plan.places[number], 0)?;
            } else {
                simulation.allocated_by[*life.start()].push(number);
                simulation.freed_by[*life.end()].push(number);
            }
        }
        Ok(simulation)
    }

    /// Distributes the plan's steps to links and kernels.
    fn assign_steps(&mut self, plan: &Plan) -> Result<(), PlanError> {
        let problem = self.problem;
        let tiers = self.problem.tiers().len();
        let mut at: Vec<Option<usize>> = plan.places.iter().copied().map(Some).collect();
        // For each tensor, the kernel from which on it exists, or does not, and the number of drops so far.
        let lives = (0..at.len()).map(|tensor| problem.lifetime(tensor).map_or(0, |life| *life.start()));
        let mut since = lives.collect::<Vec<usize>>();
        let mut drops = vec![0; at.len()];
        for step in &plan.steps {
            let PlanStep { tensor, kernel, action } = *step;
            if tensor >= self.states.len() || kernel >= self.recomputed.len() {
                return Err(PlanError::Step { tensor, kernel });
            }
            match (action, at[tensor]) {
                (PlanAction::Move { to } | PlanAction::Recompute { to }, _) if to >= tiers => {
                    return Err(PlanError::Tier { tier: to, tiers });
                }
                (PlanAction::Move { to }, Some(from)) => {
                    let link = problem.link(from, to).ok_or(PlanError::NoLink { tensor, from, to })?;
                    self.pending_moves[link].push_back(PendingMove {
                        tensor,
                        kernel: kernel.max(since[tensor]),
                        drops: drops[tensor],
                    });
                    self.persistent_moves += usize::from(problem.tensors()[tensor].is_always_there());
                    at[tensor] = Some(to);
                }
                (PlanAction::Drop, Some(_)) if kernel >= since[tensor] => {
                    self.dropped[kernel].push(tensor);
                    drops[tensor] += 1;
                    (at[tensor], since[tensor]) = (None, kernel + 1);
                }
                (PlanAction::Recompute { to }, None) if kernel >= since[tensor] => {
                    self.recomputed[kernel].push((tensor, to));
                    (at[tensor], since[tensor]) = (Some(to), kernel);
                }
                (PlanAction::Move { .. } | PlanAction::Drop, _) => return Err(PlanError::Nowhere { tensor, kernel }),
                (PlanAction::Recompute { .. }, _) => return Err(PlanError::StillThere { tensor, kernel }),
            }
        }
        let first_and_last = plan.places.iter().zip(at).enumerate();
        for (tensor, (first, last)) in first_and_last.filter(|(tensor, _)| problem.tensors()[*tensor].is_always_there())
        {
            match last {
                None => return Err(PlanError::Lost { tensor }),
                Some(last) if last != *first => return Err(PlanError::Displaced { tensor, tier: *first }),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Runs all kernels, and returns the outcome.
    fn run(mut self) -> Result<Outcome, PlanError> {
        let problem = self.problem;
        for (number, kernel) in problem.kernels().iter().enumerate() {
            for (tensor, to) in std::mem::take(&mut self.recomputed[number]) {
                self.recompute(number, tensor, to)?;
            }
            self.wait_for(number, |simulation| simulation.start_obstacle(number, kernel))?;
            for tensor in std::mem::take(&mut self.allocated_by[number]) {
                self.allocate(tensor, self.places[tensor], number)?;
            }
            self.started_kernels = number + 1;
            self.execute(kernel);
            let accessed = self.reads.iter().zip(&self.writes).map(|(read, written)| read.bytes + written.bytes);
            self.outcome.accessed_bytes.iter_mut().zip(accessed).for_each(|(all, bytes)| *all += bytes);
            for tensor in std::mem::take(&mut self.dropped[number]) {
                self.free(tensor);
                self.drops[tensor] += 1;
            }
            for tensor in std::mem::take(&mut self.freed_by[number]) {
                self.free(tensor);
            }
        }
        self.await_persistent_moves()?;
        self.outcome.makespan_ns = self.now;
        Ok(self.outcome)
    }

    /// Waits until all moves of tensors that are always there are done, so that these are where they began.
    fn await_persistent_moves(&mut self) -> Result<(), PlanError> {
        self.wait_for(self.started_kernels, |simulation| {
            let active = simulation.active.iter().flatten().map(|transfer| transfer.tensor);
            let pending =
                simulation.pending_moves.iter().filter_map(|moves| moves.front()).map(|pending| pending.tensor);
            Ok(active.chain(pending).next().filter(|_| simulation.persistent_moves > 0).map(Cause::Tensor))
        })
        .map_err(|error| match error {
            PlanError::NeverReached { tensor, .. } => PlanError::Displaced { tensor, tier: self.places[tensor] },
            error => error,
        })
    }

    /// Runs a kernel or a recomputation from beginning to end.
    fn execute(&mut self, kernel: &ProblemKernel) {
        self.count_accesses(kernel);
        self.is_running = true;
        self.run_for(|simulation| simulation.duration_ns(kernel));
        self.is_running = false;
        self.advance(0.0);
    }

    /// Begins an execution: counts its accesses in each tier, and records its uses of tensors.
    fn count_accesses(&mut self, kernel: &ProblemKernel) {
        self.executions += 1;
        for (list, all) in [(&kernel.reads, &mut self.reads), (&kernel.writes, &mut self.writes)] {
            all.fill(TierAccesses::default());
            for access in list {
                self.last_use[access.tensor] = self.executions;
                if let TensorState::At(tier) = self.states[access.tensor] {
                    all[tier].bytes += access.bytes;
                    all[tier].times += 1;
                }
            }
        }
        kernel.writes.iter().for_each(|access| self.last_write[access.tensor] = self.executions);
    }

    /// Recomputes a tensor before a kernel.
    fn recompute(&mut self, kernel: usize, tensor: usize, to: usize) -> Result<(), PlanError> {
        let Some(again) = &self.problem.tensors()[tensor].recompute else {
            return Err(PlanError::NoRecompute { tensor });
        };
        if !self.problem.tiers()[to].is_reachable {
            return Err(PlanError::Unreachable { tensor, tier: to });
        }
        let bytes = self.problem.bytes_in(tensor, to);
        self.wait_for(kernel, |simulation| {
            for input in &again.inputs {
                if let Some(cause) = simulation.reach_obstacle(*input, kernel)? {
                    return Ok(Some(cause));
                }
            }
            Ok((!simulation.has_room(to, bytes)).then_some(Cause::Room(to)))
        })?;
        self.allocate(tensor, to, kernel)?;
        let whole = |tensor: usize| ProblemAccess { tensor, bytes: self.problem.tensors()[tensor].bytes };
        let reads = again.inputs.iter().map(|input| whole(*input)).collect();
        let writes = vec![whole(tensor)];
        self.execute(&ProblemKernel { name: String::new(), time_ns: again.time_ns, reads, writes });
        Ok(())
    }

    /// Lets time pass until `obstacle` finds none, and records the wait as a stall of `kernel`.
    fn wait_for(
        &mut self,
        kernel: usize,
        obstacle: impl Fn(&Self) -> Result<Option<Cause>, PlanError>,
    ) -> Result<(), PlanError> {
        self.start_transfers();
        while let Some(cause) = obstacle(self)? {
            let Some(ns) = self.next_arrival_ns() else {
                return Err(match cause {
                    Cause::Tensor(tensor) => PlanError::NeverReached { tensor, kernel },
                    Cause::Room(tier) => PlanError::NoRoom { tier, kernel },
                });
            };
            self.advance(ns);
            match self.outcome.stalls.last_mut() {
                Some(stall) if (stall.kernel, stall.cause) == (kernel, cause) => stall.ns += ns,
                _ => self.outcome.stalls.push(Stall { kernel, ns, cause }),
            }
            self.start_transfers();
        }
        Ok(())
    }

    /// Returns the cause for which a kernel cannot begin now, or `None` if it can.
    fn start_obstacle(&self, number: usize, kernel: &ProblemKernel) -> Result<Option<Cause>, PlanError> {
        for access in kernel.accesses() {
            let life = self.problem.lifetime(access.tensor);
            if life.is_some_and(|life| *life.start() == number)
                && self.states[access.tensor] == TensorState::Unallocated
            {
                // This kernel allocates it.
                continue;
            }
            if let Some(cause) = self.reach_obstacle(access.tensor, number)? {
                return Ok(Some(cause));
            }
        }
        for access in &kernel.writes {
            if self.on_link[access.tensor].is_some() {
                return Ok(Some(Cause::Tensor(access.tensor)));
            }
        }
        let mut needed = vec![0_u64; self.used_bytes.len()];
        for tensor in &self.allocated_by[number] {
            let tier = self.places[*tensor];
            if !self.problem.tiers()[tier].is_reachable {
                return Err(PlanError::Unreachable { tensor: *tensor, tier });
            }
            needed[tier] += self.problem.bytes_in(*tensor, tier);
        }
        Ok((0..needed.len()).find(|tier| !self.has_room(*tier, needed[*tier])).map(Cause::Room))
    }

    /// Returns the cause for which a kernel cannot access a tensor now, or `None` if it can.
    fn reach_obstacle(&self, tensor: usize, kernel: usize) -> Result<Option<Cause>, PlanError> {
        match self.states[tensor] {
            TensorState::At(tier) if self.problem.tiers()[tier].is_reachable => Ok(None),
            TensorState::At(_) => Ok(Some(Cause::Tensor(tensor))),
            TensorState::Unallocated | TensorState::Freed => Err(PlanError::Gone { tensor, kernel }),
        }
    }

    /// Returns whether a tier has room for `bytes` more bytes.
    fn has_room(&self, tier: usize, bytes: u64) -> bool {
        self.problem.tiers()[tier].capacity.is_none_or(|capacity| self.used_bytes[tier] + bytes <= capacity)
    }

    /// Allocates a tensor in a tier.
    fn allocate(&mut self, tensor: usize, tier: usize, kernel: usize) -> Result<(), PlanError> {
        let bytes = self.problem.bytes_in(tensor, tier);
        if !self.has_room(tier, bytes) {
            return Err(PlanError::NoRoom { tier, kernel });
        }
        self.states[tensor] = TensorState::At(tier);
        self.reserve(tier, bytes);
        Ok(())
    }

    /// Adds `bytes` to the use of a tier.
    fn reserve(&mut self, tier: usize, bytes: u64) {
        self.used_bytes[tier] += bytes;
        self.outcome.peak_bytes[tier] = self.outcome.peak_bytes[tier].max(self.used_bytes[tier]);
    }

    /// Ends a tensor's existence; a transfer of it ends too.
    fn free(&mut self, tensor: usize) {
        if let TensorState::At(tier) = std::mem::replace(&mut self.states[tensor], TensorState::Freed) {
            self.used_bytes[tier] -= self.problem.bytes_in(tensor, tier);
        }
        if let Some(link) = self.on_link[tensor].take() {
            self.active[link] = None;
            let to = self.problem.links()[link].to;
            self.used_bytes[to] -= self.problem.bytes_in(tensor, to);
        }
    }

    /// Runs a kernel or recomputation whose duration depends on the transfers in progress.
    fn run_for(&mut self, duration_ns: impl Fn(&Self) -> f64) {
        let mut left = 1.0;
        loop {
            self.start_transfers();
            let duration = duration_ns(self);
            let needed = left * duration;
            let ns = self.next_arrival_ns().map_or(needed, |arrival| arrival.min(needed));
            self.advance(ns);
            self.outcome.busy_ns += ns;
            if ns >= needed {
                return;
            }
            left -= ns / duration;
        }
    }

    /// Returns the nanoseconds that a whole kernel takes at the current rates of transfers.
    fn duration_ns(&self, kernel: &ProblemKernel) -> f64 {
        let tiers = self.problem.tiers();
        let taken = |bandwidth: fn(&ProblemTier) -> u64, all: &[TierAccesses], end: fn(&ProblemLink) -> usize| -> f64 {
            all.iter()
                .enumerate()
                .map(|(number, accessed)| {
                    if accessed.times == 0 {
                        return 0.0;
                    }
                    let share = self.load(number, bandwidth(&tiers[number]), end);
                    tiers[number].extra_ns(&tiers[0], accessed.bytes, accessed.times, bandwidth, share)
                })
                .sum()
        };
        kernel.time_ns as f64
            + taken(|tier| tier.read_bandwidth, &self.reads, |link| link.from)
            + taken(|tier| tier.write_bandwidth, &self.writes, |link| link.to)
    }

    /// Returns the share of a tier's bandwidth that transfers take at one end of their links.
    fn load(&self, tier: usize, bandwidth: u64, end: fn(&ProblemLink) -> usize) -> f64 {
        let links = self.problem.links().iter().enumerate();
        let rates = links.filter(|(_, link)| end(link) == tier).map(|(number, _)| self.rate(number));
        (rates.sum::<f64>() / bandwidth as f64).min(1.0)
    }

    /// Returns the bytes per second on a link.
    fn rate(&self, number: usize) -> f64 {
        if !self.is_moving(number) {
            return 0.0;
        }
        let links = self.problem.links();
        let users = (0..links.len()).filter(|&other| self.is_moving(other)).filter(|&other| {
            links[number].shared_with == Some(other) || links[other].shared_with == Some(number) || other == number
        });
        let users = users.count();
        links[number].bandwidth as f64 / users as f64
    }

    /// Returns whether a transfer on a link has bytes left to move.
    fn is_moving(&self, link: usize) -> bool {
        self.active[link].is_some_and(|transfer| !transfer.has_arrived())
    }

    /// Returns the nanoseconds until the next transfer arrives.
    fn next_arrival_ns(&self) -> Option<f64> {
        let arrivals = (0..self.active.len()).filter_map(|link| {
            let transfer = self.active[link].filter(|transfer| !transfer.has_arrived())?;
            Some(transfer.left_bytes * 1e9 / self.rate(link))
        });
        arrivals.min_by(f64::total_cmp)
    }

    /// Lets time pass, at most until the next arrival.
    fn advance(&mut self, ns: f64) {
        let moved: Vec<f64> = (0..self.active.len()).map(|link| self.rate(link) * ns / 1e9).collect();
        self.now += ns;
        for (link, moved) in moved.into_iter().enumerate() {
            if let Some(transfer) = &mut self.active[link] {
                transfer.left_bytes -= moved;
                self.complete_if_arrived(link);
            }
        }
    }

    /// Completes a transfer that has arrived, unless the running kernel uses the tensor in its old tier.
    fn complete_if_arrived(&mut self, link: usize) {
        if let Some(Transfer { tensor, .. }) = self.active[link].filter(Transfer::has_arrived)
            && !self.is_used_now(&self.last_use, tensor)
        {
            self.complete_transfer(link, tensor);
        }
    }

    /// Returns whether the current execution uses the tensor. `last` has the last use, or the last write, of each
    /// tensor.
    fn is_used_now(&self, last: &[usize], tensor: usize) -> bool {
        self.is_running && last[tensor] == self.executions
    }

    /// Moves a transferred tensor to its new tier, and frees the link.
    fn complete_transfer(&mut self, link: usize, tensor: usize) {
        let ends = &self.problem.links()[link];
        self.used_bytes[ends.from] -= self.problem.bytes_in(tensor, ends.from);
        self.states[tensor] = TensorState::At(ends.to);
        self.on_link[tensor] = None;
        self.active[link] = None;
        self.persistent_moves -= usize::from(self.problem.tensors()[tensor].is_always_there());
        let moved = &mut self.outcome.moved_bytes[link];
        *moved = moved.saturating_add(self.problem.moved_bytes(tensor, link));
    }

    /// Starts every transfer that may start.
    fn start_transfers(&mut self) {
        for link in 0..self.pending_moves.len() {
            while self.active[link].is_none()
                && let Some(pending) =
                    self.pending_moves[link].front().copied().filter(|pending| pending.kernel < self.started_kernels)
            {
                let PendingMove { tensor, drops, .. } = pending;
                let from = self.problem.links()[link].from;
                let to = self.problem.links()[link].to;
                let bytes = self.problem.bytes_in(tensor, to);
                if self.is_used_now(&self.last_write, tensor) {
                    break;
                }
                match self.states[tensor] {
                    // It was dropped before it moved, or does not exist: the move is left out.
                    _ if drops < self.drops[tensor] => _ = self.pending_moves[link].pop_front(),
                    TensorState::Freed | TensorState::Unallocated => _ = self.pending_moves[link].pop_front(),
                    TensorState::At(tier)
                        if tier == from && self.on_link[tensor].is_none() && self.has_room(to, bytes) =>
                    {
                        self.pending_moves[link].pop_front();
                        self.reserve(to, bytes);
                        self.on_link[tensor] = Some(link);
                        let left_bytes = self.problem.moved_bytes(tensor, link) as f64;
                        self.active[link] = Some(Transfer { tensor, left_bytes });
                        self.complete_if_arrived(link);
                    }
                    // It has not arrived in the source tier yet, or there is no room yet.
                    TensorState::At(_) => break,
                }
            }
        }
    }
}

impl Transfer {
    fn has_arrived(&self) -> bool {
        // Less than a byte is a rounding error.
        self.left_bytes < 0.5
    }
}

impl ProblemTier {
    /// Returns the extra nanoseconds of accesses to this tier. A kernel's own time assumes that all its accesses are to
    /// the fastest tier. `share` of the bandwidth is taken by transfers.
    pub(crate) fn extra_ns(
        &self,
        fastest: &Self,
        bytes: u64,
        times: u64,
        bandwidth: fn(&Self) -> u64,
        share: f64,
    ) -> f64 {
        let slower = self.loaded_factor(share) / bandwidth(self) as f64;
        let waits_ns = times as f64 * self.latency_ns.saturating_sub(fastest.latency_ns) as f64;
        (bytes as f64 * 1e9 * (slower - 1.0 / bandwidth(fastest) as f64)).max(0.0) + waits_ns
    }

    /// Returns the factor by which an access takes longer while a share of the bandwidth is in use.
    fn loaded_factor(&self, share: f64) -> f64 {
        let Some(above) = self.loaded.iter().position(|point| point[0] >= share) else {
            return self.loaded.last().map_or(1.0, |point| point[1]);
        };
        let [high, high_factor] = self.loaded[above];
        let [low, low_factor] = if above > 0 { self.loaded[above - 1] } else { [0.0, 1.0] };
        if high <= low { high_factor } else { low_factor + (high_factor - low_factor) * (share - low) / (high - low) }
    }
}
