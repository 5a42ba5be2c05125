//! The thread pool that CPU kernels use.
//!
//! A kernel divides its work into *parts* by the sizes alone, never by the number of threads, and combines the parts'
//! results in their order. So results have the same bits for any number of threads. A part allocates for the caller's
//! purpose and from the caller's allocator; the allocations of all parts share one key.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tenure_core::{Context, Unforked};

use crate::{Result, TensorError};

static POOL: LazyLock<Unforked<Arc<WorkerPool>>> = LazyLock::new(|| {
    Unforked::new(Arc::new(WorkerPool::of_at_most(default_threads(env::var("OMP_NUM_THREADS").ok()))))
});

/// The most threads that compute: more would only get in each other's way, for minutes.
const MOST: usize = 1024;

/// Returns the number that the environment states, as for PyTorch, or else the number of processors.
fn default_threads(stated: Option<String>) -> usize {
    // It may also be a list of numbers for nested regions of OpenMP.
    let stated = stated.and_then(|list| list.split(',').next()?.trim().parse().ok());
    let stated = stated.filter(|number| (1..=MOST).contains(number));
    stated.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

struct WorkerPool {
    threads: usize,
    /// All threads but the caller's, which computes too.
    others: Option<ThreadPool>,
    /// The process that has the threads: a forked child has none of them.
    process: u32,
}

impl WorkerPool {
    fn new(threads: usize) -> Result<Self> {
        let others = match threads {
            1 => None,
            _ => {
                let others = ThreadPoolBuilder::new()
                    .num_threads(threads - 1)
                    .thread_name(|index| format!("tenure-cpu-{index}"))
                    .build();
                Some(others.map_err(|error| TensorError::argument("set_threads", error.to_string()))?)
            }
        };
        Ok(Self { threads, others, process: std::process::id() })
    }

    /// Makes a pool of one thread, which starts no other, if the system cannot start so many.
    fn of_at_most(threads: usize) -> Self {
        Self::new(threads).unwrap_or_else(|_| Self { threads: 1, others: None, process: std::process::id() })
    }

    /// Returns the process's pool. In a forked child it is a new one with as many threads.
    fn current() -> Arc<Self> {
        let pool = Arc::clone(&POOL.lock());
        if pool.process == std::process::id() {
            return pool;
        }
        let made = Arc::new(Self::of_at_most(pool.threads));
        Arc::clone(&made).replace_current();
        made
    }

    /// Makes this the process's pool.
    fn replace_current(self: Arc<Self>) {
        let old = std::mem::replace(&mut *POOL.lock(), self);
        if old.process != std::process::id() {
            // Dropping it would wait for its threads, which are in the parent.
            std::mem::forget(old);
        }
    }
}

/// Returns the number of threads that compute. Default: `OMP_NUM_THREADS`, or as many as the process may run at once.
pub fn threads() -> usize {
    POOL.lock().threads
}

/// Sets the number of threads that compute from now on.
///
/// # Errors
/// The number is not from 1 to 1024, or the system cannot start that many threads.
pub fn set_threads(threads: usize) -> Result<()> {
    if !(1..=MOST).contains(&threads) {
        let reason = format!("1 to {MOST} threads can compute, got {threads}: take as many as there are processors");
        return Err(TensorError::argument("set_threads", reason));
    }
    Arc::new(WorkerPool::new(threads)?).replace_current();
    Ok(())
}

/// Runs `part` for each number below `parts`, in any order, on any threads. Returns when all have returned.
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

/// Runs `work` on the caller's thread and on as many other threads as `parts` parts can use. `work` takes parts itself
/// until none is left.
///
/// It takes `work` as a pointer, so that the code that starts threads is compiled once, not for each kernel.
fn on_threads(parts: usize, work: &(dyn Fn() + Sync)) {
    if parts <= 1 {
        return work();
    }
    let pool = WorkerPool::current();
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

/// Runs `part` like [`for_each_part`], but gives each thread its own workspace, which it uses for one part after the
/// other.
///
/// # Errors
/// An error of `workspace`, before any part runs; else the first error of a part.
pub fn for_each_part_with<W: Send>(
    parts: usize,
    workspace: impl Fn() -> Result<W>,
    part: impl Fn(&mut W, usize) -> Result<()> + Sync,
) -> Result<()> {
    // Workspaces are as many as threads, so all of them share one allocation key, as the parts do.
    let _context = Context::capture().divided().enter();
    let workers = threads().min(parts);
    let workspaces = (0..workers).map(|_| workspace().map(Mutex::new)).collect::<Result<Vec<_>>>()?;
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
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

/// Runs `range` like [`for_each_part`], for ranges of `grain` numbers below `count`.
pub fn for_each_range(count: usize, grain: usize, range: impl Fn(std::ops::Range<usize>) + Sync) {
    let grain = grain.max(1);
    for_each_part(count.div_ceil(grain), |part| range(part * grain..count.min((part + 1) * grain)));
}

/// Runs `chunk(index of its first element, chunk)` for each chunk of `grain` elements of a slice.
pub fn for_each_chunk<T: Send>(slice: &mut [T], grain: usize, chunk: impl Fn(usize, &mut [T]) + Sync) {
    let grain = grain.max(1);
    let parts = slice.len().div_ceil(grain);
    let chunks = Mutex::new(slice.chunks_mut(grain).enumerate());
    on_threads(parts, &|| {
        loop {
            // A `while let` would hold the lock while the chunk runs.
            let Some((index, part)) = chunks.lock().next() else { return };
            chunk(index * grain, part);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(text: &str) -> usize {
        default_threads(Some(text.into()))
    }

    #[test]
    fn the_environment_states_the_number_of_threads() {
        assert_eq!(["3", " 5 ", "7,2"].map(stated), [3, 5, 7]);
        let processors = default_threads(None);
        assert_eq!(["", "0", "-1", "many", "4096"].map(stated), [processors; 5]);
    }
}
