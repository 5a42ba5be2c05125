//! Extensions: functions of libraries that were built for Tenure, as Python calls them.

use std::ffi::CString;
use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use smallvec::SmallVec;
use tenure::device::cuda::{CompileError, ProgramSource};
use tenure::tensor::random::Generator;
use tenure::tensor::{Scalar, Tensor};
use tenure_capi::extension::{self, ExtensionError, Function};
use tenure_capi::failure::Status;
use tenure_capi::headers;
use tenure_capi::tensors::value::{Returned, Value};

use super::{DTypeObject, DeviceObject, GeneratorObject, TensorObject, convert, device, dtype};
use crate::errors::complaint;

// Without documentation of its own: `__doc__` is the function's.
#[pyclass(frozen, name = "ExtensionFunction", module = "tenure._native")]
pub(crate) struct ExtensionFunction {
    function: Function,
}

/// Opens an extension's library, and returns its functions.
#[pyfunction]
pub(crate) fn load_extension(py: Python<'_>, path: PathBuf) -> PyResult<Vec<ExtensionFunction>> {
    let functions = py.detach(|| extension::open(&path)).map_err(exception)?;
    Ok(functions.into_iter().map(|function| ExtensionFunction { function }).collect())
}

/// Writes the headers for C and C++ to a folder.
#[pyfunction]
pub(crate) fn write_headers(py: Python<'_>, folder: PathBuf) -> PyResult<()> {
    py.detach(|| headers::write(&folder))
        .map_err(|error| complaint(format!("the headers cannot be written to {}: {error}", folder.display())))
}

/// Checks a source in CUDA C++ by NVRTC. Returns the compiler's first complaint; None if there is none, or no NVRTC.
#[pyfunction]
pub(crate) fn check_cuda_source(py: Python<'_>, name: String, text: String, options: Vec<String>) -> Option<String> {
    match py.detach(|| ProgramSource { name, text, options }.check()) {
        Ok(()) | Err(CompileError::NoCompiler) => None,
        Err(error) => Some(error.first_line()),
    }
}

#[pymethods]
impl ExtensionFunction {
    #[getter]
    fn __name__(&self) -> &str {
        self.function.name()
    }

    #[getter]
    fn __doc__(&self) -> &str {
        self.function.doc()
    }

    fn __repr__(&self) -> String {
        format!("<function {} of an extension>", self.function.name())
    }

    #[pyo3(signature = (*arguments))]
    fn __call__<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let py = arguments.py();
        let name = self.function.name();
        let given = arguments.iter().enumerate().map(|(index, argument)| {
            let place = || format!("{name}(): argument {}", index + 1);
            match given(&argument) {
                Ok(Some(given)) => Ok(given),
                Ok(None) => Err(PyTypeError::new_err(format!("{} {}", place(), refusal(&argument)))),
                Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                    Err(PyOverflowError::new_err(format!("{} must be less than 2^63, and at least -2^63", place())))
                }
                Err(error) => Err(error),
            }
        });
        let given: Vec<Given> = given.collect::<PyResult<_>>()?;
        let returned = py.detach(|| {
            let lists: Vec<Vec<&Tensor>> = given.iter().map(Given::listed).collect();
            let values: SmallVec<[Value; 8]> =
                given.iter().zip(&lists).map(|(given, tensors)| given.value(tensors)).collect();
            self.function.call(&values)
        });
        object(py, returned.map_err(exception)?)
    }
}

/// An argument that Python has given.
enum Given {
    Plain(Value),
    Text(CString),
    Ints(Vec<i64>),
    Tensor(Tensor),
    Tensors(Vec<Tensor>),
    Generator(Generator),
}

// SAFETY: a plain value refers to nothing.
unsafe impl Sync for Given {}

impl Given {
    /// Returns the tensors of a list.
    fn listed(&self) -> Vec<&Tensor> {
        match self {
            Self::Tensors(tensors) => tensors.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the argument, with the tensors of [`listed`](Self::listed).
    fn value(&self, tensors: &[&Tensor]) -> Value {
        match self {
            Self::Plain(value) => *value,
            Self::Text(text) => Value::text(text),
            Self::Ints(ints) => Value::ints(ints),
            Self::Tensor(tensor) => Value::tensor(tensor),
            Self::Tensors(_) => Value::tensors(tensors),
            Self::Generator(generator) => Value::generator(generator),
        }
    }
}

/// Returns a Python object as an argument, or `None` if it is of a type that no argument has.
fn given(object: &Bound<'_, PyAny>) -> PyResult<Option<Given>> {
    if let Some(tensor) = convert::tensor(object) {
        return Ok(Some(Given::Tensor(tensor)));
    }
    if object.is_none() {
        return Ok(Some(Given::Plain(Value::NONE)));
    }
    if let Some(number) = convert::scalar(object)? {
        return Ok(Some(Given::Plain(match number {
            Scalar::Bool(boolean) => Value::bool(boolean),
            Scalar::Int(int) => Value::int(int),
            Scalar::Float(float) => Value::float(float),
            Scalar::Unsigned(number) => {
                let text = format!("{number} is too large for an extension's arguments: give a tensor of uint64");
                return Err(PyOverflowError::new_err(text));
            }
        })));
    }
    if let Ok(text) = object.cast::<PyString>() {
        let text = CString::new(text.to_str()?).map_err(|_| PyValueError::new_err("a text must have no zero in it"))?;
        return Ok(Some(Given::Text(text)));
    }
    if let Ok(dtype) = object.cast::<DTypeObject>() {
        return Ok(Some(Given::Plain(Value::dtype(dtype.get().dtype()))));
    }
    if object.is_instance_of::<DeviceObject>() {
        return Ok(device::converted(object)?.map(|device| Given::Plain(Value::device(device))));
    }
    if let Ok(generator) = object.cast::<GeneratorObject>() {
        return Ok(Some(Given::Generator(generator.get().generator())));
    }
    // An empty list has no type of its elements. It goes as one of integers.
    if let Some(tensors) = convert::tensors(object)?.filter(|tensors| !tensors.is_empty()) {
        return Ok(Some(Given::Tensors(tensors)));
    }
    let ints = convert::integers(object)?;
    Ok(ints.map(|ints| Given::Ints(ints.into_iter().map(|int| int as i64).collect())))
}

/// Says why an object is no argument.
fn refusal(object: &Bound<'_, PyAny>) -> String {
    if object.cast::<PyList>().is_ok() || object.cast::<PyTuple>().is_ok() {
        return "must be a list of tensors or a list of integers".to_owned();
    }
    format!("must not be of {}", object.get_type())
}

/// Returns a result as a Python object.
fn object(py: Python<'_>, returned: Returned) -> PyResult<Bound<'_, PyAny>> {
    Ok(match returned {
        Returned::None => py.None().into_bound(py),
        Returned::Bool(boolean) => boolean.into_pyobject(py)?.to_owned().into_any(),
        Returned::Int(int) => int.into_pyobject(py)?.into_any(),
        Returned::Float(float) => float.into_pyobject(py)?.into_any(),
        Returned::Text(text) => text.into_pyobject(py)?.into_any(),
        Returned::DType(dtype) => dtype::object(py, dtype)?.into_bound(py).into_any(),
        Returned::Tensor(tensor) => TensorObject::from(tensor).into_pyobject(py)?.into_any(),
        Returned::Tensors(tensors) => PyList::new(py, tensors.into_iter().map(TensorObject::from))?.into_any(),
        Returned::Tuple(values) => {
            let values = values.into_iter().map(|value| object(py, value)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, values)?.into_any()
        }
    })
}

fn exception(error: ExtensionError) -> PyErr {
    match error {
        ExtensionError::Failed { status: Status::WrongType, message } => PyTypeError::new_err(message),
        error => complaint(error.to_string()),
    }
}
