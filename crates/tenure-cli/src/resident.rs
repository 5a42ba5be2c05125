//! What this process has in memory, as the system counts. Elsewhere than on Linux nobody knows.

use std::fs;

/// Bytes now.
pub(crate) fn now() -> Option<u64> {
    status("VmRSS:")
}

/// The most since that was [forgotten](forget_most).
pub(crate) fn most() -> Option<u64> {
    status("VmHWM:")
}

/// From now on the most is of now.
pub(crate) fn forget_most() {
    // Where it cannot be forgotten, it is too high.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}
