//! A backend that adds PyTorch modules to our own networks, in one memory budget.

use std::sync::Arc;

use tenure_nn::networks::Network;

use super::ModelError;
use super::backend::{Backend, BackendWeights};
use super::shared_budget::{BudgetedWeights, Owner, SharedBudget};
use super::stored::StoredWeights;
use crate::repository::StoredModel;
use crate::service::Tier;
use crate::worker::{Python, Pythons};

/// A backend, and the processes that compute PyTorch modules.
pub(crate) struct WithPython {
    native: Arc<dyn Backend>,
    python: PythonPlace,
}

/// The processes that compute PyTorch modules.
enum PythonPlace {
    /// Several on the CPU, where freed memory is available to every process.
    Cpu(Pythons),
    /// One on a CUDA device, with the device memory that both use, and the bytes of pinned host memory for PyTorch
    /// images.
    Cuda { python: Arc<Python>, room: Arc<SharedBudget>, host_bytes: u64 },
}

impl WithPython {
    pub(crate) fn on_cpu(native: Box<dyn Backend>, pythons: Pythons) -> Self {
        Self { native: native.into(), python: PythonPlace::Cpu(pythons) }
    }

    pub(crate) fn on_cuda(native: Box<dyn Backend>, python: Python, room: SharedBudget, host_bytes: u64) -> Self {
        let place = PythonPlace::Cuda { python: Arc::new(python), room: Arc::new(room), host_bytes };
        Self { native: native.into(), python: place }
    }

    /// Makes the weights of either owner take their bytes from the shared budget, if there is one. The other owner
    /// returns its unused memory before they are loaded.
    fn in_budget(
        &self,
        owner: Owner,
        weights: Box<dyn BackendWeights>,
        stored: &StoredModel,
    ) -> Box<dyn BackendWeights> {
        let PythonPlace::Cuda { python, room, .. } = &self.python else { return weights };
        let native = Arc::clone(&self.native);
        let python = Arc::clone(python);
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
        let weights = match &self.python {
            PythonPlace::Cpu(pythons) => pythons.open(stored)?,
            PythonPlace::Cuda { python, .. } => python.open(stored)?,
        };
        Ok(self.in_budget(Owner::Python, weights, stored))
    }

    fn tiers(&self) -> [&str; 2] {
        self.native.tiers()
    }

    fn usage(&self) -> Vec<Tier> {
        let mut tiers = self.native.usage();
        let resident_bytes = self.python.all().iter().map(|python| python.resident_bytes()).sum::<u64>();
        if let Some(memory) = tiers.first_mut() {
            memory.used_bytes += resident_bytes;
        }
        if let (PythonPlace::Cuda { python, host_bytes, .. }, Some(pinned)) = (&self.python, tiers.get_mut(1)) {
            pinned.used_bytes += python.host_bytes();
            pinned.capacity_bytes += host_bytes;
        }
        tiers
    }

    fn trim(&self) {
        self.native.trim();
        self.python.all().iter().for_each(|python| python.trim());
    }

    fn max_batches(&self) -> usize {
        self.native.max_batches()
    }

    fn is_answering(&self) -> bool {
        self.native.is_answering() && self.python.all().iter().all(|python| python.is_answering())
    }

    fn end(&self) {
        self.native.end();
        if let PythonPlace::Cpu(pythons) = &self.python {
            pythons.end();
        }
        self.python.all().iter().for_each(|python| python.end());
    }

    fn processes(&self) -> Vec<u32> {
        let pythons = self.python.all();
        self.native.processes().into_iter().chain(pythons.iter().filter_map(|python| python.pid())).collect()
    }
}

impl PythonPlace {
    /// Returns all processes' handles.
    fn all(&self) -> Vec<Arc<Python>> {
        match self {
            Self::Cpu(pythons) => pythons.all(),
            Self::Cuda { python, .. } => vec![Arc::clone(python)],
        }
    }
}
