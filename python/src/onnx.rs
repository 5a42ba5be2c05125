//! Export of Python functions as ONNX models.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use tenure::onnx::{DynamicAxis, Error, ExportOptions, export};
use tenure::tensor::Tensor;

use crate::errors::complaint;
use crate::tensor::{TensorObject, call_function, exception};

/// Writes a Python function of tensors as an ONNX model. `locate` returns the line of the program that runs.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of the function in Python")]
pub(crate) fn export_onnx(
    py: Python<'_>,
    function: Py<PyAny>,
    inputs: Vec<Bound<'_, TensorObject>>,
    path: PathBuf,
    input_names: Vec<String>,
    output_names: Vec<String>,
    dynamic_axes: Vec<(String, isize, String)>,
    opset: i64,
    names: Vec<(String, Bound<'_, TensorObject>)>,
    most_bytes_in_model: Option<usize>,
    locate: Py<PyAny>,
) -> PyResult<()> {
    let inputs: Vec<Tensor> = inputs.iter().map(|input| input.get().tensor()).collect();
    let locate = move || Python::attach(|py| locate.call0(py).and_then(|place| place.extract(py)).ok().flatten());
    let mut options = ExportOptions {
        input_names,
        output_names,
        dynamic_axes: dynamic_axes.into_iter().map(|(tensor, axis, name)| DynamicAxis { tensor, axis, name }).collect(),
        opset,
        names: names.into_iter().map(|(name, tensor)| (name, tensor.get().tensor())).collect(),
        locate: Some(Arc::new(locate)),
        ..ExportOptions::default()
    };
    if let Some(bytes) = most_bytes_in_model {
        options.most_bytes_in_model = bytes;
    }
    let exported = py.detach(|| {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        export(path, &inputs, &options, |inputs| call_function(&function, inputs))
    });
    exported.map_err(|error| match error {
        Error::Tensor(error) => exception(error),
        error => complaint(error.to_string()),
    })
}
