//! Tests of several programs on one device, each with a limit of its own.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;

use tenure_alloc::Request;
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::{CopyCalls, Driver, MemoryCalls};

use crate::common::{child, childs_device, device};

const FRACTION: &str = "TENURE_TEST_FRACTION";
const BLOCK: u64 = 256 << 20;

/// Starts a child that allocates all that its fraction of the device allows.
fn greedy(fraction: f64) -> (Child, impl Iterator<Item = String>) {
    let mut command = child("fractions::child_that_takes_its_fraction");
    command.env(FRACTION, fraction.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

/// Ends children that wait. Each must succeed.
fn finish(children: impl IntoIterator<Item = (Child, impl Iterator<Item = String>)>) {
    for (mut child, lines) in children {
        drop(child.stdin.take());
        let rest: Vec<String> = lines.collect();
        assert!(child.wait().unwrap().success(), "{rest:?}");
    }
}

#[test]
fn programs_with_fractions_never_exceed_them_together() {
    let Some(driver) = device() else { return };
    let fractions = [0.3, 0.45];
    let before = driver.memory_info().unwrap();
    let mut children = fractions.map(greedy);
    let mut most = 0;
    // Both children are filling the device now. Each prints a line when it is full.
    std::thread::scope(|scope| {
        let full = scope.spawn(|| {
            for (_, lines) in &mut children {
                println!("{}", lines.find(|line| line.starts_with("full")).expect("the child ended early"));
            }
        });
        while !full.is_finished() {
            most = most.max(before.free - driver.memory_info().unwrap().free);
        }
        full.join().unwrap();
    });
    let allowed = (fractions.iter().sum::<f64>() * before.total as f64) as u64;
    println!("at most {most} bytes together, of {allowed} allowed");
    assert!(most <= allowed, "{most} > {allowed}");
    assert!(most >= allowed - (2 << 30), "{most} of {allowed}: neither came near its fraction");
    finish(children);
}

#[test]
fn a_full_device_names_the_program_that_fills_it() {
    let Some(_driver) = device() else { return };
    let (first, mut lines) = greedy(0.8);
    println!("{}", lines.find(|line| line.starts_with("full")).expect("the child ended early"));
    let (second, mut others) = greedy(0.8);
    let report: Vec<String> = others.by_ref().take_while(|line| line != "end").collect();
    println!("{}", report.join("\n"));
    assert!(report.iter().any(|line| line.contains(&first.id().to_string())), "{report:?}");
    finish([(second, others)]);
    finish([(first, lines)]);
}

#[test]
#[ignore = "a child of the tests above"]
fn child_that_takes_its_fraction() {
    let Some(driver) = childs_device() else { return };
    let fraction = env::var(FRACTION).unwrap().parse().unwrap();
    let config = MemoryConfig { fraction, ..MemoryConfig::default() };
    let memory = DeviceMemory::new(Arc::clone(&driver) as Arc<dyn Driver>, config).unwrap();
    let report = loop {
        match memory.allocate(Request::new(BLOCK, StreamId::NULL)) {
            Ok(block) => driver.memset(block.address, 1, BLOCK, StreamId::NULL).unwrap(),
            Err(MemoryError::OutOfMemory(report)) => break report,
            Err(error) => panic!("{error}"),
        }
    };
    driver.synchronize().unwrap();
    let reserved = memory.allocator().statistics().all.reserved_bytes.current;
    println!("\nfull with {reserved} bytes, and {:?} beside them", memory.backing().known_overhead_bytes());
    println!("{report}\nend");
    // Wait until the parent has seen enough.
    let _ = std::io::stdin().read_line(&mut String::new());
}
