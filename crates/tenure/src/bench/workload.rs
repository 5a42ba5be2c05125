//! The workloads that the benchmark of allocators measures.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tenure_alloc::{Address, AllocError, CachingAllocator, Request};
use tenure_core::StreamId;

/// Sebastiano Vigna's `splitmix64`: short enough to reimplement wherever the same sequence is needed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The number of replacements that are drawn before the measurement; then they repeat.
const STEPS: usize = 1 << 16;

/// The live blocks of one stream. A random one is freed and replaced, again and again.
///
/// Other programs can measure the same by this definition. With [`Random`] seeded by 1 (threads: 1, 2, 3 and so on),
/// draw 65,536 steps. A step has a slot, which is a draw modulo the number of live blocks, and a size of 2^(9 + draw %
/// 12) bytes minus the next draw % 256. Fill the slots in order with blocks of the sizes of the first steps. Then, from
/// the first step on and in a loop: free the block in the slot, and allocate one of the step's size there. If blocks
/// are used on a second stream, `record_stream` comes before the free.
pub struct Churn<'a> {
    allocator: &'a dyn CachingAllocator,
    stream: StreamId,
    other: Option<StreamId>,
    steps: Vec<Step>,
    next: usize,
    live: Vec<Address>,
}

#[derive(Clone, Copy)]
struct Step {
    slot: u32,
    bytes: u32,
}

impl Step {
    fn draw(random: &mut Random, live: usize) -> Self {
        let slot = (random.draw() % live as u64) as u32;
        let power = 1 << (9 + random.draw() % 12);
        Self { slot, bytes: power - (random.draw() % 256) as u32 }
    }
}

impl<'a> Churn<'a> {
    /// Allocates `live` blocks on `stream`; each is also used on stream `other` if there is one.
    ///
    /// # Errors
    /// The allocator returned an error.
    ///
    /// # Panics
    /// Panics if `live` is 0 or more than 65,536.
    pub fn new(
        allocator: &'a dyn CachingAllocator,
        stream: StreamId,
        other: Option<StreamId>,
        seed: u64,
        live: usize,
    ) -> Result<Self, AllocError> {
        assert!((1..=STEPS).contains(&live), "{live} live blocks are none, or more than there are steps");
        let mut random = Random::new(seed);
        let steps: Vec<_> = (0..STEPS).map(|_| Step::draw(&mut random, live)).collect();
        let mut churn = Self { allocator, stream, other, steps, next: 0, live: Vec::with_capacity(live) };
        for index in 0..live {
            let block = churn.allocate(churn.steps[index].bytes)?;
            churn.live.push(block);
        }
        Ok(churn)
    }

    /// Replaces `count` blocks.
    ///
    /// # Errors
    /// The allocator returned an error.
    pub fn run(&mut self, count: u64) -> Result<(), AllocError> {
        for _ in 0..count {
            let Step { slot, bytes } = self.steps[self.next % STEPS];
            self.next += 1;
            let slot = slot as usize;
            let block = self.live[slot];
            if let Some(other) = self.other {
                self.allocator.record_stream(block, other)?;
            }
            self.allocator.free(block)?;
            match self.allocate(bytes) {
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
    fn allocate(&self, bytes: u32) -> Result<Address, AllocError> {
        Ok(self.allocator.allocate(Request::new(bytes.into(), self.stream))?.address)
    }
}

impl Drop for Churn<'_> {
    fn drop(&mut self) {
        for &block in &self.live {
            // A destructor cannot report an error.
            let _ = self.allocator.free(block);
        }
    }
}

/// Allocates and frees `bytes` bytes `count` times.
pub(super) fn pairs(
    allocator: &dyn CachingAllocator,
    stream: StreamId,
    bytes: u64,
    count: u64,
) -> Result<(), AllocError> {
    for _ in 0..count {
        let block = allocator.allocate(Request::new(bytes, stream))?;
        allocator.free(block.address)?;
    }
    Ok(())
}

/// Replaces `count` blocks in each of `churns`, all at once on threads of their own. Returns the time of the slowest
/// thread.
pub(super) fn together(churns: &mut [Churn<'_>], count: u64) -> Result<Duration, AllocError> {
    let barrier = Barrier::new(churns.len());
    let run = |churn: &mut Churn<'_>| {
        barrier.wait();
        let start = Instant::now();
        churn.run(count)?;
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
        let steps: Vec<_> = (0..12_000).map(|_| Step::draw(&mut random, 10)).collect();
        assert!(steps.iter().all(|step| (257..=1 << 20).contains(&step.bytes) && step.slot < 10));
        let large = steps.iter().filter(|step| step.bytes > 1 << 19).count();
        assert!((800..1200).contains(&large), "{large} of a twelfth of 12,000");
    }
}
