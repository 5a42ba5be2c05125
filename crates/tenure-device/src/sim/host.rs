//! Registered host memory of simulated devices.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_alloc::Address;

use super::memory::SimMemory;
use super::race::{Access, Clock, HostUse};
use crate::{AccessMode, ErrorKind, Launch};

/// Registered host memory. All devices of a platform use it, whichever of them registered it.
#[derive(Default)]
pub(super) struct Registrations {
    /// The registrations, by first byte; they do not overlap.
    ranges: Mutex<BTreeMap<u64, Registration>>,
}

#[derive(Clone, Copy)]
struct Registration {
    end: u64,
    access: AccessMode,
}

/// A device's use of host memory.
pub(super) struct SimHostMemory {
    registrations: Arc<Registrations>,
    /// This device's use of each registration, by the registration's first byte.
    used: BTreeMap<u64, DeviceUse>,
}

/// A device's use of one registration.
#[derive(Default)]
struct DeviceUse {
    /// The address at which kernels use the memory, once a caller has asked for it.
    on_device: Option<Address>,
    /// The last asynchronous copy of each stream.
    copies: Vec<Access>,
}

impl Registrations {
    /// Returns the registrations that overlap a range, the last first.
    fn overlapping(&self, range: &Range<u64>) -> Vec<(u64, Registration)> {
        let ranges = self.ranges.lock();
        let below = ranges.range(..range.end).rev();
        below.take_while(|(_, found)| found.end > range.start).map(|(start, found)| (*start, *found)).collect()
    }
}

impl SimHostMemory {
    pub(super) fn new(registrations: Arc<Registrations>) -> Self {
        Self { registrations, used: BTreeMap::new() }
    }

    /// Registers host memory, for all devices. It may not overlap registered memory.
    pub(super) fn register(&mut self, address: u64, bytes: u64, access: AccessMode) -> Result<(), ErrorKind> {
        for (what, value) in [("address", address), ("size", bytes)] {
            if value == 0 {
                return Err(ErrorKind::Misaligned { what, value, granularity: 1 });
            }
        }
        let range = address..address.saturating_add(bytes);
        let mut ranges = self.registrations.ranges.lock();
        if let Some((&start, registration)) = ranges.range(..range.end).next_back()
            && registration.end > range.start
        {
            return Err(ErrorKind::HostRegistered { range, existing: start..registration.end });
        }
        ranges.insert(address, Registration { end: range.end, access });
        Ok(())
    }

    /// Returns the address at which kernels find the memory registered at `address`.
    pub(super) fn on_device(&mut self, address: u64, memory: &mut SimMemory) -> Result<Address, ErrorKind> {
        let found = self.registrations.overlapping(&(address..address.saturating_add(1)));
        let &[(start, registration)] = &found[..] else { return Err(ErrorKind::HostNotRegistered(address)) };
        let used = self.used.entry(start).or_default();
        let first = match used.on_device {
            Some(first) => first,
            None => memory.map_host(start, registration.end - start, registration.access)?,
        };
        used.on_device = Some(first);
        Ok(first + (address - start))
    }

    /// Removes the registration at `address`. `host` is the work that the host knows to be complete. Other devices must
    /// then [end their use](Self::end_use) of the range.
    pub(super) fn unregister(
        &mut self,
        address: u64,
        memory: &mut SimMemory,
        host: &Clock,
    ) -> Result<Range<u64>, ErrorKind> {
        let registration = self.registrations.ranges.lock().get(&address).copied();
        let Registration { end, .. } = registration.ok_or(ErrorKind::HostNotRegistered(address))?;
        self.end_use(&(address..end), memory, host)?;
        self.registrations.ranges.lock().remove(&address);
        Ok(address..end)
    }

    /// Ends this device's use of a registration. Fails if work may still use the memory. `host` is the work that the
    /// host knows to be complete here.
    pub(super) fn end_use(
        &mut self,
        range: &Range<u64>,
        memory: &mut SimMemory,
        host: &Clock,
    ) -> Result<(), ErrorKind> {
        let in_use = |launch: &Arc<Launch>| {
            let range = range.clone();
            let launch = Arc::clone(launch);
            ErrorKind::UnregisteredInUse { range, launch }
        };
        let Some(used) = self.used.get(&range.start) else { return Ok(()) };
        if let Some(copy) = used.copies.iter().find(|copy| !host.covers(copy)) {
            return Err(in_use(&copy.launch));
        }
        if let Some(first) = used.on_device {
            memory.unmap_host(first, host).map_err(|launch| in_use(&launch))?;
        }
        self.used.remove(&range.start);
        Ok(())
    }

    /// Refuses a copy into memory that was registered for reading only.
    pub(super) fn check_writable(&self, used: &HostUse, launch: &Arc<Launch>) -> Result<(), ErrorKind> {
        let overlapping = self.registrations.overlapping(&used.range);
        match overlapping.iter().find(|(_, registration)| registration.access == AccessMode::Read) {
            Some((start, registration)) if used.write => {
                Err(ErrorKind::ReadOnly { launch: Arc::clone(launch), range: *start..registration.end })
            }
            _ => Ok(()),
        }
    }

    /// Records that a copy uses host memory. Only its use of registered memory is kept.
    pub(super) fn record_copy(&mut self, used: &HostUse, access: &Access) {
        for (start, _) in self.registrations.overlapping(&used.range) {
            let copies = &mut self.used.entry(start).or_default().copies;
            copies.retain(|earlier| !earlier.is_superseded_by(access));
            copies.push(access.clone());
        }
    }
}
