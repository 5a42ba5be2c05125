use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::excerpt;
use super::op::{Op, Operations};
use crate::trace::{Input, TraceError};

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
    /// What was in it is not kept.
    Tuple,
    Object(ObjectId),
}

impl Value {
    /// The integer, if it is one from 0 to 2^64 - 1.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(value) => value.try_into().ok(),
            Self::Large(value) => Some(value),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectId(u32);

/// A list or a dict, or what became of one.
///
/// Note \[What lists keep\]: a snapshot may hold millions of dicts, and a pickle's memo keeps every one of them to the
/// end. So when a dict is put into a list it is final, and is folded at once into a record, or emptied if `fold` has
/// no use for it. A list keeps only lists and records, and remembers where it left anything else out.
enum Object {
    List { items: Vec<Value>, left_out: Option<usize>, appended: usize },
    Dict(Vec<(Value, Value)>),
    Record(u32),
    Dropped,
}

/// The entries of a dict. Of equal keys the last one counts.
pub(crate) struct Dict<'a> {
    entries: &'a [(Value, Value)],
    strings: &'a Strings,
}

impl<'a> Dict<'a> {
    /// The entries whose keys are strings, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a str, Value)> {
        let strings = self.strings;
        self.entries.iter().filter_map(move |&(key, value)| match key {
            Value::Str(key) => Some((strings.resolve(key), value)),
            _ => None,
        })
    }

    /// The value of `key`.
    pub(crate) fn find(&self, key: &str) -> Option<Value> {
        self.iter().filter_map(|(name, value)| (name == key).then_some(value)).last()
    }

    pub(crate) fn strings(&self) -> &'a Strings {
        self.strings
    }
}

/// The distinct strings of a pickle.
#[derive(Default)]
pub(crate) struct Strings {
    ids: FxHashMap<Rc<str>, StringId>,
    texts: Vec<Rc<str>>,
}

impl Strings {
    pub(crate) fn resolve(&self, id: StringId) -> &str {
        &self.texts[id.0 as usize]
    }
}

/// Makes a record of a dict, or `None` if the dict is of no use.
pub(crate) type Fold<R> = fn(&Dict<'_>, usize) -> Result<Option<R>, TraceError>;

/// The stack machine that a pickle is a program for.
pub(crate) struct Machine<R> {
    stack: Vec<Value>,
    /// Heights of the stack at which marks lie.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    objects: Vec<Object>,
    records: Vec<R>,
    strings: Strings,
    fold: Fold<R>,
    held_bytes: u64,
    limit_bytes: u64,
}

/// Picklers number memo entries from 0 or 1 on, without gaps; an index further ahead only asks for memory.
const MEMO_GAP: usize = 255;
const VALUE_BYTES: usize = size_of::<Value>();
/// No limit is higher: strings, objects and records hold at least 32 bytes each, so their numbers fit 32 bits.
const LIMIT_BYTES: u64 = 64 << 30;
/// A string's entry in both tables, besides its text.
const STRING_BYTES: usize = 64;

impl<R> Machine<R> {
    /// Runs the whole pickle, holding at most about `limit_bytes`, and returns its value.
    /// `fold` gets every dict that is put into a list, and its position there.
    pub(crate) fn run(input: &mut Input<'_>, fold: Fold<R>, limit_bytes: u64) -> Result<(Self, Value), TraceError> {
        let mut machine = Self {
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            objects: Vec::new(),
            records: Vec::new(),
            strings: Strings::default(),
            fold,
            held_bytes: 0,
            limit_bytes: limit_bytes.min(LIMIT_BYTES),
        };
        let mut operations = Operations::new(input);
        loop {
            match operations.next()? {
                Op::Stop => break,
                op => machine.step(op, &operations)?,
            }
        }
        let value = machine.pop(&operations)?;
        input.finish()?;
        Ok((machine, value))
    }

    /// The dict behind `value`.
    pub(crate) fn dict(&self, value: Value) -> Option<Dict<'_>> {
        match self.object(value)? {
            Object::Dict(entries) => Some(Dict { entries, strings: &self.strings }),
            _ => None,
        }
    }

    /// What the list behind `value` kept, and the position of the first item it did not.
    pub(crate) fn list(&self, value: Value) -> Option<(&[Value], Option<usize>)> {
        match self.object(value)? {
            Object::List { items, left_out, .. } => Some((items, *left_out)),
            _ => None,
        }
    }

    /// The string, if `value` is one.
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Str(id) => Some(self.strings.resolve(id)),
            _ => None,
        }
    }

    /// The record behind `value`.
    pub(crate) fn record(&self, value: Value) -> Option<&R> {
        match *self.object(value)? {
            Object::Record(index) => self.records.get(index as usize),
            _ => None,
        }
    }

    fn object(&self, value: Value) -> Option<&Object> {
        match value {
            Value::Object(id) => self.objects.get(id.0 as usize),
            _ => None,
        }
    }

    fn step(&mut self, op: Op, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        match op {
            Op::Skip | Op::Stop => Ok(()),
            Op::Mark => {
                self.marks.push(self.stack.len());
                self.check_memory(at)
            }
            Op::Pop if self.marks.last() == Some(&self.stack.len()) => {
                self.marks.pop();
                Ok(())
            }
            Op::Pop => self.pop(at).map(drop),
            Op::PopMark => {
                let mark = self.mark(at)?;
                self.stack.truncate(mark);
                Ok(())
            }
            Op::Duplicate => {
                let top = self.top(at)?;
                self.push(top, at)
            }
            Op::None => self.push(Value::None, at),
            Op::Bool(value) => self.push(Value::Bool(value), at),
            Op::Int(value) => {
                let value = i64::try_from(value).map(Value::Int).or_else(|_| u64::try_from(value).map(Value::Large));
                self.push(value.map_err(|_| at.error("an integer is larger than 64 bits"))?, at)
            }
            Op::Float(value) => self.push(Value::Float(value), at),
            Op::Str => {
                let id = self.intern(at)?;
                self.push(Value::Str(id), at)
            }
            Op::EmptyList => self.push_object(Object::List { items: Vec::new(), left_out: None, appended: 0 }, at),
            Op::EmptyDict => self.push_object(Object::Dict(Vec::new()), at),
            Op::List => {
                let mark = self.mark(at)?;
                self.push_object(Object::List { items: Vec::new(), left_out: None, appended: 0 }, at)?;
                self.stack[mark..].rotate_right(1);
                self.append_above(mark + 1, at)
            }
            Op::Dict => {
                let mark = self.mark(at)?;
                self.push_object(Object::Dict(Vec::new()), at)?;
                self.stack[mark..].rotate_right(1);
                self.set_above(mark + 1, at)
            }
            Op::Tuple => {
                let mark = self.mark(at)?;
                self.stack.truncate(mark);
                self.push(Value::Tuple, at)
            }
            Op::TupleOf(count) => {
                for _ in 0..count {
                    self.pop(at)?;
                }
                self.push(Value::Tuple, at)
            }
            Op::Append => {
                let item = self.pop(at)?;
                let list = self.top(at)?;
                self.append(list, item, at)
            }
            Op::Appends => {
                let mark = self.mark(at)?;
                self.append_above(mark, at)
            }
            Op::SetItem => {
                let value = self.pop(at)?;
                let key = self.pop(at)?;
                let dict = self.top(at)?;
                self.set(dict, key, value, at)
            }
            Op::SetItems => {
                let mark = self.mark(at)?;
                self.set_above(mark, at)
            }
            Op::Get(index) => match self.memo.get(index as usize) {
                Some(&Some(value)) => self.push(value, at),
                _ => Err(at.error(format!("memo entry {index} was never stored"))),
            },
            Op::Put(index) => self.memoize(index as usize, at),
            Op::Memoize => self.memoize(self.memo.len(), at),
            Op::StackGlobal => {
                let (name, module) = (self.pop(at)?, self.pop(at)?);
                Err(at.refusal(format!("would import {}.{}", self.name(module), self.name(name))))
            }
        }
    }

    /// What a refused import calls something.
    fn name(&self, value: Value) -> String {
        match value {
            Value::Str(id) => excerpt(self.strings.resolve(id)),
            _ => "?".into(),
        }
    }

    /// Appends everything above height `base` to the list below it.
    fn append_above(&mut self, base: usize, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        let list = self.below(base, at)?;
        for index in base..self.stack.len() {
            self.append(list, self.stack[index], at)?;
        }
        self.stack.truncate(base);
        Ok(())
    }

    /// Sets pairs of everything above height `base` in the dict below it.
    fn set_above(&mut self, base: usize, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        let dict = self.below(base, at)?;
        if !(self.stack.len() - base).is_multiple_of(2) {
            return Err(at.error("a dict has a key without a value"));
        }
        for index in (base..self.stack.len()).step_by(2) {
            self.set(dict, self.stack[index], self.stack[index + 1], at)?;
        }
        self.stack.truncate(base);
        Ok(())
    }

    /// See Note \[What lists keep\].
    fn append(&mut self, list: Value, item: Value, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        let Some(Object::List { appended, .. }) = self.object(list) else {
            return Err(at.error("something is appended to what is not a list"));
        };
        let position = *appended;
        if let Value::Object(id) = item
            && let Object::Dict(entries) = &self.objects[id.0 as usize]
        {
            let record = (self.fold)(&Dict { entries, strings: &self.strings }, position)?;
            self.release(entries.len() * 2 * VALUE_BYTES);
            self.objects[id.0 as usize] = match record {
                Some(record) => {
                    self.hold(size_of::<R>(), at)?;
                    self.records.push(record);
                    Object::Record((self.records.len() - 1) as u32)
                }
                None => Object::Dropped,
            };
        }
        let kept = matches!(self.object(item), Some(Object::List { .. } | Object::Record(_)));
        if kept {
            self.hold(VALUE_BYTES, at)?;
        }
        if let Value::Object(id) = list
            && let Object::List { items, left_out, appended } = &mut self.objects[id.0 as usize]
        {
            *appended += 1;
            if kept {
                items.push(item);
            } else {
                left_out.get_or_insert(position);
            }
        }
        Ok(())
    }

    fn set(&mut self, dict: Value, key: Value, value: Value, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        self.hold(2 * VALUE_BYTES, at)?;
        let object = match dict {
            Value::Object(id) => self.objects.get_mut(id.0 as usize),
            _ => None,
        };
        match object {
            Some(Object::Dict(entries)) => {
                entries.push((key, value));
                Ok(())
            }
            Some(Object::Record(_) | Object::Dropped) => Err(at.error("a dict changes after it was put into a list")),
            _ => Err(at.error("an item is set in what is not a dict")),
        }
    }

    fn memoize(&mut self, index: usize, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        let value = self.top(at)?;
        if index > self.memo.len() + MEMO_GAP {
            return Err(at.error(format!("memo entry {index} comes after only {}", self.memo.len())));
        }
        if index >= self.memo.len() {
            self.hold((index + 1 - self.memo.len()) * VALUE_BYTES, at)?;
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(value);
        Ok(())
    }

    fn intern(&mut self, at: &Operations<'_, '_>) -> Result<StringId, TraceError> {
        if let Some(&id) = self.strings.ids.get(at.text()) {
            return Ok(id);
        }
        self.hold(at.text().len() + STRING_BYTES, at)?;
        let id = StringId(self.strings.texts.len() as u32);
        let text: Rc<str> = at.text().into();
        self.strings.texts.push(Rc::clone(&text));
        self.strings.ids.insert(text, id);
        Ok(id)
    }

    fn push_object(&mut self, object: Object, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        self.hold(size_of::<Object>(), at)?;
        self.objects.push(object);
        self.push(Value::Object(ObjectId((self.objects.len() - 1) as u32)), at)
    }

    fn push(&mut self, value: Value, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        self.stack.push(value);
        self.check_memory(at)
    }

    fn pop(&mut self, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let top = self.top(at)?;
        self.stack.pop();
        Ok(top)
    }

    /// The topmost value above the topmost mark.
    fn top(&self, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..].last().copied().ok_or_else(|| at.error("the stack is empty"))
    }

    /// Takes the topmost mark away; returns the height of the stack at which it was.
    fn mark(&mut self, at: &Operations<'_, '_>) -> Result<usize, TraceError> {
        self.marks.pop().ok_or_else(|| at.error("there is no mark"))
    }

    fn below(&self, height: usize, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..height].last().copied().ok_or_else(|| at.error("the stack is empty"))
    }

    fn hold(&mut self, bytes: usize, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        self.held_bytes = self.held_bytes.saturating_add(bytes as u64);
        self.check_memory(at)
    }

    fn release(&mut self, bytes: usize) {
        self.held_bytes -= bytes as u64;
    }

    fn check_memory(&self, at: &Operations<'_, '_>) -> Result<(), TraceError> {
        let stack_bytes = self.stack.len() * VALUE_BYTES + self.marks.len() * size_of::<usize>();
        if self.held_bytes.saturating_add(stack_bytes as u64) > self.limit_bytes {
            return Err(TraceError::TooLarge { offset: at.offset(), what: "decoded values", limit: self.limit_bytes });
        }
        Ok(())
    }
}
