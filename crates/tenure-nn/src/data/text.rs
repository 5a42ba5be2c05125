//! Text, a window at a time.

use std::fs;
use std::path::Path;

use super::{DataError, Dataset, Result};
use tenure_tensor::TensorError;

/// A sequence of tokens in windows, for a model that says the next one: an example is the tokens of a window, and for
/// each the one that follows.
pub struct TextWindows {
    tokens: Tokens,
    length: usize,
}

enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

impl TextWindows {
    /// The bytes of a file: 256 tokens, whatever is in it.
    ///
    /// # Errors
    /// It cannot be read, or is shorter than a window and the byte after it.
    pub fn open_bytes(path: &Path, length: usize) -> Result<Self> {
        let bytes = fs::read(path).map_err(DataError::io(path))?;
        Self::new(Tokens::Bytes(bytes), length).map_err(|error| DataError::format(path, error.to_string()))
    }

    /// What a tokenizer made of a text.
    ///
    /// # Errors
    /// They are fewer than a window and the token after it.
    pub fn of_tokens(tokens: Vec<u32>, length: usize) -> Result<Self> {
        Self::new(Tokens::Ids(tokens), length)
    }

    fn new(tokens: Tokens, length: usize) -> Result<Self> {
        let windows = Self { tokens, length };
        if length == 0 || windows.is_empty() {
            let count = windows.count();
            let reason =
                format!("windows of {length} tokens need at least one token each, and one more: there are {count}");
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
        self.count().saturating_sub(1) / self.length.max(1)
    }

    fn item(&self, index: usize) -> Result<(Vec<i64>, Vec<i64>)> {
        if index >= self.len() {
            return Err(TensorError::Index { op: "item", index: index as i64, dim: 0, size: self.len() }.into());
        }
        let start = index * self.length;
        Ok((self.range(start), self.range(start + 1)))
    }
}
