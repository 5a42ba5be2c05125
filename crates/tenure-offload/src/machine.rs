//! Where a step runs, and where it can spill to.

use tenure_plan::problem::{self, Tier};
use tenure_tier::{Destination, LinkStatistics, Links, Mover};

/// A tier to spill to, and the way there and back.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The tier's name.
    pub name: String,
    /// Its bytes; none if there is no end.
    pub capacity: Option<u64>,
    /// Bytes per second on the way out.
    pub out_bandwidth: u64,
    /// Bytes per second on the way back.
    pub back_bandwidth: u64,
}

/// Where a step runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Bytes of the memory that it computes in.
    pub budget_bytes: u64,
    /// Of them, those that no plan uses: what an allocator holds beside blocks.
    pub slack_bytes: u64,
    /// Bytes a second that it reads and writes there.
    pub bandwidth: u64,
    /// What it can spill to, the fastest first.
    pub links: Vec<Link>,
}

impl Link {
    /// The ways that a mover has, the fastest first, with their bandwidths as measured: it has moved something, or is
    /// [probed](Mover::probe).
    pub fn of(mover: &Mover) -> Vec<(Self, Destination)> {
        let Links { device_to_host, host_to_device, disk_write, disk_read } = mover.links();
        let link = |name: &str, capacity, out: LinkStatistics, back: LinkStatistics| {
            let bandwidth = |statistics: LinkStatistics| statistics.bandwidth().unwrap_or(1e9) as u64;
            Self { name: name.into(), capacity, out_bandwidth: bandwidth(out), back_bandwidth: bandwidth(back) }
        };
        let host = mover
            .pinned()
            .map(|pinned| (link("host", Some(pinned.limit_bytes), device_to_host, host_to_device), Destination::Host));
        let disk = mover
            .disk()
            .map(|disk| (link("disk", Some(disk.capacity_bytes()), disk_write, disk_read), Destination::Disk));
        host.into_iter().chain(disk).collect()
    }
}

impl Machine {
    /// The first tier has so many bytes, and links lead from it to each other and back.
    pub(crate) fn tiers(&self, bytes: u64) -> (Vec<Tier>, Vec<problem::Link>) {
        let tier = |name: &str, capacity, is_reachable| Tier {
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
            let way = |from, to, bandwidth| problem::Link { from, to, bandwidth, shared_with: None };
            links.extend([way(0, number + 1, link.out_bandwidth), way(number + 1, 0, link.back_bandwidth)]);
        }
        (tiers, links)
    }
}
