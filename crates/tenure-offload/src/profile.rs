//! The profile of a training step: its saved tensors, their needs, the times between them, and its planning problem.

use std::collections::HashSet;

use tenure_core::Tag;
use tenure_plan::Problem;
use tenure_plan::problem::{ProblemAccess, ProblemKernel, ProblemParts, ProblemRecompute, ProblemTensor};

use crate::align::Alignment;
use crate::error::{LeastBudget, Needed, ProfileError};
use crate::identity::{ResidentIndex, SavedIndex};
use crate::machine::Machine;

/// The profile of a training step. Its *points* are the moments at which a tensor was saved or needed again, or the use
/// of a resident began or ended. Between a point and the next lies an *interval*, in which the device computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    saved: Vec<ProfiledTensor>,
    residents: Vec<ProfiledResident>,
    intervals: Vec<Interval>,
}

/// A saved tensor: bytes that a forward pass saved for backward.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledTensor {
    /// The name of the tensor, which is the same in each step.
    pub key: String,
    /// The size of the tensor in bytes.
    pub bytes: u64,
    /// The factor by which the codec makes the bytes smaller, if it does.
    pub compression: Option<f64>,
    /// The recipe to recompute the bytes, if there is one.
    pub recipe: Option<Recipe>,
    /// Whether the bytes stay in memory.
    pub(crate) stays: bool,
    /// The point at which the tensor was saved.
    at: usize,
    /// The points at which the tensor was needed.
    needs: Vec<usize>,
    /// The intervals in which the front end held the bytes too, in order.
    held: Vec<usize>,
}

/// A resident: bytes that stay from step to step, such as an optimizer's state, and need not be in memory between their
/// uses.
#[derive(Clone, Debug, PartialEq)]
struct ProfiledResident {
    key: String,
    bytes: u64,
    /// The intervals in which the bytes are used, in order.
    used: Vec<usize>,
}

/// A recipe to recompute bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The saved tensors that are the inputs, all saved before.
    pub inputs: Vec<SavedIndex>,
    /// The number of operations.
    pub operations: u64,
    /// The time of the operations, in nanoseconds.
    pub time_ns: u64,
}

impl ProfiledTensor {
    /// Returns an estimate of the bytes that recomputing the tensor takes for intermediate results.
    pub(crate) fn intermediate_bytes(&self) -> u64 {
        self.recipe.as_ref().map_or(0, |recipe| self.bytes * recipe.operations.saturating_sub(1))
    }
}

impl Recipe {
    /// Returns the recipe for the planning problem, whose first tensors are the saved ones. Adds `launch_ns` for each
    /// operation.
    fn recompute(&self, launch_ns: u64) -> ProblemRecompute {
        let time_ns = self.time_ns + self.operations * launch_ns;
        ProblemRecompute { time_ns, inputs: self.inputs.iter().map(|input| input.0).collect() }
    }
}

/// An interval, from a point to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Interval {
    time_ns: u64,
    /// The most bytes that were allocated at once, without saved tensors and residents.
    other_bytes: u64,
}

impl Profile {
    /// Creates the profile of an empty step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends an interval that needed `other_bytes` beside saved tensors and residents, at the point where a tensor is
    /// saved. Returns the tensor's index.
    pub fn save(&mut self, other_bytes: u64, key: impl Into<String>, bytes: u64) -> SavedIndex {
        let at = self.end(other_bytes);
        let key = key.into();
        self.saved.push(ProfiledTensor {
            key,
            bytes,
            compression: None,
            recipe: None,
            stays: false,
            at,
            needs: Vec::new(),
            held: Vec::new(),
        });
        SavedIndex(self.saved.len() - 1)
    }

    /// Ends an interval that needed `other_bytes` beside saved tensors and residents, at the point where a saved tensor
    /// is needed.
    ///
    /// # Panics
    /// The index does not exist.
    pub fn need(&mut self, other_bytes: u64, saved: SavedIndex) {
        let point = self.end(other_bytes);
        self.saved[saved.0].needs.push(point);
    }

    /// Adds a resident, which stays from step to step.
    pub fn add_resident(&mut self, key: impl Into<String>, bytes: u64) -> ResidentIndex {
        self.residents.push(ProfiledResident { key: key.into(), bytes, used: Vec::new() });
        ResidentIndex(self.residents.len() - 1)
    }

    /// Ends an interval that needed `other_bytes` beside saved tensors and residents, at the point where the use of a
    /// resident begins.
    ///
    /// # Panics
    /// The index does not exist.
    pub fn lend(&mut self, other_bytes: u64, resident: ResidentIndex) {
        let point = self.end(other_bytes);
        self.residents[resident.0].used.push(point + 1);
    }

    /// Ends an interval that needed `other_bytes` beside saved tensors and residents, at the point where the use of a
    /// resident ends.
    ///
    /// # Panics
    /// The resident does not exist, or was not lent.
    pub fn give_back(&mut self, other_bytes: u64, resident: ResidentIndex) {
        let point = self.end(other_bytes);
        let used = &mut self.residents[resident.0].used;
        let since = used[used.len() - 1] + 1;
        used.extend(since..=point);
    }

    /// Marks a saved tensor as held by the front end too in the interval that begins. It stays in memory then, since
    /// spilling it would free nothing.
    ///
    /// # Panics
    /// The index does not exist.
    pub fn hold(&mut self, saved: SavedIndex) {
        let interval = self.intervals.len();
        let held = &mut self.saved[saved.0].held;
        if held.last() != Some(&interval) {
            held.push(interval);
        }
    }

    /// Ends an interval that needed `other_bytes` beside saved tensors and residents; the last call ends the step.
    /// Returns the number of the point at the interval's end.
    pub fn end(&mut self, other_bytes: u64) -> usize {
        self.intervals.push(Interval { time_ns: 0, other_bytes });
        self.intervals.len() - 1
    }

    /// Sets the lengths of the intervals, in nanoseconds, from the first on.
    pub fn set_times(&mut self, times_ns: impl IntoIterator<Item = u64>) {
        self.intervals.iter_mut().zip(times_ns).for_each(|(interval, time_ns)| interval.time_ns = time_ns);
    }

    /// Returns the lengths of the intervals, in nanoseconds.
    pub(crate) fn times(&self) -> impl Iterator<Item = u64> {
        self.intervals.iter().map(|interval| interval.time_ns)
    }

    /// Returns the most bytes at once in each interval, beside saved tensors and residents.
    pub(crate) fn other_bytes(&self) -> impl Iterator<Item = u64> {
        self.intervals.iter().map(|interval| interval.other_bytes)
    }

    /// Returns the size in bytes of a tensor, and the intervals that use it. Tensors are numbered as in the problem:
    /// saved tensors by index, then residents.
    pub(crate) fn bytes_and_uses(&self, tensor: usize) -> (u64, Vec<usize>) {
        match tensor.checked_sub(self.saved.len()) {
            None => (self.saved[tensor].bytes, self.saved[tensor].used_in().collect()),
            Some(resident) => (self.residents[resident].bytes, self.residents[resident].used.clone()),
        }
    }

    /// Returns the number of residents.
    pub fn residents(&self) -> usize {
        self.residents.len()
    }

    /// Returns the first interval, from `interval` on, in which a resident is not in use.
    pub(crate) fn unused_from(&self, resident: ResidentIndex, interval: usize) -> usize {
        let used = &self.residents[resident.0].used;
        (interval..).find(|interval| used.binary_search(interval).is_err()).unwrap_or(interval)
    }

    /// Returns how many points after `point` a resident is used next, in this step or the next.
    pub(crate) fn resident_needed_in(&self, resident: ResidentIndex, point: usize) -> usize {
        let used = &self.residents[resident.0].used;
        let next = used.iter().find(|interval| **interval > point);
        next.copied()
            .or_else(|| used.first().map(|first| first + self.intervals.len()))
            .map_or(usize::MAX, |interval| interval - 1 - point)
    }

    /// Merges neighboring intervals: `groups` gives, for each interval, the number of the merged one that it becomes a
    /// part of.
    pub(crate) fn merged(mut self, groups: &[usize]) -> Self {
        let merge = |intervals: &mut Vec<usize>| {
            intervals.iter_mut().for_each(|interval| *interval = group_of(groups, *interval));
            intervals.dedup();
        };
        for saved in &mut self.saved {
            saved.at = group_of(groups, saved.at);
            saved.needs.iter_mut().for_each(|point| *point = group_of(groups, *point));
            merge(&mut saved.held);
        }
        self.residents.iter_mut().for_each(|resident| merge(&mut resident.used));
        let mut intervals: Vec<Interval> = Vec::new();
        for (interval, group) in self.intervals.iter().zip(groups) {
            if *group == intervals.len() {
                intervals.push(*interval);
            } else if let Some(merged) = intervals.last_mut() {
                merged.time_ns += interval.time_ns;
                merged.other_bytes = merged.other_bytes.max(interval.other_bytes);
            }
        }
        Self { intervals, ..self }
    }

    /// Returns a profile whose sizes and times are `combine` of those of this profile and of `other`. What `other` lacks
    /// is taken to be `scale` times as much there as here. Returns None if their residents differ.
    pub(crate) fn combined(
        &self,
        other: &Self,
        alignment: &Alignment,
        scale: f64,
        combine: impl Fn(u64, u64) -> u64,
    ) -> Option<Self> {
        if self.residents != other.residents {
            return None;
        }
        let scaled = |own: u64| (own as f64 * scale) as u64;
        let mut combined = self.clone();
        for (saved, same) in combined.saved.iter_mut().zip(&alignment.saved) {
            let same = same.and_then(|index| other.saved.get(index.0));
            saved.bytes = combine(saved.bytes, same.map_or_else(|| scaled(saved.bytes), |same| same.bytes));
            if let Some(recipe) = &mut saved.recipe {
                let there = same.and_then(|same| same.recipe.as_ref()).map(|recipe| recipe.time_ns);
                recipe.time_ns = combine(recipe.time_ns, there.unwrap_or_else(|| scaled(recipe.time_ns)));
            }
        }
        for (interval, other) in combined.intervals.iter_mut().zip(self.intervals_of(other, alignment)) {
            interval.time_ns = combine(interval.time_ns, other.time_ns);
            interval.other_bytes = combine(interval.other_bytes, other.other_bytes);
        }
        Some(combined)
    }

    /// Returns the intervals of `other` as if its points were those of this profile. Between two points that both have,
    /// its time and its bytes are distributed as they are here.
    fn intervals_of(&self, other: &Self, alignment: &Alignment) -> Vec<Interval> {
        let mut theirs = other.intervals.clone();
        let same: HashSet<usize> = alignment.saved.iter().flatten().map(|index| index.0).collect();
        for (_, saved) in other.saved.iter().enumerate().filter(|(index, _)| !same.contains(index)) {
            // Here it is no saved tensor, so there it counts as other bytes.
            let last = saved.used_in().max().unwrap_or(saved.at);
            theirs.iter_mut().take(last + 1).skip(saved.at).for_each(|interval| interval.other_bytes += saved.bytes);
        }
        let points = alignment.events.iter().enumerate().filter_map(|(own, other)| Some((own, (*other)?)));
        let ends = (self.intervals.len().saturating_sub(1), theirs.len().saturating_sub(1));
        let mut intervals = Vec::with_capacity(self.intervals.len());
        let mut begin = (0, 0);
        for (own_end, their_end) in points.chain([ends]) {
            let own = self.intervals.get(begin.0..=own_end).unwrap_or_default();
            let their = theirs.get(begin.1..=their_end).unwrap_or_default();
            let time_ns: u64 = their.iter().map(|interval| interval.time_ns).sum();
            let bytes = their.iter().map(|interval| interval.other_bytes).max().unwrap_or(0);
            let own_ns: u64 = own.iter().map(|interval| interval.time_ns).sum();
            let own_bytes = own.iter().map(|interval| interval.other_bytes).max().unwrap_or(0);
            let share = |own: u64, all: u64, their: u64| (u128::from(their) * u128::from(own) / u128::from(all)) as u64;
            intervals.extend(own.iter().map(|interval| Interval {
                time_ns: if own_ns == 0 {
                    time_ns / own.len() as u64
                } else {
                    share(interval.time_ns, own_ns, time_ns)
                },
                other_bytes: if own_bytes == 0 { bytes } else { share(interval.other_bytes, own_bytes, bytes) },
            }));
            begin = (own_end + 1, their_end + 1);
        }
        intervals
    }

    /// Returns the number of intervals so far.
    pub fn intervals(&self) -> usize {
        self.intervals.len()
    }

    /// Returns the saved tensors, by index.
    pub fn saved(&self) -> &[ProfiledTensor] {
        &self.saved
    }

    /// Returns a saved tensor, so that the caller can set its compression and its recipe.
    ///
    /// # Panics
    /// The index does not exist.
    pub fn saved_mut(&mut self, index: SavedIndex) -> &mut ProfiledTensor {
        &mut self.saved[index.0]
    }

    /// Returns the bytes of all saved tensors and residents.
    pub(crate) fn bytes(&self) -> u64 {
        let saved: u64 = self.saved.iter().map(|saved| saved.bytes).sum();
        saved + self.residents.iter().map(|resident| resident.bytes).sum::<u64>()
    }

    /// Removes the compression of all tensors, so that plans do not count on it.
    pub(crate) fn forget_compression(&mut self) {
        self.saved.iter_mut().for_each(|saved| saved.compression = None);
    }

    /// Returns the least budget in bytes that a plan can keep to, and the interval that needs this much.
    pub fn least_bytes(&self) -> (u64, usize) {
        let least = self.used_bytes().into_iter().zip(self.other_bytes()).map(|(used, other)| used + other);
        let most = least.enumerate().max_by_key(|(_, bytes)| *bytes);
        most.map_or((0, 0), |(interval, bytes)| (bytes, interval))
    }

    /// Counts the tensors that stay as held from their save to their last need.
    pub(crate) fn hold_staying(&mut self) {
        for saved in self.saved.iter_mut().filter(|saved| saved.stays) {
            let last = saved.used_in().max().unwrap_or(saved.at);
            saved.held = (saved.at + 1..=last).collect();
        }
    }

    /// Replaces `before` bytes, which were there all the time, by `now` bytes.
    pub(crate) fn replace_other(&mut self, before: u64, now: u64) {
        for interval in &mut self.intervals {
            interval.other_bytes = (interval.other_bytes + now).saturating_sub(before);
        }
    }

    /// Lowers the other bytes of the last interval.
    pub(crate) fn lower_last(&mut self, bytes: u64) {
        if let Some(last) = self.intervals.last_mut() {
            last.other_bytes = last.other_bytes.saturating_sub(bytes);
        }
    }

    /// Lowers the other bytes of intervals so that none needs more than `bytes`, which were enough for the step. An
    /// interval may seem to need more because a tensor was released in the middle of it.
    pub(crate) fn limit(&mut self, bytes: u64) {
        let used: Vec<u64> = self.used_bytes();
        for (interval, used) in self.intervals.iter_mut().zip(used) {
            interval.other_bytes = interval.other_bytes.min(bytes.saturating_sub(used));
        }
    }

    /// Lowers the other bytes of intervals so that none takes more than `bytes` beside the tensors that were saved by
    /// then: `bytes` were enough for a step that kept them all.
    pub(crate) fn limit_plain(&mut self, bytes: u64) {
        let residents: u64 = self.residents.iter().map(|resident| resident.bytes).sum();
        let saved = self.saved_bytes();
        for (interval, saved) in self.intervals.iter_mut().zip(saved) {
            interval.other_bytes = interval.other_bytes.min(bytes.saturating_sub(saved + residents));
        }
    }

    /// Returns the bytes of saved tensors and residents that each interval uses.
    fn used_bytes(&self) -> Vec<u64> {
        let mut used_bytes = vec![0; self.intervals.len()];
        let saved = self.saved.iter().flat_map(|saved| saved.used_in().map(|used| (used, saved.bytes)));
        let residents = self.residents.iter().flat_map(|it| it.used.iter().map(|used| (*used, it.bytes)));
        for (interval, bytes) in saved.chain(residents) {
            used_bytes.get_mut(interval).into_iter().for_each(|used| *used += bytes);
        }
        used_bytes
    }

    /// Returns the most bytes that the step needs at once if every tensor stays in memory until its last use.
    pub(crate) fn plain_bytes(&self) -> u64 {
        let residents: u64 = self.residents.iter().map(|resident| resident.bytes).sum();
        let taken = self.intervals.iter().zip(self.saved_bytes()).map(|(interval, saved)| interval.other_bytes + saved);
        taken.max().unwrap_or(0) + residents
    }

    /// Returns the bytes of saved tensors in each interval, if every tensor stays in memory until its last use.
    fn saved_bytes(&self) -> Vec<u64> {
        // The bytes that are added before each interval, less those removed.
        let mut changes = vec![0_i64; self.intervals.len() + 1];
        for saved in &self.saved {
            let last = saved.used_in().max().unwrap_or(saved.at).min(self.intervals.len().saturating_sub(1));
            changes[saved.at] += saved.bytes as i64;
            changes[last + 1] -= saved.bytes as i64;
        }
        let mut saved_bytes = 0;
        let sums = changes.into_iter().take(self.intervals.len()).map(|change| {
            saved_bytes += change;
            saved_bytes as u64
        });
        sums.collect()
    }

    /// Returns the planning problem: where to keep saved tensors and residents in each interval. Its tensors are the
    /// saved ones by index, then the residents, and then the other bytes of the intervals. Its kernels are the
    /// intervals.
    ///
    /// # Errors
    /// The budget is too small, however much is spilled.
    pub fn problem(&self, name: &str, machine: &Machine) -> Result<Problem, ProfileError> {
        let (least_bytes, interval) = self.least_bytes();
        // What every interval holds is no part of the problem: it only makes the budget smaller.
        let always_bytes = self.intervals.iter().map(|interval| interval.other_bytes).min().unwrap_or(0);
        let budget_bytes = machine.budget_bytes;
        let aside_bytes = machine.slack_bytes;
        if least_bytes + aside_bytes > budget_bytes {
            let other_bytes = self.intervals.get(interval).map_or(0, |interval| interval.other_bytes);
            let used_bytes = least_bytes - other_bytes;
            let needed = Needed { known: Vec::new(), always_bytes, other_bytes, used_bytes, aside_bytes };
            let least_bytes = least_bytes + aside_bytes;
            let when = self.name_of(interval);
            return Err(ProfileError::TooSmall { budget_bytes, least_bytes, least: LeastBudget::Bound, when, needed });
        }
        let kernel =
            |(name, time_ns): (String, u64)| ProblemKernel { name, time_ns, reads: Vec::new(), writes: Vec::new() };
        let mut kernels: Vec<ProblemKernel> = self.names().into_iter().zip(self.times()).map(kernel).collect();
        let mut tensors = Vec::with_capacity(self.saved.len());
        for (tensor, saved) in self.saved.iter().enumerate() {
            let access = ProblemAccess { tensor, bytes: saved.bytes };
            kernels[saved.at].writes.push(access);
            let later = saved.at + 1..kernels.len();
            saved.used_in().filter(|used| later.contains(used)).for_each(|used| kernels[used].reads.push(access));
            tensors.push(ProblemTensor {
                key: format!("{}@{tensor}", saved.key),
                bytes: saved.bytes,
                tag: Tag::Activation,
                compression: saved.compression,
                recompute: saved.recipe.as_ref().map(|recipe| recipe.recompute(machine.launch_ns)),
            });
        }
        for ProfiledResident { key, bytes, used } in &self.residents {
            let access = ProblemAccess { tensor: tensors.len(), bytes: *bytes };
            for kernel in used.iter().filter(|used| **used < self.intervals.len()) {
                kernels[*kernel].reads.push(access);
                kernels[*kernel].writes.push(access);
            }
            let key = format!("{key}@{}", tensors.len());
            let tag = Tag::OptimizerState;
            tensors.push(ProblemTensor { key, bytes: *bytes, tag, compression: None, recompute: None });
        }
        for (interval, kernel) in kernels.iter_mut().enumerate() {
            let bytes = self.intervals[interval].other_bytes - always_bytes;
            if bytes > 0 {
                kernel.writes.push(ProblemAccess { tensor: tensors.len(), bytes: 0 });
                let key = format!("interval {interval}");
                tensors.push(ProblemTensor { key, bytes, tag: Tag::Workspace, compression: None, recompute: None });
            }
        }
        let (tiers, links) = machine.tiers(budget_bytes - aside_bytes - always_bytes);
        let backward = self.saved.iter().flat_map(|saved| saved.needs.first()).min().map(|point| point + 1);
        let backward = backward.filter(|kernel| *kernel < kernels.len());
        let source = "a profiled training step".into();
        Ok(Problem::new(ProblemParts { name: name.into(), source, tiers, links, tensors, kernels, backward })?)
    }

    /// Returns the name of an interval, in words.
    fn name_of(&self, interval: usize) -> String {
        self.names().into_iter().nth(interval).unwrap_or_default()
    }

    /// Returns the names of all intervals, in words.
    fn names(&self) -> Vec<String> {
        let mut names = vec![None; self.intervals.len()];
        let mut name = |interval: usize, words: &dyn Fn() -> String| {
            if let Some(name) = names.get_mut(interval) {
                name.get_or_insert_with(words);
            }
        };
        for ProfiledTensor { key, at, .. } in &self.saved {
            name(*at, &|| format!("while \"{key}\" is computed"));
        }
        let last = self.intervals.len().saturating_sub(1);
        for ProfiledTensor { key, needs, .. } in &self.saved {
            needs.iter().for_each(|point| {
                name(point + 1, &|| {
                    if point + 1 == last {
                        format!("after the backward pass uses \"{key}\", as in the optimizer's step")
                    } else {
                        format!("in the backward pass, when it uses \"{key}\"")
                    }
                });
            });
        }
        for ProfiledResident { key, used, .. } in &self.residents {
            used.iter().for_each(|interval| name(*interval, &|| format!("when the optimizer uses \"{key}\"")));
        }
        names.into_iter().map(|name| name.unwrap_or_else(|| "at the end of the step".into())).collect()
    }
}

/// Returns the merged interval that an interval is a part of. For one that has not begun, it is the one after the last.
fn group_of(groups: &[usize], interval: usize) -> usize {
    groups.get(interval).copied().unwrap_or_else(|| groups.last().map_or(0, |last| last + 1))
}

impl ProfiledTensor {
    /// Returns the point at which the tensor was saved.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns how many points after `point` the bytes are needed next, or `usize::MAX` if they are not needed any
    /// more.
    pub(crate) fn needed_in(&self, point: usize) -> usize {
        self.needs.iter().find(|need| **need >= point).map_or(usize::MAX, |need| need - point)
    }

    /// Returns the intervals in which the bytes must be in memory: the one that makes them, and those in which they are
    /// needed or held by the front end.
    fn used_in(&self) -> impl Iterator<Item = usize> {
        let needed = self.needs.iter().map(|point| point + 1).filter(|needed| self.held.binary_search(needed).is_err());
        std::iter::once(self.at).chain(needed).chain(self.held.iter().copied())
    }
}
