//! Amounts of memory as text, for parameters of the Python package.

use pyo3::prelude::*;
use tenure::units::Amount;

use crate::errors::complaint;

/// Parses `text`, the value of the parameter `name`. Returns either bytes or a share in percent; the other is `None`.
#[pyfunction]
pub(crate) fn parse_amount(name: &str, text: &str) -> PyResult<(Option<u64>, Option<f64>)> {
    match text.parse() {
        Ok(Amount::Bytes(bytes)) => Ok((Some(bytes), None)),
        Ok(Amount::Percent(percent)) => Ok((None, Some(percent))),
        Err(error) => Err(complaint(format!("{name}={text:?}: {error}"))),
    }
}
