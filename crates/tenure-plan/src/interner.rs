//! An interner: stores equal values once.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

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
