//! Tests of the two-ended arena: the places of blocks, also against a bitmap that finds them by looking at every block.

use std::ops::Range;

use proptest::prelude::*;
use tenure_alloc::{AllocError, Arena, Block};

const BASE: u64 = 0x7f00_0000_0000;
const KIB4: u64 = 4096;

fn arena(blocks: u64) -> Arena {
    Arena::new(BASE, blocks * KIB4)
}

/// Allocates whole blocks and returns the number of the first.
fn low(arena: &mut Arena, blocks: u64) -> Option<u64> {
    arena.allocate_low(blocks * KIB4).map(|block| (block.address - BASE) / KIB4)
}

fn high(arena: &mut Arena, blocks: u64) -> Option<u64> {
    arena.allocate_high(blocks * KIB4).map(|block| (block.address - BASE) / KIB4)
}

fn free(arena: &mut Arena, block: u64) {
    arena.free(BASE + block * KIB4).unwrap();
}

#[test]
fn low_blocks_grow_up_and_high_blocks_grow_down() {
    let mut arena = arena(10);
    assert_eq!([low(&mut arena, 2), low(&mut arena, 1)], [Some(0), Some(2)]);
    assert_eq!([high(&mut arena, 2), high(&mut arena, 1)], [Some(8), Some(7)]);
    assert_eq!(arena.largest_free_bytes(), arena.free_bytes());
}

#[test]
fn sizes_are_rounded_up_to_blocks() {
    let mut arena = arena(4);
    assert_eq!(arena.allocate_low(1), Some(Block { address: BASE, bytes: KIB4 }));
    assert_eq!(arena.allocate_low(KIB4 + 1), Some(Block { address: BASE + KIB4, bytes: 2 * KIB4 }));
    assert_eq!(arena.free_bytes(), KIB4);
}

#[test]
fn the_low_search_goes_on_from_the_last_block_and_skips_the_holes_that_were_too_small() {
    let mut arena = arena(10);
    for _ in 0..5 {
        low(&mut arena, 1);
    }
    free(&mut arena, 1);
    assert_eq!(low(&mut arena, 2), Some(5));
    assert_eq!(low(&mut arena, 1), Some(7));
}

#[test]
fn a_free_below_the_cursor_pulls_it_back() {
    let mut arena = arena(10);
    for _ in 0..5 {
        low(&mut arena, 1);
    }
    free(&mut arena, 3);
    free(&mut arena, 1);
    assert_eq!([low(&mut arena, 1), low(&mut arena, 1)], [Some(1), Some(3)]);
}

#[test]
fn the_low_search_wraps_around_before_it_enters_the_high_end() {
    let mut arena = arena(10);
    for _ in 0..5 {
        low(&mut arena, 1);
    }
    for _ in 0..4 {
        high(&mut arena, 1);
    }
    // The holes are 1 below the cursor, 5 between the ends, and 8 within the high end.
    free(&mut arena, 1);
    free(&mut arena, 8);
    assert_eq!(low(&mut arena, 1), Some(1));
    free(&mut arena, 0);
    free(&mut arena, 1);
    assert_eq!(low(&mut arena, 2), Some(0));
    free(&mut arena, 0);
    assert_eq!([low(&mut arena, 1), low(&mut arena, 1), low(&mut arena, 1)], [Some(0), Some(1), Some(5)]);
    assert_eq!(low(&mut arena, 1), Some(8), "the last hole of all");
    assert_eq!(low(&mut arena, 1), None);
}

#[test]
fn high_blocks_take_the_highest_hole() {
    let mut arena = arena(10);
    for _ in 0..4 {
        high(&mut arena, 1);
    }
    free(&mut arena, 9);
    free(&mut arena, 7);
    assert_eq!(high(&mut arena, 2), Some(4));
    assert_eq!([high(&mut arena, 1), high(&mut arena, 1)], [Some(9), Some(7)]);
}

#[test]
fn occupancy_is_the_free_part() {
    let mut arena = arena(8);
    low(&mut arena, 2);
    assert_eq!((arena.free_fraction(), arena.free_bytes()), (0.75, 6 * KIB4));
    assert_eq!(arena.free_fraction_after(KIB4 + 1), 0.5);
    assert_eq!(arena.free_fraction_after(8 * KIB4), -0.25);
    assert_eq!(Arena::new(BASE, KIB4 - 1).free_fraction(), 0.0);
}

#[test]
fn the_block_size_can_be_chosen() {
    let mut arena = Arena::with_block_bytes(BASE, 3 * 512 + 100, 512).unwrap();
    assert_eq!(arena.bytes(), 3 * 512);
    assert_eq!(arena.allocate_high(513), Some(Block { address: BASE + 512, bytes: 1024 }));
    let error = Arena::with_block_bytes(BASE, 4096, 0).unwrap_err();
    assert_eq!(error.to_string(), "block_bytes = 0: a block must have at least one byte");
}

#[test]
fn only_the_start_of_a_live_block_can_be_freed() {
    let mut arena = arena(4);
    let block = arena.allocate_low(2 * KIB4).unwrap();
    for address in [BASE + 1, BASE + KIB4, BASE - KIB4, BASE + 4 * KIB4] {
        assert_eq!(arena.free(address), Err(AllocError::UnknownAddress(address)));
    }
    arena.free(block.address).unwrap();
    assert_eq!(arena.free(block.address), Err(AllocError::UnknownAddress(block.address)));
    assert_eq!(arena.free_fraction(), 1.0);
}

#[test]
fn zero_bytes_take_nothing_and_too_many_leave_everything() {
    let mut arena = arena(2);
    assert_eq!(arena.allocate_low(0), Some(Block { address: 0, bytes: 0 }));
    assert_eq!(arena.allocate_high(0), Some(Block { address: 0, bytes: 0 }));
    arena.free(0).unwrap();
    assert_eq!((arena.allocate_low(u64::MAX), arena.allocate_high(3 * KIB4)), (None, None));
    assert_eq!(arena.free_fraction(), 1.0);
}

/// A slow model of the arena: a flag for every block.
struct Bitmap {
    taken: Vec<bool>,
    live: Vec<(Range<usize>, End)>,
    cursor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Low,
    High,
}

impl Bitmap {
    fn new(blocks: usize) -> Self {
        Self { taken: vec![false; blocks], live: Vec::new(), cursor: 0 }
    }

    /// Returns the first block of the high end.
    fn limit(&self) -> usize {
        let high = self.live.iter().filter(|(_, end)| *end == End::High);
        high.map(|(run, _)| run.start).min().unwrap_or(self.taken.len())
    }

    fn is_free(&self, first: usize, length: usize) -> bool {
        self.taken.get(first..first + length).is_some_and(|blocks| !blocks.contains(&true))
    }

    fn allocate(&mut self, length: usize, end: End) -> Option<usize> {
        let limit = self.limit();
        let blocks = self.taken.len();
        let first = match end {
            End::Low => (self.cursor..limit)
                .chain(0..limit)
                .find(|&first| first + length <= limit && self.is_free(first, length))
                .or_else(|| (limit..blocks).find(|&first| self.is_free(first, length)))?,
            End::High => (0..blocks).rev().find(|&first| self.is_free(first, length))?,
        };
        self.taken[first..first + length].fill(true);
        self.live.push((first..first + length, end));
        if end == End::Low {
            self.cursor = first + length;
        }
        Some(first)
    }

    fn free(&mut self, index: usize) -> usize {
        let (run, end) = self.live.swap_remove(index);
        self.taken[run.clone()].fill(false);
        if end == End::Low {
            self.cursor = self.cursor.min(run.start);
        }
        run.start
    }

    fn free_blocks(&self) -> usize {
        self.taken.iter().filter(|taken| !**taken).count()
    }

    fn longest_free_run(&self) -> usize {
        self.taken.split(|&taken| taken).map(<[bool]>::len).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize, End),
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = prop_oneof![Just(End::Low), Just(End::High)];
    let step = prop_oneof![
        3 => (1_usize..12, end).prop_map(|(length, end)| Step::Allocate(length, end)),
        2 => any::<prop::sample::Index>().prop_map(Step::Free),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Checks that the arena chooses the same places as the bitmap, whose blocks cannot overlap, and that its numbers
    /// are exact after every step.
    #[test]
    fn does_what_a_bitmap_does(blocks in 1_usize..80, steps in steps()) {
        let mut arena = arena(blocks as u64);
        let mut bitmap = Bitmap::new(blocks);
        for step in steps {
            match step {
                Step::Allocate(length, end) => {
                    let allocate = if end == End::Low { low } else { high };
                    let expected = bitmap.allocate(length, end).map(|first| first as u64);
                    prop_assert_eq!(allocate(&mut arena, length as u64), expected, "{:?} {}", end, length);
                }
                Step::Free(index) if !bitmap.live.is_empty() => {
                    let first = bitmap.free(index.index(bitmap.live.len()));
                    free(&mut arena, first as u64);
                }
                Step::Free(_) => {}
            }
            let free = bitmap.free_blocks();
            prop_assert_eq!(arena.free_bytes(), free as u64 * KIB4);
            prop_assert_eq!(arena.free_fraction(), free as f64 / blocks as f64);
            prop_assert_eq!(arena.largest_free_bytes(), bitmap.longest_free_run() as u64 * KIB4);
        }
    }

    /// Checks that, while the ends have room between them, each end's blocks lie where they would lie without the
    /// other.
    #[test]
    fn the_ends_do_not_fragment_each_other(steps in steps()) {
        let room = 12 * steps.len() as u64;
        let mut both = arena(2 * room);
        let mut alone = [arena(2 * room), arena(2 * room)];
        let mut live = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(length, end) => {
                    let allocate = if end == End::Low { low } else { high };
                    let block = allocate(&mut both, length as u64).unwrap();
                    prop_assert_eq!(allocate(&mut alone[end as usize], length as u64), Some(block));
                    live.push((block, end));
                }
                Step::Free(index) if !live.is_empty() => {
                    let (block, end) = live.swap_remove(index.index(live.len()));
                    free(&mut both, block);
                    free(&mut alone[end as usize], block);
                }
                Step::Free(_) => {}
            }
        }
    }
}
