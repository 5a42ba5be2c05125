//! From decisions to a plan: tensors are treated one after the other, and each gets room and links that those before it left.
//!
//! Times are those of kernels that wait for nothing. A tensor is where it is needed at each of its uses, and in the gaps
//! between them it stays, is moved away and back, or is given up and computed again. What is found to fit is played without
//! waits, as far as links do what they should; where nothing fits and kernels do not reach another tier, it goes away and comes
//! back all the same, and kernels wait.

use std::ops::Range;

use super::Objective;
use super::timeline::Timeline;
use crate::plan::{Action, Plan, Step};
use crate::problem::{Access, Problem};

/// What is tried first with a tensor. If it cannot be, the others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It stays in the first tier.
    Keep,
    /// It is moved away in the gaps between its uses, and back.
    Away,
    /// It is given up, and computed again before it is needed.
    Recompute,
    /// It is in another tier that kernels reach, all its life.
    Slow,
}

impl Treatment {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Away, Self::Recompute, Self::Slow];
}

/// What is decided of the tensors of a problem.
#[derive(Clone, Debug)]
pub struct Decisions {
    /// The greatest has its way first; of equals, the earlier in the problem.
    pub priorities: Vec<f64>,
    /// What is tried first with each.
    pub treatments: Vec<Treatment>,
}

impl Decisions {
    /// All are kept, as far as there is room, those first that come first in `order`, and those last that it leaves out.
    pub fn keep(tensors: usize, order: &[usize]) -> Self {
        let mut priorities = vec![0.0; tensors];
        for (rank, tensor) in order.iter().enumerate() {
            priorities[*tensor] = 1.0 - rank as f64 / tensors as f64;
        }
        Self { priorities, treatments: vec![Treatment::Keep; tensors] }
    }
}

/// Makes plans of decisions about a problem's tensors.
pub struct Decoder<'a> {
    problem: &'a Problem,
    /// When each kernel begins, and when the last ends, in nanoseconds.
    begins: Vec<f64>,
    /// The kernels that need each tensor, in their order. What is there all the time is needed at both ends or at none.
    uses: Vec<Vec<usize>>,
    /// Where tensors are moved away to.
    away: Option<Away>,
    /// The tier that kernels reach beside the first.
    slow: Option<usize>,
    /// Whether tensors may be computed again.
    recomputes: bool,
}

/// A tier beside the first, and the ways there and back.
#[derive(Clone, Copy)]
struct Away {
    tier: usize,
    out: usize,
    back: usize,
}

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

/// Kernels that do not need a tensor, until the first that needs it again. What is there all the time may be away from the end
/// of an iteration to the beginning of the next: then `to` comes before `from`.
#[derive(Clone, Copy)]
struct Gap {
    from: usize,
    to: usize,
}

impl Gap {
    /// Whether there is a kernel in it.
    fn is_wide(self) -> bool {
        self.to > self.from
    }

    fn is_around(self) -> bool {
        self.to < self.from
    }

    /// The same as ranges, of so many kernels.
    fn kernels(self, all: usize) -> [Range<usize>; 2] {
        if self.is_around() { [self.from..all, 0..self.to] } else { [self.from..self.to, 0..0] }
    }

    fn has(self, kernel: usize) -> bool {
        if self.is_around() { kernel >= self.from || kernel < self.to } else { (self.from..self.to).contains(&kernel) }
    }
}

impl<'a> Decoder<'a> {
    /// For a problem that has tiers. Where the score counts, tensors stay where they are.
    pub fn new(problem: &'a Problem, objective: Objective) -> Self {
        let mut begins = vec![0.0];
        for kernel in problem.kernels() {
            begins.push(begins[begins.len() - 1] + kernel.time_ns as f64);
        }
        let mut uses = vec![Vec::new(); problem.tensors().len()];
        for (number, kernel) in problem.kernels().iter().enumerate() {
            for access in kernel.reads.iter().chain(&kernel.writes) {
                if uses[access.tensor].last() != Some(&number) {
                    uses[access.tensor].push(number);
                }
            }
        }
        let last = problem.kernels().len().saturating_sub(1);
        for (uses, tensor) in uses.iter_mut().zip(problem.tensors()) {
            match (tensor.is_always_there(), uses.first(), uses.last()) {
                (true, Some(0), Some(end)) if *end < last => uses.push(last),
                (true, Some(first), Some(end)) if *first > 0 && *end == last => uses.insert(0, 0),
                _ => {}
            }
        }
        let others = 1..problem.tiers().len();
        let link = |from, to| problem.links().iter().position(|link| (link.from, link.to) == (from, to));
        let way = |tier| Some(Away { tier, out: link(0, tier)?, back: link(tier, 0)? });
        let slow = others.clone().find(|tier| problem.tiers()[*tier].is_reachable);
        let moves = objective == Objective::Makespan;
        let away = if moves { others.clone().find_map(way) } else { None };
        Self { problem, begins, uses, away, slow, recomputes: moves }
    }

    /// Whether a treatment is anything else than keeping a tensor.
    pub fn is_possible(&self, tensor: usize, treatment: Treatment) -> bool {
        match treatment {
            Treatment::Keep => true,
            Treatment::Away => self.away.is_some() && !self.gaps(tensor, &[]).is_empty(),
            Treatment::Recompute => {
                let again = &self.problem.tensors()[tensor].recompute;
                self.recomputes && again.is_some() && self.gaps(tensor, &[]).iter().any(|gap| !gap.is_around())
            }
            Treatment::Slow => self.slow.is_some(),
        }
    }

    /// The plan in which tensors are treated as was decided, the first in the order of their priorities, as far as those before
    /// leave room.
    ///
    /// # Panics
    /// If there are not as many decisions as tensors.
    pub fn decode(&self, decisions: &Decisions) -> Plan {
        let mut order: Vec<usize> = (0..self.problem.tensors().len()).collect();
        order.sort_by(|left, right| decisions.priorities[*right].total_cmp(&decisions.priorities[*left]));
        let mut schedule = Schedule::new(self);
        for tensor in order {
            schedule.treat(tensor, decisions.treatments[tensor]);
        }
        schedule.into_plan()
    }

    /// What it takes to have a tensor away in all gaps that are long enough: nanoseconds of links, and when it is in the first
    /// tier.
    pub(super) fn away(&self, tensor: usize) -> (Vec<(usize, f64)>, Vec<Range<usize>>) {
        let (mut links, mut room) = (Vec::new(), self.stays(tensor));
        let Some(away) = self.away else { return (links, room) };
        let (out_ns, back_ns) = (self.takes_ns(tensor, away.out), self.takes_ns(tensor, away.back));
        let all = self.problem.kernels().len();
        for gap in self.gaps(tensor, &[]) {
            let gone = self.gone_at(gap, self.begins[gap.from] + out_ns).min(all - 1);
            let comes = self.kernel_from((self.begins[gap.to] - back_ns).max(0.0)).min(gap.to - 1);
            if !gap.is_around() && gone >= comes {
                room.push(gap.from..gap.to);
                continue;
            }
            room.extend([gap.from..gone + 1, comes..gap.to]);
            links.extend([(self.line(away.out), out_ns), (self.line(away.back), back_ns)]);
        }
        (links, room)
    }

    /// What it takes to compute a tensor again after each gap: nanoseconds, and when it is in the first tier.
    pub(super) fn again(&self, tensor: usize) -> (f64, Vec<Range<usize>>) {
        let gaps = self.gaps(tensor, &[]).len();
        let once = self.problem.tensors()[tensor].recompute.as_ref().map_or(0, |again| again.time_ns);
        (once as f64 * gaps as f64, self.stays(tensor))
    }

    /// Nanoseconds that kernels take longer if a tensor is in the other tier that they reach.
    pub fn slower_ns(&self, tensor: usize) -> f64 {
        let Some(slow) = self.slow else { return f64::INFINITY };
        let (slow, fast) = (&self.problem.tiers()[slow], &self.problem.tiers()[0]);
        let latency = slow.latency_ns.saturating_sub(fast.latency_ns) as f64;
        let extra = |bytes: u64, slow: u64, fast: u64| {
            (bytes as f64 * (1e9 / slow as f64 - 1e9 / fast as f64)).max(0.0) + latency
        };
        let of = |accesses: &[Access], slow, fast| -> f64 {
            let own = accesses.iter().filter(|access| access.tensor == tensor);
            own.map(|access| extra(access.bytes, slow, fast)).sum()
        };
        let kernels = self.uses[tensor].iter().map(|kernel| &self.problem.kernels()[*kernel]);
        let slower = kernels.map(|kernel| {
            of(&kernel.reads, slow.read_bandwidth, fast.read_bandwidth)
                + of(&kernel.writes, slow.write_bandwidth, fast.write_bandwidth)
        });
        slower.sum()
    }

    fn takes_ns(&self, tensor: usize, link: usize) -> f64 {
        self.problem.moved_bytes(tensor, link) as f64 * 1e9 / self.problem.links()[link].bandwidth as f64
    }

    /// Where it is noted what is taken of a link: one that shares its bandwidth has the same.
    fn line(&self, link: usize) -> usize {
        let links = self.problem.links();
        let shares = |other: &usize| links[link].shared_with == Some(*other) || links[*other].shared_with == Some(link);
        (0..link).find(shares).unwrap_or(link)
    }

    /// Whether `input` is there before a kernel, with what it had when `tensor` was computed from it.
    fn is_as_before(&self, input: usize, tensor: usize, kernel: usize) -> bool {
        let (uses, computed) = (&self.uses[input], self.uses[tensor][0]);
        // What no kernel uses may be anywhere. What came to be before can be computed again before.
        let is_there = uses.first().zip(uses.last()).is_some_and(|(first, last)| {
            let input = &self.problem.tensors()[input];
            input.is_always_there()
                || (*first < computed || *first == computed && input.recompute.is_none()) && kernel <= *last
        });
        let writes = |kernel: &usize| self.problem.kernels()[*kernel].writes.iter().any(|it| it.tensor == input);
        is_there && !uses.iter().filter(|use_of| (computed + 1..kernel).contains(use_of)).any(writes)
    }

    /// The gaps between the uses of a tensor and others of it.
    fn gaps(&self, tensor: usize, others: &[usize]) -> Vec<Gap> {
        let mut uses = self.uses[tensor].clone();
        uses.extend(others);
        uses.sort_unstable();
        let inner = uses.windows(2).map(|uses| Gap { from: uses[0] + 1, to: uses[1] });
        let mut gaps: Vec<Gap> = inner.filter(|gap| gap.is_wide()).collect();
        if let (Some(&first @ 1..), Some(last)) = (uses.first(), uses.last())
            && self.problem.tensors()[tensor].is_always_there()
        {
            gaps.push(Gap { from: last + 1, to: first });
        }
        gaps
    }

    /// The kernels during which a tensor must be in the first tier if it is used there: those that need it, and what lies
    /// between them and is no gap.
    fn stays(&self, tensor: usize) -> Vec<Range<usize>> {
        let mut stays: Vec<Range<usize>> = Vec::new();
        for kernel in self.uses[tensor].iter().copied() {
            match stays.last_mut() {
                Some(before) if !(Gap { from: before.end, to: kernel }).is_wide() => before.end = kernel + 1,
                _ => stays.push(kernel..kernel + 1),
            }
        }
        stays
    }

    /// The kernel that runs from a time on.
    fn kernel_from(&self, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin <= ns).saturating_sub(1)
    }

    /// The kernel during which a tensor that has left by a time is still there: at least the last before the gap, for
    /// kernels and transfers may take no time.
    fn gone_at(&self, gap: Gap, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin < ns).max(gap.from) - 1
    }
}

/// What was done to a schedule, to be undone.
enum Change {
    Room { tier: usize, kernels: Range<usize>, bytes: u64 },
    Link { line: usize, slot: (f64, f64) },
    Step,
}

struct Schedule<'d, 'a> {
    decoder: &'d Decoder<'a>,
    problem: &'a Problem,
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
    fn new(decoder: &'d Decoder<'a>) -> Self {
        let problem = decoder.problem;
        let tensors = problem.tensors().len();
        let mut schedule = Self {
            decoder,
            problem,
            held: vec![vec![0; problem.kernels().len()]; problem.tiers().len()],
            links: vec![Timeline::default(); problem.links().len()],
            is_treated: vec![false; tensors],
            places: vec![0; tensors],
            steps: Vec::new(),
            absent: vec![Vec::new(); tensors],
            needed: vec![Vec::new(); tensors],
            changes: Vec::new(),
        };
        // Where kernels reach the first tier only, everybody's uses come before anybody's gaps.
        if decoder.slow.is_none() {
            for tensor in 0..tensors {
                decoder.stays(tensor).into_iter().for_each(|kernels| schedule.hold(tensor, 0, kernels));
            }
        }
        schedule
    }

    fn treat(&mut self, tensor: usize, treatment: Treatment) {
        let Some(life) = self.problem.lifetime(tensor) else { return };
        if std::mem::replace(&mut self.is_treated[tensor], true) {
            return;
        }
        self.changes.clear();
        let life = *life.start()..life.end() + 1;
        let is_unused = self.decoder.uses[tensor].is_empty();
        let is_placed = (is_unused || treatment == Treatment::Slow)
            && self.stays_elsewhere(tensor, is_unused, life.clone())
            || self.comes_and_goes(tensor, treatment, life.clone())
            || self.stays_elsewhere(tensor, is_unused, life.clone());
        if !is_placed {
            // There is no room for it: the plan says so when it is played.
            self.hold(tensor, 0, life);
        }
    }

    /// In another tier all its life.
    fn stays_elsewhere(&mut self, tensor: usize, is_unused: bool, life: Range<usize>) -> bool {
        let away = self.decoder.away.filter(|_| is_unused).map(|away| away.tier);
        let Some(tier) = self.decoder.slow.or(away) else { return false };
        let fits = self.holds(tensor, tier, life);
        if fits {
            self.places[tensor] = tier;
        }
        fits
    }

    /// In the first tier when it is used; in each gap the first way that fits.
    fn comes_and_goes(&mut self, tensor: usize, treatment: Treatment, life: Range<usize>) -> bool {
        let mut stays = Vec::new();
        if self.decoder.slow.is_some() {
            stays = self.decoder.stays(tensor);
            stays.extend(self.needed[tensor].iter().map(|kernel| *kernel..kernel + 1));
        }
        let mut fits = stays.into_iter().all(|kernels| self.holds(tensor, 0, kernels));
        let gaps = if fits { self.decoder.gaps(tensor, &self.needed[tensor]) } else { Vec::new() };
        for gap in gaps {
            let way = treatment.ways().into_iter().find(|way| {
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
            Way::Leaves => self.leaves(tensor, gap),
            Way::IsRecomputed => self.is_recomputed(tensor, gap),
            Way::LeavesForGood => self.leaves_for_good(tensor, gap, end),
            Way::LeavesAnyway => self.decoder.slow.is_none() && self.leaves_anyway(tensor, gap),
        }
    }

    /// Away and back in time, with links that nobody else uses meanwhile.
    fn leaves(&mut self, tensor: usize, gap: Gap) -> bool {
        let Some(away) = self.decoder.away else { return false };
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
        if gap.is_around() {
            self.places[tensor] = away.tier;
        }
        self.holds(tensor, 0, gap.from..gone + 1)
            && self.holds(tensor, 0, comes..gap.to)
            && gap.kernels(all).into_iter().all(|kernels| self.holds(tensor, away.tier, kernels))
    }

    /// Away where kernels reach it, until its life ends.
    fn leaves_for_good(&mut self, tensor: usize, gap: Gap, end: usize) -> bool {
        let Some(away) = self.decoder.away.filter(|away| self.problem.tiers()[away.tier].is_reachable) else {
            return false;
        };
        let out = self.first_way_out(tensor, away, gap);
        let gone = self.decoder.gone_at(gap, out.1);
        if self.problem.tensors()[tensor].is_always_there() || gone >= gap.to {
            return false;
        }
        self.move_at(tensor, away.out, out, self.decoder.kernel_from(out.0).min(gone));
        self.holds(tensor, 0, gap.from..gone + 1) && self.holds(tensor, away.tier, gap.from..end)
    }

    /// Away at once, and back as late as links and room allow: kernels wait for the rest.
    fn leaves_anyway(&mut self, tensor: usize, gap: Gap) -> bool {
        let Some(away) = self.decoder.away else { return false };
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
        if gap.is_around() {
            self.places[tensor] = away.tier;
        }
        gap.kernels(self.problem.kernels().len()).into_iter().all(|kernels| self.holds(tensor, away.tier, kernels))
    }

    /// Given up after its last use, and computed again from what is there.
    fn is_recomputed(&mut self, tensor: usize, gap: Gap) -> bool {
        let Some(again) = &self.problem.tensors()[tensor].recompute else { return false };
        if gap.is_around() || !self.decoder.recomputes {
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
                if self.decoder.slow.is_none() && !self.holds(input, 0, gap.to..gap.to + 1) {
                    return false;
                }
                needed.push(input);
            }
        }
        // Nothing can go wrong any more.
        needed.into_iter().for_each(|input| self.needed[input].push(gap.to));
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
                Change::Link { line, slot } => self.links[line].give_back(slot),
                Change::Step => _ = self.steps.pop(),
            }
        }
    }

    fn into_plan(self) -> Plan {
        let mut steps = self.steps;
        // What is computed again before the same kernel comes in the order in which it was first.
        let order = |step: &Step| (step.kernel, self.problem.lifetime(step.tensor).map(|life| *life.start()));
        steps.sort_by(|(left, a), (right, b)| left.total_cmp(right).then_with(|| order(a).cmp(&order(b))));
        Plan { places: self.places, steps: steps.into_iter().map(|(_, step)| step).collect() }
    }
}
