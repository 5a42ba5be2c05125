//! The memo of a pickle: stored values that later operations fetch.

use super::value::{ObjectId, StringId, Value};
use crate::trace::{TraceError, reserve};

/// The memo. An entry for a string or an object takes four bytes, since picklers store all of these and fetch few.
#[derive(Default)]
pub(super) struct Memo {
    /// A number and, in the two lowest bits, its kind.
    entries: Vec<u32>,
    /// Values of other kinds, which picklers do not store.
    others: Vec<Value>,
}

const ABSENT: u32 = 0;
const STRING: u32 = 1;
const OBJECT: u32 = 2;
const OTHER: u32 = 3;
const KIND_BITS: u32 = 2;

impl Memo {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn held_bytes(&self) -> usize {
        size_of_val(self.entries.as_slice()) + size_of_val(self.others.as_slice())
    }

    pub(super) fn get(&self, index: usize) -> Option<Value> {
        let entry = *self.entries.get(index)?;
        let number = entry >> KIND_BITS;
        match entry & ((1 << KIND_BITS) - 1) {
            STRING => Some(Value::Str(StringId(number))),
            OBJECT => Some(Value::Object(ObjectId(number))),
            OTHER => self.others.get(number as usize).copied(),
            _ => None,
        }
    }

    /// Stores `value`. Entries before it that were never stored stay absent.
    pub(super) fn put(&mut self, index: usize, value: Value) -> Result<(), TraceError> {
        let missing = (index + 1).saturating_sub(self.entries.len());
        reserve(&mut self.entries, missing)?;
        // The memory limit keeps all numbers below 2^30.
        let (number, kind) = match value {
            Value::Str(id) => (id.0, STRING),
            Value::Object(id) => (id.0, OBJECT),
            other => {
                self.others.push(other);
                (self.others.len() as u32 - 1, OTHER)
            }
        };
        if index >= self.entries.len() {
            self.entries.resize(index + 1, ABSENT);
        }
        self.entries[index] = number << KIND_BITS | kind;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_found_again() {
        let last = (1 << 30) - 1;
        let values = [
            Value::Str(StringId(0)),
            Value::Object(ObjectId(last)),
            Value::Tuple,
            Value::Int(-5),
            Value::Str(StringId(last)),
        ];
        let mut memo = Memo::default();
        for (index, &value) in values.iter().enumerate() {
            memo.put(2 * index, value).unwrap();
        }
        for (index, &value) in values.iter().enumerate() {
            assert_eq!(memo.get(2 * index), Some(value));
            assert_eq!(memo.get(2 * index + 1), None);
        }
    }

    #[test]
    fn a_string_or_an_object_takes_four_bytes() {
        let mut memo = Memo::default();
        for number in 0..1000 {
            memo.put(memo.len(), Value::Object(ObjectId(number))).unwrap();
        }
        assert_eq!(memo.held_bytes(), 4000);
    }
}
