//! What an allocation or a free costs when it needs no driver call: random churn over a number of live blocks, one
//! thread or several, each on a stream of its own. Times are per operation: an iteration frees a random block and
//! allocates another, so it counts as two.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tenure_alloc::native::{self, NativeAllocator};
use tenure_alloc::paged::{self, PagedAllocator};
use tenure_alloc::{CachingAllocator, Request};
use tenure_core::StreamId;
use tenure_device::DeviceBacking;
use tenure_device::sim::{SimConfig, SimDriver};

const MIB: u64 = 1 << 20;

fn allocators() -> [(&'static str, Arc<dyn CachingAllocator>); 2] {
    let backing = || {
        let sim = SimDriver::new(SimConfig::default());
        (1..=16).for_each(|stream| sim.adopt_stream(StreamId(stream)));
        Arc::new(DeviceBacking::new(Arc::new(sim)))
    };
    let native = NativeAllocator::new(backing(), native::Config::default()).expect("the defaults are valid");
    let paged = PagedAllocator::new(backing(), paged::Config::default()).expect("the defaults are valid");
    [("paged", Arc::new(paged)), ("native", Arc::new(native))]
}

/// Live blocks of a stream, each of 1 to `largest` bytes.
struct Churn<'a> {
    allocator: &'a dyn CachingAllocator,
    stream: StreamId,
    largest: u64,
    random: SmallRng,
    live: Vec<u64>,
}

impl<'a> Churn<'a> {
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
}

impl Drop for Churn<'_> {
    fn drop(&mut self) {
        self.live.drain(..).for_each(|address| self.allocator.free(address).expect("the block is live"));
    }
}

fn one_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("churn");
    group.throughput(Throughput::Elements(2));
    for (blocks, largest) in [(100, MIB), (1_000, MIB), (10_000, MIB), (10_000, 4 * MIB)] {
        for (name, allocator) in allocators() {
            let id = BenchmarkId::new(name, format!("{blocks} blocks up to {} MiB", largest / MIB));
            let mut churn = Churn::new(&*allocator, 1, blocks, largest);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|iterations| {
                    let start = Instant::now();
                    churn.run(iterations);
                    start.elapsed()
                });
            });
        }
    }
    group.finish();
}

/// The time in which `threads` threads together do `iterations` iterations each.
fn together(allocator: &dyn CachingAllocator, threads: u64, iterations: u64) -> Duration {
    let barrier = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let workers = (1..=threads).map(|stream| {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut churn = Churn::new(allocator, stream, 200, MIB);
                barrier.wait();
                let start = Instant::now();
                churn.run(iterations);
                start.elapsed()
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).max().unwrap_or_default()
    })
}

fn many_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("threads");
    for (name, allocator) in allocators() {
        for threads in [1, 2] {
            group.throughput(Throughput::Elements(2 * threads));
            group.bench_function(BenchmarkId::new(name, threads), |bencher| {
                bencher.iter_custom(|iterations| together(&*allocator, threads, iterations));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, one_thread, many_threads);
criterion_main!(benches);
