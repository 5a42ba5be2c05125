//! The registry of kernel launches.

use std::collections::BTreeSet;
use std::panic::Location;
use std::thread;

use tenure_core::StreamId;
use tenure_device::{Launch, LaunchRegistry, RECENT_LAUNCHES};

const NAMES: [&str; 3] = ["axpy", "matmul", "softmax"];

/// A launch of which every part tells which one it is.
fn record(registry: &LaunchRegistry, i: u32) -> u64 {
    let (grid, block) = ([i, i + 1, i + 2], [i + 3, i + 4, i + 5]);
    registry.record(NAMES[i as usize % 3], StreamId(i.into()), grid, block, Location::caller())
}

/// Whether all parts of `launch` belong to one launch.
fn is_whole(launch: &Launch) -> bool {
    let i = launch.stream.0 as u32;
    launch.name == NAMES[i as usize % 3]
        && launch.grid == Some([i, i + 1, i + 2])
        && launch.block == Some([i + 3, i + 4, i + 5])
        && launch.at.is_some_and(|at| at.file() == file!())
}

#[test]
fn a_launch_comes_back_as_it_was_noted() {
    let (registry, at) = (LaunchRegistry::new(), Location::caller());
    assert_eq!(registry.recent(10), []);
    let (grid, block) = ([u32::MAX, 65_535, 65_534], [1024, 2, 64]);
    let number = registry.record("axpy", StreamId(u64::MAX), grid, block, at);
    let (grid, block) = (Some(grid), Some(block));
    let launch = Launch { name: "axpy", stream: StreamId(u64::MAX), number, grid, block, at: Some(at) };
    assert_eq!(registry.recent(10), [launch]);
}

#[test]
fn the_newest_come_first_and_the_oldest_are_forgotten() {
    let registry = LaunchRegistry::new();
    let count = RECENT_LAUNCHES as u32 + 10;
    (0..count).for_each(|i| _ = record(&registry, i));
    let streams = |launches: Vec<Launch>| launches.iter().map(|launch| launch.stream.0 as u32).collect::<Vec<_>>();
    assert_eq!(streams(registry.recent(3)), [count - 1, count - 2, count - 3]);
    assert_eq!(streams(registry.recent(usize::MAX)), (10..count).rev().collect::<Vec<_>>());
}

#[test]
fn numbers_grow_and_differ_between_threads() {
    let registry = LaunchRegistry::new();
    let numbers: Vec<Vec<u64>> = thread::scope(|scope| {
        let handles: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..5_000).map(|i| record(&registry, i)).collect::<Vec<_>>())).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    assert!(numbers.iter().all(|numbers| numbers.is_sorted_by(|a, b| a < b)));
    assert_eq!(numbers.concat().into_iter().collect::<BTreeSet<_>>().len(), 20_000);
}

#[test]
fn no_launch_is_torn_while_threads_go_round_the_buffer() {
    let registry = LaunchRegistry::new();
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..50_000).for_each(|i| _ = record(&registry, i)))).collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let launches = registry.recent(RECENT_LAUNCHES);
            assert!(launches.iter().all(is_whole));
            assert!(launches.is_sorted_by(|a, b| a.number > b.number));
        }
    });
    assert!(registry.recent(RECENT_LAUNCHES).iter().all(is_whole));
}
