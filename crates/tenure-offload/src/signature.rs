//! The signature of a step, and what the step is for.

/// What a pass over a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Nothing is moved, however much memory it takes: to find out how much that is, and how long it takes.
    Plain,
    /// It keeps to the budget. The first of a signature is measured meanwhile, and everything that may move moves.
    Budgeted,
}

/// Identifies steps that do the same, and have a plan together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A number for what the step does, such as a hash of the sizes of its batch.
    pub id: u64,
    /// A number that steps have in common which differ in sizes alone.
    pub kind: u64,
    /// Bytes that the step computes on, by which steps of a kind are compared. 0 if the front end does not know.
    pub input_bytes: u64,
}

impl From<u64> for Signature {
    fn from(id: u64) -> Self {
        Self { id, kind: id, input_bytes: 0 }
    }
}
