//! Text, a window at a time.

use std::io::Read;
use std::path::Path;

use tenure_core::user_files::{expect_no_utf_16, open_unpacked};
use tenure_tensor::TensorError;

use super::loader::{below, generator};
use super::{DataError, Dataset, Result};

/// A sequence of tokens in windows, for a model that says the next one: an example is the tokens of a window, and for
/// each the one that follows.
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
    /// The bytes of a file: 256 tokens, whatever is in it. One that gzip has packed is unpacked, whatever its name is.
    ///
    /// # Errors
    /// It cannot be read, is UTF-16, or is shorter than a window and the byte after it.
    pub fn open_bytes(path: &Path, length: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = open_unpacked(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.and_then(|_| expect_no_utf_16(&bytes)).map_err(DataError::io(path))?;
        Self::new(Tokens::Bytes(bytes), length).map_err(|error| DataError::format(path, error.to_string()))
    }

    /// What a tokenizer made of a text.
    ///
    /// # Errors
    /// They are fewer than a window and the token after it.
    pub fn of_tokens(tokens: Vec<u32>, length: usize) -> Result<Self> {
        Self::new(Tokens::Ids(tokens), length)
    }

    /// The first `count` windows, and the others, such as to hold them out. There may be none in one of them.
    pub fn split(mut self, count: usize) -> (Self, Self) {
        let (length, shift) = (self.length, self.shift);
        let tokens = self.tokens.split(count.min(self.len()) * length);
        (self, Self { tokens, length, shift })
    }

    /// In each epoch the windows begin at other tokens, which `seed` decides: otherwise a model that sees a text many times
    /// learns its windows by heart. There may be one fewer then; in a text shorter than two they stay.
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

    /// What decides where windows begin, if there is room for it.
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

    /// Windows side by side; what does not fill one is left out.
    fn len(&self) -> usize {
        // As many wherever they begin.
        let left_out = if self.shift().is_some() { self.length } else { 1 };
        self.count().saturating_sub(left_out) / self.length.max(1)
    }

    fn item(&self, index: usize) -> Result<(Vec<i64>, Vec<i64>)> {
        self.window(index, 0)
    }

    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<(Vec<i64>, Vec<i64>)> {
        // Not the generator that decides the order of examples.
        let shift = self.shift().map_or(0, |seed| below(&generator(!seed, epoch), self.length));
        self.window(index, shift)
    }
}

impl Tokens {
    /// Keeps those up to `at`, and what follows the last of them; those from `at` on.
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
