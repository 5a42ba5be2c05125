use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tenure_alloc::{Address, AllocError, CachingAllocator, Request};
use tenure_core::StreamId;

/// Sebastiano Vigna's `splitmix64`: short enough to be written down again wherever the same sequence is needed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of the sequence.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A size from 257 bytes to 1 MiB: 2^(9 + draw % 12), less the next draw % 256.
    #[inline]
    fn size(&mut self) -> u64 {
        let power = 1 << (9 + self.draw() % 12);
        power - self.draw() % 256
    }
}

/// Live blocks of one stream, of which a random one is freed and replaced, again and again.
///
/// This is the definition that other programs measure the same by. With `random` seeded by 1 (threads: 1, 2, 3 ...):
///
/// 1. Fill every slot, from the first to the last, with a block of a random size: 2^(9 + draw % 12) bytes less the next
///    draw % 256.
/// 2. An iteration draws a slot (draw % live), frees its block, and puts one of a random size there: two operations.
/// 3. Where the blocks are used on another stream too, `record_stream` comes before the free: three operations.
pub struct Churn<'a> {
    allocator: &'a dyn CachingAllocator,
    stream: StreamId,
    other: Option<StreamId>,
    random: Random,
    live: Vec<Address>,
}

impl<'a> Churn<'a> {
    /// `live` blocks on `stream`, used on stream `other` too where there is one.
    ///
    /// # Errors
    /// The allocator refused.
    pub fn new(
        allocator: &'a dyn CachingAllocator,
        stream: StreamId,
        other: Option<StreamId>,
        seed: u64,
        live: usize,
    ) -> Result<Self, AllocError> {
        let mut churn = Self { allocator, stream, other, random: Random::new(seed), live: Vec::with_capacity(live) };
        for _ in 0..live {
            let block = churn.allocate()?;
            churn.live.push(block);
        }
        Ok(churn)
    }

    /// Operations of one iteration.
    pub fn operations(&self) -> u64 {
        if self.other.is_some() { 3 } else { 2 }
    }

    /// Replaces `iterations` blocks.
    ///
    /// # Errors
    /// The allocator refused.
    pub fn run(&mut self, iterations: u64) -> Result<(), AllocError> {
        for _ in 0..iterations {
            let slot = (self.random.draw() % self.live.len() as u64) as usize;
            let block = self.live[slot];
            if let Some(other) = self.other {
                self.allocator.record_stream(block, other)?;
            }
            self.allocator.free(block)?;
            match self.allocate() {
                Ok(block) => self.live[slot] = block,
                Err(error) => {
                    self.live.swap_remove(slot);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn allocate(&mut self) -> Result<Address, AllocError> {
        Ok(self.allocator.allocate(Request::new(self.random.size(), self.stream))?.address)
    }
}

impl Drop for Churn<'_> {
    fn drop(&mut self) {
        for &block in &self.live {
            // An error has nobody to go to.
            let _ = self.allocator.free(block);
        }
    }
}

/// Allocates and frees `bytes` bytes `iterations` times.
pub(super) fn pairs(
    allocator: &dyn CachingAllocator,
    stream: StreamId,
    bytes: u64,
    iterations: u64,
) -> Result<(), AllocError> {
    for _ in 0..iterations {
        let block = allocator.allocate(Request::new(bytes, stream))?;
        allocator.free(block.address)?;
    }
    Ok(())
}

/// The time in which each of `churns`, all at once on a thread of its own, does `iterations`: the slowest thread's.
pub(super) fn together(churns: &mut [Churn<'_>], iterations: u64) -> Result<Duration, AllocError> {
    let barrier = Barrier::new(churns.len());
    let run = |churn: &mut Churn<'_>| {
        barrier.wait();
        let start = Instant::now();
        churn.run(iterations)?;
        Ok(start.elapsed())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = churns.iter_mut().map(|churn| scope.spawn(|| run(churn))).collect();
        let times =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        times.collect::<Result<Vec<_>, _>>().map(|times| times.into_iter().max().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([0; 3].map(|_| random.draw()), expected);
    }

    #[test]
    fn sizes_are_spread_evenly_over_the_powers_of_two() {
        let mut random = Random::new(1);
        let sizes: Vec<_> = (0..12_000).map(|_| random.size()).collect();
        assert!(sizes.iter().all(|&bytes| (257..=1 << 20).contains(&bytes)));
        let large = sizes.iter().filter(|&&bytes| bytes > 1 << 19).count();
        assert!((800..1200).contains(&large), "{large} of a twelfth of 12,000");
    }
}
