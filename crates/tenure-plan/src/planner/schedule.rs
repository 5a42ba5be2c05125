//! A schedule: room in tiers and time of links, given to one tensor after the other.

use std::ops::Range;

use super::decoder::{Away, Decoder, Gap, Treatment};
use super::timeline::Timeline;
use crate::plan::{Action, Plan, Step};
use crate::problem::Problem;

/// What a tensor does in a gap.
#[derive(Clone, Copy)]
enum Way {
    Stays,
    /// It is away, and there again in time.
    Leaves,
    IsRecomputed,
    /// It goes, and later uses find it there.
    LeavesForGood,
    /// It goes and comes back, and kernels may wait for it.
    LeavesAnyway,
}

impl Treatment {
    /// What is tried in a gap, in that order.
    fn ways(self) -> [Way; 5] {
        use Way::{IsRecomputed, Leaves, LeavesAnyway, LeavesForGood, Stays};
        match self {
            Self::Keep | Self::Slow => [Stays, Leaves, IsRecomputed, LeavesForGood, LeavesAnyway],
            Self::Away => [Leaves, Stays, IsRecomputed, LeavesForGood, LeavesAnyway],
            Self::Recompute => [IsRecomputed, Stays, Leaves, LeavesForGood, LeavesAnyway],
        }
    }
}

/// What was done to a schedule, to be undone.
enum Change {
    Room {
        tier: usize,
        kernels: Range<usize>,
        bytes: u64,
    },
    /// A kernel needs this tensor to compute another again.
    Needed {
        tensor: usize,
    },
    Link {
        line: usize,
        slot: (f64, f64),
    },
    Step,
}

/// What is taken, and for whom.
pub(super) struct Schedule<'d, 'a> {
    decoder: &'d Decoder<'a>,
    problem: &'a Problem,
    /// Whether all tensors had room in the first tier when they are used, before any was treated.
    has_uses_first: bool,
    is_overfull: bool,
    /// Bytes in each tier during each kernel.
    held: Vec<Vec<u64>>,
    links: Vec<Timeline>,
    is_treated: Vec<bool>,
    places: Vec<usize>,
    /// When they are to begin, and what.
    steps: Vec<(f64, Step)>,
    /// Gaps in which kernels do not reach a tensor.
    absent: Vec<Vec<Gap>>,
    /// Kernels before which a tensor is needed to compute others again.
    needed: Vec<Vec<usize>>,
    changes: Vec<Change>,
}

impl<'d, 'a> Schedule<'d, 'a> {
    /// `has_uses_first` keeps room in the first tier for all uses of all tensors: if it has that, every tensor finds a place,
    /// but kernels may wait longer.
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

    /// Whether a tensor found no room anywhere.
    pub(super) fn is_overfull(&self) -> bool {
        self.is_overfull
    }

    /// Whether a tensor has been given what it gets.
    pub(super) fn is_treated(&self, tensor: usize) -> bool {
        self.is_treated[tensor]
    }

    /// Gives a tensor its room and links, as it should be treated if that fits.
    pub(super) fn treat(&mut self, tensor: usize, treatment: Treatment) {
        let Some(life) = self.problem.lifetime(tensor) else { return };
        if std::mem::replace(&mut self.is_treated[tensor], true) {
            return;
        }
        self.changes.clear();
        let life = *life.start()..life.end() + 1;
        let is_unused = self.decoder.uses[tensor].is_empty();
        // Where kernels reach other tiers, these come before a wait.
        let may_wait = self.has_uses_first;
        let waits_at_once = may_wait && self.decoder.slows.is_empty();
        let is_placed = (is_unused || treatment == Treatment::Slow)
            && self.stays_elsewhere(tensor, is_unused, life.clone())
            || self.comes_and_goes(tensor, treatment, life.clone(), waits_at_once)
            || self.stays_elsewhere(tensor, is_unused, life.clone())
            || may_wait && self.comes_and_goes(tensor, treatment, life.clone(), true);
        if !is_placed {
            // There is no room for it: the plan says so when it is played.
            self.is_overfull = true;
            self.hold(tensor, 0, life);
        }
    }

    /// In a slower tier all its life.
    fn stays_elsewhere(&mut self, tensor: usize, is_unused: bool, life: Range<usize>) -> bool {
        let decoder = self.decoder;
        // What no kernel uses may be anywhere.
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

    /// In the first tier when it is used; in each gap the first way that fits, if need be one for which kernels wait.
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

    /// Whether a tensor can go a way in a gap. If not, what was done is still to be undone.
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

    /// Whether one of the tiers that tensors are moved to will do: the first that does. Where kernels may wait, it is one that
    /// they do not reach: they would not wait for what is late there, and others would for its room.
    fn some_away(&mut self, goes: impl Fn(&mut Self, Away) -> bool) -> bool {
        let done = self.changes.len();
        let (decoder, tiers) = (self.decoder, self.problem.tiers());
        let waited_for = |away: &&Away| !self.has_uses_first || !tiers[away.tier].is_reachable;
        let aways: Vec<Away> = decoder.aways.iter().filter(waited_for).copied().collect();
        aways.into_iter().any(|away| {
            self.undo(done);
            goes(self, away)
        })
    }

    /// Away and back in time, with links that nobody else uses meanwhile.
    fn leaves(&mut self, tensor: usize, gap: Gap, away: Away) -> bool {
        let begins = &self.decoder.begins;
        let out = self.first_way_out(tensor, away, gap);
        let back = self.last_way_back(tensor, away, gap);
        let (gone, comes) = (self.decoder.gone_at(gap, out.1), self.decoder.kernel_from(back.0).min(gap.to - 1));
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

    /// Away where kernels reach it, until its life ends.
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

    /// Away at once, and back as late as links and room allow: kernels wait for the rest.
    fn leaves_anyway(&mut self, tensor: usize, gap: Gap, away: Away) -> bool {
        let begins = &self.decoder.begins;
        let wanted = begins[gap.to] - self.decoder.takes_ns(tensor, away.back);
        let earliest = if gap.is_around() { 0 } else { gap.from };
        let mut comes = gap.to - 1;
        while comes > earliest && begins[comes] > wanted && self.holds(tensor, 0, comes..comes + 1) {
            comes -= 1;
        }
        let (slot, last) = (self.first_way_out(tensor, away, gap), gap.from - 1);
        self.take(away.out, slot);
        self.step(begins[last], Step { tensor, kernel: last, action: Action::Move { to: away.tier } });
        self.step(begins[comes], Step { tensor, kernel: comes, action: Action::Move { to: 0 } });
        // It may be on its way as soon as the last kernel that uses it has begun.
        let [after, before] = gap.kernels(self.problem.kernels().len());
        let fits = self.holds_away(tensor, away.tier, [last..after.end, before]);
        if fits && gap.is_around() {
            self.places[tensor] = away.tier;
        }
        fits
    }

    /// Given up after its last use, and computed again from what is there.
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
            self.changes.push(Change::Needed { tensor: input });
        }
        self.step(self.decoder.begins[gap.from], Step { tensor, kernel: gap.from - 1, action: Action::Drop });
        let recompute = Step { tensor, kernel: gap.to, action: Action::Recompute { to: 0 } };
        self.step(self.decoder.begins[gap.to], recompute);
        true
    }

    /// When a tensor can leave first.
    fn first_way_out(&self, tensor: usize, away: Away, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.line(away.out)]
            .first_free(self.decoder.begins[gap.from], self.decoder.takes_ns(tensor, away.out))
    }

    /// When it can come back last.
    fn last_way_back(&self, tensor: usize, away: Away, gap: Gap) -> (f64, f64) {
        self.links[self.decoder.line(away.back)]
            .last_free(self.decoder.begins[gap.to], self.decoder.takes_ns(tensor, away.back))
    }

    /// Takes a link from one time to another, for a move that is asked for when `kernel` begins.
    fn move_at(&mut self, tensor: usize, link: usize, slot: (f64, f64), kernel: usize) {
        self.take(link, slot);
        let to = self.problem.links()[link].to;
        // Before all that is asked for later.
        let begin = slot.0.min(self.decoder.begins[kernel + 1]);
        self.step(begin, Step { tensor, kernel, action: Action::Move { to } });
    }

    fn take(&mut self, link: usize, slot: (f64, f64)) {
        let line = self.decoder.line(link);
        self.links[line].take(slot);
        self.changes.push(Change::Link { line, slot });
    }

    fn step(&mut self, ns: f64, step: Step) {
        self.steps.push((ns, step));
        self.changes.push(Change::Step);
    }

    /// Takes room in another tier while a tensor is away, if there is enough. Where kernels reach it they do not wait for it to
    /// come back: it may stay as long as it lives, and others must not wait for its room.
    fn holds_away(&mut self, tensor: usize, tier: usize, kernels: [Range<usize>; 2]) -> bool {
        if !self.problem.tiers()[tier].is_reachable {
            return kernels.into_iter().all(|kernels| self.holds(tensor, tier, kernels));
        }
        let is_held = |change: &Change| matches!(change, Change::Room { tier: held, .. } if *held == tier);
        let life = self.problem.lifetime(tensor).map_or(0..0, |life| *life.start()..life.end() + 1);
        self.changes.iter().any(is_held) || self.holds(tensor, tier, life)
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
        self.changes.push(Change::Room { tier, kernels, bytes });
    }

    /// Undoes what was done since there were so many changes.
    fn undo(&mut self, done: usize) {
        for change in self.changes.split_off(done).into_iter().rev() {
            match change {
                Change::Room { tier, kernels, bytes } => {
                    self.held[tier][kernels].iter_mut().for_each(|held| *held -= bytes);
                }
                Change::Needed { tensor } => _ = self.needed[tensor].pop(),
                Change::Link { line, slot } => self.links[line].give_back(slot),
                Change::Step => _ = self.steps.pop(),
            }
        }
    }

    pub(super) fn into_plan(self) -> Plan {
        let mut steps = self.steps;
        // What is computed again before the same kernel comes in the order in which it was first.
        let order = |step: &Step| (step.kernel, self.problem.lifetime(step.tensor).map(|life| *life.start()));
        steps.sort_by(|(left, a), (right, b)| left.total_cmp(right).then_with(|| order(a).cmp(&order(b))));
        Plan { places: self.places, steps: steps.into_iter().map(|(_, step)| step).collect() }
    }
}
