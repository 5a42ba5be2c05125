//! The stack machine that runs a pickle.

use super::call::{Dtype, Global, ShortBytes};
use super::memo::Memo;
use super::objects::{Dict, Fold, Objects, Slot};
use super::op::{Op, Operations};
use super::value::{StringId, Strings, Value};
use crate::trace::{Input, TraceError, reserve};

/// The stack machine that executes a pickle's operations.
pub(crate) struct Machine<R> {
    stack: Vec<Value>,
    /// The stack heights at which marks lie.
    marks: Vec<usize>,
    memo: Memo,
    objects: Objects<R>,
    strings: Strings,
    string_bytes: usize,
    limit_bytes: u64,
}

/// The largest allowed gap in memo indices. Picklers number entries from 0 or 1 on, without gaps; a far higher index
/// would only ask for memory.
const MEMO_GAP: usize = 255;
/// The highest memory limit. Each object takes at least eight bytes, so their numbers fit the 30 bits of [`Memo`].
const LIMIT_BYTES: u64 = 8 << 30;

impl<R: Copy> Machine<R> {
    /// Runs the whole pickle, using at most about `limit_bytes`, and returns its value. `fold` gets every dict that is
    /// put into a list, with its position in the list.
    pub(crate) fn run<F: Fold<Record = R>>(
        input: &mut Input<'_>,
        fold: &mut F,
        limit_bytes: u64,
    ) -> Result<(Self, Value), TraceError> {
        let mut machine = Self {
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            objects: Objects::new(),
            strings: Strings::default(),
            string_bytes: 0,
            limit_bytes: limit_bytes.min(LIMIT_BYTES),
        };
        let mut operations = Operations::new(input);
        loop {
            match operations.next()? {
                Op::Stop => break,
                op => machine.step(op, &operations, fold)?,
            }
        }
        let value = machine.pop(&operations)?;
        input.finish()?;
        Ok((machine, value))
    }

    /// Returns the dict that `value` refers to.
    pub(crate) fn dict(&self, value: Value) -> Option<Dict<'_, R>> {
        let entries = self.objects.entries(value)?;
        Some(Dict { entries, strings: &self.strings, objects: &self.objects })
    }

    /// Returns the lists and records that the list `value` kept, and the position of the first item that it did not
    /// keep.
    pub(crate) fn list(&self, value: Value) -> Option<(impl ExactSizeIterator<Item = Value>, Option<usize>)> {
        let list = self.objects.list(value)?;
        Some((list.items.iter().map(|&id| Value::Object(id)), list.left_out))
    }

    /// Returns the distinct strings.
    pub(crate) fn strings(&self) -> &Strings {
        &self.strings
    }

    /// Returns the record that `value` refers to.
    pub(crate) fn record(&self, value: Value) -> Option<R> {
        self.objects.record(value)
    }

    fn step<F: Fold<Record = R>>(&mut self, op: Op, at: &Operations<'_, '_>, fold: &mut F) -> Result<(), TraceError> {
        match op {
            Op::Skip | Op::Stop => Ok(()),
            Op::Mark => {
                self.marks.push(self.stack.len());
                self.check_memory(at, fold)
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
                self.push(top, at, fold)
            }
            Op::None => self.push(Value::None, at, fold),
            Op::Bool(value) => self.push(Value::Bool(value), at, fold),
            Op::Int(value) => {
                let value = i64::try_from(value).map(Value::Int).or_else(|_| u64::try_from(value).map(Value::Large));
                self.push(value.map_err(|_| at.error("an integer is larger than 64 bits"))?, at, fold)
            }
            Op::Float(value) => self.push(Value::Float(value), at, fold),
            Op::Str => {
                let id = self.intern(at, fold)?;
                self.push(Value::Str(id), at, fold)
            }
            Op::EmptyList => self.push_list(at, fold),
            Op::EmptyDict => self.push_dict(at, fold),
            Op::List => {
                let mark = self.mark(at)?;
                self.push_list(at, fold)?;
                self.stack[mark..].rotate_right(1);
                self.append_above(mark + 1, at, fold)
            }
            Op::Dict => {
                let mark = self.mark(at)?;
                self.push_dict(at, fold)?;
                self.stack[mark..].rotate_right(1);
                self.set_above(mark + 1, at, fold)
            }
            Op::Tuple => {
                let mark = self.mark(at)?;
                let tuple = Value::tuple(&self.stack[mark..]);
                self.stack.truncate(mark);
                self.push(tuple, at, fold)
            }
            Op::TupleOf(count) => {
                let mut items = [Value::None; 3];
                let items = &mut items[..count];
                for item in items.iter_mut().rev() {
                    *item = self.pop(at)?;
                }
                self.push(Value::tuple(items), at, fold)
            }
            Op::Append => {
                let item = self.pop(at)?;
                let list = self.top(at)?;
                self.append(list, item, at, fold)
            }
            Op::Appends => {
                let mark = self.mark(at)?;
                self.append_above(mark, at, fold)
            }
            Op::SetItem => {
                let value = self.pop(at)?;
                let key = self.pop(at)?;
                let dict = self.top(at)?;
                self.set(dict, key, value, at, fold)
            }
            Op::SetItems => {
                let mark = self.mark(at)?;
                self.set_above(mark, at, fold)
            }
            Op::Get(index) => match self.memo.get(index as usize) {
                Some(value) => self.push(value, at, fold),
                None => Err(at.error(format!("memo entry {index} was never stored"))),
            },
            Op::Put(index) => self.memoize(index as usize, at, fold),
            Op::Memoize => self.memoize(self.memo.len(), at, fold),
            Op::Bytes(bytes) => self.push(Value::Bytes(bytes), at, fold),
            Op::Global(global) => self.push(Value::Global(global), at, fold),
            Op::StackGlobal => {
                let name = self.pop(at)?;
                let module = self.pop(at)?;
                let name = self.text(name);
                let module = self.text(module);
                let global = Global::from_name(module, name).ok_or_else(|| at.import(module, name))?;
                self.push(Value::Global(global), at, fold)
            }
            Op::Reduce => {
                let arguments = self.pop(at)?;
                let callee = self.pop(at)?;
                self.reduce(callee, arguments, at, fold)
            }
            Op::Build => {
                let state = self.pop(at)?;
                match (self.top(at)?, state) {
                    // `|` is the order of a single byte.
                    (Value::Dtype(_), Value::StrSecond(order)) if matches!(self.strings.resolve(order), "<" | "|") => {
                        Ok(())
                    }
                    (Value::Dtype(_), _) => Err(at.refusal("holds a NumPy number that is not little-endian")),
                    _ => Err(at.refusal("would set an object's state (BUILD)")),
                }
            }
        }
    }

    /// Returns the string, or `?` for another value.
    fn text(&self, value: Value) -> &str {
        match value {
            Value::Str(id) => self.strings.resolve(id),
            _ => "?",
        }
    }

    /// Pushes the data that a call makes. Nothing is called: other callees are refused.
    fn reduce<F: Fold<Record = R>>(
        &mut self,
        callee: Value,
        arguments: Value,
        at: &Operations<'_, '_>,
        fold: &F,
    ) -> Result<(), TraceError> {
        let made = match (callee, arguments) {
            (Value::Global(Global::OrderedDict | Global::DefaultDict), Value::Unit)
            | (Value::Global(Global::DefaultDict), Value::FactoryOnly) => return self.push_dict(at, fold),
            (Value::Global(Global::NumpyDtype), Value::StrFirst(name)) => {
                Dtype::from_name(self.strings.resolve(name)).map(Value::Dtype)
            }
            (Value::Global(Global::NumpyScalar), Value::Scalar(dtype, bytes)) => Value::scalar(dtype, bytes),
            (Value::Global(Global::Encode), Value::Strs(text, encoding))
                if self.strings.resolve(encoding) == "latin1" =>
            {
                let bytes: Option<Vec<u8>> =
                    self.strings.resolve(text).chars().map(|character| u8::try_from(character).ok()).collect();
                bytes.and_then(|bytes| ShortBytes::new(&bytes)).map(Value::Bytes)
            }
            _ => None,
        };
        self.push(made.ok_or_else(|| at.refusal("would call a function (REDUCE)"))?, at, fold)
    }

    /// Appends everything above height `base` to the list below it.
    fn append_above<F: Fold<Record = R>>(
        &mut self,
        base: usize,
        at: &Operations<'_, '_>,
        fold: &mut F,
    ) -> Result<(), TraceError> {
        let list = self.below(base, at)?;
        for index in base..self.stack.len() {
            self.append(list, self.stack[index], at, fold)?;
        }
        self.stack.truncate(base);
        Ok(())
    }

    /// Sets pairs of everything above height `base` in the dict below it.
    fn set_above<F: Fold<Record = R>>(
        &mut self,
        base: usize,
        at: &Operations<'_, '_>,
        fold: &mut F,
    ) -> Result<(), TraceError> {
        let dict = self.below(base, at)?;
        if !(self.stack.len() - base).is_multiple_of(2) {
            return Err(at.error("a dict has a key without a value"));
        }
        for index in (base..self.stack.len()).step_by(2) {
            self.set(dict, self.stack[index], self.stack[index + 1], at, fold)?;
        }
        self.stack.truncate(base);
        Ok(())
    }

    /// Appends `item`; a dict is folded first.
    fn append<F: Fold<Record = R>>(
        &mut self,
        list: Value,
        item: Value,
        at: &Operations<'_, '_>,
        fold: &mut F,
    ) -> Result<(), TraceError> {
        let mut open = self.open_list(list, at)?;
        if let (Value::Object(id), Some(Slot::Dict(dict))) = (item, self.objects.slot(item)) {
            let position = self.objects.appended(open);
            self.objects.fold(id, dict, position, &self.strings, fold)?;
            // The list may be inside the dict.
            open = self.open_list(list, at)?;
        }
        self.objects.append(open, item)?;
        self.check_memory(at, fold)
    }

    fn open_list(&self, list: Value, at: &Operations<'_, '_>) -> Result<u32, TraceError> {
        match self.objects.slot(list) {
            Some(Slot::List(list)) => Ok(list),
            Some(Slot::Record(_) | Slot::Dropped) => {
                Err(at.error("a list changes after its dict was put into another list"))
            }
            _ => Err(at.error("something is appended to a value that is not a list")),
        }
    }

    fn set<F: Fold<Record = R>>(
        &mut self,
        dict: Value,
        key: Value,
        value: Value,
        at: &Operations<'_, '_>,
        fold: &F,
    ) -> Result<(), TraceError> {
        match self.objects.slot(dict) {
            Some(Slot::Dict(dict)) => self.objects.set(dict, key, value),
            Some(Slot::Record(_) | Slot::Dropped) => {
                return Err(at.error("a dict changes after it was put into a list"));
            }
            _ => return Err(at.error("an item is set in a value that is not a dict")),
        }
        self.check_memory(at, fold)
    }

    fn memoize<F: Fold<Record = R>>(
        &mut self,
        index: usize,
        at: &Operations<'_, '_>,
        fold: &F,
    ) -> Result<(), TraceError> {
        let value = self.top(at)?;
        if index > self.memo.len() + MEMO_GAP {
            return Err(at.error(format!("memo entry {index} comes after only {}", self.memo.len())));
        }
        self.memo.put(index, value)?;
        self.check_memory(at, fold)
    }

    fn intern<F: Fold<Record = R>>(&mut self, at: &Operations<'_, '_>, fold: &F) -> Result<StringId, TraceError> {
        if let Some(number) = self.strings.find(at.text()) {
            return Ok(StringId(number));
        }
        self.string_bytes += at.text().len() + Strings::ENTRY_BYTES;
        self.check_memory(at, fold)?;
        Ok(StringId(self.strings.add(at.text())))
    }

    fn push_list<F: Fold<Record = R>>(&mut self, at: &Operations<'_, '_>, fold: &F) -> Result<(), TraceError> {
        let list = self.objects.add_list()?;
        self.push(list, at, fold)
    }

    fn push_dict<F: Fold<Record = R>>(&mut self, at: &Operations<'_, '_>, fold: &F) -> Result<(), TraceError> {
        let dict = self.objects.add_dict()?;
        self.push(dict, at, fold)
    }

    fn push<F: Fold<Record = R>>(&mut self, value: Value, at: &Operations<'_, '_>, fold: &F) -> Result<(), TraceError> {
        reserve(&mut self.stack, 1)?;
        self.stack.push(value);
        self.check_memory(at, fold)
    }

    fn pop(&mut self, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let top = self.top(at)?;
        self.stack.pop();
        Ok(top)
    }

    /// Returns the topmost value above the topmost mark.
    fn top(&self, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..].last().copied().ok_or_else(|| at.error("the stack is empty"))
    }

    /// Removes the topmost mark; returns the stack height at which it was.
    fn mark(&mut self, at: &Operations<'_, '_>) -> Result<usize, TraceError> {
        self.marks.pop().ok_or_else(|| at.error("a mark is missing"))
    }

    fn below(&self, height: usize, at: &Operations<'_, '_>) -> Result<Value, TraceError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..height].last().copied().ok_or_else(|| at.error("the stack is empty"))
    }

    #[inline]
    fn check_memory<F: Fold<Record = R>>(&self, at: &Operations<'_, '_>, fold: &F) -> Result<(), TraceError> {
        let stack_bytes = size_of_val(self.stack.as_slice()) + size_of_val(self.marks.as_slice());
        let table_bytes = self.memo.held_bytes() + self.string_bytes;
        if (stack_bytes + table_bytes) as u64 + self.objects.held_bytes() + fold.held_bytes() > self.limit_bytes {
            return Err(TraceError::TooLarge { offset: at.offset(), what: "decoded values", limit: self.limit_bytes });
        }
        Ok(())
    }
}
