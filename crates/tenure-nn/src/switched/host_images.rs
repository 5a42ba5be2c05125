//! The images of models in the host's memory. Switchers that were made together share them.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};
use tenure_device::Driver;
use tenure_switch::{Image, ImageStatistics, Images, Manifest, Switch, SwitchError};

use crate::Result;

/// The store of images. They are pinned if CUDA devices copy from them.
pub(super) struct HostImages {
    images: Images,
    /// The devices' switches, which copy from images.
    switches: Vec<Switch>,
    /// A lock that is held for reading while an image is looked up and copies from it are enqueued, and for writing
    /// while all copies are waited for.
    copying: RwLock<()>,
}

impl HostImages {
    /// Makes a store of at most `budget_bytes` bytes of images, pinned by a driver if there is one.
    pub(super) fn new(
        budget_bytes: u64,
        driver: Option<Arc<dyn Driver>>,
        switches: Vec<Switch>,
    ) -> Result<Self, SwitchError> {
        Ok(Self { images: Images::new(budget_bytes, driver)?, switches, copying: RwLock::default() })
    }

    /// Calls `work` with a model's image, which may still be loading, to enqueue copies from it or to keep it. If other
    /// images leave no room because devices still copy from them, it waits for these copies first.
    pub(super) fn with<T>(&self, manifest: &Arc<Manifest>, work: impl FnOnce(&Arc<Image>) -> Result<T>) -> Result<T> {
        {
            let _copying = self.copying.read();
            match self.images.acquire(manifest) {
                Err(SwitchError::NoHostRoom { .. }) => {}
                acquired => return work(&acquired?),
            }
        }
        let settled = self.copying.write();
        let outcome = self.wait_for_copies();
        let image = self.images.acquire(manifest).map_err(|error| outcome.err().unwrap_or(error))?;
        let _copying = RwLockWriteGuard::downgrade(settled);
        work(&image)
    }

    /// Drops a model's image, if there is one, after all copies from it.
    pub(super) fn forget(&self, manifest: &Arc<Manifest>) {
        if !self.images.has(manifest) {
            return;
        }
        let _settled = self.copying.write();
        // A device that does not answer copies nothing, so its error is ignored.
        let _ = self.wait_for_copies();
        self.images.forget(manifest);
    }

    /// Returns whether a model's image is in memory or loading.
    pub(super) fn has(&self, manifest: &Arc<Manifest>) -> bool {
        self.images.has(manifest)
    }

    /// Returns the statistics of all images.
    pub(super) fn statistics(&self) -> ImageStatistics {
        self.images.statistics()
    }

    /// Waits until no device copies from an image, also if one of them fails. Returns the first error.
    fn wait_for_copies(&self) -> Result<(), SwitchError> {
        self.switches.iter().map(Switch::settle).fold(Ok(()), Result::and)
    }
}
