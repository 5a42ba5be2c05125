//! The regions that clients registered, by name.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use parking_lot::RwLock;

use super::SharedMemoryError;
use super::region::{Region, RegionKind, RegionPart};
use crate::protocol::Span;
use crate::service::ServeError;
use crate::service::work::on_another_thread;

/// The most regions. Each holds a descriptor or opened memory.
pub(super) const REGIONS: usize = 256;

/// The regions that clients registered. Regions of all kinds share one name space, as in Triton.
#[derive(Default)]
pub(crate) struct Regions(RwLock<BTreeMap<String, Arc<Region>>>);

impl Regions {
    /// Registers a region under its name, which must be free.
    pub(crate) fn register(&self, region: Region) -> Result<(), SharedMemoryError> {
        let name = region.name().to_owned();
        let mut regions = self.0.write();
        if regions.contains_key(&name) {
            return Err(SharedMemoryError::Twice(name));
        }
        if regions.len() >= REGIONS {
            return Err(SharedMemoryError::Full);
        }
        regions.insert(name, Arc::new(region));
        Ok(())
    }

    /// Unregisters the region with this name and kind, if there is one. A region that no request uses is closed when
    /// this returns.
    pub(crate) async fn unregister<T>(&self, kind: RegionKind<T>, name: &str) -> Result<(), ServeError> {
        self.forget(|region| region.name() == name && kind(region).is_some()).await
    }

    /// Unregisters all regions of a kind.
    pub(crate) async fn clear<T>(&self, kind: RegionKind<T>) -> Result<(), ServeError> {
        self.forget(|region| kind(region).is_some()).await
    }

    async fn forget(&self, is_gone: impl Fn(&Region) -> bool) -> Result<(), ServeError> {
        let gone = {
            let mut regions = self.0.write();
            let (gone, kept) = mem::take(&mut *regions).into_iter().partition(|(_, region)| is_gone(region));
            *regions = kept;
            gone
        };
        if BTreeMap::is_empty(&gone) {
            return Ok(());
        }
        // Closing may have to wait for a device.
        on_another_thread(move || {
            drop(gone);
            Ok(())
        })
        .await
    }

    /// Returns the status of a region.
    pub(crate) fn status<T: Clone>(&self, kind: RegionKind<T>, name: &str) -> Result<T, SharedMemoryError> {
        let region = self.region(name)?;
        kind(&region).cloned().ok_or_else(|| SharedMemoryError::Unknown(name.into()))
    }

    /// Returns the status of all regions of a kind, sorted by name.
    pub(crate) fn all<T: Clone>(&self, kind: RegionKind<T>) -> Vec<T> {
        self.0.read().values().filter_map(|region| kind(region).cloned()).collect()
    }

    /// Returns the part of a region that holds a tensor.
    pub(super) fn part(&self, span: &Span) -> Result<RegionPart, SharedMemoryError> {
        RegionPart::new(self.region(&span.region)?, span)
    }

    fn region(&self, name: &str) -> Result<Arc<Region>, SharedMemoryError> {
        self.0.read().get(name).cloned().ok_or_else(|| SharedMemoryError::Unknown(name.into()))
    }
}
