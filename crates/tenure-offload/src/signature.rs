//! The signature of a step, and the purpose of its pass over a batch.

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
