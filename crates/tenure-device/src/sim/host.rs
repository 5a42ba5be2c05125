use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tenure_alloc::Address;

use super::memory::Memory;
use super::race::{Access, Clock};
use crate::{Access as Rights, ErrorKind, Launch};

/// Memory of the host that is registered with the device.
#[derive(Default)]
pub(super) struct HostMemory {
    /// By first byte; they do not overlap.
    registrations: BTreeMap<u64, Registration>,
}

struct Registration {
    end: u64,
    access: Rights,
    /// Where kernels read it, once that was asked for.
    on_device: Option<Address>,
    /// The last asynchronous copy of each stream.
    uses: Vec<Access>,
}

/// Memory of the host that an asynchronous copy uses.
#[derive(Clone)]
pub(super) struct HostUse {
    pub(super) range: Range<u64>,
    pub(super) write: bool,
}

impl HostMemory {
    pub(super) fn register(&mut self, address: u64, bytes: u64, access: Rights) -> Result<(), ErrorKind> {
        for (what, value) in [("address", address), ("size", bytes)] {
            if value == 0 {
                return Err(ErrorKind::Misaligned { what, value, granularity: 1 });
            }
        }
        let range = address..address.saturating_add(bytes);
        if let Some((&start, registration)) = self.registrations.range(..range.end).next_back()
            && registration.end > range.start
        {
            return Err(ErrorKind::HostRegistered { range, existing: start..registration.end });
        }
        self.registrations.insert(address, Registration { end: range.end, access, on_device: None, uses: Vec::new() });
        Ok(())
    }

    /// Where kernels find what is registered at `address`.
    pub(super) fn on_device(&mut self, address: u64, memory: &mut Memory) -> Result<Address, ErrorKind> {
        let below = self.registrations.range_mut(..=address).next_back();
        let Some((start, registration)) = below.filter(|(_, registration)| address < registration.end) else {
            return Err(ErrorKind::HostNotRegistered(address));
        };
        let first = match registration.on_device {
            Some(first) => first,
            None => memory.map_host(*start, registration.end - start)?,
        };
        registration.on_device = Some(first);
        Ok(first + (address - start))
    }

    /// Forgets what was registered at `address`, given what the host knows to be complete.
    pub(super) fn unregister(&mut self, address: u64, memory: &mut Memory, host: &Clock) -> Result<(), ErrorKind> {
        let registration = self.registrations.get(&address).ok_or(ErrorKind::HostNotRegistered(address))?;
        if let Some(used) = registration.uses.iter().find(|used| !host.covers(used)) {
            let range = address..registration.end;
            return Err(ErrorKind::UnregisteredInUse { range, launch: Arc::clone(&used.launch) });
        }
        if let Some(first) = registration.on_device {
            memory.unmap_host(first, host).map_err(|launch| {
                let range = address..registration.end;
                ErrorKind::UnregisteredInUse { range, launch }
            })?;
        }
        self.registrations.remove(&address);
        Ok(())
    }

    /// Refuses a copy into memory that was registered for reading.
    pub(super) fn check(&self, used: &HostUse, launch: &Arc<Launch>) -> Result<(), ErrorKind> {
        let read_only = |(_, registration): &(&u64, &Registration)| registration.access == Rights::Read;
        match self.overlapping(&used.range).find(read_only) {
            Some((&start, registration)) if used.write => {
                Err(ErrorKind::ReadOnly { launch: Arc::clone(launch), range: start..registration.end })
            }
            _ => Ok(()),
        }
    }

    /// Notes that a copy uses memory, registered or not.
    pub(super) fn note(&mut self, used: &HostUse, access: &Access) {
        let starts: Vec<u64> = self.overlapping(&used.range).map(|(&start, _)| start).collect();
        for start in starts {
            if let Some(registration) = self.registrations.get_mut(&start) {
                registration.uses.retain(|earlier| !earlier.is_superseded_by(access));
                registration.uses.push(access.clone());
            }
        }
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (&u64, &Registration)> {
        let from = range.start;
        self.registrations.range(..range.end).rev().take_while(move |(_, registration)| registration.end > from)
    }
}
