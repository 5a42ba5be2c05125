//! A platform of simulated devices.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::host::Registrations;
use super::{Siblings, SimConfig, SimDriver};
use crate::{Call, CallError, Driver, ErrorKind, LinkKind, Platform, Properties};

/// The CUDA version that simulated devices report.
const VERSION: u32 = 13_000;

/// Simulated devices, side by side as in an HGX H200: each pair is connected by 18 links.
pub struct SimPlatform {
    count: Result<u32, ErrorKind>,
    devices: Vec<(SimConfig, OnceLock<Arc<SimDriver>>)>,
    /// The scripted connections between pairs of devices, the lower number first.
    pairs: BTreeMap<(u8, u8), Pair>,
    /// Registered host memory, for all devices.
    registrations: Arc<Registrations>,
    siblings: Siblings,
}

/// The connection of two devices.
struct Pair {
    link: Option<LinkKind>,
    peer_access: bool,
}

impl SimPlatform {
    /// Creates one device for each of `devices`, numbered from 0. With none, [`Platform::device_count`] fails.
    pub fn new(devices: Vec<SimConfig>) -> Self {
        let count = if devices.is_empty() { Err(ErrorKind::NoDevice) } else { Ok(devices.len() as u32) };
        let devices = devices.into_iter().map(|config| (config, OnceLock::new())).collect();
        Self { count, devices, pairs: BTreeMap::new(), registrations: Arc::default(), siblings: Siblings::default() }
    }

    /// Makes [`Platform::device_count`] return `count`. Devices beyond the count do not exist; if it is an error, no
    /// device exists.
    pub fn with_count(self, count: Result<u32, ErrorKind>) -> Self {
        Self { count, ..self }
    }

    /// Sets the link between `a` and `b`, and whether they can access each other's memory.
    pub fn with_link(mut self, a: u8, b: u8, link: Option<LinkKind>, peer_access: bool) -> Self {
        self.pairs.insert((a.min(b), a.max(b)), Pair { link, peer_access });
        self
    }

    /// Returns the driver that [`Platform::driver`] gives, as a simulated driver.
    ///
    /// # Errors
    /// The errors of [`Platform::driver`].
    pub fn sim(&self, device: u8) -> Result<&Arc<SimDriver>, CallError> {
        let (config, driver) = self.device(Call::RetainContext, device)?;
        Ok(driver.get_or_init(|| {
            let others = (0..=u8::MAX).take(self.devices.len());
            let peers = others.filter(|&peer| self.pair(device, peer).is_some_and(|pair| pair.peer_access));
            let registrations = Arc::clone(&self.registrations);
            let siblings = Arc::clone(&self.siblings);
            let driver = Arc::new(SimDriver::numbered(*config, device, peers.collect(), registrations, siblings));
            self.siblings.lock().push(Arc::downgrade(&driver));
            driver
        }))
    }

    fn device(&self, call: Call, device: u8) -> Result<&(SimConfig, OnceLock<Arc<SimDriver>>), CallError> {
        let count = self.checked_count(call)?;
        self.devices.get(usize::from(device)).filter(|_| u32::from(device) < count).ok_or_else(|| {
            let name = "CUDA_ERROR_INVALID_DEVICE".into();
            let description = format!("device {device} does not exist");
            CallError { call, kind: ErrorKind::Device { code: 101, name, description, in_flight: Vec::new() } }
        })
    }

    /// Returns the number of devices, or its error as one of `call`.
    fn checked_count(&self, call: Call) -> Result<u32, CallError> {
        self.count.clone().map_err(|kind| CallError { call, kind })
    }

    /// Returns the connection of two devices, or `None` for a device and itself.
    fn pair(&self, device: u8, peer: u8) -> Option<&Pair> {
        const DEFAULT: Pair = Pair { link: Some(LinkKind::NvLink { count: 18 }), peer_access: true };
        let pair = (device.min(peer), device.max(peer));
        (device != peer).then(|| self.pairs.get(&pair).unwrap_or(&DEFAULT))
    }
}

impl Platform for SimPlatform {
    fn device_count(&self) -> Result<u32, CallError> {
        self.checked_count(Call::DeviceCount)
    }

    fn driver_version(&self) -> Result<u32, CallError> {
        match self.count {
            Ok(_) | Err(ErrorKind::NoDevice) => Ok(VERSION),
            Err(ErrorKind::DriverTooOld { serves, .. }) => Ok(serves),
            Err(_) => self.checked_count(Call::DriverVersion),
        }
    }

    fn properties(&self, device: u8) -> Result<Properties, CallError> {
        let (config, _) = self.device(Call::Properties, device)?;
        Ok(Properties {
            name: "Simulated H200".to_owned(),
            uuid: uuid(device),
            pci_address: format!("0000:{device:02x}:00.0"),
            compute_capability: (9, 0),
            total_bytes: config.capacity_bytes,
            multiprocessors: 132,
            l2_bytes: 60 << 20,
            copy_engines: 3,
            has_virtual_memory: true,
            shares_descriptors: true,
            numa_node: None,
        })
    }

    fn can_access_peer(&self, device: u8, peer: u8) -> Result<bool, CallError> {
        self.device(Call::CanAccessPeer, device)?;
        self.device(Call::CanAccessPeer, peer)?;
        Ok(self.pair(device, peer).is_some_and(|pair| pair.peer_access))
    }

    fn link(&self, device: u8, peer: u8) -> Option<LinkKind> {
        self.pair(device, peer)?.link
    }

    fn driver(&self, device: u8) -> Result<Arc<dyn Driver>, CallError> {
        Ok(Arc::clone(self.sim(device)?) as Arc<dyn Driver>)
    }
}

/// Returns the identifier of a simulated device.
pub(super) fn uuid(device: u8) -> [u8; 16] {
    let mut uuid = *b"tenure simulated";
    uuid[15] = device;
    uuid
}
