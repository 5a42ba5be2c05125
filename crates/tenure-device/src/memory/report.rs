//! The report of an out-of-memory error.

use std::fmt;

use tenure_alloc::snapshot::{Holder, Snapshot, SnapshotState};
use tenure_alloc::{AllocError, Backing, CachingAllocator, MemoryInfo, PoolId, Request};
use tenure_core::{Device, KeyId, StreamId, Tag};

use super::device_use::other_processes;
use crate::{DeviceBacking, DeviceProcess, LibraryUse};

/// The most keys named in the text.
const KEYS_SHOWN: usize = 5;
/// The most other processes named in the text.
const PROCESSES_SHOWN: usize = 8;

/// An out-of-memory error: the request, the holders of memory, and what to try. Its text begins as PyTorch's does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemoryReport {
    /// The device.
    pub device: Device,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// Total bytes of the device.
    pub total_bytes: u64,
    /// Free bytes of the device.
    pub free_bytes: u64,
    /// Bytes that this process may hold.
    pub allowed_bytes: u64,
    /// Bytes of the device that the allocator leaves free for others.
    pub headroom_bytes: u64,
    /// Bytes that this process holds beside its allocator's: context, kernels and libraries. `None` where the system
    /// does not tell.
    pub overhead_bytes: Option<u64>,
    /// Bytes that this process's allocator holds.
    pub reserved_bytes: u64,
    /// Bytes of live blocks, a part of `reserved_bytes`.
    pub allocated_bytes: u64,
    /// Bytes of freed blocks that other streams may still use, a part of `reserved_bytes`.
    pub awaited_bytes: u64,
    /// Bytes of private pools on which no block lives, a part of `reserved_bytes`.
    pub pooled_bytes: u64,
    /// The bytes and number of blocks of each tag, blocks that other streams may still use included, the largest first.
    pub tags: Vec<Holder>,
    /// The bytes and number of blocks of each key and tag, without blocks that have no key, the largest first.
    pub keys: Vec<Holder>,
    /// Other libraries of this process, whose bytes are a part of `overhead_bytes`, the largest first.
    pub libraries: Vec<LibraryUse>,
    /// Other processes that the system names, the largest first.
    pub others: Vec<DeviceProcess>,
}

impl std::error::Error for OutOfMemoryReport {}

impl OutOfMemoryReport {
    /// Returns the report of `error`, if it is an out-of-memory error. Other figures than those in the error are taken
    /// now, a little later.
    pub(super) fn new(
        allocator: &dyn CachingAllocator,
        backing: &DeviceBacking,
        request: Request,
        error: &AllocError,
    ) -> Option<Self> {
        let figures = allocator.statistics().all;
        let (requested, stream, reserved, free, total, allowed) = match *error {
            AllocError::OutOfMemory { requested, stream, reserved, free, total, allowed, .. } => {
                (requested, stream, reserved, free, total, allowed)
            }
            AllocError::TooLarge(requested) => {
                let MemoryInfo { free, total } = backing.memory_info().ok()?;
                (requested, request.stream, figures.reserved_bytes.current, free, total, total)
            }
            _ => return None,
        };
        let snapshot = allocator.snapshot();
        let holders = snapshot.holders(usize::MAX);
        Some(Self {
            device: backing.driver().device(),
            requested_bytes: requested,
            stream,
            total_bytes: total,
            free_bytes: free,
            allowed_bytes: allowed,
            headroom_bytes: backing.headroom_bytes(),
            overhead_bytes: backing.known_overhead_bytes(),
            reserved_bytes: reserved,
            allocated_bytes: figures.allocated_bytes.current,
            awaited_bytes: figures.active_bytes.current.saturating_sub(figures.allocated_bytes.current),
            pooled_bytes: free_pool_bytes(&snapshot),
            tags: by_tag(&holders),
            keys: holders.into_iter().filter(|holder| holder.key != KeyId::NONE).collect(),
            libraries: backing.driver().library_uses(),
            others: other_processes(backing),
        })
    }

    /// Returns the bytes that this process holds, as far as they are known.
    pub fn in_use_bytes(&self) -> u64 {
        self.reserved_bytes + self.overhead_bytes.unwrap_or_else(|| self.library_bytes())
    }

    /// Returns the bytes that other libraries of this process are known to hold.
    fn library_bytes(&self) -> u64 {
        self.libraries.iter().map(|library| library.bytes).sum()
    }

    /// Returns the bytes that the allocator holds and on which no block lives.
    pub fn unallocated_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes + self.awaited_bytes)
    }

    /// Returns the bytes that this process does not know to be its own: other processes', and its own overhead where
    /// the system does not tell that.
    pub fn elsewhere_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes + self.in_use_bytes())
    }

    /// Returns advice on what to try, the most promising first.
    pub fn advice(&self) -> Vec<String> {
        if self.requested_bytes > self.total_bytes {
            return vec!["The request alone is larger than the device: check the shape it was computed from.".into()];
        }
        let advice = [
            self.advice_on_limit(),
            self.advice_on_headroom(),
            self.advice_on_others(),
            self.advice_on_pieces(),
            self.advice_on_tag(),
        ];
        advice.into_iter().flatten().collect()
    }

    fn advice_on_limit(&self) -> Option<String> {
        let needed = self.in_use_bytes() + self.requested_bytes;
        if self.allowed_bytes >= self.total_bytes || needed <= self.allowed_bytes {
            return None;
        }
        let reached = format!("The limit of this process is reached, with {} free on the device", Gib(self.free_bytes));
        Some(if needed <= self.total_bytes && self.requested_bytes <= self.free_bytes {
            // Rounded up, so that the advised fraction is enough.
            let fraction = (needed as f64 / self.total_bytes as f64 * 100.0).ceil() / 100.0;
            format!("{reached}: raise its memory fraction to at least {fraction:.2}.")
        } else {
            format!("{reached}: a higher memory fraction alone will not do.")
        })
    }

    fn advice_on_headroom(&self) -> Option<String> {
        let wanted = self.requested_bytes.saturating_add(self.headroom_bytes);
        let is_reached = self.requested_bytes <= self.free_bytes && self.free_bytes < wanted;
        (is_reached && self.allowed_bytes >= self.in_use_bytes() + self.requested_bytes).then(|| {
            let left = self.free_bytes - self.requested_bytes;
            format!("The headroom is reached: one of {} or less would leave room for this.", Gib(left))
        })
    }

    fn advice_on_others(&self) -> Option<String> {
        let missing = self.requested_bytes.saturating_sub(self.free_bytes);
        if missing == 0 || self.elsewhere_bytes() < missing {
            return None;
        }
        Some(match self.others.first() {
            Some(DeviceProcess { pid, bytes: Some(bytes) }) if *bytes >= missing => {
                format!("Stop process {pid}, which holds {}, or move it to another device.", Gib(*bytes))
            }
            Some(DeviceProcess { pid, .. }) => {
                format!("Other processes hold most of what is missing, process {pid} among them: stop some of them.")
            }
            None => "Look for other processes on the device (`nvidia-smi`), and stop those not needed.".into(),
        })
    }

    fn advice_on_pieces(&self) -> Option<String> {
        let unallocated = self.unallocated_bytes();
        (unallocated >= self.requested_bytes).then(|| {
            format!(
                "{} is reserved and not allocated, but in pieces, in private pools or for other streams: release \
                 private pools that are done, and use the `paged` allocator if this is another one.",
                Gib(unallocated)
            )
        })
    }

    fn advice_on_tag(&self) -> Option<String> {
        let largest = self.tags.first()?;
        let means = match largest.tag {
            Tag::Unknown => {
                "free what is no longer needed, and tag allocations, so that this report can say what they are"
            }
            Tag::Weight => "use a smaller dtype for weights, or spread the model over more devices",
            Tag::Activation => {
                "recompute activations (checkpointing), offload them to the host, or use smaller batches"
            }
            Tag::Gradient => "free gradients right after the optimizer has used them, or keep them in a smaller dtype",
            Tag::OptimizerState => "offload the optimizer's state to the host, or use an optimizer that keeps less",
            Tag::Input => "read fewer batches ahead, or use smaller ones",
            Tag::Workspace => "limit the workspace that kernels may use",
        };
        Some(format!("The most, {}, is held as `{}`: {means}.", Gib(largest.bytes), largest.tag))
    }
}

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_request(f)?;
        self.write_use(f)?;
        self.write_holders(f)
    }
}

impl OutOfMemoryReport {
    pub(super) fn write_request(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
            Gib(self.requested_bytes),
            self.device.index(),
            Gib(self.total_bytes),
            Gib(self.free_bytes),
        )
    }

    pub(super) fn write_use(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "This process has {} in use", Gib(self.in_use_bytes()))?;
        match self.overhead_bytes {
            Some(overhead) => write!(f, " ({} of it context, kernels and libraries)", Gib(overhead))?,
            None => f.write_str(" (its context not counted: the system does not tell)")?,
        }
        if self.allowed_bytes < self.total_bytes {
            let percent = self.allowed_bytes as f64 / self.total_bytes as f64 * 100.0;
            write!(f, ", and may use {} ({percent:.1}% of the device)", Gib(self.allowed_bytes))?;
        }
        if self.headroom_bytes > 0 {
            write!(f, ", and leaves {} of the device free for others (its headroom)", Gib(self.headroom_bytes))?;
        }
        let allocated = Gib(self.allocated_bytes);
        let unallocated = Gib(self.unallocated_bytes());
        write!(f, ". Of that {allocated} is allocated by live blocks, {unallocated} is reserved but unallocated")?;
        if self.awaited_bytes > 0 {
            write!(f, ", and {} is freed but still awaited on other streams", Gib(self.awaited_bytes))?;
        }
        f.write_str(".")
    }

    pub(super) fn write_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tags(f)?;
        self.write_keys(f)?;
        self.write_libraries(f)?;
        self.write_others(f)?;
        write_section(f, "What to try", self.advice().iter().map(|advice| format!("- {advice}")))
    }

    fn write_tags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held: u64 = self.tags.iter().map(|holder| holder.bytes).sum();
        let rows = self.tags.iter().map(|holder| {
            let share = holder.bytes as f64 / held.max(1) as f64 * 100.0;
            format!(
                "{:<16} {:>11} {share:>5.1}%  {}",
                holder.tag.name(),
                Gib(holder.bytes).to_string(),
                BlockCount(holder)
            )
        });
        write_section(f, "Held, by tag", rows)
    }

    fn write_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.keys.iter().filter_map(|holder| Some((holder, holder.key.key()?)));
        let rows = named.take(KEYS_SHOWN).map(|(holder, key)| {
            let tag = holder.tag.name();
            format!("{tag:<16} {:>11}  {}  {key}", Gib(holder.bytes).to_string(), BlockCount(holder))
        });
        write_section(f, "Held, by key", rows)
    }

    fn write_libraries(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self
            .libraries
            .iter()
            .map(|library| format!("{:<28} {:>11}", library.library, Gib(library.bytes).to_string()));
        write_section(f, "Held, by other libraries of this process", rows)
    }

    fn write_others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.others.iter().take(PROCESSES_SHOWN).map(|process| match process.bytes {
            Some(bytes) => format!("pid {:<12} {:>11}", process.pid, Gib(bytes).to_string()),
            None => format!("pid {:<12}  not told", process.pid),
        });
        write_section(f, "Other processes", rows)?;
        let named: u64 = self.others.iter().filter_map(|process| process.bytes).sum();
        let rest = self.elsewhere_bytes().saturating_sub(named);
        match (rest, self.overhead_bytes) {
            (0, _) => Ok(()),
            (_, Some(_)) => write!(f, "\nThe driver, and processes that are not named here, hold {}.", Gib(rest)),
            (_, None) => write!(f, "\nOther processes, and the context of this one, hold {}.", Gib(rest)),
        }
    }
}

/// Adds up the holders of each tag, over all keys.
fn by_tag(holders: &[Holder]) -> Vec<Holder> {
    let sums = Tag::ALL.into_iter().map(|tag| {
        let mut sum = Holder { tag, key: KeyId::NONE, bytes: 0, blocks: 0 };
        for holder in holders.iter().filter(|holder| holder.tag == tag) {
            sum.bytes += holder.bytes;
            sum.blocks += holder.blocks;
        }
        sum
    });
    let mut tags: Vec<Holder> = sums.filter(|sum| sum.blocks > 0).collect();
    tags.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    tags
}

/// Returns the free bytes in the segments of private pools.
fn free_pool_bytes(snapshot: &Snapshot) -> u64 {
    let private = snapshot.segments.iter().filter(|segment| segment.pool != PoolId::default());
    let free = private.flat_map(|it| &it.blocks).filter(|block| block.state == SnapshotState::Inactive);
    free.map(|block| block.bytes).sum()
}

/// Writes rows under a heading, or nothing if there are no rows.
fn write_section(f: &mut fmt::Formatter<'_>, heading: &str, rows: impl Iterator<Item = String>) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        write!(f, "\n{heading}:")?;
    }
    rows.try_for_each(|row| write!(f, "\n  {}", row.trim_end()))
}

/// A number of bytes, displayed as in PyTorch's errors: `512 bytes`, `2.00 MiB`, `1.50 GiB`.
pub(super) struct Gib(pub(super) u64);

impl fmt::Display for Gib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        match bytes {
            0..=0x3FF => write!(f, "{bytes} bytes"),
            0x400..=0xF_FFFF => write!(f, "{:.2} KiB", bytes as f64 / 1024.0),
            0x10_0000..=0x3FFF_FFFF => write!(f, "{:.2} MiB", bytes as f64 / 1048576.0),
            _ => write!(f, "{:.2} GiB", bytes as f64 / 1073741824.0),
        }
    }
}

/// A number of blocks, shown as `1 block` or `20 blocks`.
struct BlockCount<'a>(&'a Holder);

impl fmt::Display for BlockCount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.blocks, if self.0.blocks == 1 { "block" } else { "blocks" })
    }
}

/// The advice at the end of PyTorch's own out-of-memory error (`DeviceCachingAllocator::malloc`,
/// c10/cuda/CUDACachingAllocator.cpp of 2.11), whose words people know and programs search for.
const ADVICE: &str = "If reserved but unallocated memory is large try setting \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  \
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";

/// A report with PyTorch's text; see [`OutOfMemoryReport::in_pytorch`].
struct InPytorch<'a>(&'a OutOfMemoryReport);

impl OutOfMemoryReport {
    /// Returns the report, with PyTorch's whole text before it.
    pub fn in_pytorch(&self) -> impl fmt::Display {
        InPytorch(self)
    }

    fn write_processes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.overhead_bytes.is_some() {
            write!(f, "Including non-PyTorch memory, this process has {} memory in use. ", Gib(self.in_use_bytes()))?;
        }
        self.others.iter().try_for_each(|process| match *process {
            DeviceProcess { pid, bytes: Some(bytes) } => write!(f, "Process {pid} has {} memory in use. ", Gib(bytes)),
            DeviceProcess { bytes: None, .. } => Ok(()),
        })
    }
}

impl fmt::Display for InPytorch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = *self;
        report.write_request(f)?;
        report.write_processes(f)?;
        if report.allowed_bytes < report.total_bytes {
            write!(f, "{} allowed; ", Gib(report.allowed_bytes))?;
        }
        // PyTorch counts memory that private pools keep as allocated.
        let allocated = report.allocated_bytes + report.pooled_bytes;
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", Gib(allocated))?;
        if report.pooled_bytes > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", Gib(report.pooled_bytes))?;
        }
        let unallocated = Gib(report.reserved_bytes.saturating_sub(allocated));
        write!(f, "and {unallocated} is reserved by PyTorch but unallocated. {ADVICE}\nTenure: ")?;
        report.write_use(f)?;
        report.write_holders(f)
    }
}
