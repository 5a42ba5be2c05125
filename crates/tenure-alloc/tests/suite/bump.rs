//! Tests of the bump pool: the order of blocks, and the streams that may have memory which another stream has used.

use std::thread;

use proptest::prelude::*;
use tenure_alloc::{AllocError, Block, BumpPool, Request, Resource};
use tenure_core::StreamId;

const BASE: u64 = 1 << 40;
const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

fn pool(bytes: u64) -> BumpPool {
    BumpPool::new(BASE, bytes)
}

/// Allocates and returns the offset in the range.
fn alloc(pool: &BumpPool, bytes: u64, stream: StreamId) -> u64 {
    pool.allocate(Request::new(bytes, stream)).unwrap().address - BASE
}

fn free(pool: &BumpPool, offset: u64) {
    pool.free(BASE + offset).unwrap();
}

#[test]
fn blocks_follow_each_other_at_multiples_of_512() {
    let pool = pool(1 << 20);
    assert_eq!(pool.allocate(Request::new(1, A)), Ok(Block { address: BASE, bytes: 512 }));
    assert_eq!(pool.allocate(Request::new(513, A)), Ok(Block { address: BASE + 512, bytes: 1024 }));
    assert_eq!(alloc(&pool, 1, A), 1536);
    assert_eq!((pool.live_blocks(), pool.live_bytes()), (3, 2048));
}

#[test]
fn a_range_that_is_not_aligned_loses_its_edges() {
    let pool = BumpPool::new(BASE + 1, 3 * 512);
    assert_eq!(pool.bytes(), 1024);
    assert_eq!(pool.allocate(Request::new(1024, A)).unwrap().address, BASE + 512);
    assert_eq!(BumpPool::new(BASE + 1, 512).bytes(), 0);
}

#[test]
fn a_freed_block_is_not_used_again_while_others_live() {
    let pool = pool(1 << 20);
    let first = alloc(&pool, 512, A);
    let _second = alloc(&pool, 512, A);
    free(&pool, first);
    assert_eq!(alloc(&pool, 512, A), 1024);
}

#[test]
fn the_last_free_starts_over_for_the_only_stream() {
    let pool = pool(1 << 20);
    let blocks = [alloc(&pool, 512, A), alloc(&pool, 512, A)];
    blocks.into_iter().for_each(|block| free(&pool, block));
    assert_eq!((pool.live_blocks(), pool.live_bytes()), (0, 0));
    assert_eq!(alloc(&pool, 512, A), 0);
}

#[test]
fn another_stream_gets_memory_that_no_stream_has_used() {
    let pool = pool(1 << 20);
    let blocks = [alloc(&pool, 512, A), alloc(&pool, 512, A)];
    blocks.into_iter().for_each(|block| free(&pool, block));
    // A starts over, and B must not get memory that A used before.
    assert_eq!(alloc(&pool, 512, A), 0);
    assert_eq!(alloc(&pool, 512, B), 1024);
    assert_eq!(alloc(&pool, 512, A), 1536);
}

#[test]
fn a_pool_of_several_streams_starts_over_only_at_reset() {
    let pool = pool(1 << 20);
    let blocks = [alloc(&pool, 512, A), alloc(&pool, 512, B)];
    blocks.into_iter().for_each(|block| free(&pool, block));
    assert_eq!(alloc(&pool, 512, A), 1024);
    pool.reset();
    assert_eq!(alloc(&pool, 512, B), 0);
}

#[test]
fn reset_ends_every_block() {
    let pool = pool(1 << 20);
    let first = alloc(&pool, 512, A);
    let second = alloc(&pool, 512, A);
    pool.reset();
    assert_eq!((pool.live_blocks(), pool.live_bytes()), (0, 0));
    for offset in [first, second] {
        assert_eq!(pool.free(BASE + offset), Err(AllocError::UnknownAddress(BASE + offset)));
    }
}

#[test]
fn out_of_room_tells_what_is_left() {
    let pool = pool(2048);
    let first = alloc(&pool, 512, A);
    alloc(&pool, 512, A);
    free(&pool, first);
    let error = AllocError::OutOfMemory {
        requested: 1025,
        stream: A,
        allocated: 512,
        reserved: 2048,
        inactive: 1536,
        overhead: 0,
        free: 1024,
        total: 2048,
        allowed: 2048,
    };
    assert_eq!(pool.allocate(Request::new(1025, A)), Err(error));
    assert_eq!(alloc(&pool, 1024, A), 1024);
    let too_large = pool.allocate(Request::new(u64::MAX, A));
    assert_eq!(too_large, Err(AllocError::TooLarge(u64::MAX)));
}

#[test]
fn zero_bytes_are_address_zero() {
    let pool = pool(0);
    assert_eq!(pool.allocate(Request::new(0, A)), Ok(Block { address: 0, bytes: 0 }));
    pool.free(0).unwrap();
}

#[test]
fn an_address_is_freed_once() {
    let pool = pool(1 << 20);
    let block = BASE + alloc(&pool, 512, A);
    pool.free(block).unwrap();
    assert_eq!(pool.free(block), Err(AllocError::UnknownAddress(block)));
}

#[test]
fn threads_get_blocks_of_their_own() {
    let pool = pool(512 * 4 * 100);
    let mut blocks: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..100).map(|_| alloc(&pool, 512, A)).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    blocks.sort_unstable();
    assert_eq!(blocks, (0..400).map(|index| index * 512).collect::<Vec<_>>());
}

proptest! {
    /// Checks that between resets no byte that one stream has used is handed to another stream, and no live byte is
    /// handed out again.
    #[test]
    fn no_stream_is_handed_what_another_has_used(steps in prop::collection::vec((0_u64..4, 1_u64..5, any::<prop::sample::Index>()), 1..200)) {
        let pool = pool(64 * 512);
        let mut users: Vec<Option<StreamId>> = vec![None; 64];
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (choice, sectors, index) in steps {
            if choice == 3 {
                if !live.is_empty() {
                    let (start, _) = live.swap_remove(index.index(live.len()));
                    free(&pool, start * 512);
                }
                continue;
            }
            let stream = StreamId(choice);
            match pool.allocate(Request::new(sectors * 512, stream)) {
                Ok(block) => {
                    let start = (block.address - BASE) / 512;
                    for &(other, length) in &live {
                        prop_assert!(start + sectors <= other || other + length <= start, "overlap");
                    }
                    for user in &mut users[start as usize..(start + sectors) as usize] {
                        prop_assert!(user.is_none_or(|user| user == stream));
                        *user = Some(stream);
                    }
                    live.push((start, sectors));
                }
                Err(_) => {
                    pool.reset();
                    users.fill(None);
                    live.clear();
                }
            }
            prop_assert_eq!(pool.live_blocks(), live.len());
        }
    }
}
