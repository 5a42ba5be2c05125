//! Decoded values of a pickle, and the interner that stores equal ones once.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::call::{Dtype, Global, ShortBytes};

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
    /// The empty tuple.
    Unit,
    /// A tuple of two strings: the arguments of [`Global::Encode`].
    Strs(StringId, StringId),
    /// A longer tuple that begins with a string: the arguments of [`Global::NumpyDtype`].
    StrFirst(StringId),
    /// A tuple of a [`Global::Factory`].
    FactoryOnly,
    /// The state of a [`Dtype`], whose second item is the order of its bytes.
    StrSecond(StringId),
    /// The arguments of [`Global::NumpyScalar`].
    Scalar(Dtype, ShortBytes),
    /// Any other tuple, whose items are not kept.
    Tuple,
    Global(Global),
    Dtype(Dtype),
    Bytes(ShortBytes),
    Object(ObjectId),
}

// Every value on the stack and in a dict takes this much.
const _: () = assert!(size_of::<Value>() == 16);

impl Value {
    /// Returns the integer if it is in the range 0 to 2^64 - 1.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(value) => value.try_into().ok(),
            Self::Large(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the integer in the range 0 to 2^64 - 1 that the value is, also as a float.
    pub(crate) fn as_whole(self) -> Option<u64> {
        match self {
            // Floats hold all integers up to 2^53.
            Self::Float(value) if value.fract() == 0.0 && (0.0..=(1_u64 << 53) as f64).contains(&value) => {
                Some(value as u64)
            }
            other => other.as_u64(),
        }
    }

    /// Returns the time, rounded down to whole units.
    pub(crate) fn as_time(self) -> Option<u64> {
        match self {
            Self::Float(value) if (0.0..u64::MAX as f64).contains(&value) => Some(value as u64),
            other => other.as_u64(),
        }
    }

    /// Returns the tuple of `items`.
    pub(super) fn tuple(items: &[Self]) -> Self {
        let small = |item: Self| item.as_u64().and_then(|value| u32::try_from(value).ok());
        match *items {
            [first, second] => match (small(first), small(second)) {
                (Some(first), Some(second)) => Self::Pair(first, second),
                _ => match (first, second) {
                    (Self::Str(first), Self::Str(second)) => Self::Strs(first, second),
                    (Self::Dtype(dtype), Self::Bytes(bytes)) => Self::Scalar(dtype, bytes),
                    _ => Self::Tuple,
                },
            },
            [] => Self::Unit,
            [Self::Global(Global::Factory)] => Self::FactoryOnly,
            [Self::Str(first), _, _] => Self::StrFirst(first),
            [Self::Int(_), Self::Str(order), ..] => Self::StrSecond(order),
            _ => Self::Tuple,
        }
    }

    /// Returns the scalar of type `dtype` that `bytes` hold.
    pub(super) fn scalar(dtype: Dtype, bytes: ShortBytes) -> Option<Self> {
        let (Dtype::Signed(length) | Dtype::Unsigned(length) | Dtype::Float(length)) = dtype else {
            return (bytes.length == 1).then_some(Self::Bool(bytes.bytes[0] != 0));
        };
        if length != bytes.length {
            return None;
        }
        let word = u64::from_le_bytes(bytes.bytes);
        Some(match dtype {
            Dtype::Signed(length) => {
                let unused_bits = u64::BITS - 8 * u32::from(length);
                Self::Int((word << unused_bits) as i64 >> unused_bits)
            }
            Dtype::Float(4) => Self::Float(f64::from(f32::from_bits(word as u32))),
            Dtype::Float(_) => Self::Float(f64::from_bits(word)),
            Dtype::Bool | Dtype::Unsigned(_) => i64::try_from(word).map_or(Self::Large(word), Self::Int),
        })
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

/// Distinct values, numbered in the order in which they came.
pub(crate) struct Interner<T: ?Sized> {
    numbers: FxHashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: FxHashMap::default(), values: Vec::new() }
    }
}

impl<T: ?Sized + Hash + Eq> Interner<T> {
    /// Bytes that a value takes in both tables, in addition to the value.
    pub(crate) const ENTRY_BYTES: usize = 64;

    /// Returns the number of `value` if it is stored.
    pub(crate) fn find(&self, value: &T) -> Option<u32> {
        self.numbers.get(value).copied()
    }

    /// Adds a value that is not stored yet. Returns its number.
    pub(crate) fn add(&mut self, value: impl Into<Arc<T>>) -> u32 {
        let value = value.into();
        let number = self.values.len() as u32;
        self.values.push(Arc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    /// Returns the value with this number.
    pub(crate) fn get(&self, number: u32) -> &Arc<T> {
        &self.values[number as usize]
    }

    /// Returns all values, in the order of their numbers.
    pub(crate) fn into_values(self) -> Vec<Arc<T>> {
        self.values
    }
}
