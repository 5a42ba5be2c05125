//! Python functions that load models.

use std::str::FromStr;

use super::files::is_inside;

/// A Python function that loads a PyTorch module: called with the model's folder, it returns a `torch.nn.Module` on the
/// CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFunction {
    /// A file inside the model's folder whose name ends with `.py`, or else the name of an importable Python module.
    pub source: String,
    /// The function's name.
    pub function: String,
}

impl PythonFunction {
    /// Returns the file inside the model's folder, if the source is one.
    pub fn file(&self) -> Option<&str> {
        self.source.ends_with(".py").then_some(&self.source)
    }
}

impl FromStr for PythonFunction {
    type Err = ();

    /// Reads `FILE.py:FUNCTION` or `MODULE:FUNCTION`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (source, function) = text.rsplit_once(':').ok_or(())?;
        let is_source = if source.ends_with(".py") { is_inside(source) } else { source.split('.').all(is_identifier) };
        let python = Self { source: source.into(), function: function.into() };
        if is_source && is_identifier(function) { Ok(python) } else { Err(()) }
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|letter| letter == '_' || letter.is_alphanumeric())
        && !name.starts_with(|first: char| first.is_ascii_digit())
}
