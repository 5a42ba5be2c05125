//! A model on a CUDA device that workers compute. The server manages its weights and lends them to the active worker.

use std::io;
use std::sync::{Arc, Weak};

use tenure_nn::switched::{LentModel, SwitchedModel};

use super::link::Worker;
use super::message::{Description, Lend, WorkerOrder};
use super::pool::WorkerPool;
use super::socket::Descriptor;
use crate::executor::{BatchControl, Computed, ModelError, RawTensor};
use crate::repository::StoredModel;

/// The weights of a model, and their loan to a worker.
pub(crate) struct LentWeights {
    pool: Arc<WorkerPool>,
    model: u64,
    network: Description,
    loan: Option<OutgoingLoan>,
    /// The last worker that computed the model, which may have the loan.
    worker: Weak<Worker>,
}

/// Weights lent to a worker. They stay on the device until this is dropped.
struct OutgoingLoan {
    number: u64,
    _lent: LentModel,
}

impl LentWeights {
    pub(super) fn new(pool: Arc<WorkerPool>, stored: &StoredModel) -> Self {
        let model = pool.next_number();
        let network = Description::of(stored);
        Self { pool, model, network, loan: None, worker: Weak::new() }
    }

    /// Computes the answers to inputs on the active worker. Lends it the weights first, if it does not have them; it
    /// may begin before they are loaded.
    pub(crate) fn compute(
        &mut self,
        model: &SwitchedModel,
        inputs: &[RawTensor],
        control: &BatchControl,
    ) -> Result<Computed, ModelError> {
        let pool = Arc::clone(&self.pool);
        let computed = pool.compute(self.model, inputs, control, |worker| match &self.loan {
            Some(loan) if worker.has_mapped(loan.number) => Ok(loan.number),
            _ => self.lend(worker, model),
        });
        computed.inspect_err(|error| {
            if !error.is_request_error() {
                // The next call begins with a new loan, whatever failed in this one.
                self.give_back();
            }
        })
    }

    /// Takes the weights back, so that they can be evicted. Afterwards the worker has unmapped them or is gone.
    pub(crate) fn give_back(&mut self) {
        if let Some(loan) = self.loan.take()
            && let Some(worker) = self.worker.upgrade()
        {
            worker.unmap(loan.number);
        }
    }

    /// Lends all weights to a worker, and returns the loan's number.
    fn lend(&mut self, worker: &Arc<Worker>, model: &SwitchedModel) -> Result<u64, ModelError> {
        // An earlier loan was for a worker that is gone.
        self.give_back();
        let loan = self.pool.next_number();
        let lent = model.lend()?;
        let chunks: Vec<_> = lent.chunks().collect();
        let order = WorkerOrder::Lend(Box::new(Lend {
            loan,
            model: self.model,
            network: self.network.clone(),
            terms: lent.terms().clone(),
            chunks: chunks.len() as u64,
        }));
        let tables = lent.tables();
        let tables = tables.map_err(|error| ModelError::Elsewhere(format!("the tables cannot be sent: {error}")))?;
        worker.map(loan, &order, tables)?;
        self.loan = Some(OutgoingLoan { number: loan, _lent: lent });
        self.worker = Arc::downgrade(worker);
        for chunk in chunks {
            worker.send(
                &WorkerOrder::Chunk { loan },
                Vec::new(),
                Some(Descriptor::Later(Box::new(move || chunk.descriptor().map_err(io::Error::other)))),
            )?;
        }
        Ok(loan)
    }
}

impl Drop for LentWeights {
    fn drop(&mut self) {
        self.give_back();
        if let Some(worker) = self.worker.upgrade() {
            // A few bytes never exceed the limit.
            let _ = worker.send(&WorkerOrder::Forget { model: self.model }, Vec::new(), None);
        }
    }
}
