use std::sync::Arc;

use crate::{CallError, Driver};

/// The devices of one driver library, as it shows them.
///
/// Nothing is started before it is asked for: counting devices makes no context.
pub trait Platform: Send + Sync {
    /// How many devices there are, by the driver's own answer: no driver and no device are errors here.
    fn device_count(&self) -> Result<u32, CallError>;

    /// The newest CUDA version that the driver serves, as CUDA writes it: 13000 is 13.0.
    fn driver_version(&self) -> Result<u32, CallError>;

    /// What device number `device` is.
    fn properties(&self, device: u8) -> Result<Properties, CallError>;

    /// Whether `device` can reach the memory of `peer` in place.
    fn can_access_peer(&self, device: u8, peer: u8) -> Result<bool, CallError>;

    /// How `device` reaches `peer`; `None` where the system does not tell.
    fn link(&self, device: u8, peer: u8) -> Option<Link>;

    /// The driver of a device, started on the first call and the same at every later one.
    fn driver(&self, device: u8) -> Result<Arc<dyn Driver>, CallError>;
}

/// What a device is. CUDA's `cudaDeviceProp`, as far as memory and scheduling need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// As sold, such as `NVIDIA H200`.
    pub name: String,
    /// The same device in every process and after every start.
    pub uuid: [u8; 16],
    /// Address on the PCI bus, such as `0000:18:00.0`.
    pub pci_address: String,
    /// Major and minor number of the instruction set.
    pub compute_capability: (u32, u32),
    /// Physical memory, in bytes.
    pub total_bytes: u64,
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

/// A way from one device to another, the fastest there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// Links of the device's own kind, side by side.
    NvLink {
        /// How many.
        count: u32,
    },
    /// Through one or several PCI switches, not the host's bridge.
    PciSwitch,
    /// Through the host's PCI bridge.
    HostBridge,
    /// Through the connection between the host's processors.
    System,
}
