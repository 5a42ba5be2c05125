//! Benchmarks of an allocation and a free that need no driver call.
//!
//! - `pair/SIZE`: allocate and free at once; the time is that of both.
//! - `churn/N` and `churn_large/N`: free a random one of N live blocks and allocate another, up to 1 MiB or 4 MiB; the
//!   time is that of both.
//! - `threads/N`: the same with 200 blocks up to 1 MiB a thread, each thread on its own stream; the time is that of one
//!   thread.
//! - `streams`: allocate on one stream, record another, free; the time is that of all three.
//!
//! The backing takes no time, so that only the allocator is measured.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tenure_alloc::{
    Address, Backing, BackingError, CachingAllocator, ChunkId, Mark, MemoryInfo, NativeAllocator, NativeConfig,
    PagedAllocator, PagedConfig, Request,
};
use tenure_core::StreamId;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 140 << 30;

/// A backing that does nothing and returns at once.
#[derive(Default)]
struct NullBacking {
    next: AtomicU64,
}

impl NullBacking {
    fn take(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes, Ordering::Relaxed) + (1 << 40)
    }
}

impl Backing for NullBacking {
    fn granularity(&self) -> u64 {
        2 * MIB
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        Ok(MemoryInfo { free: DEVICE_BYTES, total: DEVICE_BYTES })
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        Ok(self.take(bytes))
    }

    fn free(&self, _: Address) -> Result<(), BackingError> {
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        Ok(self.take(bytes))
    }

    fn unreserve(&self, _: Address, _: u64) -> Result<(), BackingError> {
        Ok(())
    }

    fn create(&self, _: u64) -> Result<ChunkId, BackingError> {
        Ok(ChunkId(self.take(1)))
    }

    fn release(&self, _: ChunkId) -> Result<(), BackingError> {
        Ok(())
    }

    fn map(&self, _: Address, _: ChunkId) -> Result<(), BackingError> {
        Ok(())
    }

    fn set_access(&self, _: Address, _: u64) -> Result<(), BackingError> {
        Ok(())
    }

    fn unmap(&self, _: Address, _: u64) -> Result<(), BackingError> {
        Ok(())
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        Ok(Mark { stream, sequence: self.take(1) })
    }

    fn completed(&self, _: Mark) -> Result<bool, BackingError> {
        Ok(true)
    }

    fn wait(&self, _: StreamId, _: Mark) -> Result<(), BackingError> {
        Ok(())
    }

    fn synchronize(&self, _: Mark) -> Result<(), BackingError> {
        Ok(())
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        Ok(())
    }
}

fn allocators() -> [(&'static str, Arc<dyn CachingAllocator>); 2] {
    let backing = || Arc::new(NullBacking::default());
    let native = NativeAllocator::new(backing(), NativeConfig::default()).expect("the defaults are valid");
    let paged = PagedAllocator::new(backing(), PagedConfig::default()).expect("the defaults are valid");
    [("paged", Arc::new(paged)), ("native", Arc::new(native))]
}

/// Live blocks of a stream, each of 1 to `largest` bytes.
struct BlockChurn<'a> {
    allocator: &'a dyn CachingAllocator,
    stream: StreamId,
    largest: u64,
    random: SmallRng,
    live: Vec<u64>,
}

impl<'a> BlockChurn<'a> {
    fn new(allocator: &'a dyn CachingAllocator, stream: u64, blocks: usize, largest: u64) -> Self {
        let random = SmallRng::seed_from_u64(stream);
        let mut churn = Self { allocator, stream: StreamId(stream), largest, random, live: Vec::new() };
        churn.live = (0..blocks).map(|_| churn.allocate()).collect();
        churn.run(4 * blocks as u64);
        churn
    }

    fn allocate(&mut self) -> u64 {
        let request = Request::new(self.random.random_range(1..=self.largest), self.stream);
        self.allocator.allocate(request).expect("there is room").address
    }

    fn run(&mut self, iterations: u64) {
        for _ in 0..iterations {
            let index = self.random.random_range(0..self.live.len());
            self.allocator.free(self.live[index]).expect("the block is live");
            self.live[index] = self.allocate();
        }
    }

    fn time(&mut self, iterations: u64) -> Duration {
        let start = Instant::now();
        self.run(iterations);
        start.elapsed()
    }
}

impl Drop for BlockChurn<'_> {
    fn drop(&mut self) {
        self.live.drain(..).for_each(|address| self.allocator.free(address).expect("the block is live"));
    }
}

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    let sizes = [("512B", 512), ("64KiB", 64 * KIB), ("1MiB", MIB), ("16MiB", 16 * MIB), ("256MiB", 256 * MIB)];
    for (size, bytes) in sizes {
        for (name, allocator) in allocators() {
            let request = Request::new(bytes, StreamId(1));
            group.bench_function(BenchmarkId::new(size, name), |bencher| {
                bencher.iter(|| {
                    let block = allocator.allocate(request).expect("there is room");
                    allocator.free(block.address).expect("the block is live");
                });
            });
        }
    }
    group.finish();
}

fn churn(criterion: &mut Criterion) {
    for (group, largest) in [("churn", MIB), ("churn_large", 4 * MIB)] {
        let mut group = criterion.benchmark_group(group);
        for blocks in [100, 1_000, 10_000] {
            for (name, allocator) in allocators() {
                let mut churn = BlockChurn::new(&*allocator, 1, blocks, largest);
                group.bench_function(BenchmarkId::new(blocks.to_string(), name), |bencher| {
                    bencher.iter_custom(|iterations| churn.time(iterations));
                });
            }
        }
        group.finish();
    }
}

/// Returns the time in which `threads` concurrent threads do `iterations` iterations each.
fn together(allocator: &dyn CachingAllocator, threads: u64, iterations: u64) -> Duration {
    let barrier = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let workers = (1..=threads).map(|stream| {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut churn = BlockChurn::new(allocator, stream, 200, MIB);
                barrier.wait();
                churn.time(iterations)
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).max().unwrap_or_default()
    })
}

fn threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("threads");
    for threads in [1, 2, 4, 16] {
        for (name, allocator) in allocators() {
            group.bench_function(BenchmarkId::new(threads.to_string(), name), |bencher| {
                bencher.iter_custom(|iterations| together(&*allocator, threads, iterations));
            });
        }
    }
    group.finish();
}

fn streams(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("streams");
    for (size, bytes) in [("64KiB", 64 * KIB), ("16MiB", 16 * MIB)] {
        for (name, allocator) in allocators() {
            let request = Request::new(bytes, StreamId(1));
            group.bench_function(BenchmarkId::new(size, name), |bencher| {
                bencher.iter(|| {
                    let block = allocator.allocate(request).expect("there is room");
                    allocator.record_stream(block.address, StreamId(2)).expect("the block is live");
                    allocator.free(block.address).expect("the block is live");
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pair, churn, threads, streams);
criterion_main!(benches);
