//! Amounts of memory as text, for parameters of the Python package.

use pyo3::prelude::*;
use tenure::units::Amount;

use crate::errors::complaint;

/// What `text` says of the parameter `name`: bytes, or a share in percent, of which one is given.
#[pyfunction]
pub(crate) fn parse_amount(name: &str, text: &str) -> PyResult<(Option<u64>, Option<f64>)> {
    match text.parse() {
        Ok(Amount::Bytes(bytes)) => Ok((Some(bytes), None)),
        Ok(Amount::Percent(percent)) => Ok((None, Some(percent))),
        Err(error) => Err(complaint(format!("{name}={text:?}: {error}"))),
    }
}
