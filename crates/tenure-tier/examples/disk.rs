//! The read and write speeds of a disk when both happen at once, as tensors are spilled and come back. The last line is
//! JSON, for `bench/disk`:
//! `cargo run --release -p tenure-tier --example disk -- [--seconds S] [--depth REQUESTS] FOLDER...`.

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure_tier::{Disk, DiskError, DiskOptions, Spilled};

/// The bytes of a tensor, which is moved in requests of 1 MiB.
const BYTES: usize = 4 << 20;
/// The total bytes of the tensors that are read, and as many for those that are written.
const SIDE: usize = 512 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut seconds, mut depth, mut folders) = (5, 16, Vec::new());
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
    println!("{}", disk.nature());
    // A file system does extra work for the first write to each block, so all blocks are written once before measuring.
    let bytes: Arc<[u8]> = noise();
    let spill = || disk.write("a tensor", Arc::clone(&bytes));
    let written: Vec<_> = (0..2 * SIDE / BYTES).map(|_| spill()).collect::<Result<_, _>>()?;
    let mut written: Vec<Spilled> = written.into_iter().map(|ticket| ticket.wait()).collect::<Result<_, _>>()?;
    written.truncate(SIDE / BYTES);

    let at_once = (depth << 20).div_ceil(BYTES);
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let write = || {
        let mut under_way = VecDeque::new();
        let mut done = 0;
        while Instant::now() < until {
            while under_way.len() < at_once {
                under_way.push_back(spill()?);
            }
            done += under_way.pop_front().map_or(Ok(0), |ticket| ticket.wait().map(|spilled| spilled.bytes()))?;
        }
        Ok::<_, DiskError>(done)
    };
    let read = || {
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
        Ok::<_, DiskError>(done)
    };
    let (written, read) = thread::scope(|scope| {
        let writing = scope.spawn(write);
        let read = read();
        (writing.join(), read)
    });
    let written = written.map_err(|_| "it panicked")??;
    let second = |bytes: u64| bytes / seconds as u64;
    println!(r#"{{"read_bytes_per_second": {}, "write_bytes_per_second": {}}}"#, second(read?), second(written));
    Ok(())
}

/// Returns bytes that no layer on the way to a disk can compress.
fn noise() -> Arc<[u8]> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..BYTES).map(|_| next()).collect()
}
