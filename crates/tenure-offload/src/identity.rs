//! The values that identify steps, saved tensors and residents.

/// Identifies a saved tensor or a resident among all that an engine ever had. Tensors saved later have greater
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TensorId(u64);

impl TensorId {
    /// Returns the identity of the tensor with this index in a step whose first saved tensor is `first`.
    pub(crate) fn in_step(first: Self, index: SavedIndex) -> Self {
        Self(first.0 + index.0 as u64)
    }

    /// Returns the index in a step whose first saved tensor is `first`. Returns None for a tensor from before
    /// the step.
    pub(crate) fn index_in_step(self, first: Self) -> Option<SavedIndex> {
        self.0.checked_sub(first.0).map(|index| SavedIndex(index as usize))
    }

    /// Returns the identity that is given out after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The index of a saved tensor in its step: 0 for the one that was saved first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SavedIndex(pub usize);

/// The index of a resident in a [`Profile`](crate::Profile): 0 for the one that was added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentIndex(pub usize);

/// The purpose of a pass over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The pass measures how much memory and time the step takes when nothing is moved.
    Plain,
    /// The pass keeps to the budget. If no step like it is known, it is measured, and tensors leave when an allocation
    /// finds no room.
    Budgeted,
}

/// Identifies steps that do the same and share a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A number for what the step does, such as a hash of the sizes of its batch.
    pub id: u64,
    /// A number that steps have in common if they differ only in sizes.
    pub kind: u64,
    /// The bytes that the step computes on, by which steps of a kind are compared. 0 if the front end does not know.
    pub input_bytes: u64,
}

impl From<u64> for Signature {
    fn from(id: u64) -> Self {
        Self { id, kind: id, input_bytes: 0 }
    }
}
