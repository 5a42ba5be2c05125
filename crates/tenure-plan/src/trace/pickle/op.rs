//! The operations of a pickle, decoded from its bytes.

use super::call::{Global, ShortBytes};
use super::excerpt;
use crate::trace::{Input, TraceError};

/// The longest string, in bytes.
const STRING_LIMIT: usize = 16 << 20;
/// The longest text form of a number, or of a name in an error, in bytes.
const LINE_LIMIT: usize = 1 << 10;
/// One more than the bytes of the longest NumPy scalar.
const MOST_BYTES: u8 = 9;
const HIGHEST_PROTOCOL: u8 = 5;

/// One operation on the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    /// No effect: a protocol number or a frame.
    Skip,
    Mark,
    Stop,
    Pop,
    PopMark,
    Duplicate,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// The string is in [`Operations::text`].
    Str,
    EmptyList,
    EmptyDict,
    /// A list of the items above the mark.
    List,
    /// A dict of the items above the mark.
    Dict,
    /// A tuple of the items above the mark.
    Tuple,
    /// A tuple of the topmost values.
    TupleOf(usize),
    Append,
    Appends,
    SetItem,
    SetItems,
    Get(u32),
    Put(u32),
    Memoize,
    Bytes(ShortBytes),
    /// An import of a name that stands for data.
    Global(Global),
    /// An import of the name that the two topmost strings give: never executed.
    StackGlobal,
    /// A call of the second value with the arguments on top.
    Reduce,
    /// Sets the state of the second value to the one on top.
    Build,
}

/// A pickle's operations, protocols 0 to 5.
pub(super) struct Operations<'i, 'a> {
    input: &'i mut Input<'a>,
    start: u64,
    buffer: Vec<u8>,
    text: String,
}

impl<'i, 'a> Operations<'i, 'a> {
    pub(super) fn new(input: &'i mut Input<'a>) -> Self {
        Self { input, start: 0, buffer: Vec::new(), text: String::new() }
    }

    /// Returns the offset at which the current operation begins.
    pub(super) fn offset(&self) -> u64 {
        self.start
    }

    /// Returns the string of the last [`Op::Str`].
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the error for an operation that must not be executed.
    pub(super) fn refusal(&self, what: impl Into<String>) -> TraceError {
        TraceError::Refused { offset: self.start, what: what.into() }
    }

    /// Returns the error for an import of a name that may stand for code.
    pub(super) fn import(&self, module: &str, name: &str) -> TraceError {
        self.refusal(format!("would import {}.{}", excerpt(module), excerpt(name)))
    }

    /// Returns the error for an operation that is malformed.
    pub(super) fn error(&self, reason: impl Into<String>) -> TraceError {
        TraceError::Pickle { offset: self.start, reason: reason.into() }
    }

    /// Reads the next operation.
    pub(super) fn next(&mut self) -> Result<Op, TraceError> {
        self.start = self.input.offset();
        let code = self.input.byte()?;
        Ok(match code {
            b'(' => Op::Mark,
            b'.' => Op::Stop,
            b'0' => Op::Pop,
            b'1' => Op::PopMark,
            b'2' => Op::Duplicate,
            b'N' => Op::None,
            0x88 => Op::Bool(true),
            0x89 => Op::Bool(false),
            b'K' => Op::Int(self.input.byte()?.into()),
            b'M' => Op::Int(u16::from_le_bytes(self.input.array()?).into()),
            b'J' => Op::Int(i32::from_le_bytes(self.input.array()?).into()),
            0x8a => self.long(|input| Ok(input.byte()?.into()))?,
            0x8b => self.long(|input| Ok(u32::from_le_bytes(input.array()?).into()))?,
            b'I' => match self.decimal()?.as_str() {
                "00" => Op::Bool(false),
                "01" => Op::Bool(true),
                digits => self.parse_int(digits)?,
            },
            b'L' => {
                let digits = self.decimal()?;
                self.parse_int(digits.strip_suffix('L').unwrap_or(&digits))?
            }
            b'G' => Op::Float(f64::from_be_bytes(self.input.array()?)),
            b'F' => {
                let digits = self.decimal()?;
                Op::Float(digits.parse().map_err(|_| self.error(format!("\"{}\" is not a float", excerpt(&digits))))?)
            }
            0x8c => self.string(|input| Ok(input.byte()?.into()))?,
            b'X' => self.string(|input| Ok(u32::from_le_bytes(input.array()?).into()))?,
            0x8d => self.string(|input| Ok(u64::from_le_bytes(input.array()?)))?,
            b'V' => self.escaped_string()?,
            b']' => Op::EmptyList,
            b'}' => Op::EmptyDict,
            b')' => Op::TupleOf(0),
            0x85 => Op::TupleOf(1),
            0x86 => Op::TupleOf(2),
            0x87 => Op::TupleOf(3),
            b'l' => Op::List,
            b'd' => Op::Dict,
            b't' => Op::Tuple,
            b'a' => Op::Append,
            b'e' => Op::Appends,
            b's' => Op::SetItem,
            b'u' => Op::SetItems,
            b'h' => Op::Get(self.input.byte()?.into()),
            b'j' => Op::Get(u32::from_le_bytes(self.input.array()?)),
            b'g' => Op::Get(self.memo_index()?),
            b'q' => Op::Put(self.input.byte()?.into()),
            b'r' => Op::Put(u32::from_le_bytes(self.input.array()?)),
            b'p' => Op::Put(self.memo_index()?),
            0x94 => Op::Memoize,
            0x93 => Op::StackGlobal,
            b'c' => {
                let module = self.decimal()?;
                let name = self.decimal()?;
                Op::Global(Global::from_name(&module, &name).ok_or_else(|| self.import(&module, &name))?)
            }
            b'R' => Op::Reduce,
            b'b' => Op::Build,
            b'C' => {
                let length = self.input.byte()?;
                self.input.exactly(length.min(MOST_BYTES).into(), &mut self.buffer)?;
                let bytes = ShortBytes::new(&self.buffer).filter(|_| (1..MOST_BYTES).contains(&length));
                Op::Bytes(bytes.ok_or_else(|| self.refusal("holds a byte string"))?)
            }
            0x80 => match self.input.byte()? {
                0..=HIGHEST_PROTOCOL => Op::Skip,
                version => return Err(self.error(format!("pickle protocol {version} is not known"))),
            },
            // Frames only help readers that cannot buffer.
            0x95 => {
                self.input.array::<8>()?;
                Op::Skip
            }
            _ => return Err(self.refuse(code)?),
        })
    }

    fn long(&mut self, length: impl FnOnce(&mut Input<'a>) -> Result<u64, TraceError>) -> Result<Op, TraceError> {
        const BYTES: usize = size_of::<i128>();
        let length = length(self.input)? as usize;
        if length > BYTES {
            return Err(self.error(format!("an integer of {length} bytes is larger than any address or size")));
        }
        self.input.exactly(length, &mut self.buffer)?;
        // Little-endian two's complement: the top byte carries the sign.
        let fill = if self.buffer.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut bytes = [fill; BYTES];
        bytes[..length].copy_from_slice(&self.buffer);
        Ok(Op::Int(i128::from_le_bytes(bytes)))
    }

    fn parse_int(&self, digits: &str) -> Result<Op, TraceError> {
        digits
            .parse()
            .map(Op::Int)
            .map_err(|_| self.error(format!("\"{}\" is not an integer in range", excerpt(digits))))
    }

    fn memo_index(&mut self) -> Result<u32, TraceError> {
        let digits = self.decimal()?;
        digits.parse().map_err(|_| self.error(format!("\"{}\" is not a memo index", excerpt(&digits))))
    }

    fn decimal(&mut self) -> Result<String, TraceError> {
        self.input.line(LINE_LIMIT, &mut self.buffer)?;
        Ok(String::from_utf8_lossy(&self.buffer).into_owned())
    }

    fn string(&mut self, length: impl FnOnce(&mut Input<'a>) -> Result<u64, TraceError>) -> Result<Op, TraceError> {
        let length = length(self.input)?;
        if length > STRING_LIMIT as u64 {
            return Err(TraceError::TooLarge { offset: self.start, what: "a string", limit: STRING_LIMIT as u64 });
        }
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        self.input.exactly(length as usize, &mut bytes)?;
        self.text = String::from_utf8(bytes).map_err(|_| self.error("a string is not UTF-8"))?;
        Ok(Op::Str)
    }

    /// Reads a string of protocol 0: Latin-1 with `\uXXXX` and `\UXXXXXXXX` (Python's `raw-unicode-escape`).
    fn escaped_string(&mut self) -> Result<Op, TraceError> {
        self.input.line(STRING_LIMIT, &mut self.buffer)?;
        self.text.clear();
        let mut rest = self.buffer.as_slice();
        while let Some((&byte, after)) = rest.split_first() {
            let digits = match (byte, after.first()) {
                (b'\\', Some(b'u')) => 4,
                (b'\\', Some(b'U')) => 8,
                _ => {
                    self.text.push(char::from(byte));
                    rest = after;
                    continue;
                }
            };
            let escape = after.get(1..=digits).and_then(|hex| std::str::from_utf8(hex).ok());
            let character = escape.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
            self.text.push(character.ok_or_else(|| self.error("a string has a broken escape"))?);
            rest = &after[1 + digits..];
        }
        Ok(Op::Str)
    }

    /// Returns the reason why an operation with this code is not executed.
    fn refuse(&mut self, code: u8) -> Result<TraceError, TraceError> {
        let what: String = match code {
            b'i' => {
                let module = self.decimal()?;
                let name = self.decimal()?;
                return Ok(self.import(&module, &name));
            }
            b'o' => "would construct an object (OBJ)".into(),
            0x81 => "would construct an object (NEWOBJ)".into(),
            0x92 => "would construct an object (NEWOBJ_EX)".into(),
            0x82..=0x84 => "would use an extension registry (EXT)".into(),
            b'P' | b'Q' => "would load a persistent object (PERSID)".into(),
            b'S' | b'T' | b'U' | b'B' | 0x8e | 0x96 => "holds a byte string".into(),
            0x8f..=0x91 => "holds a set".into(),
            0x97 | 0x98 => "would use an out-of-band buffer".into(),
            _ => return Ok(self.error(format!("{code:#04x} is not a pickle operation"))),
        };
        Ok(self.refusal(what))
    }
}
