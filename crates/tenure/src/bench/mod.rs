//! Measures allocators without driver calls: the same cases on every allocator and device.

mod workload;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use tenure_alloc::{AllocError, CachingAllocator};
use tenure_core::StreamId;
use tenure_device::{CallError, DeviceBacking, Driver, Priority};
use tenure_plan::Settings;

pub use workload::{Churn, Random};

use crate::Error;
use crate::replay::AllocatorKind;

/// Live blocks of each thread in the cases with several threads.
const LIVE_PER_THREAD: usize = 200;
/// Live blocks in the case that uses each block on a second stream.
const LIVE_RECORDED: usize = 100;

/// A case: the operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Case {
    /// A block of one size, allocated and freed at once.
    Pair {
        /// Its size.
        bytes: u64,
    },
    /// [`Churn`] on one thread.
    Churn {
        /// The number of live blocks.
        live: usize,
    },
    /// [`Churn`] over 200 live blocks on each of several threads, each with its own stream. The figures count the pairs
    /// of one thread: if threads do not block each other, a pair takes as long as with one thread.
    Threads {
        /// The number of threads.
        threads: usize,
    },
    /// [`Churn`] over 100 live blocks, each used on a second stream before it is freed.
    RecordStream,
}

/// The result of a case. Serialises to one JSON object whose keys are the fields, in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchFigure {
    /// The case, serialised as its name.
    #[serde(serialize_with = "to_text")]
    pub case: Case,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// The median over the repeats of the wall-clock time of one pair of an allocation and a free, in ns; includes
    /// `record_stream` in the case of that name.
    pub median_ns: f64,
    /// The time of a pair in the fastest repeat, in ns.
    pub fastest_ns: f64,
    /// The time of a pair in the slowest repeat, in ns.
    pub slowest_ns: f64,
    /// The pairs of one repeat, on one thread.
    pub pairs: u64,
    /// The number of repeats.
    pub repeats: u32,
}

/// Settings of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bench {
    /// The number of times that a case is measured, at least once; the median counts.
    pub repeats: u32,
    /// The least time that one repeat takes.
    pub repeat_time: Duration,
}

impl Default for Bench {
    fn default() -> Self {
        Self { repeats: 11, repeat_time: Duration::from_millis(20) }
    }
}

impl Case {
    /// Returns every case, with these numbers of threads.
    pub fn all(threads: &[usize]) -> Vec<Self> {
        let pairs = [512, 64 << 10, 1 << 20, 16 << 20, 256 << 20].map(|bytes| Self::Pair { bytes });
        let churns = [100, 1_000, 10_000].map(|live| Self::Churn { live });
        let threads = threads.iter().map(|&threads| Self::Threads { threads });
        pairs.into_iter().chain(churns).chain(threads).chain([Self::RecordStream]).collect()
    }

    /// Returns the number of streams that the case needs.
    fn streams(self) -> usize {
        match self {
            Self::Pair { .. } | Self::Churn { .. } => 1,
            Self::Threads { threads } => threads,
            Self::RecordStream => 2,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match *self {
            Self::Pair { bytes } if bytes < 1 << 10 => format!("pair {bytes} B"),
            Self::Pair { bytes } if bytes < 1 << 20 => format!("pair {} KiB", bytes >> 10),
            Self::Pair { bytes } => format!("pair {} MiB", bytes >> 20),
            Self::Churn { live } => format!("churn {live}"),
            Self::Threads { threads } => format!("threads {threads}"),
            Self::RecordStream => "record_stream".into(),
        })
    }
}

impl Bench {
    /// Measures `case` on a new allocator over `driver`, and leaves nothing on the device.
    ///
    /// # Errors
    /// A stream could not be created, or the allocator returned an error, such as a full device.
    pub fn run(&self, case: Case, allocator: AllocatorKind, driver: &Arc<dyn Driver>) -> Result<BenchFigure, Error> {
        let streams = Streams::new(Arc::clone(driver), case.streams())?;
        let backing = Arc::new(DeviceBacking::new(Arc::clone(driver)));
        let built = allocator.build(&Settings::default(), 0, backing)?;
        let (times, pairs) = self.measure(case, &*built, &streams.ids)?;
        built.release_cached()?;
        let ns = |index: usize| times[index].as_nanos() as f64 / pairs as f64;
        Ok(BenchFigure {
            case,
            allocator,
            median_ns: ns(times.len() / 2),
            fastest_ns: ns(0),
            slowest_ns: ns(times.len() - 1),
            pairs,
            repeats: self.repeats.max(1),
        })
    }

    /// Returns the times of the repeats, ascending, and the pairs of each.
    fn measure(
        &self,
        case: Case,
        allocator: &dyn CachingAllocator,
        streams: &[StreamId],
    ) -> Result<(Vec<Duration>, u64), AllocError> {
        let churn = |stream, other, seed, live| Churn::new(allocator, stream, other, seed, live);
        match case {
            Case::Pair { bytes } => self.repeat(timed(|count| workload::pairs(allocator, streams[0], bytes, count))),
            Case::Churn { live } => {
                let mut churn = churn(streams[0], None, 1, live)?;
                self.repeat(timed(|count| churn.run(count)))
            }
            Case::RecordStream => {
                let mut churn = churn(streams[0], Some(streams[1]), 1, LIVE_RECORDED)?;
                self.repeat(timed(|count| churn.run(count)))
            }
            Case::Threads { .. } => {
                let churns = (1..).zip(streams).map(|(seed, &stream)| churn(stream, None, seed, LIVE_PER_THREAD));
                let mut churns = churns.collect::<Result<Vec<_>, _>>()?;
                self.repeat(|count| workload::together(&mut churns, count))
            }
        }
    }

    /// Finds the number of pairs in a repeat, which also warms everything up, and measures the repeats.
    fn repeat(
        &self,
        mut run: impl FnMut(u64) -> Result<Duration, AllocError>,
    ) -> Result<(Vec<Duration>, u64), AllocError> {
        let mut pairs = 64;
        while run(pairs)? < self.repeat_time {
            pairs *= 2;
        }
        let mut times = (0..self.repeats.max(1)).map(|_| run(pairs)).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        Ok((times, pairs))
    }
}

/// Streams of a driver, destroyed when this is dropped.
struct Streams {
    driver: Arc<dyn Driver>,
    ids: Vec<StreamId>,
}

impl Streams {
    fn new(driver: Arc<dyn Driver>, count: usize) -> Result<Self, CallError> {
        let mut streams = Self { driver, ids: Vec::new() };
        for _ in 0..count {
            streams.ids.push(streams.driver.create_stream(Priority::Default)?);
        }
        Ok(streams)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for &stream in &self.ids {
            // If the context was lost, its streams are gone too.
            let _ = self.driver.destroy_stream(stream);
        }
    }
}

/// Wraps `run` so that it returns the time that it took.
fn timed(mut run: impl FnMut(u64) -> Result<(), AllocError>) -> impl FnMut(u64) -> Result<Duration, AllocError> {
    move |iterations| {
        let start = Instant::now();
        run(iterations)?;
        Ok(start.elapsed())
    }
}

fn to_text<S: Serializer>(case: &Case, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(case)
}
