//! The read and write speeds of a disk when both happen at once, as tensors are spilled and come back. The last line is
//! JSON, for `bench/disk`:
//! `cargo run --release -p tenure-tier --example disk -- [--seconds S] [--depth REQUESTS] FOLDER...`.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure_tier::{Disk, DiskError, DiskOptions, Spilled, Ticket};

/// The bytes of a tensor, which is moved in requests of 1 MiB.
const BYTES: usize = 4 << 20;
/// The total bytes of the tensors that are read, and as many for those that are written.
const SIDE: usize = 512 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut seconds = 5;
    let mut depth = 16;
    let mut folders = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().ok_or("a number is missing")?.parse::<usize>().map_err(Box::<dyn Error>::from);
        match &*arg {
            "--seconds" => seconds = number()?,
            "--depth" => depth = number()?,
            folder => folders.push(PathBuf::from(folder)),
        }
    }
    // Staging memory for the requests of both directions, and as many pieces that are being copied.
    let staging_bytes = (4 * depth) << 20;
    let disk = Disk::open(&folders, DiskOptions { staging_bytes, ..DiskOptions::new(2 * SIDE as u64) })?;
    println!("{}", disk.description());
    // A file system does extra work for the first write to each block, so all blocks are written once before measuring.
    let bytes: Arc<[u8]> = noise();
    let written: Vec<_> = (0..2 * SIDE / BYTES).map(|_| spill(&disk, &bytes)).collect::<Result<_, _>>()?;
    let mut written: Vec<Spilled> = written.into_iter().map(|ticket| ticket.wait()).collect::<Result<_, _>>()?;
    written.truncate(SIDE / BYTES);

    let at_once = (depth << 20).div_ceil(BYTES);
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let (written, read) = thread::scope(|scope| {
        let writing = scope.spawn(|| write_until(until, &disk, &bytes, at_once));
        let read = read_until(until, &disk, &written, at_once);
        (writing.join(), read)
    });
    let written = written.map_err(|_| "it panicked")??;
    let second = |bytes: u64| bytes / seconds as u64;
    println!(r#"{{"read_bytes_per_second": {}, "write_bytes_per_second": {}}}"#, second(read?), second(written));
    Ok(())
}

/// Begins to write a tensor.
fn spill(disk: &Disk, bytes: &Arc<[u8]>) -> Result<Ticket<Spilled>, DiskError> {
    disk.write("a tensor", Arc::clone(bytes))
}

/// Writes tensors, `at_once` at a time, and returns the bytes that were written by `until`.
fn write_until(until: Instant, disk: &Disk, bytes: &Arc<[u8]>, at_once: usize) -> Result<u64, DiskError> {
    let mut under_way = VecDeque::new();
    let mut done = 0;
    while Instant::now() < until {
        while under_way.len() < at_once {
            under_way.push_back(spill(disk, bytes)?);
        }
        done += under_way.pop_front().map_or(Ok(0), |ticket| ticket.wait().map(|spilled| spilled.bytes()))?;
    }
    Ok(done)
}

/// Reads tensors in turn, `at_once` at a time, and returns the bytes that were read by `until`.
fn read_until(until: Instant, disk: &Disk, written: &[Spilled], at_once: usize) -> Result<u64, DiskError> {
    let mut under_way = VecDeque::new();
    let mut done = 0;
    let mut buffers = vec![vec![0; BYTES]; at_once];
    let mut next = written.iter().cycle();
    while Instant::now() < until {
        while let (Some(buffer), Some(spilled)) = (buffers.pop(), next.next()) {
            under_way.push_back(disk.read(spilled, buffer)?);
        }
        buffers.extend(under_way.pop_front().map(|ticket| ticket.wait()).transpose()?);
        done += BYTES as u64;
    }
    Ok(done)
}

/// Returns bytes that no layer on the way to a disk can compress.
fn noise() -> Arc<[u8]> {
    let mut state = 1_u64;
    let bytes = (0..BYTES).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    bytes.collect()
}
