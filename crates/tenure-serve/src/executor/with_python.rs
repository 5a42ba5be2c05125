//! PyTorch modules beside networks of ours, in one budget.

use std::sync::Arc;

use tenure_nn::networks::Network;

use super::ModelError;
use super::backend::{Backend, Weights};
use crate::http::Tier;
use crate::repository::StoredModel;
use crate::worker::Python;

/// A backend, and the process that computes PyTorch modules.
pub(crate) struct WithPython {
    native: Box<dyn Backend>,
    python: Python,
}

impl WithPython {
    pub(crate) fn new(native: Box<dyn Backend>, python: Python) -> Self {
        Self { native, python }
    }
}

impl Backend for WithPython {
    fn open(&self, network: Box<dyn Network>, stored: &Arc<StoredModel>) -> Result<Box<dyn Weights>, ModelError> {
        self.native.open(network, stored)
    }

    fn open_python(&self, stored: &Arc<StoredModel>) -> Result<Box<dyn Weights>, ModelError> {
        self.python.open(stored)
    }

    fn tiers(&self) -> [&str; 2] {
        self.native.tiers()
    }

    fn usage(&self) -> Vec<Tier> {
        let mut tiers = self.native.usage();
        if let Some(memory) = tiers.first_mut() {
            memory.used_bytes += self.python.resident_bytes();
        }
        tiers
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
