//! Tests of the paged allocator in programs that repeat themselves.

use std::ops::Range;

use crate::common::{GIB, MIB};
use crate::paged::{Fixture, tight};
use tenure_alloc::{CachingAllocator, CycleBlock, Cycles, MemoryLimits, PagedConfig, RepeatedCycle};
use tenure_core::StreamId;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);

#[test]
fn windows_that_cycles_did_not_use_are_unmapped_unless_chunks_are_only_there() {
    let f = Fixture::new(tight());
    let blocks: Vec<u64> = (0..4).map(|_| f.alloc(16 * MIB)).collect();
    [0, 2].into_iter().for_each(|index: usize| f.free(blocks[index]));
    let cycles = |count| (0..count).for_each(|_| f.allocator.begin_cycle(0).unwrap());
    let pair = f.alloc(32 * MIB);
    cycles(8);
    assert_eq!(f.calls("unmap"), 0, "a window with a block stays");
    f.free(pair);
    f.free(f.alloc(32 * MIB));
    cycles(4);
    assert_eq!(f.calls("unmap"), 0, "the pair may come again");
    cycles(1);
    assert_eq!(f.calls("unmap"), 0, "the device may not be done with the window");
    f.backing.pass(A);
    cycles(1);
    assert_eq!(f.calls("unmap"), 1, "the pair's window goes, and those of the blocks stay");
    assert_eq!((f.reserved(), f.alloc(16 * MIB)), (64 * MIB, blocks[0]));
}

#[test]
fn blocks_go_where_they_were_in_a_cycle_of_the_kind() {
    let f = Fixture::new(PagedConfig { slack_bytes: GIB, ..tight() });
    let cycle = |kind| {
        f.allocator.begin_cycle(kind).unwrap();
        let block = f.alloc(16 * MIB);
        f.free(block);
        block
    };
    let first = f.alloc(16 * MIB);
    let place = cycle(0);
    f.free(first);
    assert_eq!([cycle(0), cycle(1), cycle(0), cycle(1)], [place, first, place, first]);
    let _taken = (f.allocator.begin_cycle(2).unwrap(), f.alloc(16 * MIB), f.alloc(16 * MIB));
    assert!(![place, first].contains(&cycle(0)), "the place is taken");
}

#[test]
fn cycles_of_a_kind_that_begin_with_other_bytes_in_use_have_places_of_their_own() {
    let f = Fixture::new(PagedConfig { slack_bytes: GIB, ..tight() });
    let pass = |work_mib| {
        f.allocator.begin_cycle(0).unwrap();
        let work = (work_mib > 0).then(|| f.alloc(work_mib * MIB));
        let gradient = f.alloc(16 * MIB);
        work.into_iter().for_each(|work| f.free(work));
        gradient
    };
    // The first pass's gradient is there in the second one, which goes where the first one's work was.
    let (first, second) = (pass(32), pass(0));
    assert!(second < first);
    [first, second].into_iter().for_each(|block| f.free(block));
    assert_eq!((pass(0), pass(0)), (first, second));
}

#[test]
fn a_cycle_may_leave_out_blocks_or_have_others() {
    let f = Fixture::new(PagedConfig { slack_bytes: GIB, ..tight() });
    let cycle = |sizes: &[u64]| {
        f.allocator.begin_cycle(0).unwrap();
        let blocks: Vec<u64> = sizes.iter().map(|mib| f.alloc(mib * MIB)).collect();
        blocks.iter().for_each(|block| f.free(*block));
        blocks
    };
    let all = cycle(&[16, 32, 48, 64]);
    assert_eq!(cycle(&[16, 48, 64]), [all[0], all[2], all[3]], "one is left out");
    assert_eq!(cycle(&[16, 8, 48, 64])[2..], all[2..], "one is added");
}

fn block(mib: u64, lifetime: Range<usize>) -> CycleBlock {
    CycleBlock { bytes: mib * MIB, lifetime }
}

/// Begins a cycle whose memory has to be mapped again. Returns the blocks that may be laid out.
fn begin_without_memory(f: &Fixture) -> Option<Vec<CycleBlock>> {
    f.allocator.release_cached().unwrap();
    f.allocator.begin_cycle(0).unwrap();
    f.allocator.repeated_cycle().map(|cycle| cycle.blocks)
}

/// Runs a cycle of three blocks, of which two are alive at once, whose memory has to be mapped again.
fn cycle_without_memory(f: &Fixture) {
    begin_without_memory(f);
    three_blocks(f);
}

fn three_blocks(f: &Fixture) -> [u64; 3] {
    let first = f.alloc(16 * MIB);
    let second = f.alloc(32 * MIB);
    f.free(first);
    let third = f.alloc(16 * MIB);
    [second, third].into_iter().for_each(|block| f.free(block));
    [first, second, third]
}

#[test]
fn a_cycle_that_repeats_itself_and_maps_memory_can_be_laid_out() {
    let f = Fixture::new(tight());
    cycle_without_memory(&f);
    f.allocator.begin_cycle(0).unwrap();
    assert_eq!(f.allocator.repeated_cycle(), None, "there was only one");
    three_blocks(&f);
    f.allocator.begin_cycle(0).unwrap();
    assert_eq!(f.allocator.repeated_cycle(), None, "it mapped nothing");
    (0..2).for_each(|_| cycle_without_memory(&f));
    f.allocator.begin_cycle(0).unwrap();
    let blocks = vec![block(16, 0..2), block(32, 1..3), block(16, 2..3)];
    let growth_bytes = GIB - 48 * MIB;
    let offered = RepeatedCycle { blocks: blocks.clone(), room_bytes: 48 * MIB, growth_bytes };
    assert_eq!(f.allocator.repeated_cycle(), Some(offered));
    // The third block is to lie higher than there is room.
    f.allocator.lay_out_cycle(&blocks, &[32 * MIB, 0, 40 * MIB]).unwrap();
    let [first, second, third] = three_blocks(&f);
    assert_eq!(first, second + 32 * MIB);
    assert_ne!(third, second + 40 * MIB);
    // A second layout would not help, as nothing was mapped.
    f.allocator.begin_cycle(0).unwrap();
    assert_eq!(f.allocator.repeated_cycle(), None);
    assert_eq!(three_blocks(&f), [first, second, third]);
}

#[test]
fn blocks_whose_offsets_are_of_no_use_go_where_they_went() {
    let f = Fixture::new(tight());
    (0..2).for_each(|_| cycle_without_memory(&f));
    f.allocator.begin_cycle(0).unwrap();
    let blocks = f.allocator.repeated_cycle().unwrap().blocks;
    // Another cycle has such blocks.
    f.allocator.lay_out_cycle(&blocks[..2], &[0, 16 * MIB]).unwrap();
    // The first is nowhere, the second is no multiple of 512, and in the third's place is the second.
    f.allocator.lay_out_cycle(&blocks, &[u64::MAX - 511, 100, 0]).unwrap();
    assert!(three_blocks(&f).iter().all(|address| address % 512 == 0));
    // There are too few offsets, and no cycle is like the one that has begun.
    f.allocator.begin_cycle(0).unwrap();
    f.allocator.lay_out_cycle(&blocks, &[]).unwrap();
    f.allocator.begin_cycle(1).unwrap();
    f.allocator.lay_out_cycle(&blocks, &[0, 0]).unwrap();
    three_blocks(&f);
}

#[test]
fn blocks_that_outlive_a_cycle_or_are_of_another_stream_are_not_laid_out() {
    let f = Fixture::new(tight());
    let cycle = || {
        let offered = begin_without_memory(&f);
        let stays = f.alloc(16 * MIB);
        let other = f.try_alloc(16 * MIB, B).unwrap();
        f.free(f.alloc(32 * MIB));
        f.free(other);
        (offered, stays)
    };
    let outliving = [cycle().1, cycle().1];
    assert_eq!(cycle().0, Some(vec![block(32, 2..3)]));
    outliving.into_iter().for_each(|block| f.free(block));
}

#[test]
fn blocks_that_are_freed_before_the_next_cycle_like_theirs_are_laid_out() {
    let f = Fixture::new(tight());
    let cycle = || {
        let offered = begin_without_memory(&f);
        let gradient = f.alloc(16 * MIB);
        f.free(f.alloc(32 * MIB));
        f.allocator.begin_cycle(1).unwrap();
        f.free(gradient);
        offered
    };
    assert_eq!([cycle(), cycle()], [None, None]);
    assert_eq!(cycle(), Some(vec![block(16, 0..2), block(32, 1..2)]));
}

/// The events of a cycle in which blocks of many sizes come and go, at the brim of what fits. Blocks are numbered in
/// the order in which they come.
enum Event {
    Alloc(u64),
    Free(usize),
}

/// Returns a cycle, and the most bytes that are alive in it at once. The last blocks outlive it.
fn random_cycle(random: &mut impl FnMut(usize) -> usize) -> (Vec<Event>, u64) {
    let (mut events, mut alive) = (Vec::new(), Vec::new());
    let (mut bytes, mut most, mut number) = (0, 0, 0);
    while number < 300 {
        if alive.len() > 3 && (bytes > 200 * MIB || random(3) == 0) {
            let (block, size) = alive.swap_remove(random(alive.len()));
            events.push(Event::Free(block));
            bytes -= size;
        } else {
            let size = (1 + random(16) as u64) * MIB / 2;
            events.push(Event::Alloc(size));
            alive.push((number, size));
            (number, bytes) = (number + 1, bytes + size);
            most = most.max(bytes);
        }
    }
    alive.truncate(alive.len().saturating_sub(2));
    events.extend(alive.into_iter().map(|(block, _)| Event::Free(block)));
    (events, most)
}

/// Returns the lowest offset for each block, the largest first.
fn packed(blocks: &[CycleBlock]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(blocks[*index].bytes));
    let mut offsets: Vec<Option<u64>> = vec![None; blocks.len()];
    for index in order {
        let CycleBlock { bytes, lifetime } = &blocks[index];
        let beside = blocks
            .iter()
            .zip(&offsets)
            .filter(|(other, _)| other.lifetime.end > lifetime.start && lifetime.end > other.lifetime.start);
        let mut beside: Vec<_> =
            beside.filter_map(|(other, offset)| Some(((*offset)?, (*offset)? + other.bytes))).collect();
        beside.sort_unstable();
        let mut lowest = 0;
        for (begin, end) in beside {
            if begin >= lowest + bytes {
                break;
            }
            lowest = lowest.max(end);
        }
        offsets[index] = Some(lowest);
    }
    offsets.into_iter().flatten().collect()
}

/// Runs 16 random cycles, of which `lay_out` may lay out those that are offered. Returns how many chunks each mapped.
/// The backing panics if two blocks share bytes.
fn run_cycles(
    random: &mut impl FnMut(usize) -> usize,
    mut lay_out: impl FnMut(&RepeatedCycle) -> Option<Vec<u64>>,
) -> Vec<u64> {
    let (events, most) = random_cycle(random);
    let f = Fixture::new(PagedConfig { max_chunk_bytes: 2 * MIB, min_chunk_bytes: 2 * MIB, slack: 0.35, ..tight() });
    f.allocator.set_memory_fraction((most + 96 * MIB) as f64 * 1.6 / GIB as f64).unwrap();
    let mut outliving: Vec<u64> = Vec::new();
    let cycle = |_| {
        f.allocator.begin_cycle(0).unwrap();
        if let Some(cycle) = f.allocator.repeated_cycle()
            && let Some(offsets) = lay_out(&cycle)
        {
            f.allocator.lay_out_cycle(&cycle.blocks, &offsets).unwrap();
        }
        let before = f.calls("map");
        let mut blocks: Vec<Option<u64>> = Vec::new();
        for (number, event) in events.iter().enumerate() {
            match event {
                Event::Alloc(bytes) => blocks.push(Some(f.alloc(*bytes))),
                Event::Free(block) => f.free(blocks[*block].take().unwrap()),
            }
            // The blocks that outlived the last cycle are freed after those of this one are made.
            if number == events.len() * 99 / 100 {
                outliving.drain(..).for_each(|block| f.free(block));
            }
        }
        outliving = blocks.into_iter().flatten().collect();
        f.calls("map") - before
    };
    (0..16).map(cycle).collect()
}

/// Returns pseudorandom numbers below what it is asked for.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut seed = 1_u64;
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    }
}

#[test]
fn cycles_that_are_packed_map_nothing() {
    let mut random = numbers();
    let mut layouts = 0;
    for _ in 0..12 {
        let mapped = run_cycles(&mut random, |cycle| {
            let offsets = packed(&cycle.blocks);
            let height = cycle.blocks.iter().zip(&offsets).map(|(block, offset)| offset + block.bytes).max();
            let fits = height <= Some(cycle.room_bytes);
            layouts += u32::from(fits);
            fits.then_some(offsets)
        });
        assert_eq!(mapped[13..], [0; 3], "{mapped:?}");
    }
    assert!(layouts > 0);
}

#[test]
fn blocks_that_are_laid_out_anywhere_share_no_bytes() {
    let mut random = numbers();
    let mut anywhere = numbers();
    let mut layouts = 0;
    for _ in 0..6 {
        run_cycles(&mut random, |cycle| {
            layouts += 1;
            let granules = (cycle.room_bytes / 512) as usize;
            Some(cycle.blocks.iter().map(|_| anywhere(granules) as u64 * 512).collect())
        });
    }
    assert!(layouts > 0);
}
