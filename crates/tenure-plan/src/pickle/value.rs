//! Decoded values of a pickle.

use crate::interner::Interner;

/// A decoded value: small and copied freely. Containers and strings lie in the machine and are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63 to 2^64 - 1.
    Large(u64),
    Float(f64),
    Str(StringId),
    /// A tuple of two integers below 2^32.
    Pair(u32, u32),
    /// Any other tuple, whose items are not kept.
    Tuple,
    Object(ObjectId),
}

impl Value {
    /// Returns the integer if it is in the range 0 to 2^64 - 1.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(value) => value.try_into().ok(),
            Self::Large(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the tuple of `items`.
    pub(super) fn tuple(items: &[Self]) -> Self {
        let small = |item: Self| item.as_u64().and_then(|value| u32::try_from(value).ok());
        match *items {
            [first, second] => match (small(first), small(second)) {
                (Some(first), Some(second)) => Self::Pair(first, second),
                _ => Self::Tuple,
            },
            _ => Self::Tuple,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StringId(pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectId(pub(super) u32);

/// The distinct strings of a pickle.
pub(crate) type Strings = Interner<str>;

impl Strings {
    pub(crate) fn resolve(&self, id: StringId) -> &str {
        self.get(id.0)
    }

    /// Returns the string as a shared pointer that can outlive the machine.
    pub(crate) fn share(&self, id: StringId) -> std::sync::Arc<str> {
        std::sync::Arc::clone(self.get(id.0))
    }
}
