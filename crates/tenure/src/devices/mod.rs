//! Listings of devices, their properties, current state and links, or the reason why there are none.

mod host;

use std::fs;

use serde::Serialize;
use tenure_device::{Driver, LinkKind, Platform, Properties, cuda};

pub use host::Host;

/// The devices of a platform, and the host. Its JSON keys are the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// The host.
    pub cpu: Host,
    /// The version of the kernel's driver.
    pub driver_version: Option<String>,
    /// The newest CUDA version that the driver supports, such as `13.0`.
    pub cuda_version: Option<String>,
    /// The reason why there are no devices.
    pub unavailable: Option<String>,
    /// An entry for each device, in the order of their numbers.
    pub devices: Vec<DeviceEntry>,
}

/// A device: its properties and state, or the reason why they are unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceEntry {
    /// Its number, from 0.
    pub number: u8,
    /// The reason why its properties are unknown, or why it does not start.
    pub error: Option<String>,
    /// Its properties, if known.
    #[serde(flatten)]
    pub facts: Option<DeviceFacts>,
    /// Its state, if it started.
    #[serde(flatten)]
    pub state: Option<DeviceState>,
    /// The links to the other devices.
    pub links: Vec<DeviceLink>,
}

/// The properties of a device: [`Properties`] with the names that listings use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFacts {
    /// The product name.
    pub name: String,
    /// The UUID, in the form that `nvidia-smi` prints.
    pub uuid: String,
    /// The address on the PCI bus.
    pub pci_address: String,
    /// The compute capability, such as `9.0`.
    pub compute_capability: String,
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// The size of the level 2 cache, in bytes.
    pub l2_bytes: u64,
    /// The number of engines that copy while kernels run.
    pub copy_engines: u32,
    /// Whether physical chunks and address space can be allocated separately.
    pub has_virtual_memory: bool,
    /// Whether chunks can be passed to other processes as file descriptors.
    pub shares_descriptors: bool,
    /// The host's memory node next to the device, if the system reports it.
    pub numa_node: Option<u32>,
}

/// The state of a device that was started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceState {
    /// Free memory, in bytes.
    pub free_bytes: u64,
    /// The memory of the device, in bytes.
    pub total_bytes: u64,
    /// The processes that use it; `None` if the system does not report them.
    pub processes: Option<Vec<Process>>,
}

/// A process that uses a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// The process identifier.
    pub pid: u32,
    /// The bytes that it holds, if the system reports them.
    pub bytes: Option<u64>,
}

/// The link to another device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceLink {
    /// The other device's number.
    pub to: u8,
    /// The kind of connection, if the system reports it.
    pub link: Option<String>,
    /// Whether kernels can access the other device's memory directly.
    pub peer_access: bool,
}

impl Listing {
    /// Lists the NVIDIA devices, and the version of the kernel's driver.
    pub fn cuda() -> Self {
        Self { driver_version: kernel_driver(), ..Self::new(cuda::platform()) }
    }

    /// Lists the devices of `platform`. Starts each to ask how much of its memory is free.
    pub fn new(platform: &dyn Platform) -> Self {
        let counted = platform.device_count();
        let count = counted.as_ref().map_or(0, |&count| u8::try_from(count).unwrap_or(u8::MAX));
        let version = platform.driver_version().ok();
        Self {
            cpu: Host::this(),
            driver_version: None,
            cuda_version: version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
            unavailable: counted.err().map(|error| error.kind.to_string()),
            devices: (0..count).map(|number| DeviceEntry::new(platform, number, count)).collect(),
        }
    }
}

impl DeviceEntry {
    fn new(platform: &dyn Platform, number: u8, count: u8) -> Self {
        let facts = platform.properties(number).map(DeviceFacts::from);
        let state = platform.driver(number).and_then(|driver| {
            let info = driver.memory_info()?;
            Ok(DeviceState { free_bytes: info.free, total_bytes: info.total, processes: processes(&*driver) })
        });
        let error = facts.as_ref().err().or(state.as_ref().err()).map(|error| error.kind.to_string());
        let others = (0..count).filter(|&other| other != number);
        let links = others.map(|other| DeviceLink {
            to: other,
            link: platform.link(number, other).map(link_name),
            peer_access: platform.can_access_peer(number, other).unwrap_or(false),
        });
        Self { number, error, facts: facts.ok(), state: state.ok(), links: links.collect() }
    }
}

impl From<Properties> for DeviceFacts {
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

/// Formats a UUID the way `nvidia-smi` prints it.
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

fn link_name(link: LinkKind) -> String {
    match link {
        LinkKind::NvLink { count: 1 } => "1 NVLink".into(),
        LinkKind::NvLink { count } => format!("{count} NVLinks"),
        LinkKind::PciSwitch => "PCI switch".into(),
        LinkKind::HostBridge => "host bridge".into(),
        LinkKind::System => "across processors".into(),
        link => format!("{link:?}"),
    }
}

/// Returns the version of the NVIDIA driver in the kernel, if there is one.
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
