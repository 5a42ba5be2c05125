//! A schedule: assigns room in tiers and time on links to one tensor after the other.

use std::ops::Range;

use super::decoder::{Away, Decoder, Gap, Treatment};
use super::timeline::Timeline;
use crate::plan::{Plan, PlanAction, PlanStep};
use crate::problem::Problem;

/// The way in which a tensor spends a gap.
#[derive(Clone, Copy)]
enum Way {
    Stays,
    /// It moves away, and is back in time.
    Leaves,
    IsRecomputed,
    /// It moves away, and later uses find it there.
    LeavesForGood,
    /// It moves away and back, and kernels may wait for it.
    LeavesAnyway,
}

impl Treatment {
    /// Returns the ways to try in a gap, in order.
    fn ways(self) -> [Way; 5] {
        use Way::{IsRecomputed, Leaves, LeavesAnyway, LeavesForGood, Stays};
        match self {
            Self::Keep | Self::Slow => [Stays, Leaves, IsRecomputed, LeavesForGood, LeavesAnyway],
            Self::Away => [Leaves, Stays, IsRecomputed, LeavesForGood, LeavesAnyway],
            Self::Recompute => [IsRecomputed, Stays, Leaves, LeavesForGood, LeavesAnyway],
        }
    }
}

/// A change of a schedule that can be undone.
enum ScheduleChange {
    Room {
        tier: usize,
        kernels: Range<usize>,
        bytes: u64,
    },
    /// A kernel needs this tensor to recompute another.
    Needed {
        tensor: usize,
    },
    Link {
        line: usize,
        slot: (f64, f64),
    },
    Step,
}

/// The room and link time taken so far, and the steps of the plan.
pub(super) struct Schedule<'d, 'a> {
    decoder: &'d Decoder<'a>,
    problem: &'a Problem,
    /// Whether room in the first tier was reserved for all uses of all tensors before the first was treated.
    has_uses_first: bool,
    is_overfull: bool,
    /// Bytes in each tier during each kernel.
    held: Vec<Vec<u64>>,
    links: Vec<Timeline>,
    is_treated: Vec<bool>,
    places: Vec<usize>,
    /// The steps, each with the time at which it is to begin.
    steps: Vec<(f64, PlanStep)>,
    /// The gaps of each tensor in which kernels do not reach it.
    absent: Vec<Vec<Gap>>,
    /// For each tensor, the kernels before which it is needed to recompute others.
    needed: Vec<Vec<usize>>,
    changes: Vec<ScheduleChange>,
}

impl<'d, 'a> Schedule<'d, 'a> {
    /// Makes an empty schedule. `has_uses_first` reserves room in the first tier for all uses of all tensors: if that
    /// fits, every tensor finds a place, but kernels may wait longer.
    pub(super) fn new(decoder: &'d Decoder<'a>, has_uses_first: bool) -> Self {
        let problem = decoder.problem;
        let tensors = problem.tensors().len();
        let mut schedule = Self {
            decoder,
            problem,
            has_uses_first,
            is_overfull: false,
            held: vec![vec![0; problem.kernels().len()]; problem.tiers().len()],
            links: vec![Timeline::default(); problem.links().len()],
            is_treated: vec![false; tensors],
            places: vec![0; tensors],
            steps: Vec::new(),
            absent: vec![Vec::new(); tensors],
            needed: vec![Vec::new(); tensors],
            changes: Vec::new(),
        };
        if has_uses_first {
            for tensor in 0..tensors {
                decoder.stays(tensor).into_iter().for_each(|kernels| schedule.hold(tensor, 0, kernels));
            }
        }
        schedule
    }

    /// Returns whether a tensor found no room in any tier.
    pub(super) fn is_overfull(&self) -> bool {
        self.is_overfull
    }

    /// Returns whether a tensor has been treated.
    pub(super) fn is_treated(&self, tensor: usize) -> bool {
        self.is_treated[tensor]
    }

    /// Assigns a tensor its room and link time: by `treatment` if that fits, or else in another way.
    pub(super) fn treat(&mut self, tensor: usize, treatment: Treatment) {
        let Some(life) = self.problem.lifetime(tensor) else { return };
        if std::mem::replace(&mut self.is_treated[tensor], true) {
            return;
        }
        self.changes.clear();
        let life = *life.start()..life.end() + 1;
        let is_unused = self.decoder.uses[tensor].is_empty();
        // If kernels reach other tiers, these are tried before a wait.
        let may_wait = self.has_uses_first;
        let waits_at_once = may_wait && self.decoder.slows.is_empty();
        let is_placed = (is_unused || treatment == Treatment::Slow)
            && self.stays_elsewhere(tensor, is_unused, life.clone())
            || self.comes_and_goes(tensor, treatment, life.clone(), waits_at_once)
            || self.stays_elsewhere(tensor, is_unused, life.clone())
            || may_wait && self.comes_and_goes(tensor, treatment, life.clone(), true);
        if !is_placed {
            // There is no room for it: the simulator reports the error.
            self.is_overfull = true;
            self.hold(tensor, 0, life);
        }
    }

    /// Puts a tensor into a slower tier for its whole lifetime. Returns whether that fits.
    fn stays_elsewhere(&mut self, tensor: usize, is_unused: bool, life: Range<usize>) -> bool {
        let decoder = self.decoder;
        // A tensor that no kernel uses may be in any tier.
        let unused = (1..self.problem.tiers().len()).rev().filter(|_| is_unused);
        let mut tiers = unused.chain(decoder.slows.iter().copied());
        let Some(tier) = tiers.find(|tier| self.holds(tensor, *tier, life.clone())) else { return false };
        self.places[tensor] = tier;
        if self.has_uses_first {
            let bytes = self.problem.bytes_in(tensor, 0);
            let needed = self.needed[tensor].iter().map(|kernel| *kernel..kernel + 1);
            for kernels in decoder.stays(tensor).into_iter().chain(needed) {
                self.held[0][kernels].iter_mut().for_each(|held| *held -= bytes);
            }
        }
        true
    }

    /// Keeps a tensor in the first tier at its uses; in each gap it takes the first way that fits, if necessary one for
    /// which kernels wait. Returns whether all gaps fit.
    fn comes_and_goes(&mut self, tensor: usize, treatment: Treatment, life: Range<usize>, may_wait: bool) -> bool {
        let mut stays = Vec::new();
        if !self.has_uses_first {
            stays = self.decoder.stays(tensor);
            stays.extend(self.needed[tensor].iter().map(|kernel| *kernel..kernel + 1));
        }
        let mut fits = stays.into_iter().all(|kernels| self.holds(tensor, 0, kernels));
        let gaps = if fits { self.decoder.gaps(tensor, &self.needed[tensor]) } else { Vec::new() };
        for gap in gaps {
            let mut ways = treatment.ways().into_iter().filter(|way| may_wait || !matches!(way, Way::LeavesAnyway));
            let way = ways.find(|way| {
                let done = self.changes.len();
                let goes = self.goes(tensor, gap, *way, life.end);
                if !goes {
                    self.undo(done);
                }
                goes
            });
            match way {
                Some(Way::Stays) => {}
                Some(Way::LeavesForGood) => break,
                Some(_) => self.absent[tensor].push(gap),
                None => fits = false,
            }
        }
        if !fits {
            self.undo(0);
            (self.places[tensor], self.absent[tensor]) = (0, Vec::new());
        }
        fits
    }

    /// Tries a way in a gap, and returns whether it fits. If not, the caller undoes the changes.
    fn goes(&mut self, tensor: usize, gap: Gap, way: Way, end: usize) -> bool {
        match way {
            Way::Stays => {
                gap.kernels(self.problem.kernels().len()).into_iter().all(|kernels| self.holds(tensor, 0, kernels))
            }
            Way::Leaves => self.some_away(|schedule, away| schedule.leaves(tensor, gap, away)),
            Way::IsRecomputed => self.is_recomputed(tensor, gap),
            Way::LeavesForGood => self.some_away(|schedule, away| schedule.leaves_for_good(tensor, gap, end, away)),
            Way::LeavesAnyway => self.some_away(|schedule, away| schedule.leaves_anyway(tensor, gap, away)),
        }
    }

    /// Tries the tiers that tensors can move away to, in order, and returns whether one fits. If kernels may wait, only
    /// tiers that they do not reach are tried: kernels would not wait for a tensor that is late there, and others would
    /// wait for its room.
    fn some_away(&mut self, goes: impl Fn(&mut Self, Away) -> bool) -> bool {
        let done = self.changes.len();
        let decoder = self.decoder;
        let tiers = self.problem.tiers();
        let aways: Vec<Away> = decoder
            .aways
            .iter()
            .filter(|away| !self.has_uses_first || !tiers[away.tier].is_reachable)
            .copied()
            .collect();
        aways.into_iter().any(|away| {
            self.undo(done);
            goes(self, away)
        })
    }

    /// Moves a tensor away and back in time, with exclusive use of the links meanwhile.
    fn leaves(&mut self, tensor: usize, gap: Gap, away: Away) -> bool {
        let begins = &self.decoder.begins;
        let out = self.first_way_out(tensor, away, gap);
        let back = self.last_way_back(tensor, away, gap);
        let gone = self.decoder.gone_at(gap, out.1);
        let comes = self.decoder.kernel_from(back.0).min(gap.to - 1);
        let all = self.problem.kernels().len();
        let in_time =
            if gap.is_around() { out.1 <= begins[all] && back.0 >= 0.0 } else { gone < comes && out.1 <= back.0 };
        if !in_time {
            return false;
        }
        self.move_at(tensor, away.out, out, self.decoder.kernel_from(out.0).min(gone));
        self.move_at(tensor, away.back, back, comes);
        let fits = self.holds(tensor, 0, gap.from..gone + 1)
            && self.holds(tensor, 0, comes..gap.to)
            && self.holds_away(tensor, away.tier, gap.kernels(all));
        if fits && gap.is_around() {
            self.places[tensor] = away.tier;
        }
        fits
    }

    /// Moves a tensor away to a tier that kernels reach, until its lifetime ends.
    fn leaves_for_good(&mut self, tensor: usize, gap: Gap, end: usize, away: Away) -> bool {
        let out = self.first_way_out(tensor, away, gap);
        let gone = self.decoder.gone_at(gap, out.1);
        let is_reachable = self.problem.tiers()[away.tier].is_reachable;
        if !is_reachable || self.problem.tensors()[tensor].is_always_there() || gone >= gap.to {
            return false;
        }
        self.move_at(tensor, away.out, out, self.decoder.kernel_from(out.0).min(gone));
        self.holds(tensor, 0, gap.from..gone + 1) && self.holds_away(tensor, away.tier, [gap.from..end, 0..0])
    }

    /// Moves a tensor away at once, and back as late as links and room allow: kernels wait for the rest.
    fn leaves_anyway(&mut self, tensor: usize, gap: Gap, away: Away) -> bool {
        let begins = &self.decoder.begins;
        let wanted = begins[gap.to] - self.decoder.takes_ns(tensor, away.back);
        let earliest = if gap.is_around() { 0 } else { gap.from };
        let mut comes = gap.to - 1;
        while comes > earliest && begins[comes] > wanted && self.holds(tensor, 0, comes..comes + 1) {
            comes -= 1;
        }
        let slot = self.first_way_out(tensor, away, gap);
        let last = gap.from - 1;
        self.take(away.out, slot);
        self.step(begins[last], PlanStep { tensor, kernel: last, action: PlanAction::Move { to: away.tier } });
        self.step(begins[comes], PlanStep { tensor, kernel: comes, action: PlanAction::Move { to: 0 } });
        // It may leave as soon as the last kernel that uses it has begun.
        let [after, before] = gap.kernels(self.problem.kernels().len());
        let fits = self.holds_away(tensor, away.tier, [last..after.end, before]);
        if fits && gap.is_around() {
            self.places[tensor] = away.tier;
        }
        fits
    }

    /// Drops a tensor after its last use, and recomputes it from inputs that exist.
    fn is_recomputed(&mut self, tensor: usize, gap: Gap) -> bool {
        let Some(again) = &self.problem.tensors()[tensor].recompute else { return false };
        if gap.is_around() || !self.decoder.changes {
            return false;
        }
        let mut needed = Vec::new();
        for input in again.inputs.iter().copied() {
            if !self.decoder.is_as_before(input, tensor, gap.to)
                || self.absent[input].iter().any(|gap_of| gap_of.has(gap.to))
            {
                return false;
            }
            if !self.is_treated[input] && self.decoder.gaps(input, &[]).iter().any(|gap_of| gap_of.has(gap.to)) {
                if self.has_uses_first && !self.holds(input, 0, gap.to..gap.to + 1) {
                    return false;
                }
                needed.push(input);
            }
        }
        for input in needed {
            self.needed[input].push(gap.to);
            self.changes.push(ScheduleChange::Needed { tensor: input });
        }
        self.step(self.decoder.begins[gap.from], PlanStep { tensor, kernel: gap.from - 1, action: PlanAction::Drop });
        let recompute = PlanStep { tensor, kernel: gap.to, action: PlanAction::Recompute { to: 0 } };
        self.step(self.decoder.begins[gap.to], recompute);
        true
    }

    /// Returns the first free slot in which a tensor can leave.
    fn first_way_out(&self, tensor: usize, away: Away, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.line(away.out)]
            .first_free(self.decoder.begins[gap.from], self.decoder.takes_ns(tensor, away.out))
    }

    /// Returns the last free slot in which it can return.
    fn last_way_back(&self, tensor: usize, away: Away, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.line(away.back)]
            .last_free(self.decoder.begins[gap.to], self.decoder.takes_ns(tensor, away.back))
    }

    /// Takes a link for a slot of time, for a move that is requested when `kernel` begins.
    fn move_at(&mut self, tensor: usize, link: usize, slot: (f64, f64), kernel: usize) {
        self.take(link, slot);
        let to = self.problem.links()[link].to;
        // It comes before all moves that are requested later.
        let begin = slot.0.min(self.decoder.begins[kernel + 1]);
        self.step(begin, PlanStep { tensor, kernel, action: PlanAction::Move { to } });
    }

    fn take(&mut self, link: usize, slot: (f64, f64)) {
        let line = self.decoder.line(link);
        self.links[line].take(slot);
        self.changes.push(ScheduleChange::Link { line, slot });
    }

    fn step(&mut self, ns: f64, step: PlanStep) {
        self.steps.push((ns, step));
        self.changes.push(ScheduleChange::Step);
    }

    /// Takes room in another tier while a tensor is away, if there is enough. If kernels reach that tier they do not
    /// wait for the tensor to return: it may stay for its whole lifetime, so that others never wait for its room.
    fn holds_away(&mut self, tensor: usize, tier: usize, kernels: [Range<usize>; 2]) -> bool {
        if !self.problem.tiers()[tier].is_reachable {
            return kernels.into_iter().all(|kernels| self.holds(tensor, tier, kernels));
        }
        let life = self.problem.lifetime(tensor).map_or(0..0, |life| *life.start()..life.end() + 1);
        self.changes.iter().any(|change| matches!(change, ScheduleChange::Room { tier: held, .. } if *held == tier))
            || self.holds(tensor, tier, life)
    }

    /// Takes room in a tier during some kernels, if there is enough.
    fn holds(&mut self, tensor: usize, tier: usize, kernels: Range<usize>) -> bool {
        let bytes = self.problem.bytes_in(tensor, tier);
        let most = self.problem.tiers()[tier].capacity.map(|capacity| capacity.checked_sub(bytes));
        let fits = match most {
            None => true,
            Some(None) => kernels.is_empty(),
            Some(Some(most)) => self.held[tier][kernels.clone()].iter().all(|held| *held <= most),
        };
        if fits {
            self.hold(tensor, tier, kernels);
        }
        fits
    }

    fn hold(&mut self, tensor: usize, tier: usize, kernels: Range<usize>) {
        let bytes = self.problem.bytes_in(tensor, tier);
        self.held[tier][kernels.clone()].iter_mut().for_each(|held| *held += bytes);
        self.changes.push(ScheduleChange::Room { tier, kernels, bytes });
    }

    /// Undoes the changes after the first `done`.
    fn undo(&mut self, done: usize) {
        for change in self.changes.split_off(done).into_iter().rev() {
            match change {
                ScheduleChange::Room { tier, kernels, bytes } => {
                    self.held[tier][kernels].iter_mut().for_each(|held| *held -= bytes);
                }
                ScheduleChange::Needed { tensor } => _ = self.needed[tensor].pop(),
                ScheduleChange::Link { line, slot } => self.links[line].give_back(slot),
                ScheduleChange::Step => _ = self.steps.pop(),
            }
        }
    }

    pub(super) fn into_plan(self) -> Plan {
        let mut steps = self.steps;
        // Tensors that are recomputed before the same kernel come in the order in which they were first created.
        let order = |step: &PlanStep| (step.kernel, self.problem.lifetime(step.tensor).map(|life| *life.start()));
        steps.sort_by(|(left, a), (right, b)| left.total_cmp(right).then_with(|| order(a).cmp(&order(b))));
        Plan { places: self.places, steps: steps.into_iter().map(|(_, step)| step).collect() }
    }
}
