//! Packing problems drawn by chance, and simple code that judges packings. The example `packings` uses it too.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use tenure_plan::packing::{Buffer, PackingProblem};

/// A kind of program, which makes the lifetimes and sizes of a problem.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A training step: weights always live, activations live from forward to backward, and both have scratch space.
    Training,
    /// Few large buffers and many small ones.
    PowerLaw,
    /// Many short lifetimes, and some as long as the program.
    Mixed,
    /// Phases, which few buffers outlive.
    Phases,
    /// An inference in an accelerator's scratchpad, like those of M. Maas et al., *TelaMalloc: Efficient On-Chip Memory
    /// Allocation for Production Machine Learning Accelerators*, ASPLOS 2023: layers whose buffers overlap with those
    /// of the next, skip connections, weights that are fetched early, and aligned offsets.
    Layers,
}

pub(crate) const KINDS: [Kind; 5] = [Kind::Training, Kind::PowerLaw, Kind::Mixed, Kind::Phases, Kind::Layers];

/// The buffers of a layer, and the time that it takes.
const LAYER: u64 = 8;

/// Draws a problem of `count` buffers.
pub(crate) fn drawn(kind: Kind, count: u64, seed: u64) -> PackingProblem {
    let mut random = Random::seed_from_u64(seed);
    let times = 2 * count + 2;
    let buffers = (0..count).map(|index| {
        let any = random.random_range(0..times - 1);
        let sizes: [u64; 6] = [512, 4096, 10_240, 65_536, 1 << 20, 3 << 20];
        let common = sizes[random.random_range(0..sizes.len())];
        let short = random.random_range(1..=8);
        let chance = random.random_range(0.0..1.0);
        let power = (512.0 * f64::powf(1.0 - chance, -1.5)) as u64;
        let (start, length, size) = match kind {
            Kind::Training if index % 16 == 0 => (0, times, common),
            Kind::Training if index % 2 == 0 => (index, times - 2 * index, common),
            Kind::Training => (any, short, common),
            Kind::PowerLaw => (any, 1 + (times as f64 * chance.powi(8)) as u64, power),
            Kind::Mixed if index % 8 == 0 => (any, random.random_range(1..times), common),
            Kind::Mixed => (any, short, power),
            Kind::Phases => {
                let phase = times / 10 + 1;
                let rest = phase - any % phase;
                (any, if index % 64 == 0 { phase } else { random.random_range(1..=rest) }, common)
            }
            Kind::Layers => layer_buffer(index, &mut random),
        };
        let end = (start + length).min(times);
        let alignment = if matches!(kind, Kind::Layers) { 32 } else { 1 };
        Buffer { id: index.to_string(), start, end, size_bytes: size, alignment, offset: None }
    });
    PackingProblem::new(buffers.collect()).expect("lifetimes and sizes are valid")
}

/// Draws a buffer of a layer: its start, the length of its lifetime, and its size.
fn layer_buffer(index: u64, random: &mut Random) -> (u64, u64, u64) {
    let start = index / LAYER * LAYER;
    // Every 16 layers, the images have another size.
    let scale = 1 << (index / LAYER / 16 % 4);
    match index % LAYER {
        // The output, which the next layer reads.
        0 => (start, LAYER + random.random_range(1..=LAYER), scale * random.random_range(1000..20_000)),
        // An output that a later layer reads too.
        1 => (start, LAYER * random.random_range(2..=16), scale * random.random_range(1000..20_000)),
        // Weights, which are fetched while earlier layers run.
        2 | 3 => {
            let early = random.random_range(0..=2 * LAYER).min(start);
            (start - early, early + LAYER, 72 * random.random_range(1..=512))
        }
        // Tiles.
        _ => (
            start + random.random_range(0..LAYER),
            random.random_range(1..=LAYER),
            scale * random.random_range(64..4096),
        ),
    }
}

/// Places the buffers of a problem, the largest first, those of equal size in the order of `key`, each into the smallest
/// hole: without any of the library's code. Returns the height.
pub(crate) fn largest_first<K: Ord>(problem: &PackingProblem, key: impl Fn(&Buffer) -> K) -> u64 {
    /// A buffer's lifetime and bytes.
    struct Placed {
        start: u64,
        end: u64,
        bottom: u64,
        top: u64,
    }

    let mut buffers: Vec<&Buffer> = problem.buffers().iter().filter(|buffer| buffer.size_bytes > 0).collect();
    buffers.sort_by_key(|buffer| (buffer.offset.is_none(), Reverse(buffer.size_bytes), key(buffer)));
    // Sorted by their bottoms.
    let mut placed: Vec<Placed> = Vec::with_capacity(buffers.len());
    for &Buffer { start, end, size_bytes, alignment, offset, .. } in buffers {
        let mut top = 0_u64;
        let mut best: Option<(u64, u64)> = None;
        for other in placed.iter().filter(|other| other.start < end && start < other.end) {
            let hole = other.bottom.saturating_sub(top);
            let bottom = top.next_multiple_of(alignment);
            if bottom + size_bytes <= other.bottom && best.is_none_or(|(smallest, _)| hole < smallest) {
                best = Some((hole, bottom));
            }
            top = top.max(other.top);
        }
        let bottom = offset.unwrap_or(best.map_or(top.next_multiple_of(alignment), |(_, bottom)| bottom));
        let at = placed.partition_point(|other| other.bottom < bottom);
        placed.insert(at, Placed { start, end, bottom, top: bottom + size_bytes });
    }
    placed.iter().map(|buffer| buffer.top).max().unwrap_or(0)
}

/// Returns the lowest height of [`largest_first`] with three orders of buffers of equal size: by start, by lifetime, and
/// as given.
pub(crate) fn lowest_largest_first(problem: &PackingProblem) -> u64 {
    let earliest = largest_first(problem, |buffer| buffer.start);
    let longest = largest_first(problem, |buffer| (Reverse(buffer.end - buffer.start), buffer.start));
    earliest.min(longest).min(largest_first(problem, |_| ()))
}

/// Checks that no two buffers overlap, in time near that of sorting them.
///
/// # Panics
/// Panics if two overlap, or one is misaligned, moved from its fixed offset or higher than `height`.
pub(crate) fn check(problem: &PackingProblem, offsets: &[u64], height: u64) {
    assert_eq!(problem.buffers().len(), offsets.len());
    let mut events = Vec::new();
    for (buffer, &offset) in problem.buffers().iter().zip(offsets).filter(|(buffer, _)| buffer.size_bytes > 0) {
        let end = offset + buffer.size_bytes;
        assert!(end <= height);
        assert!(offset.is_multiple_of(buffer.alignment));
        assert!(buffer.offset.is_none_or(|fixed| fixed == offset));
        events.push((buffer.end, false, offset, end));
        events.push((buffer.start, true, offset, end));
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, is_start, start, end) in events {
        if is_start {
            assert!(live.range(..end).next_back().is_none_or(|(_, &below)| below <= start));
            live.insert(start, end);
        } else {
            live.remove(&start);
        }
    }
}
