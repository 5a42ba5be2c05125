//! Models of a switcher that are lent to another process. The switcher keeps and loads the weights, and computes
//! nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_device::EventHandle;
use tenure_switch::{Image, Lent, LentChunk, SwitchError, Terms};

use super::StoredTensor;
use super::managed::ModelDefinition;
use crate::Result;

/// A model that is [lent](super::SwitchedModel::lend) to a process that computes it as a
/// [`BorrowedNetwork`](super::BorrowedNetwork). Until it is dropped, its weights stay on the device.
pub struct LentModel {
    lent: Lent,
    terms: LentTerms,
    tables: Option<Arc<Image>>,
}

/// The description of a lent model, which the other process needs to map and use its weights. If the terms of two loans
/// are equal, the same model lies at the same offsets, so that its captured calls stay valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LentTerms {
    pub(super) model: String,
    pub(super) terms: Terms,
    /// The tensors, in the order of the image.
    pub(super) tensors: Vec<LentTensor>,
    /// For each group, the number of the first tensor after it.
    pub(super) ends: Vec<usize>,
    /// Tensors that stay in the host's memory, where calls read their rows.
    pub(super) tables: Vec<LentTensor>,
    /// The bytes of the handle of each group's event, which its copy to the device signals.
    pub(super) signals: Vec<Vec<u8>>,
    /// Whether `tensors` are in the order of their use, rather than in that of the network's state.
    pub(super) is_recorded: bool,
}

/// A tensor of a lent model, as its terms describe it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LentTensor {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) bytes: u64,
}

impl LentModel {
    /// Makes the terms of a lent model. `tables` is the image of its tables.
    pub(super) fn new(lent: Lent, definition: &ModelDefinition, tables: Option<Arc<Image>>) -> Result<Self> {
        if let Some(tables) = &tables {
            // The other process cannot wait for tables that are still being read.
            tables.wait_for_all()?;
        }
        let tensors = |indices: &[usize]| {
            let stored = indices.iter().map(|index| &definition.stored.tensors()[*index]);
            stored
                .map(|StoredTensor { dtype, entry }| LentTensor {
                    name: entry.name.clone(),
                    dtype: dtype.to_string(),
                    bytes: entry.bytes,
                })
                .collect()
        };
        let order = definition.arrangement.order.as_known();
        let terms = LentTerms {
            model: definition.name.clone(),
            terms: lent.terms(),
            tensors: tensors(&order.tensors),
            ends: order.ends.clone(),
            tables: tensors(&order.tables),
            signals: lent.signals()?.into_iter().map(|EventHandle(bytes)| bytes.to_vec()).collect(),
            is_recorded: definition.arrangement.order.is_recorded(),
        };
        Ok(Self { lent, terms, tables })
    }

    /// Returns the terms, which the other process needs to [borrow](super::BorrowedNetwork::borrow) the model.
    pub fn terms(&self) -> &LentTerms {
        &self.terms
    }

    /// Returns the chunks of the weights, in order. The other process needs their descriptors.
    pub fn chunks(&self) -> impl Iterator<Item = LentChunk> + '_ {
        self.lent.chunks()
    }

    /// Returns a descriptor of the tables, if there are any. The other process needs it too.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn tables(&self) -> std::io::Result<Option<OwnedFd>> {
        self.tables.as_ref().map(|tables| tables.sealed().as_fd().try_clone_to_owned()).transpose()
    }
}

impl LentTerms {
    /// Returns, for each group, the event that its copy to the device signals.
    pub(super) fn signals(&self) -> Result<Vec<EventHandle>, SwitchError> {
        self.signals
            .iter()
            .map(|bytes| bytes.as_slice().try_into().map(EventHandle).map_err(|_| self.wrong("an event")))
            .collect()
    }

    /// Returns the error of invalid terms: their bytes do not give `what`, such as "an event".
    pub(super) fn wrong(&self, what: &'static str) -> SwitchError {
        SwitchError::NotTheSame { model: self.model.clone(), what, lent: "that is not one".into(), known: "one".into() }
    }
}
