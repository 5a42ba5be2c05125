//! Text data sets, read in windows.

use std::io::Read;
use std::path::Path;

use tenure_core::user_files::{expect_no_archive, expect_no_utf_16, expect_text, open_unpacked};
use tenure_tensor::TensorError;

use super::loader::{below, generator};
use super::{DataError, Dataset, Result};

/// A sequence of tokens in windows, for a model that predicts the next token. An example is the tokens of a window, and
/// the token that follows each of them.
pub struct TextWindows {
    tokens: Tokens,
    length: usize,
    shift: Option<u64>,
}

enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

impl TextWindows {
    /// Opens a text in UTF-8 as a sequence of bytes: 256 different tokens. A file that gzip, xz, lzma, bzip2 or zstd
    /// compressed is decompressed, regardless of its name.
    ///
    /// # Errors
    /// The file cannot be read, is a device, is no text in UTF-8, or is shorter than a window and the byte after it.
    pub fn open_bytes(path: &Path, length: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = open_unpacked(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.and_then(|_| expect_no_utf_16(&bytes))
            .and_then(|()| expect_no_archive(&bytes))
            .and_then(|()| expect_text(&bytes))
            .map_err(DataError::io(path))?;
        Self::new(Tokens::Bytes(bytes), length).map_err(|error| DataError::format(path, error.to_string()))
    }

    /// Makes windows of the tokens that a tokenizer returned.
    ///
    /// # Errors
    /// There are fewer tokens than a window and the token after it.
    pub fn of_tokens(tokens: Vec<u32>, length: usize) -> Result<Self> {
        Self::new(Tokens::Ids(tokens), length)
    }

    /// Returns the bytes of the text, or `None` if a tokenizer made its tokens.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.tokens {
            Tokens::Bytes(bytes) => Some(bytes),
            Tokens::Ids(_) => None,
        }
    }

    /// Splits off the windows after the first `count`, such as to hold them out. Either part may be empty.
    pub fn split(mut self, count: usize) -> (Self, Self) {
        let length = self.length;
        let shift = self.shift;
        let tokens = self.tokens.split(count.min(self.len()) * length);
        (self, Self { tokens, length, shift })
    }

    /// Shifts the windows in each epoch by a number of tokens that `seed` decides: otherwise a model that sees a text
    /// many times memorises its windows. The shift may cost one window. A text shorter than two windows is not shifted.
    #[must_use]
    pub fn shifted(self, seed: u64) -> Self {
        Self { shift: Some(seed), ..self }
    }

    fn new(tokens: Tokens, length: usize) -> Result<Self> {
        let windows = Self { tokens, length, shift: None };
        if length == 0 || windows.is_empty() {
            let reason = match length {
                0 => "a window of 0 tokens has nothing to learn: give it at least one".to_owned(),
                _ => format!(
                    "the text is too short: there are {} tokens, and a window of {length} and the token after it take {}: \
                     give a longer text",
                    windows.count(),
                    length.saturating_add(1)
                ),
            };
            return Err(DataError::Bytes(reason));
        }
        Ok(windows)
    }

    fn count(&self) -> usize {
        match &self.tokens {
            Tokens::Bytes(bytes) => bytes.len(),
            Tokens::Ids(ids) => ids.len(),
        }
    }

    /// Returns the seed of the shift, if the text is long enough for one.
    fn shift(&self) -> Option<u64> {
        self.shift.filter(|_| self.count() >= 2 * self.length)
    }

    fn window(&self, index: usize, shift: usize) -> Result<(Vec<i64>, Vec<i64>)> {
        if index >= self.len() {
            return Err(TensorError::Index { op: "item", index: index as i64, dim: 0, size: self.len() }.into());
        }
        let start = index * self.length + shift;
        Ok((self.range(start), self.range(start + 1)))
    }

    fn range(&self, start: usize) -> Vec<i64> {
        let range = start..start + self.length;
        match &self.tokens {
            Tokens::Bytes(bytes) => bytes[range].iter().map(|byte| i64::from(*byte)).collect(),
            Tokens::Ids(ids) => ids[range].iter().map(|id| i64::from(*id)).collect(),
        }
    }
}

impl Dataset for TextWindows {
    type Item = (Vec<i64>, Vec<i64>);

    /// Returns the number of windows side by side. Tokens that do not fill a window are left out.
    fn len(&self) -> usize {
        // The number is the same for every shift.
        let left_out = if self.shift().is_some() { self.length } else { 1 };
        self.count().saturating_sub(left_out) / self.length.max(1)
    }

    fn item(&self, index: usize) -> Result<(Vec<i64>, Vec<i64>)> {
        self.window(index, 0)
    }

    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<(Vec<i64>, Vec<i64>)> {
        // The inverted seed gives another generator than the one for the order of examples.
        let shift = self.shift().map_or(0, |seed| below(&generator(!seed, epoch), self.length));
        self.window(index, shift)
    }
}

impl Tokens {
    /// Keeps the tokens up to `at` and the one that follows them; returns the tokens from `at` on.
    fn split(&mut self, at: usize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(split(bytes, at)),
            Self::Ids(ids) => Self::Ids(split(ids, at)),
        }
    }
}

fn split<T: Copy>(tokens: &mut Vec<T>, at: usize) -> Vec<T> {
    let rest = tokens[at..].to_vec();
    tokens.truncate(at + 1);
    rest
}
