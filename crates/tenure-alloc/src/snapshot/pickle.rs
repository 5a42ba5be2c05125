//! A writer of Python pickles of plain data, which Python's `pickle.loads` reads back as dicts, lists, tuples and
//! scalars. It stands here since a snapshot is written under PyTorch (`tenure-capi`) and from a trace (`tenure-plan`), and
//! this is the crate below both.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

const PROTO: u8 = 0x80;
const PROTOCOL: u8 = 4;
const MARK: u8 = b'(';
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const NEW_TRUE: u8 = 0x88;
const NEW_FALSE: u8 = 0x89;
const BIN_INT: u8 = b'J';
const BIN_INT1: u8 = b'K';
const LONG1: u8 = 0x8a;
const BIN_FLOAT: u8 = b'G';
const SHORT_BIN_UNICODE: u8 = 0x8c;
const BIN_UNICODE: u8 = b'X';
const BIN_UNICODE8: u8 = 0x8d;
const EMPTY_DICT: u8 = b'}';
const EMPTY_LIST: u8 = b']';
const SET_ITEMS: u8 = b'u';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const MEMOIZE: u8 = 0x94;
const BIN_GET: u8 = b'h';
const LONG_BIN_GET: u8 = b'j';

/// The longest string, in bytes, that is written once and referred to afterwards.
const LONGEST_SHARED: usize = 64;
/// The most strings that are remembered, so that memory stays bounded.
const MOST_SHARED: usize = 4096;

/// A writer of one pickle (protocol 4), value by value.
///
/// One call writes one value. A call for a dict or a list takes a closure that writes the contents: keys and values in
/// turn, or items.
#[derive(Debug)]
pub struct PickleWriter<W> {
    out: W,
    shared: FxHashMap<Box<str>, u32>,
    /// The number of memoized values.
    memoized: u32,
}

impl<W: Write> PickleWriter<W> {
    /// Begins a pickle.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[PROTO, PROTOCOL])?;
        Ok(Self { out, shared: FxHashMap::default(), memoized: 0 })
    }

    /// Ends the pickle after its one value has been written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[STOP])?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes `None`.
    pub fn none(&mut self) -> io::Result<()> {
        self.out.write_all(&[NONE])
    }

    /// Writes `True` or `False`.
    pub fn flag(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { NEW_TRUE } else { NEW_FALSE }])
    }

    /// Writes an `int`.
    pub fn integer(&mut self, value: impl Into<i128>) -> io::Result<()> {
        let value = value.into();
        if let Ok(byte) = u8::try_from(value) {
            self.out.write_all(&[BIN_INT1, byte])
        } else if let Ok(word) = i32::try_from(value) {
            self.out.write_all(&[BIN_INT])?;
            self.out.write_all(&word.to_le_bytes())
        } else {
            // The fewest bytes of two's complement that keep the sign.
            let sign_bits = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
            let length = (128 - sign_bits) / 8 + 1;
            self.out.write_all(&[LONG1, length as u8])?;
            self.out.write_all(&value.to_le_bytes()[..length as usize])
        }
    }

    /// Writes a `float`.
    pub fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(&[BIN_FLOAT])?;
        self.out.write_all(&value.to_be_bytes())
    }

    /// Writes a `str`.
    pub fn text(&mut self, value: &str) -> io::Result<()> {
        if let Some(&index) = self.shared.get(value) {
            return self.fetch(index);
        }
        if let Ok(length) = u8::try_from(value.len()) {
            self.out.write_all(&[SHORT_BIN_UNICODE, length])?;
        } else if let Ok(length) = u32::try_from(value.len()) {
            self.out.write_all(&[BIN_UNICODE])?;
            self.out.write_all(&length.to_le_bytes())?;
        } else {
            self.out.write_all(&[BIN_UNICODE8])?;
            self.out.write_all(&(value.len() as u64).to_le_bytes())?;
        }
        self.out.write_all(value.as_bytes())?;
        if value.len() <= LONGEST_SHARED && self.shared.len() < MOST_SHARED {
            let index = self.memoize()?;
            self.shared.insert(value.into(), index);
        }
        Ok(())
    }

    /// Remembers the value that was just written, and returns the number with which [`fetch`](Self::fetch) writes it
    /// again: the reader numbers memoized values from 0.
    pub fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[MEMOIZE])?;
        self.memoized += 1;
        Ok(self.memoized - 1)
    }

    /// Writes a reference to a value that was [memoized](Self::memoize).
    pub fn fetch(&mut self, index: u32) -> io::Result<()> {
        match u8::try_from(index) {
            Ok(index) => self.out.write_all(&[BIN_GET, index]),
            Err(_) => {
                self.out.write_all(&[LONG_BIN_GET])?;
                self.out.write_all(&index.to_le_bytes())
            }
        }
    }

    /// Writes a `dict`; `entries` writes keys and values in turn.
    pub fn dict(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])?;
        entries(self)?;
        self.out.write_all(&[SET_ITEMS])
    }

    /// Writes a `list`; `items` writes its items.
    pub fn list(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(&[EMPTY_LIST, MARK])?;
        items(self)?;
        self.out.write_all(&[APPENDS])
    }

    /// Writes a `tuple` of two; each closure writes one value.
    pub fn pair(
        &mut self,
        first: impl FnOnce(&mut Self) -> io::Result<()>,
        second: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        first(self)?;
        second(self)?;
        self.out.write_all(&[TUPLE2])
    }

    /// Writes a dict's entry with an `int`.
    pub fn entry(&mut self, key: &str, value: impl Into<i128>) -> io::Result<()> {
        self.text(key)?;
        self.integer(value)
    }

    /// Writes a dict's entry with a `str`.
    pub fn text_entry(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes between the header and the final stop.
    fn written(write: impl FnOnce(&mut PickleWriter<Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut writer = PickleWriter::new(Vec::new()).unwrap();
        write(&mut writer).unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!((&bytes[..2], bytes[bytes.len() - 1]), (&[0x80, 4][..], b'.'));
        bytes[2..bytes.len() - 1].to_vec()
    }

    fn integer(value: i128) -> Vec<u8> {
        written(|writer| writer.integer(value))
    }

    #[test]
    fn integers_take_as_few_bytes_as_pythons_own_pickles() {
        assert_eq!(integer(0), b"K\x00");
        assert_eq!(integer(255), b"K\xff");
        assert_eq!(integer(256), b"J\x00\x01\x00\x00");
        assert_eq!(integer(-1), b"J\xff\xff\xff\xff");
        assert_eq!(integer(1 << 31), b"\x8a\x05\x00\x00\x00\x80\x00");
        assert_eq!(integer(-(1 << 31) - 1), b"\x8a\x05\xff\xff\xff\x7f\xff");
        assert_eq!(integer(i128::from(u64::MAX)), b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00");
    }

    #[test]
    fn a_string_is_written_once() {
        let twice = written(|writer| {
            writer.list(|writer| {
                writer.text("size")?;
                writer.text("size")
            })
        });
        assert_eq!(twice, b"](\x8c\x04size\x94h\x00e");
    }

    #[test]
    fn long_strings_are_not_remembered() {
        let long = "x".repeat(300);
        let bytes = written(|writer| writer.text(&long));
        assert_eq!((bytes.len(), &bytes[..5]), (305, &b"X\x2c\x01\x00\x00"[..]));
    }
}
