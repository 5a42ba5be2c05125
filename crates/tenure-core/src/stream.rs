//! The identity of a stream.

use std::fmt;

/// The identity of a device's stream. Work put on a stream runs in order, and memory freed on it is reusable on it at
/// once.
///
/// The number is the driver's own handle where there is one. Zero is the null (default) stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The null stream of every device.
    pub const NULL: Self = Self(0);
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
