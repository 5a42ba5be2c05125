//! Arrangements: the order and the groups in which a network's tensors lie in an image and are loaded. Devices that
//! copy from the same images share them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_switch::{Manifest, SwitchError};

use super::host_images::HostImages;
use super::{StoredTensors, WeightOrder};

/// An order of a network's tensors, and the images that have it. When its last user drops it, these images leave the
/// host's memory.
pub(super) struct Arrangement {
    pub(super) order: WeightOrder,
    /// The manifest of the image with the tensors in groups.
    pub(super) manifest: Arc<Manifest>,
    /// The manifest of the image with the [tables](WeightOrder::has_tables), if there are any.
    pub(super) tables: Option<Arc<Manifest>>,
    images: Arc<HostImages>,
}

/// The arrangements of a network that devices use now, so that each device takes that of another if there is one.
#[derive(Default)]
pub(super) struct Arrangements {
    latest: Mutex<Latest>,
}

/// The latest arrangements made; they do not keep them alive.
#[derive(Default)]
struct Latest {
    /// The arrangement for the time until the order of use is known: each tensor is a group.
    unknown: Weak<Arrangement>,
    /// The arrangement in the order of use, which a device has learned.
    recorded: Weak<Arrangement>,
}

impl Arrangement {
    /// Makes an arrangement of stored tensors. `name` is the model's, for error messages.
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
        if let Some(tables) = &self.tables {
            self.images.forget(tables);
        }
    }
}

impl Arrangements {
    /// Returns the arrangement for the time until the order of use is known: another device's, or a new one.
    pub(super) fn unknown(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(unknown) = if_in_use(&latest.unknown, images) {
            return Ok(unknown);
        }
        let unknown = Arrangement::new(stored, images, name, WeightOrder::unknown(stored.tensors().len()))?;
        latest.unknown = Arc::downgrade(&unknown);
        Ok(unknown)
    }

    /// Returns the arrangement in the order of use, if a device with these images has one.
    pub(super) fn recorded(&self, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
        if_in_use(&self.latest.lock().recorded, images)
    }

    /// Makes the arrangement in a learned order of use. If another device has one already, returns that.
    pub(super) fn record(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: WeightOrder,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(recorded) = if_in_use(&latest.recorded, images) {
            return Ok(recorded);
        }
        let recorded = Arrangement::new(stored, images, name, order)?;
        latest.recorded = Arc::downgrade(&recorded);
        Ok(recorded)
    }
}

/// Returns the arrangement if a device still uses it and it is of the store `images`.
fn if_in_use(latest: &Weak<Arrangement>, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
    latest.upgrade().filter(|arrangement| Arc::ptr_eq(&arrangement.images, images))
}
