//! The trait of a driver library's devices, and the properties of devices.

use std::sync::Arc;

use crate::{CallError, Driver};

/// The largest number of devices: PyTorch counts them in a signed byte. With more devices,
/// [`device_count`](crate::functions::device_count) fails.
pub const MAX_DEVICES: usize = 128;

/// The devices of one driver library.
///
/// A device's driver starts only when it is used: counting devices creates no context.
pub trait Platform: Send + Sync {
    /// Returns the number of devices as the driver counts them: no driver and no device are errors here.
    fn device_count(&self) -> Result<u32, CallError>;

    /// Returns the newest CUDA version that the driver serves, as CUDA writes it: 13000 is 13.0.
    fn driver_version(&self) -> Result<u32, CallError>;

    /// Returns the properties of device number `device`.
    fn properties(&self, device: u8) -> Result<Properties, CallError>;

    /// Returns whether `device` can reach the memory of `peer` in place.
    fn can_access_peer(&self, device: u8, peer: u8) -> Result<bool, CallError>;

    /// Returns the fastest connection from `device` to `peer`, or `None` where the system does not tell.
    fn link(&self, device: u8, peer: u8) -> Option<LinkKind>;

    /// Returns the driver of a device: started on the first call, and the same one at every later call.
    fn driver(&self, device: u8) -> Result<Arc<dyn Driver>, CallError>;
}

/// The properties of a device. CUDA's `cudaDeviceProp`, as far as memory and scheduling need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The product name, such as `NVIDIA H200`.
    pub name: String,
    /// An identifier, the same in every process and after every restart.
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
    /// The number of engines that copy while kernels run.
    pub copy_engines: u32,
    /// Whether physical chunks and address space can be allocated apart.
    pub has_virtual_memory: bool,
    /// Whether chunks can be handed to other processes as file descriptors.
    pub shares_descriptors: bool,
    /// The host's NUMA node next to the device, where the system tells.
    pub numa_node: Option<u32>,
}

/// The fastest way from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// NVLink connections between the two devices.
    NvLink {
        /// The number of links.
        count: u32,
    },
    /// Through one or several PCI switches, not the host's bridge.
    PciSwitch,
    /// Through the host's PCI bridge.
    HostBridge,
    /// Through the connection between the host's processors.
    System,
}
