//! A schedule: assigns room in tiers and time on links to one tensor after the other.

use std::ops::Range;

use super::decoder::{AwayTier, Decisions, Decoder, Gap, Treatment};
use super::timeline::Timeline;
use crate::plan::{Plan, PlanAction, PlanStep};
use crate::problem::Problem;

/// A way to deal with a tensor during a gap between its uses.
#[derive(Clone, Copy)]
enum GapOption {
    /// It stays in the first tier.
    Stay,
    /// It moves away, and is back in time.
    Move,
    /// It is dropped, and recomputed after the gap.
    Recompute,
    /// It moves to a slower tier that kernels reach, and later uses access it there.
    LeaveForGood,
    /// It moves away and back, and kernels may wait for it.
    MoveLate,
}

impl Treatment {
    /// Returns the ways to try in a gap, in order.
    fn options(self) -> [GapOption; 5] {
        use GapOption::{LeaveForGood, Move, MoveLate, Recompute, Stay};
        match self {
            Self::Keep | Self::Slow => [Stay, Move, Recompute, LeaveForGood, MoveLate],
            Self::Away => [Move, Stay, Recompute, LeaveForGood, MoveLate],
            Self::Recompute => [Recompute, Stay, Move, LeaveForGood, MoveLate],
        }
    }
}

/// A change of a schedule that can be undone.
enum ScheduleChange {
    /// Bytes were reserved in a tier during some kernels.
    Room { tier: usize, kernels: Range<usize>, bytes: u64 },
    /// A kernel needs this tensor to recompute another.
    Needed { tensor: usize },
    /// A link's timeline was taken for a slot of time.
    Link { line: usize, slot: (f64, f64) },
    /// A step was added.
    Step,
}

/// The room and link time taken so far, and the steps of the plan.
pub(super) struct Schedule<'d, 'a> {
    decoder: &'d Decoder<'a>,
    problem: &'a Problem,
    /// Whether room in the first tier was reserved for all uses of all tensors before the first was treated.
    has_uses_first: bool,
    /// Whether a tensor found no room in any tier.
    is_overfull: bool,
    /// Bytes in each tier during each kernel.
    reserved: Vec<Vec<u64>>,
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

impl<'a> Decoder<'a> {
    /// Makes the plan that treats tensors as decided, in the order of their priorities, as far as the tensors before
    /// leave room.
    ///
    /// # Panics
    /// Panics if the number of decisions is not the number of tensors.
    pub fn decode(&self, decisions: &Decisions) -> Plan {
        let mut order: Vec<usize> = (0..self.problem.tensors().len()).collect();
        order.sort_by(|left, right| decisions.priorities[*right].total_cmp(&decisions.priorities[*left]));
        // If kernels reach only the first tier, or other tiers have too little room, room for all uses is reserved
        // before any gap is filled.
        let mut found = self.schedule(&order, decisions, self.slow_tiers.is_empty());
        if found.is_overfull() && self.allows_steps && !self.slow_tiers.is_empty() {
            found = self.schedule(&order, decisions, true);
        }
        found.into_plan()
    }

    /// Schedules all tensors, in `order`.
    fn schedule(&self, order: &[usize], decisions: &Decisions, has_uses_first: bool) -> Schedule<'_, 'a> {
        let mut schedule = Schedule::new(self, has_uses_first);
        order.iter().for_each(|tensor| self.treat(*tensor, decisions, &mut schedule));
        schedule
    }

    /// Schedules a tensor. Tensors that are to be recomputed from it are scheduled first, so that it is scheduled to
    /// exist, or to be recomputed, when they need it.
    fn treat(&self, tensor: usize, decisions: &Decisions, schedule: &mut Schedule<'_, '_>) {
        let mut waiting = vec![tensor];
        while let Some(tensor) = waiting.last().copied() {
            let is_first =
                |other: &usize| decisions.treatments[*other] == Treatment::Recompute && !schedule.is_treated(*other);
            match self.recomputed_from[tensor].iter().copied().find(is_first) {
                Some(other) if !schedule.is_treated(tensor) => waiting.push(other),
                _ => {
                    schedule.treat(tensor, decisions.treatments[tensor]);
                    waiting.pop();
                }
            }
        }
    }
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
            reserved: vec![vec![0; problem.kernels().len()]; problem.tiers().len()],
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
                decoder.resident_kernels(tensor).into_iter().for_each(|kernels| schedule.reserve(tensor, 0, kernels));
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
        if self.is_treated[tensor] {
            return;
        }
        self.is_treated[tensor] = true;
        self.changes.clear();
        let life = *life.start()..life.end() + 1;
        let is_unused = self.decoder.uses[tensor].is_empty();
        // If kernels reach other tiers, these are tried before a wait.
        let may_wait = self.has_uses_first;
        let waits_at_once = may_wait && self.decoder.slow_tiers.is_empty();
        let is_placed = (is_unused || treatment == Treatment::Slow)
            && self.place_in_other_tier(tensor, is_unused, life.clone())
            || self.place_with_gaps(tensor, treatment, life.clone(), waits_at_once)
            || self.place_in_other_tier(tensor, is_unused, life.clone())
            || may_wait && self.place_with_gaps(tensor, treatment, life.clone(), true);
        if !is_placed {
            // There is no room for it: the simulator reports the error.
            self.is_overfull = true;
            self.reserve(tensor, 0, life);
        }
    }

    /// Puts a tensor into a slower tier for its whole lifetime. Returns whether that fits.
    fn place_in_other_tier(&mut self, tensor: usize, is_unused: bool, life: Range<usize>) -> bool {
        let decoder = self.decoder;
        // A tensor that no kernel uses may be in any tier.
        let unused = (1..self.problem.tiers().len()).rev().filter(|_| is_unused);
        let mut tiers = unused.chain(decoder.slow_tiers.iter().copied());
        let Some(tier) = tiers.find(|tier| self.try_reserve(tensor, *tier, life.clone())) else { return false };
        self.places[tensor] = tier;
        if self.has_uses_first {
            let bytes = self.problem.bytes_in(tensor, 0);
            let needed = self.needed[tensor].iter().map(|kernel| *kernel..kernel + 1);
            for kernels in decoder.resident_kernels(tensor).into_iter().chain(needed) {
                self.reserved[0][kernels].iter_mut().for_each(|held| *held -= bytes);
            }
        }
        true
    }

    /// Keeps a tensor in the first tier at its uses; in each gap it takes the first option that fits, if necessary one
    /// for which kernels wait. Returns whether all gaps fit.
    fn place_with_gaps(&mut self, tensor: usize, treatment: Treatment, life: Range<usize>, may_wait: bool) -> bool {
        let mut stays = Vec::new();
        if !self.has_uses_first {
            stays = self.decoder.resident_kernels(tensor);
            stays.extend(self.needed[tensor].iter().map(|kernel| *kernel..kernel + 1));
        }
        let mut fits = stays.into_iter().all(|kernels| self.try_reserve(tensor, 0, kernels));
        let gaps = if fits { self.decoder.gaps(tensor, &self.needed[tensor]) } else { Vec::new() };
        for gap in gaps {
            let mut options =
                treatment.options().into_iter().filter(|option| may_wait || !matches!(option, GapOption::MoveLate));
            let option = options.find(|option| {
                let done = self.changes.len();
                let goes = self.try_option(tensor, gap, *option, life.end);
                if !goes {
                    self.undo(done);
                }
                goes
            });
            match option {
                Some(GapOption::Stay) => {}
                Some(GapOption::LeaveForGood) => break,
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

    /// Tries an option for a gap, and returns whether it fits. If not, the caller undoes the changes.
    fn try_option(&mut self, tensor: usize, gap: Gap, option: GapOption, end: usize) -> bool {
        match option {
            GapOption::Stay => gap
                .kernels(self.problem.kernels().len())
                .into_iter()
                .all(|kernels| self.try_reserve(tensor, 0, kernels)),
            GapOption::Move => self.try_away_tiers(|schedule, away| schedule.try_move(tensor, gap, away)),
            GapOption::Recompute => self.try_recompute(tensor, gap),
            GapOption::LeaveForGood => {
                self.try_away_tiers(|schedule, away| schedule.try_leave_for_good(tensor, gap, end, away))
            }
            GapOption::MoveLate => self.try_away_tiers(|schedule, away| schedule.try_move_late(tensor, gap, away)),
        }
    }

    /// Tries the tiers that tensors can move away to, in order, and returns whether one fits. If kernels may wait, only
    /// tiers that they do not reach are tried: kernels would not wait for a tensor that is late there, and others would
    /// wait for its room.
    fn try_away_tiers(&mut self, goes: impl Fn(&mut Self, AwayTier) -> bool) -> bool {
        let done = self.changes.len();
        let decoder = self.decoder;
        let tiers = self.problem.tiers();
        let away_tiers: Vec<AwayTier> = decoder
            .away_tiers
            .iter()
            .filter(|away| !self.has_uses_first || !tiers[away.tier].is_reachable)
            .copied()
            .collect();
        away_tiers.into_iter().any(|away| {
            self.undo(done);
            goes(self, away)
        })
    }

    /// Moves a tensor away and back in time, with exclusive use of the links meanwhile.
    fn try_move(&mut self, tensor: usize, gap: Gap, away: AwayTier) -> bool {
        let begins = &self.decoder.begins;
        let out = self.first_slot_out(tensor, away, gap);
        let back = self.last_slot_back(tensor, away, gap);
        let gone = self.decoder.last_resident_kernel(gap, out.1);
        let comes = self.decoder.kernel_at(back.0).min(gap.to - 1);
        let all = self.problem.kernels().len();
        let in_time =
            if gap.wraps_around() { out.1 <= begins[all] && back.0 >= 0.0 } else { gone < comes && out.1 <= back.0 };
        if !in_time {
            return false;
        }
        self.move_at(tensor, away.out, out, self.decoder.kernel_at(out.0).min(gone));
        self.move_at(tensor, away.back, back, comes);
        let fits = self.try_reserve(tensor, 0, gap.from..gone + 1)
            && self.try_reserve(tensor, 0, comes..gap.to)
            && self.try_reserve_away(tensor, away.tier, gap.kernels(all));
        if fits && gap.wraps_around() {
            self.places[tensor] = away.tier;
        }
        fits
    }

    /// Moves a tensor away to a tier that kernels reach, until its lifetime ends.
    fn try_leave_for_good(&mut self, tensor: usize, gap: Gap, end: usize, away: AwayTier) -> bool {
        let out = self.first_slot_out(tensor, away, gap);
        let gone = self.decoder.last_resident_kernel(gap, out.1);
        let is_reachable = self.problem.tiers()[away.tier].is_reachable;
        if !is_reachable || self.problem.tensors()[tensor].is_always_there() || gone >= gap.to {
            return false;
        }
        self.move_at(tensor, away.out, out, self.decoder.kernel_at(out.0).min(gone));
        self.try_reserve(tensor, 0, gap.from..gone + 1)
            && self.try_reserve_away(tensor, away.tier, [gap.from..end, 0..0])
    }

    /// Moves a tensor away at once, and back as late as links and room allow: kernels wait for the rest.
    fn try_move_late(&mut self, tensor: usize, gap: Gap, away: AwayTier) -> bool {
        let begins = &self.decoder.begins;
        let wanted = begins[gap.to] - self.decoder.transfer_ns(tensor, away.back);
        let earliest = if gap.wraps_around() { 0 } else { gap.from };
        let mut comes = gap.to - 1;
        while comes > earliest && begins[comes] > wanted && self.try_reserve(tensor, 0, comes..comes + 1) {
            comes -= 1;
        }
        let slot = self.first_slot_out(tensor, away, gap);
        let last = gap.from - 1;
        self.take_link(away.out, slot);
        self.add_step(begins[last], PlanStep { tensor, kernel: last, action: PlanAction::Move { to: away.tier } });
        self.add_step(begins[comes], PlanStep { tensor, kernel: comes, action: PlanAction::Move { to: 0 } });
        // It may leave as soon as the last kernel that uses it has begun.
        let [after, before] = gap.kernels(self.problem.kernels().len());
        let fits = self.try_reserve_away(tensor, away.tier, [last..after.end, before]);
        if fits && gap.wraps_around() {
            self.places[tensor] = away.tier;
        }
        fits
    }

    /// Drops a tensor after its last use, and recomputes it from inputs that exist.
    fn try_recompute(&mut self, tensor: usize, gap: Gap) -> bool {
        let Some(again) = &self.problem.tensors()[tensor].recompute else { return false };
        if gap.wraps_around() || !self.decoder.allows_steps {
            return false;
        }
        let mut needed = Vec::new();
        for input in again.inputs.iter().copied() {
            if !self.decoder.has_same_content(input, tensor, gap.to)
                || self.absent[input].iter().any(|gap_of| gap_of.contains(gap.to))
            {
                return false;
            }
            if !self.is_treated[input] && self.decoder.gaps(input, &[]).iter().any(|gap_of| gap_of.contains(gap.to)) {
                if self.has_uses_first && !self.try_reserve(input, 0, gap.to..gap.to + 1) {
                    return false;
                }
                needed.push(input);
            }
        }
        for input in needed {
            self.needed[input].push(gap.to);
            self.changes.push(ScheduleChange::Needed { tensor: input });
        }
        self.add_step(
            self.decoder.begins[gap.from],
            PlanStep { tensor, kernel: gap.from - 1, action: PlanAction::Drop },
        );
        let recompute = PlanStep { tensor, kernel: gap.to, action: PlanAction::Recompute { to: 0 } };
        self.add_step(self.decoder.begins[gap.to], recompute);
        true
    }

    /// Returns the first free slot in which a tensor can leave.
    fn first_slot_out(&self, tensor: usize, away: AwayTier, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.timeline_of(away.out)]
            .first_free(self.decoder.begins[gap.from], self.decoder.transfer_ns(tensor, away.out))
    }

    /// Returns the last free slot in which it can return.
    fn last_slot_back(&self, tensor: usize, away: AwayTier, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.timeline_of(away.back)]
            .last_free(self.decoder.begins[gap.to], self.decoder.transfer_ns(tensor, away.back))
    }

    /// Takes a link for a slot of time, for a move that is requested when `kernel` begins.
    fn move_at(&mut self, tensor: usize, link: usize, slot: (f64, f64), kernel: usize) {
        self.take_link(link, slot);
        let to = self.problem.links()[link].to;
        // It comes before all moves that are requested later.
        let begin = slot.0.min(self.decoder.begins[kernel + 1]);
        self.add_step(begin, PlanStep { tensor, kernel, action: PlanAction::Move { to } });
    }

    /// Takes a link for a slot of time.
    fn take_link(&mut self, link: usize, slot: (f64, f64)) {
        let line = self.decoder.timeline_of(link);
        self.links[line].take(slot);
        self.changes.push(ScheduleChange::Link { line, slot });
    }

    /// Adds a step that is to begin at `ns`.
    fn add_step(&mut self, ns: f64, step: PlanStep) {
        self.steps.push((ns, step));
        self.changes.push(ScheduleChange::Step);
    }

    /// Takes room in another tier while a tensor is away, if there is enough. If kernels reach that tier they do not
    /// wait for the tensor to return: it may stay for its whole lifetime, so that others never wait for its room.
    fn try_reserve_away(&mut self, tensor: usize, tier: usize, kernels: [Range<usize>; 2]) -> bool {
        if !self.problem.tiers()[tier].is_reachable {
            return kernels.into_iter().all(|kernels| self.try_reserve(tensor, tier, kernels));
        }
        let life = self.problem.lifetime(tensor).map_or(0..0, |life| *life.start()..life.end() + 1);
        self.changes.iter().any(|change| matches!(change, ScheduleChange::Room { tier: held, .. } if *held == tier))
            || self.try_reserve(tensor, tier, life)
    }

    /// Takes room in a tier during some kernels, if there is enough.
    fn try_reserve(&mut self, tensor: usize, tier: usize, kernels: Range<usize>) -> bool {
        let bytes = self.problem.bytes_in(tensor, tier);
        let most = self.problem.tiers()[tier].capacity.map(|capacity| capacity.checked_sub(bytes));
        let fits = match most {
            None => true,
            Some(None) => kernels.is_empty(),
            Some(Some(most)) => self.reserved[tier][kernels.clone()].iter().all(|held| *held <= most),
        };
        if fits {
            self.reserve(tensor, tier, kernels);
        }
        fits
    }

    /// Takes room in a tier during some kernels, even if there is not enough.
    fn reserve(&mut self, tensor: usize, tier: usize, kernels: Range<usize>) {
        let bytes = self.problem.bytes_in(tensor, tier);
        self.reserved[tier][kernels.clone()].iter_mut().for_each(|held| *held += bytes);
        self.changes.push(ScheduleChange::Room { tier, kernels, bytes });
    }

    /// Undoes the changes after the first `done`.
    fn undo(&mut self, done: usize) {
        for change in self.changes.split_off(done).into_iter().rev() {
            match change {
                ScheduleChange::Room { tier, kernels, bytes } => {
                    self.reserved[tier][kernels].iter_mut().for_each(|held| *held -= bytes);
                }
                ScheduleChange::Needed { tensor } => _ = self.needed[tensor].pop(),
                ScheduleChange::Link { line, slot } => self.links[line].give_back(slot),
                ScheduleChange::Step => _ = self.steps.pop(),
            }
        }
    }

    /// Returns the plan: the places, and the steps in the order in which they begin.
    pub(super) fn into_plan(self) -> Plan {
        let mut steps = self.steps;
        // Tensors that are recomputed before the same kernel come in the order in which they were first created.
        let order = |step: &PlanStep| (step.kernel, self.problem.lifetime(step.tensor).map(|life| *life.start()));
        steps.sort_by(|(left, a), (right, b)| left.total_cmp(right).then_with(|| order(a).cmp(&order(b))));
        Plan { places: self.places, steps: steps.into_iter().map(|(_, step)| step).collect() }
    }
}
