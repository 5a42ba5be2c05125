//! The named tuples of operations with several results, as PyTorch's `torch.return_types`.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tenure::tensor::Scalar;
use tenure::tensor::operation::Argument;

/// Returns the names of an operation's results; `None` if they have none.
pub(super) fn fields(operation: &str) -> Option<&'static [&'static str]> {
    match operation {
        "max" | "min" | "sort" | "topk" | "kthvalue" | "median" | "nanmedian" | "mode" | "cummax" | "cummin" => {
            Some(&["values", "indices"])
        }
        "linalg_eigh" => Some(&["eigenvalues", "eigenvectors"]),
        "linalg_qr" => Some(&["Q", "R"]),
        "linalg_svd" => Some(&["U", "S", "Vh"]),
        "slogdet" => Some(&["sign", "logabsdet"]),
        _ => None,
    }
}

/// Returns a tuple of results with the names that the operation gives them.
pub(super) fn named<'py>(operation: &'static str, results: Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    static TYPES: LazyLock<Mutex<HashMap<&'static str, Py<PyAny>>>> = LazyLock::new(Mutex::default);
    let Some(fields) = fields(operation) else { return Ok(results.into_any()) };
    let py = results.py();
    let known = TYPES.lock().unwrap_or_else(PoisonError::into_inner).get(operation).map(|kind| kind.clone_ref(py));
    let kind = match known {
        Some(kind) => kind,
        None => {
            let kind = py.import("collections")?.call_method1("namedtuple", (operation, fields))?;
            kind.setattr("__module__", "tenure.return_types")?;
            let kind = kind.unbind();
            let mut types = TYPES.lock().unwrap_or_else(PoisonError::into_inner);
            types.entry(operation).or_insert(kind).clone_ref(py)
        }
    };
    kind.bind(py).call1(results)
}

/// Returns the result of `nonzero`: a tuple if `as_tuple`, else the tensor.
pub(super) fn in_form<'py>(result: Bound<'py, PyAny>, arguments: &[Argument<'_>]) -> PyResult<Bound<'py, PyAny>> {
    match arguments.get(1) {
        Some(Argument::Scalar(Scalar::Bool(false))) => result.get_item(0),
        _ => Ok(result),
    }
}

/// Returns the results of `unique` that its arguments ask for: the values alone, or a tuple with the positions and the
/// counts.
pub(super) fn asked<'py>(results: &Bound<'py, PyAny>, arguments: &[Argument<'_>]) -> PyResult<Bound<'py, PyAny>> {
    let [values, inverse, counts]: [Bound<'py, PyAny>; 3] = results.extract()?;
    let parts = match [2, 3].map(|index| matches!(arguments.get(index), Some(Argument::Scalar(Scalar::Bool(true))))) {
        [false, false] => return Ok(values),
        [true, false] => vec![values, inverse],
        [false, true] => vec![values, counts],
        [true, true] => vec![values, inverse, counts],
    };
    PyTuple::new(results.py(), parts).map(Bound::into_any)
}
