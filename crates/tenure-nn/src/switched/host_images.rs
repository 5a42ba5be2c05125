//! The images of models in the host's memory, which switchers that were made together share.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};
use tenure_device::Driver;
use tenure_switch::{Image, ImageStatistics, Images, Manifest, Switch, SwitchError};

use crate::Result;

/// Images of models, pinned if devices copy from them.
pub(super) struct HostImages {
    images: Images,
    /// The devices' switches, which copy from images.
    switches: Vec<Switch>,
    /// Held for reading while an image is found and copies from it are asked for, and for writing while all copies are waited for.
    copying: RwLock<()>,
}

impl HostImages {
    /// Keeps `budget_bytes` bytes of images at most, pinned by a driver if there is one.
    pub(super) fn new(
        budget_bytes: u64,
        driver: Option<Arc<dyn Driver>>,
        switches: Vec<Switch>,
    ) -> Result<Self, SwitchError> {
        Ok(Self { images: Images::new(budget_bytes, driver)?, switches, copying: RwLock::default() })
    }

    /// Calls `work` with a model's image, which may be on its way: to ask for copies from it, or to keep it. If others have no room to
    /// spare because devices still copy from them, these copies are waited for.
    pub(super) fn with<T>(&self, manifest: &Arc<Manifest>, work: impl FnOnce(&Arc<Image>) -> Result<T>) -> Result<T> {
        {
            let _copying = self.copying.read();
            match self.images.acquire(manifest) {
                Err(SwitchError::NoHostRoom { .. }) => {}
                acquired => return work(&acquired?),
            }
        }
        let settled = self.copying.write();
        let outcome = self.settle();
        let image = self.images.acquire(manifest).map_err(|error| outcome.err().unwrap_or(error))?;
        let _copying = RwLockWriteGuard::downgrade(settled);
        work(&image)
    }

    /// Lets go of a model's image, if there is one, after all copies from it.
    pub(super) fn forget(&self, manifest: &Arc<Manifest>) {
        if !self.images.has(manifest) {
            return;
        }
        let _settled = self.copying.write();
        // A device that does not answer copies nothing.
        let _ = self.settle();
        self.images.forget(manifest);
    }

    /// Whether a model's image is in memory, or on its way there.
    pub(super) fn has(&self, manifest: &Arc<Manifest>) -> bool {
        self.images.has(manifest)
    }

    /// The figures of all images.
    pub(super) fn statistics(&self) -> ImageStatistics {
        self.images.statistics()
    }

    /// Waits for the copies of all devices, also if one of them fails.
    fn settle(&self) -> Result<(), SwitchError> {
        self.switches.iter().map(Switch::settle).fold(Ok(()), Result::and)
    }
}
