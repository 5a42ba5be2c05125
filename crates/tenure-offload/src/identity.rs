//! The numbers that identify saved tensors and residents.

/// Identifies a saved tensor or a resident among all that an engine ever held. Tensors saved later have greater
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldId(u64);

impl HeldId {
    /// Returns the identity of the tensor with this index in a step whose first saved tensor is `first`.
    pub(crate) fn in_step(first: Self, index: SavedIndex) -> Self {
        Self(first.0 + index.0 as u64)
    }

    /// Returns the index in a step whose first saved tensor is `first`. Returns None for a tensor that was held before
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedIndex(pub usize);

/// The index of a resident in a [`Profile`](crate::Profile): 0 for the one that was added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentIndex(pub usize);
