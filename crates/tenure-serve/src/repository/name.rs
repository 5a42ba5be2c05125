//! Names of models.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use super::RepositoryError;

/// A model's name, which is also its folder's: 1 to 128 ASCII letters, digits, `.`, `_` and `-`, without a leading `.`.
/// So it can stand unescaped as one segment of a path or URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelName(String);

impl ModelName {
    const MAX_BYTES: usize = 128;

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelName {
    type Err = RepositoryError;

    fn from_str(name: &str) -> Result<Self, RepositoryError> {
        let is_name = (1..=Self::MAX_BYTES).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if is_name { Ok(Self(name.into())) } else { Err(RepositoryError::Name { name: name.into() }) }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for ModelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
