//! The bytes that placed buffers occupy at each time.

use std::ops::Range;

/// Ranges of bytes, sorted and merged: between two of them are bytes that are free.
type Ranges = Vec<Range<u64>>;

/// The most levels of the tree in which nodes know all buffers that are alive in their sections.
const MOST_COMPLETE_LEVELS: u32 = 6;

/// The bytes that placed buffers occupy, in a tree over sections.
///
/// A buffer is placed into nodes from the root downwards, and goes no deeper where it covers all sections of a node,
/// except that the nodes of the upper levels know all their buffers. So the bytes occupied at any time of a lifetime are
/// those of the highest nodes whose sections all belong to it, and those that cover the nodes above, from the lowest of
/// the upper levels on. Without the upper levels, long-lived buffers would be spread over lists that each have many
/// holes; one list that has them all has few.
pub(super) struct OccupiedBytes {
    /// The number of leaves: sections, rounded up to a power of two.
    leaves: usize,
    /// The number of the first node of the lowest level whose nodes know all their buffers.
    last_complete: usize,
    /// The root is number 1; the children of `i` are `2 * i` and `2 * i + 1`.
    nodes: Vec<OccupiedNode>,
}

/// The bytes that buffers occupy in the sections of one node.
#[derive(Clone, Default)]
struct OccupiedNode {
    /// Bytes of buffers that cover all sections. None above the lowest complete level; below it, without those that
    /// cover all sections of the parent.
    covering: Ranges,
    /// Bytes of these and of buffers that are alive in some of the sections. In the complete levels, of all buffers.
    reaching: Ranges,
}

impl OccupiedBytes {
    /// Returns a tree over `sections` in which all bytes are free.
    pub(super) fn new(sections: usize) -> Self {
        let leaves = sections.next_power_of_two();
        let complete = MOST_COMPLETE_LEVELS.min(leaves.ilog2() / 2);
        Self { leaves, last_complete: 1 << complete, nodes: vec![OccupiedNode::default(); 2 * leaves] }
    }

    /// Frees all bytes.
    pub(super) fn clear(&mut self) {
        for node in &mut self.nodes {
            node.covering.clear();
            node.reaching.clear();
        }
    }

    /// Occupies `bytes` during `sections`.
    pub(super) fn insert(&mut self, sections: &Range<usize>, bytes: &Range<u64>) {
        self.occupy(1, 0..self.leaves, sections, bytes);
    }

    fn occupy(&mut self, node: usize, sections: Range<usize>, wanted: &Range<usize>, bytes: &Range<u64>) {
        add(&mut self.nodes[node].reaching, bytes);
        if node >= self.last_complete && wanted.start <= sections.start && sections.end <= wanted.end {
            add(&mut self.nodes[node].covering, bytes);
            return;
        }
        let middle = usize::midpoint(sections.start, sections.end);
        if wanted.start < middle {
            self.occupy(2 * node, sections.start..middle, wanted, bytes);
        }
        if middle < wanted.end {
            self.occupy(2 * node + 1, middle..sections.end, wanted, bytes);
        }
    }

    /// Replaces `ranges` by the bytes that are occupied at any time of `sections`, sorted by where they begin. They may
    /// overlap. Holes of less than `size` bytes may be left out.
    pub(super) fn collect(&self, sections: &Range<usize>, size: u64, ranges: &mut Ranges) {
        ranges.clear();
        self.gather(1, 0..self.leaves, sections, size, ranges);
        // The stable sort is fast here: it merges the sorted lists of the nodes.
        ranges.sort_by_key(|range| range.start);
    }

    fn gather(&self, node: usize, sections: Range<usize>, wanted: &Range<usize>, size: u64, ranges: &mut Ranges) {
        if wanted.start <= sections.start && sections.end <= wanted.end {
            join(&self.nodes[node].reaching, size, ranges);
            return;
        }
        if node >= self.last_complete {
            join(&self.nodes[node].covering, size, ranges);
        }
        let middle = usize::midpoint(sections.start, sections.end);
        if wanted.start < middle {
            self.gather(2 * node, sections.start..middle, wanted, size, ranges);
        }
        if middle < wanted.end {
            self.gather(2 * node + 1, middle..sections.end, wanted, size, ranges);
        }
    }
}

/// Appends `list` to `ranges`. Joins those between which fewer than `size` bytes are free.
fn join(list: &[Range<u64>], size: u64, ranges: &mut Ranges) {
    let Some((first, rest)) = list.split_first() else { return };
    let mut open = first.clone();
    for range in rest {
        if range.start - open.end < size {
            open.end = range.end;
        } else {
            ranges.push(open);
            open = range.clone();
        }
    }
    ranges.push(open);
}

/// Adds a range to merged ranges.
fn add(ranges: &mut Ranges, bytes: &Range<u64>) {
    let first = ranges.partition_point(|range| range.end < bytes.start);
    let met = ranges[first..].iter().take_while(|range| range.start <= bytes.end).count();
    match met {
        0 => ranges.insert(first, bytes.clone()),
        _ => {
            let end = bytes.end.max(ranges[first + met - 1].end);
            ranges[first] = bytes.start.min(ranges[first].start)..end;
            ranges.drain(first + 1..first + met);
        }
    }
}
