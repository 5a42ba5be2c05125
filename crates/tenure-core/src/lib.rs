//! The vocabulary every room of Tenure shares: where bytes are, what they are, and who owns them.
#![warn(missing_docs)]

mod stream;
mod tag;

pub use stream::StreamId;
pub use tag::{Key, KeyId, Tag};
