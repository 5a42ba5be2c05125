//! The host: its CPU and memory.

use std::fs;
use std::thread;

use serde::Serialize;

/// The host's resources for this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// The processor's own name.
    pub name: Option<String>,
    /// The number of threads that may run at once.
    pub cores: Option<usize>,
    /// Memory available without swapping, in bytes.
    pub free_bytes: Option<u64>,
    /// The host's memory, in bytes.
    pub total_bytes: Option<u64>,
    /// The number of memory nodes (NUMA).
    pub numa_nodes: Option<usize>,
}

impl Host {
    /// Describes the machine that this process runs on. DeviceFacts that the system does not report are `None`.
    pub(super) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        Self {
            name: field(&processors, "model name").map(Into::into),
            cores: thread::available_parallelism().ok().map(Into::into),
            free_bytes: bytes(&memory, "MemAvailable"),
            total_bytes: bytes(&memory, "MemTotal"),
            numa_nodes: numa_nodes(),
        }
    }
}

/// Returns the value of a line such as `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(key, value)| (key.trim(), value.trim())).find(|&(key, _)| key == name).map(|(_, value)| value)
}

/// Returns the value of a line such as `name: 5 kB`, in bytes.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn numa_nodes() -> Option<usize> {
    let entries = fs::read_dir("/sys/devices/system/node").ok()?;
    Some(
        entries
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok()))
            })
            .count(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotalX: 7 kB\nMemTotal:       131072 kB\nmodel name\t: Xeon: 8 cores\n";
        assert_eq!(bytes(text, "MemTotal"), Some(128 << 20));
        assert_eq!(field(text, "model name"), Some("Xeon: 8 cores"));
        assert_eq!((bytes(text, "MemFree"), bytes(text, "model name")), (None, None));
    }
}
