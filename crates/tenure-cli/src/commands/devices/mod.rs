//! What devices there are, and why not.

mod describe;
mod host;

use std::fs;
use std::process::ExitCode;

use serde::Serialize;
use tenure_device::{Driver, Link, Platform, Properties};

use self::host::Host;
use crate::args::{DevicesArgs, DriverKind};
use crate::files;
use crate::platform::platform;

pub(crate) fn run(args: &DevicesArgs) -> ExitCode {
    let mut listing = Listing::new(platform(args.driver));
    if let DriverKind::Cuda = args.driver {
        listing.driver_version = kernel_driver();
    }
    files::print(match args.json {
        true => serde_json::to_string(&listing).map(|line| line + "\n").map_err(Into::into),
        false => Ok(describe::text(&listing)),
    })
}

/// All that is said. Its JSON has the fields as keys.
#[derive(Serialize)]
struct Listing {
    cpu: Host,
    /// The version of the driver in the kernel.
    driver_version: Option<String>,
    /// The newest CUDA that the driver serves, such as `13.0`.
    cuda_version: Option<String>,
    /// Why there are no devices.
    unavailable: Option<String>,
    devices: Vec<Entry>,
}

/// A device, as far as it can be asked.
#[derive(Serialize)]
struct Entry {
    number: u8,
    /// Why it does not tell what it is, or does not start.
    error: Option<String>,
    #[serde(flatten)]
    facts: Option<Facts>,
    #[serde(flatten)]
    state: Option<State>,
    links: Vec<Way>,
}

/// What a device is.
#[derive(Serialize)]
struct Facts {
    name: String,
    uuid: String,
    pci_address: String,
    compute_capability: String,
    multiprocessors: u32,
    l2_bytes: u64,
    copy_engines: u32,
    has_virtual_memory: bool,
    shares_descriptors: bool,
    numa_node: Option<u32>,
}

/// What is on a device, once it was started.
#[derive(Serialize)]
struct State {
    free_bytes: u64,
    total_bytes: u64,
    /// `None` where the system does not tell.
    processes: Option<Vec<Process>>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    bytes: Option<u64>,
}

/// The way to another device.
#[derive(Serialize)]
struct Way {
    to: u8,
    link: Option<String>,
    peer_access: bool,
}

impl Listing {
    fn new(platform: &dyn Platform) -> Self {
        let counted = platform.device_count();
        let count = counted.as_ref().map_or(0, |&count| u8::try_from(count).unwrap_or(u8::MAX));
        let version = platform.driver_version().ok();
        Self {
            cpu: Host::this(),
            driver_version: None,
            cuda_version: version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
            unavailable: counted.err().map(|error| error.kind.to_string()),
            devices: (0..count).map(|number| Entry::new(platform, number, count)).collect(),
        }
    }
}

impl Entry {
    fn new(platform: &dyn Platform, number: u8, count: u8) -> Self {
        let facts = platform.properties(number).map(Facts::from);
        let state = platform.driver(number).and_then(|driver| {
            let info = driver.memory_info()?;
            Ok(State { free_bytes: info.free, total_bytes: info.total, processes: processes(&*driver) })
        });
        let error = facts.as_ref().err().or(state.as_ref().err()).map(|error| error.kind.to_string());
        let others = (0..count).filter(|&other| other != number);
        let links = others.map(|other| Way {
            to: other,
            link: platform.link(number, other).map(link_name),
            peer_access: platform.can_access_peer(number, other).unwrap_or(false),
        });
        Self { number, error, facts: facts.ok(), state: state.ok(), links: links.collect() }
    }
}

impl From<Properties> for Facts {
    fn from(properties: Properties) -> Self {
        let (major, minor) = properties.compute_capability;
        Self {
            name: properties.name,
            uuid: uuid(properties.uuid),
            pci_address: properties.pci_address,
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: properties.multiprocessors,
            l2_bytes: properties.l2_bytes,
            copy_engines: properties.copy_engines,
            has_virtual_memory: properties.has_virtual_memory,
            shares_descriptors: properties.shares_descriptors,
            numa_node: properties.numa_node,
        }
    }
}

fn processes(driver: &dyn Driver) -> Option<Vec<Process>> {
    let processes = driver.processes()?;
    Some(processes.into_iter().map(|process| Process { pid: process.pid, bytes: process.bytes }).collect())
}

/// As `nvidia-smi` writes it.
fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

fn link_name(link: Link) -> String {
    match link {
        Link::NvLink { count: 1 } => "1 NVLink".into(),
        Link::NvLink { count } => format!("{count} NVLinks"),
        Link::PciSwitch => "PCI switch".into(),
        Link::HostBridge => "host bridge".into(),
        Link::System => "across processors".into(),
        link => format!("{link:?}"),
    }
}

/// The NVIDIA driver's own version, where there is one in the kernel.
fn kernel_driver() -> Option<String> {
    fs::read_to_string("/sys/module/nvidia/version").ok().map(|version| version.trim().into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tenure::prelude::*;
    use tenure_device::ErrorKind;
    use tenure_device::sim::SimPlatform;

    use super::*;

    fn platform(count: usize) -> SimPlatform {
        SimPlatform::new(vec![SimConfig::default(); count])
    }

    #[test]
    fn a_device_says_what_it_is_and_what_is_on_it() {
        let listing = Listing::new(&platform(1));
        let text = describe::text(&listing);
        for fact in
            ["cpu", "CUDA 13.0", "cuda:0", "Simulated H200", "151 GB free of 151 GB", "9.0", "132", "0000:00:00.0"]
        {
            assert!(text.contains(fact), "{fact} is missing from\n{text}");
        }
        assert!(!text.contains("NVLink"), "one device has no links\n{text}");
    }

    #[test]
    fn links_are_a_matrix() {
        let platform = platform(3).with_link(0, 2, Some(Link::PciSwitch), true).with_link(1, 2, None, false);
        let text = describe::text(&Listing::new(&platform));
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
            let text = describe::text(&listing);
            assert!(text.contains(said) && text.contains("cpu") && !text.contains("cuda:0"), "{text}");
        }
    }

    #[test]
    fn uuids_are_written_as_elsewhere() {
        let bytes = std::array::from_fn(|index| 16 * index as u8 + 1);
        assert_eq!(uuid(bytes), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
    }
}
