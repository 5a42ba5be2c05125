//! Facts about devices that only the management library (NVML) knows: the processes that use them, and the links
//! between them.

use std::sync::OnceLock;

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Device, Nvml};

use crate::{DeviceProcess, LinkKind, Properties};

/// The largest number of NVLinks on a device (`NVML_NVLINK_MAX_LINKS`).
const MAX_LINKS: u32 = 18;

/// Returns the processes that compute on a device. In a container, the process numbers may be those of the host, and
/// processes outside the container may be missing.
pub(super) fn processes(properties: &Properties) -> Option<Vec<DeviceProcess>> {
    let processes = find(properties)?.running_compute_processes().ok()?;
    let processes = processes.into_iter().map(|process| {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        DeviceProcess { pid: process.pid, bytes }
    });
    Some(processes.collect())
}

/// Returns the link between two devices.
pub(super) fn link(from: &Properties, to: &Properties) -> Option<LinkKind> {
    let from = find(from)?;
    let to = find(to)?;
    if from.p2p_status(&to, P2pCapabilitiesIndex::NvLink).is_ok_and(|status| status == P2pStatus::Ok) {
        return Some(LinkKind::NvLink { count: nv_links(&from, &to) });
    }
    Some(match from.topology_common_ancestor(to).ok()? {
        TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple => LinkKind::PciSwitch,
        TopologyLevel::HostBridge => LinkKind::HostBridge,
        TopologyLevel::Node | TopologyLevel::System => LinkKind::System,
    })
}

/// Returns how many links lead from one device to the other. If no link ends at the other device, all active links
/// count, because they then end in switches that connect every device.
fn nv_links(from: &Device<'_>, to: &Device<'_>) -> u32 {
    let peer = to.pci_info().ok();
    let active =
        || (0..MAX_LINKS).map(|link| from.link_wrapper_for(link)).filter(|link| link.is_active().unwrap_or(false));
    let ends_there = |remote: &nvml_wrapper::struct_wrappers::device::PciInfo| {
        peer.as_ref()
            .is_some_and(|peer| (peer.domain, peer.bus, peer.device) == (remote.domain, remote.bus, remote.device))
    };
    match active().filter(|link| link.remote_pci_info().is_ok_and(|remote| ends_there(&remote))).count() {
        0 => active().count() as u32,
        direct => direct as u32,
    }
}

/// Finds NVML's device for a device of the driver. The two may number devices differently.
fn find(properties: &Properties) -> Option<Device<'static>> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(|| Nvml::init().ok()).as_ref()?;
    // The UUID of a part of a device (MIG) is not that of a device, so such a part is found by its PCI address.
    let device = nvml.device_by_uuid(uuid_text(&properties.uuid));
    device.or_else(|_| nvml.device_by_pci_bus_id(properties.pci_address.as_str())).ok()
}

/// Returns a device's UUID as NVML writes it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex[part].concat());
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_in_groups() {
        let uuid = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(uuid_text(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_device_that_is_not_there_has_no_processes_and_no_links() {
        let properties = Properties {
            name: String::new(),
            uuid: [0; 16],
            pci_address: "ffff:ff:1f.7".to_owned(),
            compute_capability: (0, 0),
            total_bytes: 0,
            multiprocessors: 0,
            l2_bytes: 0,
            copy_engines: 0,
            has_virtual_memory: false,
            shares_descriptors: false,
            numa_node: None,
        };
        assert_eq!(processes(&properties), None);
        assert_eq!(link(&properties, &properties), None);
    }
}
