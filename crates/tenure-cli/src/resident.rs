//! What this process has in memory, as the system counts, but for what is mapped from files, such as its code: the system
//! takes that back when it needs to. Elsewhere than on Linux nobody knows.

use std::fs;

/// Bytes now.
pub(crate) fn now() -> Option<u64> {
    status("VmRSS:")?.checked_sub(status("RssFile:")?)
}

/// The most since that was [forgotten](forget_most). What is mapped from files only gets more.
pub(crate) fn most() -> Option<u64> {
    status("VmHWM:")?.checked_sub(status("RssFile:")?)
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
