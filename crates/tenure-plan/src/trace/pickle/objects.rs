//! The lists and dicts of a pickle, folded into records as soon as they are final.

use super::value::{ObjectId, Strings, Value};
use crate::trace::{TraceError, reserve};

/// Makes records of containers that are final.
pub(crate) trait Fold {
    /// A few bytes that stand for the container from then on.
    type Record: Copy;

    /// Makes a record of the list at `key` of a dict that is about to be folded, or `None` if it is to stay a list.
    /// `records` are the list's records.
    fn list(&mut self, key: &str, records: impl Iterator<Item = Self::Record>) -> Option<Self::Record>;

    /// Makes a record of a dict that was put into a list at `position`, or returns `None` if the dict is not needed.
    fn dict(&mut self, dict: &Dict<'_, Self::Record>, position: usize) -> Result<Option<Self::Record>, TraceError>;

    /// Returns the bytes that all records take, in addition to `Self::Record`.
    fn held_bytes(&self) -> u64;
}

/// A list or a dict, or the record that replaced it.
///
/// Note \[What lists keep\]: a snapshot may hold a hundred million dicts, and a pickle's memo names each of them to the
/// end. A dict is final when it is put into a list. It is folded at once into a record, or dropped if the fold does not
/// need it, and the lists in it are folded with it. A folded object takes eight bytes here, and its container is
/// reused. A list keeps only lists and records, and remembers the position of the first other item.
#[derive(Clone, Copy)]
pub(super) enum Slot<R> {
    /// The index of an open list.
    List(u32),
    /// The index of an open dict.
    Dict(u32),
    Record(R),
    Dropped,
}

#[derive(Default)]
pub(super) struct List {
    pub(super) items: Vec<ObjectId>,
    pub(super) left_out: Option<usize>,
    appended: usize,
}

pub(super) type Entries = Vec<(Value, Value)>;

/// All lists and dicts of a pickle.
pub(super) struct Objects<R> {
    slots: Vec<Slot<R>>,
    lists: Vec<List>,
    dicts: Vec<Entries>,
    unused_lists: Vec<u32>,
    unused_dicts: Vec<u32>,
    held_bytes: u64,
}

/// Containers with more items are freed, not reused.
const REUSED_ITEMS: usize = 1024;

impl<R: Copy> Objects<R> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            unused_lists: Vec::new(),
            unused_dicts: Vec::new(),
            held_bytes: 0,
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn add_list(&mut self) -> Result<Value, TraceError> {
        let list = self.unused_lists.pop().unwrap_or_else(|| {
            self.held_bytes += (size_of::<List>() + size_of::<u32>()) as u64;
            self.lists.push(List::default());
            self.lists.len() as u32 - 1
        });
        self.add(Slot::List(list))
    }

    pub(super) fn add_dict(&mut self) -> Result<Value, TraceError> {
        let dict = self.unused_dicts.pop().unwrap_or_else(|| {
            self.held_bytes += (size_of::<Entries>() + size_of::<u32>()) as u64;
            self.dicts.push(Entries::new());
            self.dicts.len() as u32 - 1
        });
        self.add(Slot::Dict(dict))
    }

    fn add(&mut self, slot: Slot<R>) -> Result<Value, TraceError> {
        reserve(&mut self.slots, 1)?;
        self.held_bytes += size_of::<Slot<R>>() as u64;
        self.slots.push(slot);
        Ok(Value::Object(ObjectId(self.slots.len() as u32 - 1)))
    }

    pub(super) fn slot(&self, value: Value) -> Option<Slot<R>> {
        match value {
            Value::Object(id) => self.slots.get(id.0 as usize).copied(),
            _ => None,
        }
    }

    pub(super) fn list(&self, value: Value) -> Option<&List> {
        match self.slot(value)? {
            Slot::List(list) => self.lists.get(list as usize),
            _ => None,
        }
    }

    pub(super) fn entries(&self, value: Value) -> Option<&Entries> {
        match self.slot(value)? {
            Slot::Dict(dict) => self.dicts.get(dict as usize),
            _ => None,
        }
    }

    pub(super) fn record(&self, value: Value) -> Option<R> {
        match self.slot(value)? {
            Slot::Record(record) => Some(record),
            _ => None,
        }
    }

    /// Appends `item` to the open list at `list`, after a dict in it is folded. See Note \[What lists keep\].
    pub(super) fn append(&mut self, list: u32, item: Value) -> Result<(), TraceError> {
        let kept = match (item, self.slot(item)) {
            (Value::Object(id), Some(Slot::List(_) | Slot::Record(_))) => Some(id),
            _ => None,
        };
        let list = &mut self.lists[list as usize];
        match kept {
            Some(id) => {
                let capacity = list.items.capacity();
                reserve(&mut list.items, 1)?;
                list.items.push(id);
                self.held_bytes += ((list.items.capacity() - capacity) * size_of::<ObjectId>()) as u64;
            }
            None => {
                list.left_out.get_or_insert(list.appended);
            }
        }
        list.appended += 1;
        Ok(())
    }

    /// Returns the number of items appended to the open list at `list`.
    pub(super) fn appended(&self, list: u32) -> usize {
        self.lists[list as usize].appended
    }

    /// Adds an entry to the open dict at `dict`.
    pub(super) fn set(&mut self, dict: u32, key: Value, value: Value) {
        let entries = &mut self.dicts[dict as usize];
        let capacity = entries.capacity();
        entries.push((key, value));
        self.held_bytes += ((entries.capacity() - capacity) * size_of::<(Value, Value)>()) as u64;
    }

    /// Folds the open dict at `dict`, which `id` names and which becomes item `position` of a list.
    pub(super) fn fold<F: Fold<Record = R>>(
        &mut self,
        id: ObjectId,
        dict: u32,
        position: usize,
        strings: &Strings,
        fold: &mut F,
    ) -> Result<(), TraceError> {
        let entries = std::mem::take(&mut self.dicts[dict as usize]);
        for &(key, value) in &entries {
            if let (Value::Str(key), Value::Object(id)) = (key, value)
                && let Slot::List(list) = self.slots[id.0 as usize]
            {
                let items = self.lists[list as usize].items.iter();
                let records = items.filter_map(|&item| self.record(Value::Object(item)));
                if let Some(record) = fold.list(strings.resolve(key), records) {
                    self.slots[id.0 as usize] = Slot::Record(record);
                    self.clear_list(list);
                }
            }
        }
        let record = fold.dict(&Dict { entries: &entries, strings, objects: self }, position)?;
        self.slots[id.0 as usize] = record.map_or(Slot::Dropped, Slot::Record);
        self.clear_dict(dict, entries);
        Ok(())
    }

    fn clear_list(&mut self, list: u32) {
        let mut items = std::mem::take(&mut self.lists[list as usize]).items;
        items.clear();
        if items.capacity() > REUSED_ITEMS {
            self.held_bytes -= (items.capacity() * size_of::<ObjectId>()) as u64;
            items = Vec::new();
        }
        self.lists[list as usize].items = items;
        self.unused_lists.push(list);
    }

    fn clear_dict(&mut self, dict: u32, mut entries: Entries) {
        entries.clear();
        if entries.capacity() > REUSED_ITEMS {
            self.held_bytes -= (entries.capacity() * size_of::<(Value, Value)>()) as u64;
            entries = Entries::new();
        }
        self.dicts[dict as usize] = entries;
        self.unused_dicts.push(dict);
    }
}

/// The entries of a dict. If a key occurs twice, the last entry counts.
pub(crate) struct Dict<'a, R> {
    pub(super) entries: &'a [(Value, Value)],
    pub(super) strings: &'a Strings,
    pub(super) objects: &'a Objects<R>,
}

impl<'a, R: Copy> Dict<'a, R> {
    /// Returns the entries whose keys are strings, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a str, Value)> {
        let strings = self.strings;
        self.entries.iter().filter_map(move |&(key, value)| match key {
            Value::Str(key) => Some((strings.resolve(key), value)),
            _ => None,
        })
    }

    /// Returns the value of `key`.
    pub(crate) fn find(&self, key: &str) -> Option<Value> {
        self.iter().filter_map(|(name, value)| (name == key).then_some(value)).last()
    }

    /// Returns the record that `value` refers to.
    pub(crate) fn record(&self, value: Value) -> Option<R> {
        self.objects.record(value)
    }

    /// Returns whether `value` says nothing: PyTorch writes `None`, an empty text or list, or `N/A`.
    pub(crate) fn is_void(&self, value: Value) -> bool {
        match value {
            Value::None | Value::Unit => true,
            Value::Str(text) => matches!(self.strings.resolve(text), "" | "N/A"),
            value => {
                self.objects.list(value).is_some_and(|list| list.appended == 0)
                    || self.objects.entries(value).is_some_and(Vec::is_empty)
            }
        }
    }

    pub(crate) fn strings(&self) -> &'a Strings {
        self.strings
    }
}
