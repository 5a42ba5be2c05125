//! What devices there are, what is on them, how they are linked; or why there are none.

mod host;

use std::fs;

use serde::Serialize;
use tenure_device::{Driver, Link, Platform, Properties, cuda};

pub use host::Host;

/// The devices of a platform, and the host. Its JSON has the fields as keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// The host.
    pub cpu: Host,
    /// The version of the driver in the kernel.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver serves, such as `13.0`.
    pub cuda_version: Option<String>,
    /// Why there are no devices.
    pub unavailable: Option<String>,
    /// One for each device, in the order of their numbers.
    pub devices: Vec<Entry>,
}

/// A device, as far as it can be asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its number, from 0.
    pub number: u8,
    /// Why it does not tell what it is, or does not start.
    pub error: Option<String>,
    /// What it is, if it tells.
    #[serde(flatten)]
    pub facts: Option<Facts>,
    /// What is on it, if it started.
    #[serde(flatten)]
    pub state: Option<State>,
    /// The ways to the other devices.
    pub links: Vec<Way>,
}

/// What a device is: [`Properties`] in the words of listings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// As sold.
    pub name: String,
    /// As `nvidia-smi` writes it.
    pub uuid: String,
    /// Address on the PCI bus.
    pub pci_address: String,
    /// Such as `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Level 2 cache, in bytes.
    pub l2_bytes: u64,
    /// Engines that copy beside running kernels.
    pub copy_engines: u32,
    /// Whether physical chunks and address space can be had apart.
    pub has_virtual_memory: bool,
    /// Whether chunks can be handed to other processes as file descriptors.
    pub shares_descriptors: bool,
    /// The host's memory node next to the device, where the system tells.
    pub numa_node: Option<u32>,
}

/// What is on a device, once it was started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// Memory that nobody holds, in bytes.
    pub free_bytes: u64,
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// Who uses it; `None` where the system does not tell.
    pub processes: Option<Vec<Process>>,
}

/// A process that uses a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Its number in the system.
    pub pid: u32,
    /// What it holds, where the system tells.
    pub bytes: Option<u64>,
}

/// The way to another device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// The other device's number.
    pub to: u8,
    /// What connects the two, where the system tells.
    pub link: Option<String>,
    /// Whether the other's memory can be reached in place.
    pub peer_access: bool,
}

impl Listing {
    /// The NVIDIA devices, and the version of the driver in the kernel.
    pub fn cuda() -> Self {
        Self { driver_version: kernel_driver(), ..Self::new(cuda::platform()) }
    }

    /// The devices of `platform`. Each is started to be asked how much of its memory is free.
    pub fn new(platform: &dyn Platform) -> Self {
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
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_elsewhere() {
        let bytes = std::array::from_fn(|index| 16 * index as u8 + 1);
        assert_eq!(uuid(bytes), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
    }
}
