//! The mixed-integer problem of placement, moves and recomputation together.

use highs::{Col, RowProblem};

use crate::Problem;
use crate::bound::Links;
use crate::problem::ProblemTensor;
use crate::uses::Use;

/// Reserves that a problem leaves unused, so that there is room for the effects that it does not model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Margins {
    /// Bytes of the first tier.
    pub(super) room_bytes: u64,
    /// A share of the links' time.
    pub(super) links: f64,
    /// The cost of a move, as a share of its time on a link.
    pub(super) moves: f64,
}

impl Margins {
    /// No reserves: the solution is a bound.
    pub(super) const NONE: Self = Self { room_bytes: 0, links: 0.0, moves: 0.0 };
}

/// The problem, as the [module above](super) describes it.
pub(super) struct JointProblem {
    pub(super) rows: RowProblem,
    pub(super) tensors: Vec<TensorColumns>,
    /// For each kernel, the column of the nanoseconds from its beginning to that of the next.
    pub(super) times: Vec<Col>,
    /// The nanoseconds of one unit in columns of times and in the objective.
    pub(super) ns_unit: f64,
}

/// The columns of a tensor.
#[derive(Default)]
pub(super) struct TensorColumns {
    /// Whether it is in the first tier at the beginning, and so at the end. Only for a tensor that always exists and is
    /// used.
    pub(super) begins_fast: Option<Col>,
    /// For each use, whether the tensor is in the first tier.
    pub(super) is_fast: Vec<Col>,
    /// The gaps between its uses.
    pub(super) gaps: Vec<GapColumns>,
}

/// The gap from a use, or the beginning, to the next use, or the end.
pub(super) struct GapColumns {
    /// The kernel that used the tensor before, and the index of that use.
    pub(super) before: Option<(usize, usize)>,
    /// The kernel that uses it next, and the index of that use.
    pub(super) after: Option<(usize, usize)>,
    /// Whether it stays in the first tier in between.
    pub(super) stays: Col,
    /// Whether it is dropped and recomputed, if that is possible.
    pub(super) again: Option<Col>,
}

/// A sum of columns, each with a factor.
type Sum = Vec<(Col, f64)>;

/// Makes a [`JointProblem`].
struct Builder<'a> {
    problem: &'a Problem,
    rows: RowProblem,
    margins: Margins,
    byte_unit: f64,
    ns_unit: f64,
    out: Links,
    back: Links,
    classes: Classes,
    /// The nanoseconds that each kernel takes if no tensor is in the first tier that can be elsewhere, and the changes
    /// to that time.
    slow_ns: Vec<f64>,
    changes: Vec<Sum>,
    /// The time that recomputation adds to the sum of times.
    recomputed: Sum,
    /// For each kernel, how many more bytes tensors take in the first tier when it begins than when the one before
    /// began, without the tensors that move.
    held: Vec<Sum>,
    /// For each class: the tensors that may leave from a kernel on, and those that must be back when it begins.
    leaving: Vec<Vec<Sum>>,
    due: Vec<Vec<Sum>>,
}

impl JointProblem {
    /// Makes the problem, for a program that takes about `about_ns`.
    pub(super) fn new(
        problem: &Problem,
        capacity_bytes: u64,
        uses: &[Vec<Use>],
        about_ns: f64,
        margins: Margins,
    ) -> Self {
        let mut builder = Builder::new(problem, capacity_bytes, about_ns, margins);
        let tensors: Vec<TensorColumns> =
            (0..uses.len()).map(|tensor| builder.add_tensor(tensor, &uses[tensor])).collect();
        if margins != Margins::NONE {
            builder.add_inputs(&tensors);
        }
        let room_bytes = capacity_bytes.saturating_sub(margins.room_bytes);
        let times = builder.add_kernels(room_bytes as f64 / builder.byte_unit);
        Self { rows: builder.rows, tensors, times, ns_unit: builder.ns_unit }
    }
}

impl<'a> Builder<'a> {
    fn new(problem: &'a Problem, capacity_bytes: u64, about_ns: f64, margins: Margins) -> Self {
        let kernels = problem.kernels().len();
        let largest = problem.tensors().iter().map(|tensor| tensor.bytes).max().unwrap_or(0);
        let out = Links::at(problem, |link| link.from);
        let back = Links::at(problem, |link| link.to);
        let classes = Classes::new(problem, &out, &back);
        let none = vec![vec![Sum::new(); kernels + 1]; classes.ratios.len()];
        Self {
            problem,
            rows: RowProblem::new(),
            margins,
            // Units with which the solver's tolerances of a millionth do not matter.
            byte_unit: capacity_bytes.min(problem.peak_bytes()).max(largest).max(1) as f64 / 1e4,
            ns_unit: about_ns.max(1.0) / 1e5,
            out,
            back,
            classes,
            slow_ns: problem.kernels().iter().map(|kernel| kernel.time_ns as f64).collect(),
            changes: vec![Sum::new(); kernels],
            recomputed: Sum::new(),
            held: vec![Sum::new(); kernels + 1],
            leaving: none.clone(),
            due: none,
        }
    }

    /// Adds the columns and rows of a tensor.
    fn add_tensor(&mut self, number: usize, uses: &[Use]) -> TensorColumns {
        let tensor = &self.problem.tensors()[number];
        let bytes = tensor.bytes as f64 / self.byte_unit;
        let is_fast: Vec<Col> = uses.iter().map(|a_use| self.add_use(a_use, bytes)).collect();
        let begins_fast = uses.first().filter(|_| tensor.is_always_there()).map(|first| match first.kernel {
            // It begins where the first kernel uses it.
            0 => is_fast[0],
            _ => {
                let column = self.rows.add_integer_column(0.0, 0..=1);
                self.add_room(0, column, bytes);
                column
            }
        });
        let mut gaps = Vec::new();
        for after in 0..=uses.len() {
            let before = after.checked_sub(1);
            let [before, after] =
                [before, Some(after)].map(|index| index.and_then(|index| Some((uses.get(index)?.kernel, index))));
            let is_open = begins_fast.is_some() && (before, after.map_or(1, |(kernel, _)| kernel)) != (None, 0);
            if is_open || before.is_some() && after.is_some() {
                let at = |end: Option<(usize, usize)>| end.map(|(_, index)| is_fast[index]).or(begins_fast);
                let (Some(leaves), Some(comes)) = (at(before), at(after)) else { continue };
                gaps.push(self.add_gap(number, [leaves, comes], before, after));
            }
        }
        TensorColumns { begins_fast, is_fast, gaps }
    }

    /// Adds a use, in the first tier or elsewhere. Returns its column.
    fn add_use(&mut self, a_use: &Use, bytes: f64) -> Col {
        let fast_ns = a_use.extra_ns[0];
        let slow_ns = a_use.elsewhere_ns();
        let least = u8::from(slow_ns.is_infinite());
        let most = u8::from(fast_ns.is_finite());
        let column = self.rows.add_integer_column(0.0, least.min(most)..=most);
        self.slow_ns[a_use.kernel] += if slow_ns.is_finite() { slow_ns } else { fast_ns };
        if slow_ns.is_finite() && fast_ns.is_finite() {
            self.changes[a_use.kernel].push((column, (slow_ns - fast_ns) / self.ns_unit));
        }
        self.add_room(a_use.kernel, column, bytes);
        column
    }

    /// Takes room in the first tier during a kernel: `bytes` times the column.
    fn add_room(&mut self, kernel: usize, column: Col, bytes: f64) {
        self.held[kernel].push((column, bytes));
        self.held[kernel + 1].push((column, -bytes));
    }

    /// Adds a gap; `is_fast` holds the columns at its two ends.
    fn add_gap(
        &mut self,
        number: usize,
        is_fast: [Col; 2],
        before: Option<(usize, usize)>,
        after: Option<(usize, usize)>,
    ) -> GapColumns {
        let tensor = &self.problem.tensors()[number];
        let bytes = tensor.bytes as f64 / self.byte_unit;
        let class = self.classes.of[number];
        let moved = self.classes.ratios[class] * tensor.bytes as f64;
        let stays = self.rows.add_column(0.0, 0..=1);
        let leaves = before.map_or(0, |(kernel, _)| kernel);
        let opens = leaves + 1;
        let closes = after.map_or(self.problem.kernels().len(), |(kernel, _)| kernel);
        if opens < closes {
            self.held[opens].push((stays, bytes));
            self.held[closes].push((stays, -bytes));
        }
        let again = tensor.recompute.as_ref().filter(|_| before.is_some() && after.is_some()).map(|again| {
            let column = self.rows.add_integer_column(0.0, 0..=1);
            self.recomputed.push((column, -(again.time_ns as f64) / self.ns_unit));
            column
        });
        let crosses = self.add_crossing(is_fast[0], stays, again, self.out.ns(moved));
        self.leaving[class][leaves].push((crosses, bytes));
        let crosses = self.add_crossing(is_fast[1], stays, again, self.back.ns(moved));
        self.due[class][closes].push((crosses, bytes));
        GapColumns { before, after, stays, again }
    }

    /// Adds the column that says whether a tensor crosses a link at one end of a gap: if it is in the first tier there,
    /// does not stay, and is not recomputed.
    fn add_crossing(&mut self, is_fast: Col, stays: Col, again: Option<Col>, link_ns: f64) -> Col {
        let most = f64::from(u8::from(link_ns.is_finite()));
        let cost = if most > 0.0 { self.margins.moves * link_ns / self.ns_unit } else { 0.0 };
        let crosses = self.rows.add_column(cost, 0.0..=most);
        let others = again.map(|again| (again, 1.0));
        self.rows.add_row(0.0.., [(crosses, 1.0), (is_fast, -1.0), (stays, 1.0)].into_iter().chain(others));
        self.rows.add_row(..=0.0, [(stays, 1.0), (is_fast, -1.0)]);
        crosses
    }

    /// Adds rows for the inputs of recomputation. A tensor is recomputed right before its next use, from inputs that
    /// exist and were not moved away before.
    fn add_inputs(&mut self, tensors: &[TensorColumns]) {
        for (number, tensor) in tensors.iter().enumerate() {
            let inputs = self.problem.tensors()[number].recompute.iter().flat_map(|again| &again.inputs);
            for (gap, input) in tensor.gaps.iter().flat_map(|gap| inputs.clone().map(move |input| (gap, *input))) {
                let (Some(again), Some((kernel, _))) = (gap.again, gap.after) else { continue };
                let is_there = self.problem.lifetime(input).is_some_and(|life| {
                    *life.end() >= kernel && (*life.start() < kernel || self.problem.tensors()[input].is_always_there())
                });
                if !is_there {
                    self.rows.add_row(..=0.0, [(again, 1.0)]);
                }
                for other in &tensors[input].gaps {
                    if other.before.is_some_and(|(before, _)| before >= kernel)
                        || other.after.is_some_and(|(after, _)| after <= kernel)
                    {
                        continue;
                    }
                    let is_fast = other.before.or(other.after).map(|(_, index)| (tensors[input].is_fast[index], 1.0));
                    let row = [(again, 1.0), (other.stays, -1.0)].into_iter().chain(is_fast);
                    self.rows.add_row(..=1.0, row);
                    if let Some(other) = other.again {
                        self.rows.add_row(..=1.0, [(again, 1.0), (other, 1.0)]);
                    }
                }
            }
        }
    }

    /// Adds the rows of room and links for each kernel; returns the columns of times.
    fn add_kernels(&mut self, capacity: f64) -> Vec<Col> {
        let shares = self.out.shares_with(&self.back, self.problem);
        let mut held: Option<Col> = None;
        // For each class: bytes that are still to leave, and bytes that are back early.
        let mut moving: Vec<Option<[Col; 2]>> = vec![None; self.classes.ratios.len()];
        let mut early: Vec<Option<Col>> = vec![None; self.classes.ratios.len()];
        let mut times = Vec::new();
        for kernel in 0..self.problem.kernels().len() {
            let changes = std::mem::take(&mut self.held[kernel]);
            held = Some(self.add_sum(held, changes));
            let filled = held.into_iter().chain(moving.iter().flatten().flatten().copied());
            let filled: Sum = filled.map(|column| (column, 1.0)).collect();
            self.rows.add_row(..=capacity, filled);
            let time = self.rows.add_column(1.0, 0.0..);
            let row = self.changes[kernel].iter().copied().chain([(time, 1.0)]);
            self.rows.add_row(self.slow_ns[kernel] / self.ns_unit.., row);
            let mut taken = [Sum::new(), Sum::new()];
            for (class, moving) in moving.iter_mut().enumerate() {
                let flows = [(); 2].map(|()| self.rows.add_column(0.0, 0.0..));
                let mut leaving = std::mem::take(&mut self.leaving[class][kernel]);
                leaving.push((flows[0], -1.0));
                // A tensor that is already on a link when it is used may have crossed in part: allow one on each link.
                let most_early = if self.margins == Margins::NONE {
                    self.classes.largest[class] * self.out.numbers.len() as f64
                } else {
                    0.0
                };
                let sent = self.rows.add_column(0.0, 0.0..=most_early / self.byte_unit);
                leaving.push((sent, 1.0));
                leaving.extend(early[class].replace(sent).map(|before| (before, -1.0)));
                let due = std::mem::take(&mut self.due[class][kernel + 1]);
                let mut back: Sum = due.into_iter().map(|(column, bytes)| (column, -bytes)).collect();
                back.push((flows[1], 1.0));
                let before = moving.map_or([None; 2], |moving| moving.map(Some));
                *moving = Some([self.add_sum(before[0], leaving), self.add_sum(before[1], back)]);
                for (taken, (flow, links)) in taken.iter_mut().zip(flows.into_iter().zip([&self.out, &self.back])) {
                    let ns = links.ns(self.classes.ratios[class] * self.byte_unit) / self.ns_unit;
                    // Without links nothing crosses, and nothing flows.
                    taken.push((flow, if ns.is_finite() { ns } else { 1.0 }));
                }
            }
            let [mut out, back] = taken;
            let rows = if shares {
                out.extend(back);
                vec![out]
            } else {
                vec![out, back]
            };
            for mut row in rows {
                row.push((time, self.margins.links - 1.0));
                self.rows.add_row(..=0.0, row);
            }
            times.push(time);
        }
        // At the end, all tensors that were to leave have left.
        for [leaving, _] in moving.into_iter().flatten() {
            self.rows.add_row(..=0.0, [(leaving, 1.0)]);
        }
        if !self.recomputed.is_empty() {
            // Recomputation may happen at any kernel before the one that needs it.
            let all = times.iter().map(|time| (*time, 1.0)).chain(self.changes.concat()).chain(self.recomputed.clone());
            self.rows.add_row(self.slow_ns.iter().sum::<f64>() / self.ns_unit.., all);
        }
        times
    }

    /// Adds a column that equals another one plus some changes.
    fn add_sum(&mut self, before: Option<Col>, mut changes: Sum) -> Col {
        let sum = self.rows.add_column(0.0, 0.0..);
        changes.push((sum, -1.0));
        changes.extend(before.map(|before| (before, 1.0)));
        self.rows.add_row(0.0..=0.0, changes);
        sum
    }
}

impl Links {
    /// Returns the nanoseconds that `bytes` take on all of the links together.
    fn ns(&self, bytes: f64) -> f64 {
        if self.bytes_per_ns > 0.0 { bytes / self.bytes_per_ns } else { f64::INFINITY }
    }

    /// Returns whether traffic on these links reduces the bandwidth of the others: one link each, sharing one
    /// bandwidth.
    fn shares_with(&self, others: &Self, problem: &Problem) -> bool {
        let links = problem.links();
        match (&self.numbers[..], &others.numbers[..]) {
            (&[one], &[other]) => links[one].shared_with == Some(other) || links[other].shared_with == Some(one),
            _ => false,
        }
    }
}

/// Classes of tensors with about the same ratio of bytes on links: moves are added up for each class.
struct Classes {
    /// The least number of bytes that cross a link for each byte in the first tier.
    ratios: Vec<f64>,
    /// The bytes of the largest tensor in each class.
    largest: Vec<f64>,
    /// The class of each tensor.
    of: Vec<usize>,
}

impl Classes {
    /// The most classes.
    const MOST: usize = 4;

    fn new(problem: &Problem, out: &Links, back: &Links) -> Self {
        let ratio = |(number, tensor): (usize, &ProblemTensor)| {
            let moved = out.moved_bytes(problem, number).min(back.moved_bytes(problem, number));
            if tensor.bytes == 0 { 1.0 } else { moved as f64 / tensor.bytes as f64 }
        };
        let ratios: Vec<f64> = problem.tensors().iter().enumerate().map(ratio).collect();
        let mut sorted = ratios.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let size = sorted.len().div_ceil(Self::MOST).max(1);
        let least: Vec<f64> = sorted.chunks(size).map(|chunk| chunk[0]).collect();
        let of: Vec<usize> = ratios.iter().map(|ratio| least.partition_point(|least| least <= ratio) - 1).collect();
        let mut largest = vec![0.0_f64; least.len()];
        for (tensor, class) in problem.tensors().iter().zip(&of) {
            largest[*class] = largest[*class].max(tensor.bytes as f64);
        }
        Self { ratios: least, largest, of }
    }
}
