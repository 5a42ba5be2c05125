use std::str::FromStr;

use super::files::is_inside;

/// A function of Python that loads a PyTorch module: called with the model's folder, it returns a `torch.nn.Module` on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFunction {
    /// A file inside the model's folder, which ends with `.py`, or else the name of a module that Python can import.
    pub source: String,
    /// The function's name.
    pub function: String,
}

impl PythonFunction {
    /// The file inside the model's folder, if it is one.
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
    let is_letter = |letter: char| letter == '_' || letter.is_alphanumeric();
    !name.is_empty() && name.chars().all(is_letter) && !name.starts_with(|first: char| first.is_ascii_digit())
}
