//! The resident memory of this process, by the system's count, without pages mapped from files, such as its code: the
//! system reclaims those when it needs to. Known on Linux only.

use std::fs;

/// Returns the current bytes.
pub(crate) fn now() -> Option<u64> {
    status("VmRSS:")?.checked_sub(status("RssFile:")?)
}

/// Returns the most bytes since the peak was [reset](forget_most). Subtracts the pages that are mapped from files now,
/// whose number only grows.
pub(crate) fn most() -> Option<u64> {
    status("VmHWM:")?.checked_sub(status("RssFile:")?)
}

/// Resets the peak to the current bytes.
pub(crate) fn forget_most() {
    // If it cannot be reset, the peak is too high.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}
