//! Address ranges in address order, merged where they touch, with a fast first fit.

use crate::Address;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
}

impl Run {
    pub(crate) fn end(&self) -> Address {
        self.address + self.bytes
    }
}

/// A set of disjoint runs. First fit skips whole leaves without a run that is long enough, so it costs little more than
/// a binary search while there are a few thousand runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The leaves, in address order. None is empty.
    leaves: Vec<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    /// The first address. It is kept here so that finding a leaf touches no other memory.
    first: Address,
    /// The longest run of the leaf, in bytes.
    longest: u64,
    runs: Vec<Run>,
}

/// The number of runs beyond which a leaf is split in two.
const LEAF_RUNS: usize = 64;

impl Runs {
    /// Adds a range that overlaps none of the set.
    pub(crate) fn insert(&mut self, address: Address, bytes: u64) {
        let (leaf, at) = self.position(address);
        let mut run = Run { address, bytes };
        let previous = at.checked_sub(1).map(|before| self.leaves[leaf].runs[before]);
        let next = self.run_at(leaf, at);
        debug_assert!(previous.is_none_or(|p| p.end() <= address), "{run:?} overlaps {previous:?}");
        debug_assert!(next.is_none_or(|(_, _, n)| run.end() <= n.address), "{run:?} overlaps {next:?}");
        if let Some((next_leaf, next_at, next)) = next.filter(|(_, _, next)| next.address == run.end()) {
            run.bytes += next.bytes;
            self.take(next_leaf, next_at);
        }
        match previous.filter(|previous| previous.end() == address) {
            Some(previous) => {
                let merged = Run { address: previous.address, bytes: previous.bytes + run.bytes };
                self.set(leaf, at - 1, merged);
            }
            None => self.put(leaf, at, run),
        }
    }

    /// Takes a range out of the run that contains it.
    ///
    /// # Panics
    /// If no run contains it.
    pub(crate) fn remove(&mut self, address: Address, bytes: u64) {
        let (leaf, after) = self.position(address);
        let at = after.checked_sub(1).expect("a removed range lies in a run");
        let run = self.leaves[leaf].runs[at];
        assert!(run.end() >= address + bytes, "a removed range lies in a run");
        let tail = Run { address: address + bytes, bytes: run.end() - address - bytes };
        match (address > run.address, tail.bytes > 0) {
            (false, false) => self.take(leaf, at),
            (false, true) => self.set(leaf, at, tail),
            (true, rest) => {
                self.set(leaf, at, Run { bytes: address - run.address, ..run });
                if rest {
                    self.put(leaf, at + 1, tail);
                }
            }
        }
    }

    /// Returns the first run from `from` on that holds at least `bytes`.
    pub(crate) fn first_fit(&self, bytes: u64, from: Address) -> Option<Run> {
        let (first, at) = from.checked_sub(1).map_or((0, 0), |before| self.position(before));
        self.leaves.iter().enumerate().skip(first).filter(|(_, leaf)| leaf.longest >= bytes).find_map(
            |(index, leaf)| {
                let skip = if index == first { at } else { 0 };
                leaf.runs[skip..].iter().find(|run| run.bytes >= bytes).copied()
            },
        )
    }

    /// Returns all runs, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.leaves.iter().flat_map(|leaf| leaf.runs.iter().copied())
    }

    /// Returns the leaf that holds the last run starting at or before `address` (or the first leaf), and the position
    /// in it after that run.
    fn position(&self, address: Address) -> (usize, usize) {
        let leaf = self.leaves.partition_point(|leaf| leaf.first <= address).saturating_sub(1);
        let at = self.leaves.get(leaf).map_or(0, |leaf| leaf.runs.partition_point(|run| run.address <= address));
        (leaf, at)
    }

    /// Returns the run at a position, which may be just after a leaf's last run.
    fn run_at(&self, leaf: usize, at: usize) -> Option<(usize, usize, Run)> {
        let here = self.leaves.get(leaf)?;
        match here.runs.get(at) {
            Some(&run) => Some((leaf, at, run)),
            None => self.leaves.get(leaf + 1).map(|next| (leaf + 1, 0, next.runs[0])),
        }
    }

    fn set(&mut self, leaf: usize, at: usize, run: Run) {
        let leaf = &mut self.leaves[leaf];
        let old = std::mem::replace(&mut leaf.runs[at], run);
        leaf.replaced(old.bytes, run.bytes);
    }

    fn put(&mut self, index: usize, at: usize, run: Run) {
        let Some(leaf) = self.leaves.get_mut(index) else {
            self.leaves.push(Leaf { first: run.address, longest: run.bytes, runs: vec![run] });
            return;
        };
        leaf.runs.insert(at, run);
        leaf.replaced(0, run.bytes);
        if leaf.runs.len() > LEAF_RUNS {
            let runs = leaf.runs.split_off(LEAF_RUNS / 2);
            leaf.measure();
            let mut upper = Leaf { first: runs[0].address, longest: 0, runs };
            upper.measure();
            self.leaves.insert(index + 1, upper);
        }
    }

    fn take(&mut self, index: usize, at: usize) {
        let leaf = &mut self.leaves[index];
        let run = leaf.runs.remove(at);
        if leaf.runs.is_empty() {
            self.leaves.remove(index);
        } else {
            leaf.replaced(run.bytes, 0);
        }
    }
}

impl Leaf {
    /// Updates the leaf after a run of `old` bytes became one of `new`.
    fn replaced(&mut self, old: u64, new: u64) {
        self.first = self.runs[0].address;
        if new >= self.longest {
            self.longest = new;
        } else if old == self.longest {
            self.measure();
        }
    }

    fn measure(&mut self) {
        self.longest = self.runs.iter().map(|run| run.bytes).max().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Returns the runs of a set of unit cells.
    fn runs_of(cells: &BTreeSet<u64>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &cell in cells {
            match runs.last_mut() {
                Some(run) if run.end() == cell => run.bytes += 1,
                _ => runs.push(Run { address: cell, bytes: 1 }),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_cells(
            operations in prop::collection::vec((0u64..2000, 1u64..12, 1u64..16), 1..1500),
        ) {
            let mut runs = Runs::default();
            let mut cells = BTreeSet::new();
            for (address, bytes, wanted) in operations {
                let range: Vec<u64> = (address..address + bytes).collect();
                if range.iter().all(|cell| !cells.contains(cell)) {
                    runs.insert(address, bytes);
                    cells.extend(range);
                } else if range.iter().all(|cell| cells.contains(cell)) {
                    runs.remove(address, bytes);
                    range.iter().for_each(|cell| { cells.remove(cell); });
                }
                let expected = runs_of(&cells);
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), expected.clone());
                let first = expected.iter().copied().find(|run| run.address >= address && run.bytes >= wanted);
                prop_assert_eq!(runs.first_fit(wanted, address), first);
            }
        }
    }
}
