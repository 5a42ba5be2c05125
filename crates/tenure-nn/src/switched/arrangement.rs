//! The order and the groups of a network's tensors, which all devices share that copy them from the same images.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_switch::{Manifest, SwitchError};

use super::host_images::HostImages;
use super::{Order, StoredTensors};

/// An order of a network's tensors. Dropped by the last device that has it, its images leave the host's memory.
pub(super) struct Arrangement {
    pub(super) order: Order,
    /// The manifest of the tensors that are in groups.
    pub(super) manifest: Arc<Manifest>,
    /// The manifest of the [tables](Order::has_tables).
    pub(super) tables: Option<Arc<Manifest>>,
    images: Arc<HostImages>,
}

/// The arrangements of a network that devices have.
#[derive(Default)]
pub(super) struct Arrangements {
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    /// Before the order is known.
    unknown: Weak<Arrangement>,
    recorded: Weak<Arrangement>,
}

impl Arrangement {
    pub(super) fn new(
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: Order,
    ) -> Result<Arc<Self>, SwitchError> {
        let manifest = stored.manifest(name, &order)?;
        let tables = order.has_tables().then(|| stored.tables(name, &order)).transpose()?;
        Ok(Arc::new(Self { order, manifest, tables, images: Arc::clone(images) }))
    }
}

impl Drop for Arrangement {
    fn drop(&mut self) {
        self.images.forget(&self.manifest);
        self.tables.iter().for_each(|tables| self.images.forget(tables));
    }
}

impl Arrangements {
    /// That of the unknown order: another device's, or a new one.
    pub(super) fn unknown(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(unknown) = shared(&latest.unknown, images) {
            return Ok(unknown);
        }
        let unknown = Arrangement::new(stored, images, name, Order::unknown(stored.tensors().len()))?;
        latest.unknown = Arc::downgrade(&unknown);
        Ok(unknown)
    }

    /// That of an order which a device has learned.
    pub(super) fn recorded(&self, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
        shared(&self.latest.lock().recorded, images)
    }

    /// That of an order which was learned, or of the one that another device learned first.
    pub(super) fn record(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: Order,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(recorded) = shared(&latest.recorded, images) {
            return Ok(recorded);
        }
        let recorded = Arrangement::new(stored, images, name, order)?;
        latest.recorded = Arc::downgrade(&recorded);
        Ok(recorded)
    }
}

/// An arrangement that a device has, of the same images.
fn shared(latest: &Weak<Arrangement>, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
    latest.upgrade().filter(|arrangement| Arc::ptr_eq(&arrangement.images, images))
}
