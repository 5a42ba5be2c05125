//! Tests that hundreds of killed workers leave no descriptor, mapping, thread or process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod served;

use std::fs;

use served::processes::kill_workers_under_load;
use served::{moody, until};

const DEATHS: usize = 120;

#[test]
#[ignore = "a worker of the other test"]
fn is_a_worker() {
    moody::be_a_worker();
}

/// Returns the numbers of descriptors, mappings and threads of this process.
fn held() -> [usize; 3] {
    let lines = fs::read_to_string("/proc/self/maps").unwrap();
    let images = lines.lines().filter(|line| line.contains("memfd:")).count();
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    [count("/proc/self/fd"), images, count("/proc/self/task")]
}

/// Returns the number of child processes that are not reaped yet.
fn children() -> usize {
    let parent = std::process::id().to_string();
    let stats =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("stat")).ok());
    // State and parent follow the name.
    stats.filter(|stat| stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(&parent)).count()
}

#[test]
fn deaths_under_load_lose_no_request_and_leave_nothing() {
    let served = moody::serve(moody::models(&["one", "two", "three"]), 250_000);
    for name in ["one", "two", "three"] {
        assert_eq!(served.mood(name, 1.0).unwrap().0, 3.0);
    }
    // Two models have room, and one more worker stands by.
    until("three workers", || served.serving.workers().len() == 3);
    let before = held();
    kill_workers_under_load(&served, ["one", "two", "three"], DEATHS);
    for name in ["one", "two", "three"] {
        assert_eq!(served.mood(name, 1.0).unwrap().0, 3.0);
    }
    until("nothing more is held", || held().iter().zip(&before).all(|(now, before)| *now <= before + 2));
    until("three children", || children() == 3);
    assert!(served.memory() <= 250_000);
}
