//! The machine of a planning problem: the memory that a step runs in, and the tiers that it can spill to.

use tenure_plan::problem::{self, ProblemTier};
use tenure_tier::{Destination, LinkStatistics, Links, Mover};

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
