//! The machine that steps run on: the memory that a budget limits, and the tiers to spill to.

use std::sync::Arc;

use tenure_alloc::{FreeMemoryCallback, Statistics};
use tenure_core::Device;
use tenure_device::Executor;
use tenure_device::host::HostMemory;
use tenure_device::memory::{self, DeviceMemory};
use tenure_plan::problem::{self, ProblemTier};
use tenure_tier::{Destination, LinkStatistics, Links, Mover};

use crate::error::OffloadError;
use crate::ledger::SPARE_PART;

/// A tier to spill to, and the transfers there and back.
#[derive(Clone, Debug, PartialEq)]
pub struct SpillLink {
    /// The tier's name.
    pub name: String,
    /// The bytes of the tier. None if there is no limit.
    pub capacity: Option<u64>,
    /// Bytes per second on the way out.
    pub out_bandwidth: u64,
    /// Bytes per second on the way back.
    pub back_bandwidth: u64,
    /// Bytes per second of both directions together, if they slow each other down.
    pub shared_bandwidth: Option<u64>,
}

/// The machine that a step runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The bytes of the memory that the step computes in.
    pub budget_bytes: u64,
    /// The bytes of the budget that plans leave unused, because an allocator holds them beside blocks.
    pub slack_bytes: u64,
    /// The bytes per second that the step reads and writes in its memory.
    pub bandwidth: u64,
    /// The host's time in nanoseconds for each recomputed operation, beside the time of the operation: the device may
    /// have nothing else to do meanwhile.
    pub launch_ns: u64,
    /// The tiers to spill to, the fastest first.
    pub links: Vec<SpillLink>,
}

impl SpillLink {
    /// Returns the links of a mover, the fastest first, with their measured bandwidths. The mover must have moved
    /// something or be [probed](Mover::probe): a bandwidth that was not measured counts as 1 GB/s.
    pub fn of(mover: &Mover) -> Vec<(Self, Destination)> {
        let Links { device_to_host, host_to_device, disk_write, disk_read, disk_together } = mover.links();
        let link = |name: &str, capacity, out: LinkStatistics, back: LinkStatistics| {
            let [out_bandwidth, back_bandwidth] =
                [out, back].map(|statistics| statistics.bandwidth().unwrap_or(1e9) as u64);
            Self { name: name.into(), capacity, out_bandwidth, back_bandwidth, shared_bandwidth: None }
        };
        let host = mover
            .pinned()
            .map(|pinned| (link("host", Some(pinned.limit_bytes), device_to_host, host_to_device), Destination::Host));
        let disk = mover.disk().map(|disk| {
            let link = link("disk", Some(disk.capacity_bytes()), disk_write, disk_read);
            (link.sharing(disk_together.bandwidth().map(|together| together as u64)), Destination::Disk)
        });
        host.into_iter().chain(disk).collect()
    }

    /// Returns the link whose two directions together move `together` bytes per second. If the directions are
    /// independent, that is nearly the sum of both. If it is nearer to the faster direction alone, they share it.
    fn sharing(self, together: Option<u64>) -> Self {
        let out = self.out_bandwidth;
        let back = self.back_bandwidth;
        let shared_bandwidth = together.filter(|together| *together < out.max(back) + out.min(back) / 2);
        Self { shared_bandwidth, ..self }
    }
}

impl Machine {
    /// Returns the tiers and links of a problem whose first tier has `bytes` bytes. Links lead from that tier to each
    /// other one and back.
    pub(crate) fn tiers(&self, bytes: u64) -> (Vec<ProblemTier>, Vec<problem::ProblemLink>) {
        let tier = |name: &str, capacity, is_reachable| ProblemTier {
            name: name.into(),
            capacity,
            is_reachable,
            read_bandwidth: self.bandwidth,
            write_bandwidth: self.bandwidth,
            latency_ns: 0,
            loaded: Vec::new(),
        };
        let mut tiers = vec![tier("budget", Some(bytes), true)];
        let mut links = Vec::new();
        for (number, link) in self.links.iter().enumerate() {
            tiers.push(tier(&link.name, link.capacity, false));
            let way = |from, to, bandwidth, shared_with| problem::ProblemLink { from, to, bandwidth, shared_with };
            let tier = number + 1;
            let first = links.len();
            links.extend(match link.shared_bandwidth {
                Some(shared) => [way(0, tier, shared, None), way(tier, 0, shared, Some(first))],
                None => [way(0, tier, link.out_bandwidth, None), way(tier, 0, link.back_bandwidth, None)],
            });
        }
        (tiers, links)
    }
}

/// The host's time to launch an operation, in nanoseconds, measured with PyTorch on the host of an H100. See
/// [`Memory::launch_ns`].
const LAUNCH_NS: u64 = 25_000;

/// Saved tensors smaller than this stay in memory by default.
pub(crate) const MIN_TENSOR_BYTES: u64 = 1 << 20;
/// Saved tensors smaller than this stay in the host's memory, where bytes are worth more than on a device.
const MIN_TENSOR_BYTES_ON_HOST: u64 = 128 << 10;

/// The memory that a budget limits.
#[derive(Clone)]
pub enum Memory {
    /// The memory of tensors on the CPU.
    Host(Arc<HostMemory>),
    /// The memory of tensors on a device.
    Device(&'static DeviceMemory),
}

/// The most bytes of a memory that were in use at once, over a period.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peak {
    /// The most bytes of blocks at once.
    pub(crate) allocated_bytes: u64,
    /// The most bytes at once that the allocator held for blocks, including those that it caches for later blocks.
    pub(crate) reserved_bytes: u64,
}

impl Peak {
    /// Returns the larger of each number of two peaks.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            allocated_bytes: self.allocated_bytes.max(other.allocated_bytes),
            reserved_bytes: self.reserved_bytes.max(other.reserved_bytes),
        }
    }
}

impl Memory {
    /// Returns the memory of a device, if there is one and Tenure manages it. For the CPU, installs Tenure's host
    /// memory.
    pub fn of(device: Device) -> Option<Self> {
        if device.is_cpu() {
            HostMemory::install();
            return HostMemory::installed().map(Self::Host);
        }
        memory::installed(device.index().into()).map(Self::Device)
    }

    /// Returns the device that has the memory. Returns None for the host's memory.
    pub fn device(&self) -> Option<&'static DeviceMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }

    /// Returns the size in bytes below which saved tensors of our own front ends stay in this memory by default.
    pub fn min_tensor_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => MIN_TENSOR_BYTES_ON_HOST,
            Self::Device(_) => MIN_TENSOR_BYTES,
        }
    }

    /// Returns the counters of the memory's allocator.
    pub fn statistics(&self) -> Statistics {
        match self {
            Self::Host(memory) => memory.statistics(),
            Self::Device(memory) => memory.allocator().statistics(),
        }
    }

    /// Returns the peaks of allocated and of reserved bytes since the last call, and resets them.
    pub(crate) fn take_peak(&self) -> Peak {
        let all = self.statistics().all;
        match self {
            Self::Host(memory) => memory.reset_peak_statistics(),
            Self::Device(memory) => memory.allocator().reset_peak_statistics(),
        }
        Peak { allocated_bytes: all.allocated_bytes.peak, reserved_bytes: all.reserved_bytes.peak }
    }

    /// Limits the bytes that the memory holds. None removes the limit.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Result<(), OffloadError> {
        let set = match self {
            Self::Host(memory) => memory.set_limit(bytes),
            Self::Device(memory) => {
                let allocator = memory.allocator();
                allocator.count_overhead(false);
                let total =
                    memory.driver().memory_info().map_err(|error| OffloadError::Memory(error.to_string()))?.total;
                let fraction = bytes.map_or(1.0, |bytes| (bytes as f64 / total as f64).min(1.0));
                allocator.set_memory_fraction(fraction).and_then(|()| allocator.release_cached())
            }
        };
        set.map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// Gives back host memory that is free but cached by the allocator, which planning may have left. Does nothing for
    /// a device's memory.
    pub(crate) fn release_cached(&self) -> Result<(), OffloadError> {
        let Self::Host(memory) = self else { return Ok(()) };
        memory.release_cached().map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// Begins a step of a kind: the allocator gives back address ranges and memory that the last steps did not use, and
    /// puts blocks where they were in earlier steps of the kind.
    pub(crate) fn begin_step(&self, kind: u64) -> Result<(), OffloadError> {
        let begun = self.device().map_or(Ok(()), |memory| memory.allocator().begin_cycle(kind));
        begun.map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// Returns the bytes of a limit that plans do not count on: unused parts of chunks, and what other threads need for
    /// a moment.
    pub fn slack_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 1 << 20,
            Self::Device(_) => 8 << 20,
        }
    }

    /// Returns the bytes of a budget that plans leave free at first, if they can. On the host, pages are as good as
    /// each other.
    pub(crate) fn spare_bytes(&self, budget_bytes: u64) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Device(_) => budget_bytes / SPARE_PART,
        }
    }

    /// Returns whether the memory is that of a simulated device, which has no time of its own.
    pub(crate) fn is_simulated(&self) -> bool {
        self.device().is_some_and(|device| matches!(device.driver().executor(), Executor::Sim(_)))
    }

    /// Returns the host's time for each recomputed operation, in nanoseconds: the host notes the operation where the
    /// front end asks for it first, and asks for it again later. It is 0 for the host's memory, where this is part
    /// of the operation's own time, and for a simulated device.
    pub(crate) fn launch_ns(&self) -> u64 {
        if self.device().is_none() || self.is_simulated() { 0 } else { LAUNCH_NS }
    }

    /// Makes the allocator call `callback` when it finds no room. The callback returns whether it has made some.
    pub(crate) fn on_full(&self, callback: FreeMemoryCallback) {
        match self {
            Self::Host(memory) => memory.add_free_memory_callback(callback),
            Self::Device(memory) => memory.allocator().add_free_memory_callback(callback),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(together: Option<u64>) -> SpillLink {
        let (out_bandwidth, back_bandwidth) = (2_000, 900);
        SpillLink { name: "disk".into(), capacity: None, out_bandwidth, back_bandwidth, shared_bandwidth: None }
            .sharing(together)
    }

    #[test]
    fn ways_share_a_link_that_is_no_faster_both_ways_than_one_way() {
        assert_eq!(
            [None, Some(2_800), Some(1_000)].map(|together| link(together).shared_bandwidth),
            [None, None, Some(1_000)]
        );
        let machine = |link| Machine { budget_bytes: 1, slack_bytes: 0, bandwidth: 1, launch_ns: 0, links: vec![link] };
        let ways =
            |link| machine(link).tiers(1).1.into_iter().map(|way| (way.bandwidth, way.shared_with)).collect::<Vec<_>>();
        assert_eq!(ways(link(None)), [(2_000, None), (900, None)]);
        assert_eq!(ways(link(Some(1_000))), [(1_000, None), (1_000, Some(0))]);
    }
}
