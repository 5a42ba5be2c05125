//! Shared memory of clients: the regions that they registered, over HTTP or over gRPC, and tensors in those.

mod error;
mod in_place;
mod peer;
mod regions;
mod system;

pub use error::SharedMemoryError;
pub(crate) use in_place::InPlace;
pub(crate) use peer::Peer;
pub(crate) use regions::Regions;
pub(crate) use system::{Registration, Status};
