//! Networks that compute with weights of another process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tenure_core::Storage;
use tenure_device::graph::GraphPool;
use tenure_device::memory::{self, DeviceMemory};
use tenure_switch::{Borrowed, Entry, Manifest, Model, Origin, PinnedTables, Switch, SwitchError, SwitchOptions};
use tenure_tensor::{DType, Device, Tensor};

use super::bound::{Bound, Placed};
use super::calls::{Callee, Calls, Measured};
use super::lent::{LentTensor, LentTerms};
use crate::Result;
use crate::networks::Network;

/// More bytes of weights than a device has: the lender says how many there are.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// A CUDA device that computes models of a [`Switcher`](super::Switcher) in another process, one at a time. It keeps no weights:
/// those of the other process are mapped here, without a copy.
pub struct Borrower {
    device: Device,
    memory: &'static DeviceMemory,
    switch: Switch,
    /// What captured calls compute in.
    pool: GraphPool,
}

/// A network whose weights are borrowed, or to be borrowed.
pub struct BorrowedNetwork {
    network: Box<dyn Network>,
    calls: Calls,
    arranged: Option<Arranged>,
    borrowed: Option<Borrowed>,
}

/// A network whose tensors have the addresses that its weights are mapped at.
struct Arranged {
    terms: LentTerms,
    model: Arc<Model>,
    bound: Bound,
}

impl Borrower {
    /// Prepares a device. Weights come in chunks of so many bytes: the lender's [`chunk_bytes`](super::Switcher::chunk_bytes).
    ///
    /// # Errors
    /// The device cannot be used.
    ///
    /// # Panics
    /// The device is no CUDA device; chunks are no multiple of its granularity.
    pub fn new(device: Device, chunk_bytes: u64) -> Result<Self> {
        assert!(!device.is_cpu(), "a CUDA device's memory is borrowed");
        let memory = memory::device(device.index()).map_err(SwitchError::from)?;
        let switch = Switch::new(memory, SwitchOptions { chunk_bytes, ..SwitchOptions::new(UNLIMITED_BYTES) })?;
        let pool = GraphPool::new(memory).map_err(SwitchError::from)?;
        Ok(Self { device, memory, switch, pool })
    }

    /// Whether the device still answers. After an error that loses its context, nothing in this process can use it again.
    pub fn is_lost(&self) -> bool {
        self.memory.driver().synchronize().is_err()
    }
}

impl BorrowedNetwork {
    /// Takes a network without values, built as the lender's was.
    ///
    /// # Errors
    /// Its parameters cannot be set to need no gradients.
    pub fn new(mut network: Box<dyn Network>) -> Result<Self> {
        network.eval();
        network.set_requires_grad(false)?;
        Ok(Self { network, calls: Calls::default(), arranged: None, borrowed: None })
    }

    /// Whether its weights are borrowed.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// The addresses that its weights have here, once they were borrowed: to [stop](Model::stop) a call.
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.arranged.as_ref().map(|arranged| &arranged.model)
    }

    /// Maps a lent model, of which groups may still be on their way. Descriptors are taken one after the other, as they may come, and
    /// closed; those of the same terms as before are mapped where the others were, so that captured calls stay right.
    ///
    /// # Errors
    /// The terms are of another network or device; there are fewer descriptors; a driver call failed. Nothing is mapped then.
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

    /// Unmaps the weights, when what was computed with them is done. They can be borrowed again.
    pub fn give_back(&mut self) {
        self.borrowed = None;
    }

    /// Answers inputs, which are brought to the device, with weights that are borrowed. The answers are there when the
    /// thread's current stream has passed what is on it then. A call that was measured is told once: the lender
    /// [learns](super::SwitchedModel::learn) from it.
    ///
    /// # Errors
    /// What the network says of its inputs; a driver call failed.
    ///
    /// # Panics
    /// Nothing is borrowed.
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

    /// Gives the network's tensors the places of a description.
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
        let bound = Bound::bind(&mut *self.network, placed, |group| storages[group].clone())?;
        self.arranged = Some(Arranged { terms: terms.clone(), model, bound });
        Ok(())
    }
}

/// The manifest of the other process's image, which is never made here.
fn manifest_of(model: &str, tensors: &[LentTensor], ends: Vec<usize>) -> Result<Arc<Manifest>, SwitchError> {
    let entry = |LentTensor { name, bytes, .. }: &LentTensor| {
        let origin = Origin::Made(Arc::new(|_: &mut [u8]| ()));
        Entry { name: name.clone(), bytes: *bytes, origin }
    };
    Ok(Arc::new(Manifest::new(model, tensors.iter().map(entry).collect(), ends)?))
}

fn dtype(terms: &LentTerms, tensor: &LentTensor) -> Result<DType, SwitchError> {
    tensor.dtype.parse().map_err(|_| terms.wrong("a dtype"))
}
