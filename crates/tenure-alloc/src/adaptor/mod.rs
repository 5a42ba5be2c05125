//! Small resources over another resource, which compose in any order: a limit, statistics, a recorder of events, and a
//! callback on failure (the adaptors of RAPIDS' rmm).
//!
//! Each adaptor owns the resource below it and holds no lock while it calls that, so a callback further down may free
//! through the adaptors above. A block that was allocated below an adaptor may be freed through it: the adaptor passes
//! the free on and does not count it.
//!
//! [`Donated`] wraps a whole caching allocator, and gives it further memory for a while.

mod counted;
mod donated;
mod ledger;
mod limited;
mod on_failure;
mod recorded;

pub use counted::Counted;
pub use donated::{Donated, DonatedRanges, PlacedBlock, RangeGate, RangePlacement};
pub use limited::Limited;
pub use on_failure::{FailureCallback, OnFailure};
pub use recorded::Recorded;
