//! The threads that kernels on the CPU compute with.
//!
//! A kernel divides its work in *parts*, by its sizes alone and never by how many threads there are, and sums up what its
//! parts gave in their order. So results are the same bits for any number of threads. What a part allocates is for the
//! same purpose as what the caller does, from the same allocator, and all parts' is one to the caller's keys.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, RwLock};
use rayon::{ThreadPool, ThreadPoolBuilder};
use tenure_core::Context;

use crate::{Result, TensorError};

static POOL: LazyLock<RwLock<Arc<Pool>>> = LazyLock::new(|| {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // One thread needs no other, so there is always a pool.
    RwLock::new(Arc::new(Pool::new(threads).unwrap_or(Pool { threads: 1, others: None })))
});

struct Pool {
    threads: usize,
    /// All but the caller's, which computes too.
    others: Option<ThreadPool>,
}

impl Pool {
    fn new(threads: usize) -> Result<Self> {
        let name = |index| format!("tenure-cpu-{index}");
        let others = match threads {
            1 => None,
            _ => {
                let others = ThreadPoolBuilder::new().num_threads(threads - 1).thread_name(name).build();
                Some(others.map_err(|error| TensorError::argument("set_threads", error.to_string()))?)
            }
        };
        Ok(Self { threads, others })
    }
}

/// How many threads compute. At first as many as the process may run at once.
pub fn threads() -> usize {
    POOL.read().threads
}

/// Computes with `threads` threads from now on.
///
/// # Errors
/// There must be one at least and 1024 at most, and the system must give them.
pub fn set_threads(threads: usize) -> Result<()> {
    /// More would only stand in each other's way, for minutes.
    const MOST: usize = 1024;
    if !(1..=MOST).contains(&threads) {
        let reason = format!("1 to {MOST} threads can compute, got {threads}: take as many as there are processors");
        return Err(TensorError::argument("set_threads", reason));
    }
    *POOL.write() = Arc::new(Pool::new(threads)?);
    Ok(())
}

/// Runs `part` for each number below `parts`, in any order, on any threads. All have returned when this returns.
pub fn for_each_part(parts: usize, part: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    on_threads(parts, &|| {
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                number if number < parts => part(number),
                _ => return,
            }
        }
    });
}

/// Runs `work` on the caller's thread, and on as many others as can help with so many parts: the work divides itself.
///
/// It is called through a pointer, so that what starts threads is compiled once, not for each kernel.
fn on_threads(parts: usize, work: &(dyn Fn() + Sync)) {
    if parts <= 1 {
        return work();
    }
    let pool = Arc::clone(&POOL.read());
    let context = Context::capture().divided();
    let work = || {
        let _context = context.enter();
        work();
    };
    match &pool.others {
        None => work(),
        Some(others) => others.in_place_scope(|scope| {
            (1..pool.threads.min(parts)).for_each(|_| scope.spawn(|_| work()));
            work();
        }),
    }
}

/// The same, where each thread has a workspace of its own, which it uses for one part after the other.
///
/// # Errors
/// Those of `workspace`, before any part was run, and the first of the parts'.
pub fn for_each_part_with<W: Send>(
    parts: usize,
    workspace: impl Fn() -> Result<W>,
    part: impl Fn(&mut W, usize) -> Result<()> + Sync,
) -> Result<()> {
    // As many are made as there are threads, and that is no part of a key.
    let _context = Context::capture().divided().enter();
    let workers = threads().min(parts);
    let workspaces = (0..workers).map(|_| workspace().map(Mutex::new)).collect::<Result<Vec<_>>>()?;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    for_each_part(workers, |worker| {
        let mut workspace = workspaces[worker].lock();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= parts {
                return;
            }
            if let Err(error) = part(&mut workspace, number) {
                failed.lock().get_or_insert(error);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// The same as [`for_each_part`] over ranges of `grain` numbers below `count`.
pub fn for_each_range(count: usize, grain: usize, range: impl Fn(std::ops::Range<usize>) + Sync) {
    let grain = grain.max(1);
    for_each_part(count.div_ceil(grain), |part| range(part * grain..count.min((part + 1) * grain)));
}

/// Runs `chunk(index of its first element, chunk)` for each `grain` elements of a slice.
pub fn for_each_chunk<T: Send>(slice: &mut [T], grain: usize, chunk: impl Fn(usize, &mut [T]) + Sync) {
    let grain = grain.max(1);
    let parts = slice.len().div_ceil(grain);
    let chunks = Mutex::new(slice.chunks_mut(grain).enumerate());
    let next = || chunks.lock().next();
    on_threads(parts, &|| {
        while let Some((index, part)) = next() {
            chunk(index * grain, part);
        }
    });
}
