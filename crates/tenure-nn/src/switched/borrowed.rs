//! Networks that compute with another process's weights.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tenure_core::Storage;
use tenure_device::graph::GraphPool;
use tenure_device::memory::{self, DeviceMemory};
use tenure_switch::{Borrowed, Entry, Manifest, Model, Origin, PinnedTables, Switch, SwitchError, SwitchOptions};
use tenure_tensor::{DType, Device, Tensor};

use super::bound::{BoundTensors, Placed};
use super::calls::{CallHistory, Callee, Measured};
use super::lent::{LentTensor, LentTerms};
use crate::Result;
use crate::networks::Network;

/// A limit, in bytes, above any device's memory. The lender's terms give the real size.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// A CUDA device that computes models of another process's [`Switcher`](super::Switcher), one at a time. It keeps no
/// weights of its own: the other process's weights are mapped here, without a copy.
pub struct Borrower {
    device: Device,
    memory: &'static DeviceMemory,
    switch: Switch,
    /// The memory pool of captured calls.
    pool: GraphPool,
}

/// A network that computes with the weights of a [`LentModel`](super::LentModel) while it borrows them.
pub struct BorrowedNetwork {
    network: Box<dyn Network>,
    calls: CallHistory,
    /// The binding to the last borrowed terms, which outlives the borrowing.
    arranged: Option<Arranged>,
    /// The mapping of the weights, while they are borrowed.
    borrowed: Option<Borrowed>,
}

/// A network whose tensors are bound to the addresses where its weights are mapped.
struct Arranged {
    terms: LentTerms,
    model: Arc<Model>,
    bound: BoundTensors,
}

impl Borrower {
    /// Prepares a device. `chunk_bytes`, the size of the weights' chunks, must be the lender's
    /// [`chunk_bytes`](super::Switcher::chunk_bytes).
    ///
    /// # Errors
    /// The device cannot be used.
    ///
    /// # Panics
    /// The device is not a CUDA device; `chunk_bytes` is not a multiple of its granularity.
    pub fn new(device: Device, chunk_bytes: u64) -> Result<Self> {
        assert!(!device.is_cpu(), "a CUDA device's memory is borrowed");
        let memory = memory::device(device.index()).map_err(SwitchError::from)?;
        let switch = Switch::new(memory, SwitchOptions { chunk_bytes, ..SwitchOptions::new(UNLIMITED_BYTES) })?;
        let pool = GraphPool::new(memory).map_err(SwitchError::from)?;
        Ok(Self { device, memory, switch, pool })
    }

    /// Returns whether the device no longer answers. If an error has lost its context, nothing in this process can use
    /// it again.
    pub fn is_lost(&self) -> bool {
        self.memory.driver().synchronize().is_err()
    }
}

impl BorrowedNetwork {
    /// Takes a network without values, built in the same way as the lender's.
    ///
    /// # Errors
    /// The parameters cannot be set to need no gradients.
    pub fn new(mut network: Box<dyn Network>) -> Result<Self> {
        network.eval();
        network.set_requires_grad(false)?;
        Ok(Self { network, calls: CallHistory::default(), arranged: None, borrowed: None })
    }

    /// Returns whether the weights are borrowed.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// Returns the model at the weights' addresses in this process, after the first borrowing, such as to
    /// [stop](Model::stop) a call.
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.arranged.as_ref().map(|arranged| &arranged.model)
    }

    /// Maps a lent model, whose groups may still be in transfer. The descriptors are taken one after the other, as they
    /// arrive, and closed. If the terms are the same as before, the weights are mapped at the same addresses, so
    /// captured calls stay valid.
    ///
    /// # Errors
    /// The terms are of another network or device; descriptors are missing; a driver call failed. Nothing is mapped
    /// then.
    pub fn borrow(
        &mut self,
        borrower: &Borrower,
        terms: &LentTerms,
        tables: Option<OwnedFd>,
        chunks: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<()> {
        self.give_back();
        if self.arranged.as_ref().is_none_or(|arranged| arranged.terms != *terms) {
            self.arrange(borrower, terms, tables)?;
        }
        if let Some(Arranged { model, .. }) = &self.arranged {
            self.borrowed = Some(model.borrow(&terms.terms, &terms.signals()?, chunks)?);
        }
        Ok(())
    }

    /// Unmaps the weights after the computations with them are done. They can be borrowed again.
    pub fn give_back(&mut self) {
        self.borrowed = None;
    }

    /// Computes the outputs for inputs, which are copied to the device, with the borrowed weights. The outputs are
    /// ready when the thread's current stream has done the work that it holds on return. Measurements of a call are
    /// returned once, for the lender to [learn](super::SwitchedModel::learn) from.
    ///
    /// # Errors
    /// The network refuses the inputs; a driver call failed.
    ///
    /// # Panics
    /// The weights are not borrowed.
    pub fn forward(&mut self, borrower: &Borrower, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Option<Measured>)> {
        let arranged = self.arranged.as_ref().filter(|_| self.borrowed.is_some());
        let Some(Arranged { terms, model, bound }) = arranged else { panic!("weights are borrowed before a call") };
        let inputs = inputs.iter().map(|input| input.to_device(borrower.device));
        let inputs = inputs.collect::<tenure_tensor::Result<Vec<_>>>()?;
        let callee = Callee {
            network: &*self.network,
            bound,
            model,
            memory: borrower.memory,
            pool: &borrower.pool,
            is_recorded: terms.is_recorded,
        };
        self.calls.compute(&callee, &inputs)
    }

    /// Reserves addresses for the weights that the terms describe, and binds the network's tensors to them.
    fn arrange(&mut self, borrower: &Borrower, terms: &LentTerms, tables: Option<OwnedFd>) -> Result<()> {
        self.calls.forget_captures();
        if let Some(Arranged { bound, .. }) = self.arranged.take() {
            bound.unbind(&mut *self.network)?;
        }
        if !terms.ends.is_sorted() || terms.ends.last().copied().unwrap_or(0) != terms.tensors.len() {
            return Err(terms.wrong("groups").into());
        }
        let manifest = manifest_of(&terms.model, &terms.tensors, terms.ends.clone())?;
        let of_tables = manifest_of(&terms.model, &terms.tables, (1..=terms.tables.len()).collect())?;
        let model = Arc::new(borrower.switch.register(&manifest)?);
        let groups = manifest.groups().len();
        let mut storages: Vec<Storage> = (0..groups).map(|group| model.storage(group)).collect();
        if let Some(memory) = tables {
            let driver = borrower.memory.driver();
            let pinned = PinnedTables::receive(&terms.model, memory, of_tables.groups().to_vec(), driver)?;
            let pinned = Arc::new(pinned);
            for table in 0..terms.tables.len() {
                storages.push(pinned.storage(table)?);
            }
        } else if !terms.tables.is_empty() {
            return Err(terms.wrong("tables").into());
        }
        let mut placed = Vec::with_capacity(terms.tensors.len() + terms.tables.len());
        for (place, tensor) in terms.tensors.iter().enumerate() {
            let group = manifest.group_of(place);
            let begin = manifest.place(place).start - manifest.groups()[group].start;
            placed.push(Placed { name: &tensor.name, dtype: dtype(terms, tensor)?, group, begin });
        }
        for (table, tensor) in terms.tables.iter().enumerate() {
            let group = groups + table;
            placed.push(Placed { name: &tensor.name, dtype: dtype(terms, tensor)?, group, begin: 0 });
        }
        let bound = BoundTensors::bind(&mut *self.network, placed, |group| storages[group].clone())?;
        self.arranged = Some(Arranged { terms: terms.clone(), model, bound });
        Ok(())
    }
}

/// Returns a manifest of the other process's image. It gives sizes and places; no image is read by it here.
fn manifest_of(model: &str, tensors: &[LentTensor], ends: Vec<usize>) -> Result<Arc<Manifest>, SwitchError> {
    let entries = tensors.iter().map(|LentTensor { name, bytes, .. }| {
        let origin = Origin::Made(Arc::new(|_: &mut [u8]| ()));
        Entry { name: name.clone(), bytes: *bytes, origin }
    });
    Ok(Arc::new(Manifest::new(model, entries.collect(), ends)?))
}

/// Parses the dtype of a tensor.
fn dtype(terms: &LentTerms, tensor: &LentTensor) -> Result<DType, SwitchError> {
    tensor.dtype.parse().map_err(|_| terms.wrong("a dtype"))
}
