//! Composition of one range of addresses from several chunks: chooses the chunks to map side by side for a block.
//!
//! A block of several chunks needs its middle chunks whole. Its first bytes can be the free end of a chunk in use, and
//! its last bytes the free start of another. The plan tries some such combinations, filling the middle with the largest
//! chunks first, and takes the cheapest: the one that exceeds the allowance least, and among those the one with the
//! least cost in mappings and in free bytes left in chunks partly in use.

use smallvec::SmallVec;

use super::space::Space;
use crate::Address;

/// A plan: the chunks to map side by side.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MappingPlan {
    pub(super) start: BlockStart,
    pub(super) sources: Vec<ChunkSource>,
}

/// The place where the block begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockStart {
    /// The first chunk of a new window.
    Fresh,
    /// The free end of this chunk, mapped first in a new window.
    Suffix(usize),
    /// The free run at the end of this window; the chunks are mapped after it.
    Open { window: usize, address: Address },
}

/// The source of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkSource {
    /// An existing chunk, by index.
    Chunk(usize),
    /// A chunk to be created, of this many bytes.
    New(u64),
}

/// The requirements that a plan must meet.
pub(super) struct Need<'a> {
    /// Bytes of the block.
    pub(super) bytes: u64,
    /// Returns whether the stream may use a chunk's free bytes without waiting.
    pub(super) ready: &'a dyn Fn(usize) -> bool,
    /// Bytes that may be created.
    pub(super) allowance: u64,
    /// Size of chunks to create; the last one may be smaller.
    pub(super) chunk_bytes: u64,
    /// Chunks are multiples of this.
    pub(super) granularity: u64,
}

/// The cost of one more mapping: as much as 1 MiB of free bytes left in chunks partly in use. (A mapping takes 25 µs.)
const MAPPING_COST: i64 = 1 << 20;
/// The cost, in bytes, of one more free range in chunks partly in use: pieces are harder to use.
const PIECE_COST: i64 = 2 << 20;
/// The number of longest runs at ends of windows that are considered; each takes a look at all its window's chunks.
const OPEN_RUNS: usize = 8;

/// A free run at the end of a window, after which chunks can be mapped.
struct OpenRun {
    window: usize,
    address: Address,
    bytes: u64,
}

/// The free memory that can complete a block, as (bytes, index of the chunk).
#[derive(Clone, Copy)]
struct FreeChunks<'a> {
    /// Whole chunks, from the largest down.
    whole: &'a [(u64, usize)],
    /// Free starts of chunks in use, from the smallest up.
    prefixes: &'a [(u64, usize)],
    /// Returns whether a chunk is not in the block's beginning or its window.
    is_usable: &'a dyn Fn(usize) -> bool,
}

/// A plan under consideration.
struct CandidatePlan {
    /// The cost of the candidate: (bytes beyond the allowance, cost in bytes).
    cost: (u64, i64),
    start: BlockStart,
    /// The whole chunks in the middle, by index.
    chunks: Vec<usize>,
    /// The bytes of the chunks to create, which follow.
    new_bytes: u64,
    /// The chunk partly in use whose free start ends the block.
    last: Option<usize>,
}

impl Space {
    /// Plans new chunks after the longest free run at the end of a window that can grow by the rest of the block: the
    /// cheapest way to more memory. Returns `None` if that would exceed the allowance.
    pub(super) fn plan_growth(&self, need: &Need<'_>) -> Option<MappingPlan> {
        let open = self.open_runs(need).into_iter().next().or_else(|| self.longest_window(need));
        let start =
            open.as_ref().map_or(BlockStart::Fresh, |o| BlockStart::Open { window: o.window, address: o.address });
        let rest = need.bytes - open.map_or(0, |open| open.bytes);
        let exact = rest.next_multiple_of(need.granularity);
        // A chunk larger than needed is left open for the next blocks, as long as the allowance permits.
        let full = rest.next_multiple_of(need.chunk_bytes);
        let bytes = if full <= need.allowance { full } else { exact };
        (bytes <= need.allowance).then(|| MappingPlan { start, sources: new_chunks(bytes, need.chunk_bytes).collect() })
    }

    /// Plans the best combination of free memory and, where that is not enough, of new chunks. Returns `None` only if
    /// new chunks would exceed the allowance and `may_exceed` is not set.
    pub(super) fn plan_composition(&self, need: &Need<'_>, may_exceed: bool) -> Option<MappingPlan> {
        let whole_chunks: Vec<(u64, usize)> =
            self.whole_chunks().into_iter().rev().filter(|w| (need.ready)(w.1)).collect();
        let partial = || self.chunks.iter().filter(|(index, chunk)| !chunk.is_whole() && (need.ready)(*index));
        let mut prefixes: Vec<(u64, usize)> =
            partial().map(|(index, chunk)| (chunk.free_prefix(), index)).filter(|prefix| prefix.0 > 0).collect();
        prefixes.sort_unstable();

        let mut best: Option<CandidatePlan> = None;
        let free = FreeChunks { whole: &whole_chunks, prefixes: &prefixes, is_usable: &|_| true };
        self.offer_completions(need, BlockStart::Fresh, 0, &free, &mut best);
        for (index, chunk) in partial().filter(|(_, chunk)| chunk.free_suffix() > 0) {
            let bytes = chunk.free_suffix().min(need.bytes);
            let others = FreeChunks { is_usable: &|other| other != index, ..free };
            self.offer_completions(need, BlockStart::Suffix(index), bytes, &others, &mut best);
        }
        let mut in_window = vec![false; self.chunks.capacity()];
        for open in self.open_runs(need).into_iter().take(OPEN_RUNS) {
            // A window must not show a chunk twice.
            in_window.fill(false);
            self.windows.get(open.window).chunks.iter().for_each(|(_, index)| in_window[*index] = true);
            let start = BlockStart::Open { window: open.window, address: open.address };
            let others = FreeChunks { is_usable: &|other| !in_window[other], ..free };
            self.offer_completions(need, start, open.bytes, &others, &mut best);
        }
        let best = best.filter(|best| may_exceed || best.cost.0 == 0)?;
        let sources = best.chunks.into_iter().map(ChunkSource::Chunk);
        let sources = sources.chain(new_chunks(best.new_bytes, need.chunk_bytes));
        Some(MappingPlan { start: best.start, sources: sources.chain(best.last.map(ChunkSource::Chunk)).collect() })
    }

    /// Returns the end of the longest window that can grow by the block: ranges side by side make longer runs later.
    fn longest_window(&self, need: &Need<'_>) -> Option<OpenRun> {
        let grown = need.bytes + 2 * need.chunk_bytes;
        let can_grow = self.windows.iter().filter(|(_, window)| window.room(need.granularity) >= grown);
        let (window, longest) = can_grow.max_by_key(|(_, window)| window.bytes)?;
        Some(OpenRun { window, address: longest.end(), bytes: 0 })
    }

    /// Returns free runs at ends of windows, longest first. Each is shorter than the block, its window can grow to hold
    /// the block, and the stream may touch it without a wait.
    fn open_runs(&self, need: &Need<'_>) -> Vec<OpenRun> {
        // The last chunk mapped may reach beyond the block.
        let reach = 2 * self.chunks.iter().map(|(_, chunk)| chunk.bytes).max().unwrap_or(0).max(need.chunk_bytes);
        let mut open: Vec<OpenRun> = (self.windows.iter())
            .filter_map(|(index, window)| {
                let bytes = window.free_suffix(&self.chunks);
                let fits =
                    (1..need.bytes).contains(&bytes) && window.room(need.granularity) >= need.bytes - bytes + reach;
                if !fits {
                    return None;
                }
                let address = window.end() - bytes;
                let mut pieces = self.pieces(self.windows.locate(address), bytes);
                let is_ready = pieces.all(|piece| (need.ready)(piece.chunk));
                is_ready.then_some(OpenRun { window: index, address, bytes })
            })
            .collect();
        open.sort_by_key(|open| std::cmp::Reverse(open.bytes));
        open
    }

    /// Makes the cheapest way to complete a block, which has `found` bytes so far, the best one if it is cheaper: whole
    /// chunks, then the free start of a chunk in use, one more whole chunk, or new chunks.
    fn offer_completions(
        &self,
        need: &Need<'_>,
        start: BlockStart,
        found: u64,
        free: &FreeChunks<'_>,
        best: &mut Option<CandidatePlan>,
    ) {
        let FreeChunks { whole, prefixes, is_usable } = *free;
        let mut rest = need.bytes - found;
        // The positions of the chunks that are taken, in order.
        let mut taken = SmallVec::<[usize; 16]>::new();
        let mut next = 0;
        while rest > 0 {
            next += whole[next..].partition_point(|(bytes, _)| *bytes > rest);
            let Some(&(bytes, index)) = whole.get(next) else { break };
            if is_usable(index) {
                rest -= bytes;
                taken.push(next);
            }
            next += 1;
        }
        let base_cost = self.start_cost(start, found) + MAPPING_COST * signed(taken.len() as u64);
        let mut offer = |extra: Option<usize>, new_bytes: u64, last: Option<usize>, left: i64| {
            let mappings =
                new_bytes.div_ceil(need.chunk_bytes) + u64::from(extra.is_some()) + u64::from(last.is_some());
            let cost = (new_bytes.saturating_sub(need.allowance), base_cost + MAPPING_COST * signed(mappings) + left);
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                let chunks = taken.iter().map(|position| whole[*position].1).chain(extra).collect();
                *best = Some(CandidatePlan { cost, start, chunks, new_bytes, last });
            }
        };
        if rest == 0 {
            return offer(None, 0, None, 0);
        }
        let enough = prefixes.partition_point(|(bytes, _)| *bytes < rest);
        if let Some(&(bytes, index)) = prefixes[enough..].iter().find(|(_, index)| is_usable(*index)) {
            offer(None, 0, Some(index), piece_cost(bytes - rest) - piece_cost(bytes));
        }
        let large = &whole[..whole.partition_point(|(bytes, _)| *bytes >= rest)];
        let is_free =
            |(position, chunk): &(usize, &(u64, usize))| is_usable(chunk.1) && taken.binary_search(position).is_err();
        if let Some((_, &(bytes, index))) = large.iter().enumerate().rev().find(is_free) {
            offer(Some(index), 0, None, piece_cost(bytes - rest));
        }
        let new_bytes = rest.next_multiple_of(need.granularity);
        offer(None, new_bytes, None, piece_cost(new_bytes - rest));
        // New chunks can come before the start of a chunk in use. The longest start sets how few new bytes suffice, and
        // the shortest start that suffices with them is taken.
        if let Some(&(longest, _)) = prefixes[..enough].iter().rev().find(|(_, index)| is_usable(*index)) {
            let new_bytes = (rest - longest).next_multiple_of(need.granularity);
            let shortest = prefixes.partition_point(|(bytes, _)| bytes + new_bytes < rest);
            if let Some(&(bytes, index)) = prefixes[shortest..enough].iter().find(|(_, index)| is_usable(*index)) {
                let left = piece_cost(bytes + new_bytes - rest) - piece_cost(bytes);
                offer(None, new_bytes, Some(index), left);
            }
        }
    }

    /// Returns the cost of a block's beginning. The pieces of free memory that it uses up lower the cost.
    fn start_cost(&self, start: BlockStart, found: u64) -> i64 {
        match start {
            BlockStart::Fresh => 0,
            BlockStart::Suffix(index) => {
                MAPPING_COST + piece_cost(self.chunks[index].free_suffix() - found) - piece_cost(found)
            }
            BlockStart::Open { address, .. } => {
                // If no bytes are free there, the address may not be mapped yet.
                let place = (found > 0).then(|| self.windows.locate(address));
                let pieces = place.into_iter().flat_map(|place| self.pieces(place, found));
                pieces.filter(|piece| !self.chunks[piece.chunk].is_whole()).map(|piece| -piece_cost(piece.bytes)).sum()
            }
        }
    }
}

/// Returns the cost of a free range of `bytes` in a chunk partly in use.
fn piece_cost(bytes: u64) -> i64 {
    if bytes == 0 { 0 } else { signed(bytes) + PIECE_COST }
}

/// Returns new chunks of `bytes` bytes together.
fn new_chunks(bytes: u64, chunk_bytes: u64) -> impl Iterator<Item = ChunkSource> {
    let sizes = std::iter::repeat_n(chunk_bytes, (bytes / chunk_bytes) as usize);
    sizes.chain(Some(bytes % chunk_bytes).filter(|rest| *rest > 0)).map(ChunkSource::New)
}

/// Converts to a signed number. A very large value becomes one that can still be added up.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4)
}
