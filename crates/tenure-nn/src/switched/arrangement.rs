//! Arrangements: the order and the groups of a network's tensors. All devices that copy from the same images share
//! them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_switch::{Manifest, SwitchError};

use super::host_images::HostImages;
use super::{StoredTensors, WeightOrder};

/// An order of a network's tensors. When the last device that uses it drops it, its images leave the host's memory.
pub(super) struct Arrangement {
    pub(super) order: WeightOrder,
    /// The manifest of the tensors in groups.
    pub(super) manifest: Arc<Manifest>,
    /// The manifest of the [tables](Order::has_tables).
    pub(super) tables: Option<Arc<Manifest>>,
    images: Arc<HostImages>,
}

/// The arrangements of a network that devices use.
#[derive(Default)]
pub(super) struct Arrangements {
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    /// The arrangement for the time before the order is known.
    unknown: Weak<Arrangement>,
    recorded: Weak<Arrangement>,
}

impl Arrangement {
    pub(super) fn new(
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: WeightOrder,
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
    /// Returns the arrangement for the unknown order: another device's, or a new one.
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
        let unknown = Arrangement::new(stored, images, name, WeightOrder::unknown(stored.tensors().len()))?;
        latest.unknown = Arc::downgrade(&unknown);
        Ok(unknown)
    }

    /// Returns the arrangement of the order that a device has learned, if there is one.
    pub(super) fn recorded(&self, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
        shared(&self.latest.lock().recorded, images)
    }

    /// Returns the arrangement of a learned order, or of the order that another device learned first.
    pub(super) fn record(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: WeightOrder,
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

/// Returns an arrangement that a device still uses and that has the same images.
fn shared(latest: &Weak<Arrangement>, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
    latest.upgrade().filter(|arrangement| Arc::ptr_eq(&arrangement.images, images))
}
