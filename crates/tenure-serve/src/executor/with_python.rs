//! A backend that adds PyTorch modules to our own networks, in one memory budget.

use std::sync::Arc;

use tenure_nn::networks::Network;

use super::ModelError;
use super::backend::{Backend, BackendWeights};
use super::shared_budget::{BudgetedWeights, Owner, SharedBudget};
use super::stored::StoredWeights;
use crate::http::Tier;
use crate::repository::StoredModel;
use crate::worker::Python;

/// A backend, and the process that computes PyTorch modules.
pub(crate) struct WithPython {
    native: Arc<dyn Backend>,
    python: Arc<Python>,
    /// The device memory that both use, and the bytes of pinned host memory for PyTorch images. `None` on the CPU,
    /// where freed memory is available to every process.
    shared: Option<(Arc<SharedBudget>, u64)>,
}

impl WithPython {
    pub(crate) fn on_cpu(native: Box<dyn Backend>, python: Python) -> Self {
        Self { native: native.into(), python: Arc::new(python), shared: None }
    }

    pub(crate) fn on_cuda(native: Box<dyn Backend>, python: Python, room: SharedBudget, host_bytes: u64) -> Self {
        Self { native: native.into(), python: Arc::new(python), shared: Some((Arc::new(room), host_bytes)) }
    }

    /// Makes the weights of either owner take their bytes from the shared budget, if there is one. The other owner
    /// returns its unused memory before they are loaded.
    fn in_budget(
        &self,
        owner: Owner,
        weights: Box<dyn BackendWeights>,
        stored: &StoredModel,
    ) -> Box<dyn BackendWeights> {
        let Some((room, _)) = &self.shared else { return weights };
        let native = Arc::clone(&self.native);
        let python = Arc::clone(&self.python);
        Box::new(BudgetedWeights::new(room, stored.name.to_string(), owner, weights, move || match owner {
            Owner::Native => python.trim(),
            Owner::Python => native.trim(),
        }))
    }
}

impl Backend for WithPython {
    fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<Box<dyn BackendWeights>, ModelError> {
        Ok(self.in_budget(Owner::Native, self.native.open(network, stored)?, stored.files.model()))
    }

    fn open_python(&self, stored: &Arc<StoredModel>) -> Result<Box<dyn BackendWeights>, ModelError> {
        Ok(self.in_budget(Owner::Python, self.python.open(stored)?, stored))
    }

    fn tiers(&self) -> [&str; 2] {
        self.native.tiers()
    }

    fn usage(&self) -> Vec<Tier> {
        let mut tiers = self.native.usage();
        if let Some(memory) = tiers.first_mut() {
            memory.used_bytes += self.python.resident_bytes();
        }
        if let (Some((_, host_bytes)), Some(pinned)) = (&self.shared, tiers.get_mut(1)) {
            pinned.used_bytes += self.python.host_bytes();
            pinned.capacity_bytes += host_bytes;
        }
        tiers
    }

    fn trim(&self) {
        self.native.trim();
        self.python.trim();
    }

    fn abandon(&self) {
        self.native.abandon();
        self.python.abandon();
    }

    fn end(&self) {
        self.native.end();
        self.python.end();
    }

    fn processes(&self) -> Vec<u32> {
        self.native.processes().into_iter().chain(self.python.pid()).collect()
    }
}
