//! A model of a switcher that another process computes: the switcher keeps and brings its weights, and computes nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_device::EventHandle;
use tenure_switch::{Image, Lent, LentChunk, SwitchError, Terms};

use super::StoredTensor;
use super::known::Parts;
use crate::Result;

/// A model that is [lent](super::SwitchedModel::lend) to a process that computes it as a [`BorrowedNetwork`](super::BorrowedNetwork).
/// Until it is dropped, its weights stay on the device.
pub struct LentModel {
    lent: Lent,
    terms: LentTerms,
    tables: Option<Arc<Image>>,
}

/// A description of a lent model. Equal descriptions are of one model, at the same places of its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LentTerms {
    pub(super) model: String,
    pub(super) terms: Terms,
    /// In the order of the image.
    pub(super) tensors: Vec<LentTensor>,
    /// The tensor behind each group's last.
    pub(super) ends: Vec<usize>,
    /// Tensors that stay in the host's memory, where their rows are read.
    pub(super) tables: Vec<LentTensor>,
    /// The bytes of each group's event.
    pub(super) signals: Vec<Vec<u8>>,
    /// The order of the tensors is that of their use.
    pub(super) is_recorded: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LentTensor {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) bytes: u64,
}

impl LentModel {
    pub(super) fn new(lent: Lent, parts: &Parts, tables: Option<Arc<Image>>) -> Result<Self> {
        if let Some(tables) = &tables {
            // The other process does not see what is still read.
            tables.wait_for_all()?;
        }
        let tensor = |StoredTensor { dtype, entry }: &StoredTensor| LentTensor {
            name: entry.name.clone(),
            dtype: dtype.to_string(),
            bytes: entry.bytes,
        };
        let tensors = |indices: &[usize]| indices.iter().map(|index| tensor(&parts.stored.tensors()[*index])).collect();
        let order = parts.arrangement.order.as_known();
        let terms = LentTerms {
            model: parts.name.clone(),
            terms: lent.terms(),
            tensors: tensors(&order.tensors),
            ends: order.ends.clone(),
            tables: tensors(&order.tables),
            signals: lent.signals()?.into_iter().map(|EventHandle(bytes)| bytes.to_vec()).collect(),
            is_recorded: parts.arrangement.order.is_recorded(),
        };
        Ok(Self { lent, terms, tables })
    }

    /// The description, which the other process needs to [borrow](super::BorrowedNetwork::borrow) the model.
    pub fn terms(&self) -> &LentTerms {
        &self.terms
    }

    /// The chunks of its weights, whose descriptors the other process needs, in their order.
    pub fn chunks(&self) -> impl Iterator<Item = LentChunk> + '_ {
        self.lent.chunks()
    }

    /// A descriptor of its tables, which the other process needs too, if there are any.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn tables(&self) -> std::io::Result<Option<OwnedFd>> {
        self.tables.as_ref().map(|tables| tables.sealed().as_fd().try_clone_to_owned()).transpose()
    }
}

impl LentTerms {
    /// The events by which groups are waited for.
    pub(super) fn signals(&self) -> Result<Vec<EventHandle>, SwitchError> {
        let handle = |bytes: &Vec<u8>| bytes.as_slice().try_into().map(EventHandle).map_err(|_| self.wrong("an event"));
        self.signals.iter().map(handle).collect()
    }

    /// The error of a description that no lender makes.
    pub(super) fn wrong(&self, what: &'static str) -> SwitchError {
        SwitchError::NotTheSame { model: self.model.clone(), what, lent: "that is none".into(), known: "one".into() }
    }
}
