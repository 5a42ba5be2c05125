//! The regions that clients registered, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::SharedMemoryError;
use super::system::{Part, Region, Registration, Status};
use crate::protocol::Span;

/// The most regions, each of which holds a descriptor.
pub(super) const REGIONS: usize = 256;

/// The regions that clients registered.
#[derive(Default)]
pub(crate) struct Regions(RwLock<BTreeMap<String, Arc<Region>>>);

impl Regions {
    /// Opens a region of a name that no other has.
    pub(crate) fn register(&self, name: String, registration: Registration) -> Result<(), SharedMemoryError> {
        let region = Region::open(name.clone(), registration)?;
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

    /// Forgets a region, if there is one of the name.
    pub(crate) fn unregister(&self, name: &str) {
        self.0.write().remove(name);
    }

    /// Forgets all regions.
    pub(crate) fn clear(&self) {
        self.0.write().clear();
    }

    /// What a region is.
    pub(crate) fn status(&self, name: &str) -> Result<Status, SharedMemoryError> {
        Ok(self.get(name)?.status().clone())
    }

    /// What all regions are, by name.
    pub(crate) fn all(&self) -> Vec<Status> {
        self.0.read().values().map(|region| region.status().clone()).collect()
    }

    /// The part of a region that a tensor is in.
    pub(super) fn part(&self, span: &Span) -> Result<Part, SharedMemoryError> {
        Part::new(self.get(&span.region)?, span)
    }

    fn get(&self, name: &str) -> Result<Arc<Region>, SharedMemoryError> {
        self.0.read().get(name).cloned().ok_or_else(|| SharedMemoryError::Unknown(name.into()))
    }
}
