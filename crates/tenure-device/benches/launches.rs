//! The cost of recording a launch, in ns: by one thread, and by two at once.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]
#![allow(missing_docs, reason = "criterion's macros")]

use std::panic::Location;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tenure_core::StreamId;
use tenure_device::LaunchRegistry;

/// Returns the time in which `threads` threads record `count` launches each.
fn record(threads: usize, count: u64) -> Duration {
    let registry = LaunchRegistry::new();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for stream in 0..threads {
            let registry = &registry;
            let start = &start;
            handles.push(scope.spawn(move || {
                start.wait();
                let from = Instant::now();
                for _ in 0..count {
                    registry.record("axpy", StreamId(stream as u64), [1024, 1, 1], [256, 1, 1], Location::caller());
                }
                from.elapsed()
            }));
        }
        handles.into_iter().filter_map(|handle| handle.join().ok()).max().unwrap_or_default()
    })
}

fn launches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record a launch");
    for threads in [1, 2] {
        group.bench_function(format!("{threads} threads"), |b| b.iter_custom(|count| record(threads, count)));
    }
    group.finish();
}

criterion_group!(benches, launches);
criterion_main!(benches);
