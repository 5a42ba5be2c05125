//! `tenure devices`: lists the devices, or says why there are none.

use std::process::{self, ExitCode};

use tenure::devices::{DeviceEntry, DeviceFacts, DeviceState, Host, Listing};
use tenure::units::{Bytes, Count};

use crate::figures::table;
use crate::files;
use crate::platform::platform;
use crate::values::DriverKind;

/// List the devices, or say why there are none
#[derive(clap::Args)]
#[command(after_help = "\
Memory and processes are listed for devices that could be started; starting one takes a moment and some of its \
memory.

Examples:
  tenure devices
  tenure devices --json")]
pub(crate) struct DevicesArgs {
    /// The driver whose devices are listed
    #[arg(long, value_enum, default_value_t = DriverKind::Cuda, value_name = "NAME")]
    driver: DriverKind,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DevicesArgs) -> ExitCode {
    let listing = match args.driver {
        DriverKind::Cuda => Listing::cuda(),
        DriverKind::Sim => Listing::new(platform(args.driver)),
    };
    files::print(match args.json {
        true => serde_json::to_string(&listing).map(|line| line + "\n").map_err(Into::into),
        false => Ok(text(&listing)),
    })
}

/// Formats the listing for people.
fn text(listing: &Listing) -> String {
    let mut parts = vec![block("cpu", listing.cpu.name.as_deref(), &host(&listing.cpu))];
    let versions = [("NVIDIA driver", &listing.driver_version), ("CUDA", &listing.cuda_version)];
    let versions = versions.iter().filter_map(|(what, version)| Some(format!("{what} {}", version.as_ref()?)));
    let versions = versions.collect::<Vec<_>>().join(", ");
    if !versions.is_empty() {
        parts.push(versions + "\n");
    }
    parts.extend(listing.unavailable.iter().map(|reason| format!("no GPU: {reason}\n")));
    parts.extend(listing.devices.iter().map(device));
    if listing.devices.len() > 1 {
        parts.push(links(&listing.devices));
    }
    parts.join("\n")
}

/// Formats a heading with facts below it.
fn block(head: &str, name: Option<&str>, facts: &[(&str, String)]) -> String {
    let facts: String = facts.iter().map(|(what, value)| format!("  {what:<16} {value}\n")).collect();
    format!("{head:<8} {}\n{facts}", name.unwrap_or("?"))
}

fn host(host: &Host) -> Vec<(&'static str, String)> {
    let memory = host.free_bytes.zip(host.total_bytes).map(|(free, total)| memory(free, total));
    let facts = [
        ("cores", host.cores.map(|cores| cores.to_string())),
        ("memory", memory),
        ("memory nodes", host.numa_nodes.map(|nodes| nodes.to_string())),
    ];
    facts.into_iter().filter_map(|(what, value)| Some((what, value?))).collect()
}

fn device(entry: &DeviceEntry) -> String {
    let mut lines = Vec::new();
    lines.extend(entry.error.iter().map(|reason| ("not usable", reason.clone())));
    lines.extend(entry.state.as_ref().map(|state| ("memory", memory(state.free_bytes, state.total_bytes))));
    lines.extend(entry.facts.iter().flat_map(facts));
    lines.extend(entry.state.as_ref().map(|state| ("processes", processes(state))));
    let name = entry.facts.as_ref().map(|facts| facts.name.as_str());
    block(&format!("cuda:{}", entry.number), name, &lines)
}

fn facts(facts: &DeviceFacts) -> [(&'static str, String); 4] {
    let sharing = match (facts.has_virtual_memory, facts.shares_descriptors) {
        (true, true) => "yes, in chunks that processes can share",
        (true, false) => "yes, in chunks that processes cannot share",
        (false, _) => "no: only `native` allocates here",
    };
    let node = facts.numa_node.map_or(String::new(), |node| format!(", next to memory node {node}"));
    let compute = format!(
        "capability {}, {} multiprocessors, {} of L2 cache, {} copy engines",
        facts.compute_capability,
        Count(facts.multiprocessors.into()),
        Bytes(facts.l2_bytes),
        facts.copy_engines
    );
    [
        ("compute", compute),
        ("virtual memory", sharing.into()),
        ("PCI address", format!("{}{node}", facts.pci_address)),
        ("uuid", facts.uuid.clone()),
    ]
}

fn memory(free: u64, total: u64) -> String {
    format!("{} free of {}", Bytes(free), Bytes(total))
}

fn processes(state: &DeviceState) -> String {
    let Some(processes) = &state.processes else { return "the system does not tell".into() };
    let described = processes.iter().map(|process| {
        let bytes = process.bytes.map_or("?".into(), |bytes| Bytes(bytes).to_string());
        let own = if process.pid == process::id() { " (this one)" } else { "" };
        format!("{}{own}: {bytes}", process.pid)
    });
    let described: Vec<_> = described.collect();
    if described.is_empty() { "none".into() } else { described.join(", ") }
}

/// Formats the link from a device to another.
fn link(device: &DeviceEntry, other: &DeviceEntry) -> String {
    let Some(link) = device.links.iter().find(|link| link.to == other.number) else { return "-".into() };
    let name = link.link.as_deref().unwrap_or("unknown");
    if link.peer_access { name.into() } else { format!("{name}, no peer access") }
}

/// Formats the links between devices, a row for each.
fn links(devices: &[DeviceEntry]) -> String {
    let names: Vec<_> = devices.iter().map(|device| format!("cuda:{}", device.number)).collect();
    let rows: Vec<_> = devices
        .iter()
        .zip(&names)
        .map(|(device, name)| {
            let cells = devices.iter().map(|other| link(device, other));
            std::iter::once(name.clone()).chain(cells).collect::<Vec<String>>()
        })
        .collect();
    let heads: Vec<_> = std::iter::once("links").chain(names.iter().map(String::as_str)).collect();
    table(&heads, &rows)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tenure::device::sim::SimConfig;
    use tenure_device::sim::SimPlatform;
    use tenure_device::{ErrorKind, LinkKind};

    use super::*;

    fn platform(count: usize) -> SimPlatform {
        SimPlatform::new(vec![SimConfig::default(); count])
    }

    #[test]
    fn a_device_says_what_it_is_and_what_is_on_it() {
        let listing = Listing::new(&platform(1));
        let text = text(&listing);
        for fact in
            ["cpu", "CUDA 13.0", "cuda:0", "Simulated H200", "151 GB free of 151 GB", "9.0", "132", "0000:00:00.0"]
        {
            assert!(text.contains(fact), "{fact} is missing from\n{text}");
        }
        assert!(!text.contains("NVLink"), "one device has no links\n{text}");
    }

    #[test]
    fn links_are_a_matrix() {
        let platform = platform(3).with_link(0, 2, Some(LinkKind::PciSwitch), true).with_link(1, 2, None, false);
        let text = text(&Listing::new(&platform));
        let matrix = "\
links       cuda:0                   cuda:1                   cuda:2
cuda:0           -               18 NVLinks               PCI switch
cuda:1  18 NVLinks                        -  unknown, no peer access
cuda:2  PCI switch  unknown, no peer access                        -
";
        assert_eq!(&text[text.find("links").unwrap()..], matrix);
    }

    #[test]
    fn why_there_is_none_is_said() {
        let reasons = [
            (ErrorKind::NoDriver { reason: "no libcuda.so.1".into() }, "no libcuda.so.1", None),
            (ErrorKind::NoDevice, "CUDA_VISIBLE_DEVICES", Some("13.0")),
            (ErrorKind::DriverTooOld { serves: 11_040, needed: 12_000 }, "update the driver", Some("11.4")),
            (ErrorKind::StartFailed { reason: "not permitted".into() }, "not permitted", None),
        ];
        for (kind, said, version) in reasons {
            let listing = Listing::new(&platform(2).with_count(Err(kind)));
            assert!(listing.unavailable.as_ref().unwrap().contains(said));
            assert_eq!(listing.cuda_version.as_deref(), version);
            let text = text(&listing);
            assert!(text.contains(said) && text.contains("cpu") && !text.contains("cuda:0"), "{text}");
        }
    }
}
