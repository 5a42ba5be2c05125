//! A binary tree over pieces of memory that lie side by side (a segment tree). Each node summarizes the free ranges of
//! its pieces, so that finding the first free range of some length and changing a piece take logarithmic time.

/// A summary of the free bytes in a piece of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FreeSummary {
    /// The size of the memory in bytes.
    pub(super) total: u64,
    /// The free bytes at its start.
    pub(super) prefix: u64,
    /// The free bytes at its end.
    pub(super) suffix: u64,
    /// The bytes of its longest free range.
    pub(super) longest: u64,
}

impl FreeSummary {
    /// Returns whether all bytes are free.
    pub(super) fn is_whole(&self) -> bool {
        self.prefix == self.total
    }

    /// Returns the summary of this memory followed by `next`.
    #[inline]
    pub(super) fn join(&self, next: &Self) -> Self {
        Self {
            total: self.total + next.total,
            prefix: if self.is_whole() { self.total + next.prefix } else { self.prefix },
            suffix: next.suffix_after(self.suffix),
            longest: self.longest.max(next.longest).max(self.suffix + next.prefix),
        }
    }

    /// Replaces this summary by a new one of the same memory. Returns whether they differ.
    #[inline]
    fn replace(&mut self, new: &Self) -> bool {
        let changes = (self.prefix ^ new.prefix) | (self.suffix ^ new.suffix) | (self.longest ^ new.longest) != 0;
        if changes {
            // Written word by word, so that no later read of a sum is wider than the write it reads from.
            (self.prefix, self.suffix, self.longest) = (new.prefix, new.suffix, new.longest);
        }
        changes
    }

    /// Returns the bytes free at the end, if `before` bytes are free just before the start.
    pub(super) fn suffix_after(&self, before: u64) -> u64 {
        if self.is_whole() { before + self.total } else { self.suffix }
    }
}

/// A tree over pieces side by side. The children of node `n` are `2n` and `2n + 1`, and the leaves are the second half.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<FreeSummary>,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: vec![FreeSummary::default(); 2] }
    }
}

impl Tree {
    /// Replaces all pieces by new ones, given by their summaries, and computes every sum.
    pub(super) fn summarize(&mut self, pieces: impl ExactSizeIterator<Item = FreeSummary>) {
        // The leaves beyond the last piece are empty.
        let leaves = pieces.len().next_power_of_two();
        self.nodes.clear();
        self.nodes.resize(leaves, FreeSummary::default());
        self.nodes.extend(pieces);
        self.nodes.resize(2 * leaves, FreeSummary::default());
        for node in (1..leaves).rev() {
            self.nodes[node] = self.nodes[2 * node].join(&self.nodes[2 * node + 1]);
        }
    }

    /// Returns the summary of all pieces.
    #[inline]
    pub(super) fn sum(&self) -> &FreeSummary {
        &self.nodes[1]
    }

    /// Sets the summary of the piece at `at`, but not the sums above it: see [`update_sums`](Self::update_sums).
    /// Returns whether it changed.
    #[inline]
    pub(super) fn set_piece(&mut self, at: usize, free: &FreeSummary) -> bool {
        let leaf = self.leaves() + at;
        self.nodes[leaf].replace(free)
    }

    /// Computes the sums above the pieces from `first` to `last` again.
    #[inline]
    pub(super) fn update_sums(&mut self, first: usize, last: usize) {
        let mut first = self.leaves() + first;
        let mut last = self.leaves() + last;
        let mut changes = true;
        while changes && first > 1 {
            (first, last, changes) = (first / 2, last / 2, false);
            for node in first..=last {
                let sum = self.nodes[2 * node].join(&self.nodes[2 * node + 1]);
                changes |= self.nodes[node].replace(&sum);
            }
        }
    }

    /// Returns the first piece from `from` on that `skips` rejects, or an index past the last piece if it accepts all.
    /// `skips` is called from left to right, on the sum of several pieces where possible. It must accept a sum if it
    /// accepts each of its pieces in turn.
    #[inline]
    pub(super) fn skip_while(&self, from: usize, mut skips: impl FnMut(&FreeSummary) -> bool) -> usize {
        let leaves = self.leaves();
        if from >= leaves {
            return from;
        }
        let mut node = leaves + from;
        loop {
            // Goes up to the largest sum of pieces that begins here.
            node >>= node.trailing_zeros();
            if !skips(&self.nodes[node]) {
                while node < leaves {
                    node *= 2;
                    node += usize::from(skips(&self.nodes[node]));
                }
                return node - leaves;
            }
            node += 1;
            if node.is_power_of_two() {
                return leaves;
            }
        }
    }

    /// Returns the number of leaves, which is also the number of the first leaf.
    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a piece of 4 cells.
    fn piece(cells: u8) -> FreeSummary {
        let runs = (0..4).map(|from| (from..4).take_while(|cell| cells >> cell & 1 == 1).count() as u64);
        let runs: Vec<u64> = runs.collect();
        let suffix = runs.iter().copied().zip((1..=4).rev()).find(|(run, rest)| run == rest).map_or(0, |(run, _)| run);
        FreeSummary { total: 4, prefix: runs[0], suffix, longest: runs.iter().copied().max().unwrap_or(0) }
    }

    proptest! {
        #[test]
        fn sums_and_finds_as_cells_say(
            mut pieces in prop::collection::vec(0u8..16, 1..40),
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::collection::vec(0u8..16, 1..6), 1u64..20),
                1..60,
            ),
        ) {
            let mut tree = Tree::default();
            tree.summarize(pieces.iter().map(|cells| piece(*cells)));
            for (at, new, wanted) in changes {
                let at = at.index(pieces.len());
                let last = (at + new.len()).min(pieces.len()) - 1;
                for (place, cells) in (at..=last).zip(new) {
                    prop_assert_eq!(tree.set_piece(place, &piece(cells)), piece(cells) != piece(pieces[place]));
                    pieces[place] = cells;
                }
                tree.update_sums(at, last);
                let sum = pieces.iter().fold(FreeSummary::default(), |sum, cells| sum.join(&piece(*cells)));
                prop_assert_eq!(*tree.sum(), sum);

                // The expected piece is the one in which the first run from `at` on reaches the wanted length.
                let (mut run, mut expected) = (0, None);
                for (number, cells) in pieces.iter().enumerate().skip(at) {
                    for cell in 0..4 {
                        run = if cells >> cell & 1 == 1 { run + 1 } else { 0 };
                        expected = expected.or((run == wanted).then_some(number));
                    }
                }
                let mut before = 0;
                let found = tree.skip_while(at, |free| {
                    let is_short = before + free.prefix < wanted && free.longest < wanted;
                    before = if is_short { free.suffix_after(before) } else { before };
                    is_short
                });
                prop_assert_eq!(Some(found).filter(|found| *found < pieces.len()), expected);
                let whole = pieces[at..].iter().take_while(|cells| **cells == 15).count();
                prop_assert_eq!(tree.skip_while(at, FreeSummary::is_whole).min(pieces.len()), at + whole);
            }
        }
    }
}
