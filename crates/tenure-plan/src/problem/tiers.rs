//! Default tiers, for problems that name none.

use super::{ProblemLink, ProblemTier};

/// Returns the memory of an NVIDIA H200 and pinned host memory, with measured bandwidths: 4.2 TB/s for copies within
/// the device, reads plus writes; between the two 55 GB/s each way, and 102 GB/s both ways at once, which counts as not
/// shared.
pub(super) fn device_and_host() -> (Vec<ProblemTier>, Vec<ProblemLink>) {
    let tier = |name: &str, bandwidth, latency_ns| ProblemTier {
        name: name.into(),
        capacity: None,
        is_reachable: true,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        latency_ns,
        loaded: Vec::new(),
    };
    let link = |from, to| ProblemLink { from, to, bandwidth: HOST_BANDWIDTH, shared_with: None };
    (vec![tier("device", DEVICE_BANDWIDTH, 0), tier("host", HOST_BANDWIDTH, 1000)], vec![link(0, 1), link(1, 0)])
}

/// Bytes per second.
const DEVICE_BANDWIDTH: u64 = 4_200_000_000_000;
const HOST_BANDWIDTH: u64 = 55_000_000_000;
