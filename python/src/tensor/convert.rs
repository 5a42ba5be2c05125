//! Conversion of Python objects to the arguments of operations.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use tenure::core::{DType, Device, MemoryFormat};
use tenure::tensor::operation::{Argument, Kind};
use tenure::tensor::random::Generator;
use tenure::tensor::{Scalar, Tensor};

use super::device::DeviceObject;
use super::dtype::DTypeObject;
use super::generator::GeneratorObject;
use super::{TensorObject, exception};
use crate::errors::complaint;

/// An argument that owns its value, or a default of the table.
pub(super) enum OwnedArgument {
    Default(Argument<'static>),
    Tensor(Tensor),
    Tensors(Vec<Tensor>),
    Scalar(Scalar),
    Ints(SmallVec<[isize; 6]>),
    Sizes(SmallVec<[usize; 6]>),
    Text(String),
    DType(DType),
    Device(Device),
    Generator(Generator),
}

impl OwnedArgument {
    /// Returns the argument. `tensors` are the elements of a list of tensors, as [`borrowed_tensors`] returns them.
    pub(super) fn as_argument<'a>(&'a self, tensors: &'a [&'a Tensor]) -> Argument<'a> {
        match self {
            Self::Default(default) => *default,
            Self::Tensor(tensor) => Argument::Tensor(tensor),
            Self::Tensors(_) => Argument::Tensors(tensors),
            Self::Scalar(number) => Argument::Scalar(*number),
            Self::Ints(numbers) => Argument::Ints(numbers),
            Self::Sizes(sizes) => Argument::Sizes(sizes),
            Self::Text(text) => Argument::Text(text),
            Self::DType(dtype) => Argument::DType(*dtype),
            Self::Device(device) => Argument::Device(*device),
            Self::Generator(generator) => Argument::Generator(generator),
        }
    }

    /// Returns the elements of a list of tensors; of other arguments, nothing.
    pub(super) fn borrowed_tensors(&self) -> Vec<&Tensor> {
        match self {
            Self::Tensors(tensors) => tensors.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the tensors of the argument.
    pub(super) fn tensors(&self) -> &[Tensor] {
        match self {
            Self::Tensor(tensor) => std::slice::from_ref(tensor),
            Self::Tensors(tensors) => tensors,
            _ => &[],
        }
    }
}

/// Converts an object for a parameter of the type `kind`. Returns `None` if the object has another type.
///
/// # Errors
/// A number that does not fit 64 bits; an object whose own conversion fails.
pub(super) fn argument(object: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<OwnedArgument>> {
    const NONE: OwnedArgument = OwnedArgument::Default(Argument::None);
    let is_none = object.is_none();
    Ok(match kind {
        Kind::OptionalTensor
        | Kind::OptionalScalar
        | Kind::OptionalInt
        | Kind::OptionalFloat
        | Kind::OptionalDType
        | Kind::OptionalDevice
        | Kind::OptionalText
        | Kind::Generator
            if is_none =>
        {
            Some(NONE)
        }
        Kind::Tensor | Kind::OptionalTensor => tensor(object).map(OwnedArgument::Tensor),
        Kind::Tensors => tensors(object)?.map(OwnedArgument::Tensors),
        Kind::Value => match tensor(object) {
            Some(tensor) => Some(OwnedArgument::Tensor(tensor)),
            None => scalar(object)?.map(OwnedArgument::Scalar),
        },
        Kind::Scalar | Kind::OptionalScalar => scalar(object)?.map(OwnedArgument::Scalar),
        Kind::Int | Kind::OptionalInt | Kind::Size => {
            integer(object)?.map(|number| OwnedArgument::Scalar(Scalar::Int(number)))
        }
        Kind::Float | Kind::OptionalFloat => {
            let number = scalar(object)?.filter(|number| !matches!(number, Scalar::Bool(_)));
            number.map(|number| OwnedArgument::Scalar(Scalar::Float(number.to_f64())))
        }
        Kind::Bool => object.cast::<PyBool>().ok().map(|value| OwnedArgument::Scalar(Scalar::Bool(value.is_true()))),
        Kind::Ints if is_none => Some(OwnedArgument::Ints(SmallVec::new())),
        Kind::Ints => integers(object)?.map(OwnedArgument::Ints),
        Kind::Sizes => match integers(object)? {
            Some(numbers) => Some(OwnedArgument::Sizes(sizes(&numbers)?)),
            None => None,
        },
        Kind::Text | Kind::OptionalText | Kind::Reduction => {
            object.cast::<PyString>().ok().map(|text| text.to_string()).map(OwnedArgument::Text)
        }
        Kind::DType | Kind::OptionalDType => dtype(object).map(OwnedArgument::DType),
        Kind::Device | Kind::OptionalDevice => device(object)?.map(OwnedArgument::Device),
        Kind::Generator => {
            object.cast::<GeneratorObject>().ok().map(|generator| OwnedArgument::Generator(generator.get().generator()))
        }
    })
}

/// Returns the tensor of a tensor object.
pub(crate) fn tensor(object: &Bound<'_, PyAny>) -> Option<Tensor> {
    object.cast::<TensorObject>().ok().map(|tensor| tensor.get().tensor())
}

/// Returns the tensors of a list or a tuple of tensors.
pub(super) fn tensors(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<Tensor>>> {
    let mut tensors = Vec::new();
    if let Ok(list) = object.cast::<PyList>() {
        for item in list.iter() {
            let Some(tensor) = tensor(&item) else { return Ok(None) };
            tensors.push(tensor);
        }
    } else if let Ok(tuple) = object.cast::<PyTuple>() {
        for item in tuple.iter_borrowed() {
            let Some(tensor) = tensor(&item) else { return Ok(None) };
            tensors.push(tensor);
        }
    } else {
        return Ok(None);
    }
    Ok(Some(tensors))
}

/// Converts a number of Python or NumPy, or a tensor of no dimensions.
pub(crate) fn scalar(object: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
    if let Ok(value) = object.cast::<PyFloat>() {
        return Ok(Some(Scalar::Float(value.value())));
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(value.is_true())));
    }
    if object.cast::<PyInt>().is_ok() {
        return whole(object).map(Some);
    }
    if let Some(tensor) = tensor(object) {
        return if tensor.rank() == 0 {
            object.py().detach(|| tensor.item_scalar()).map(Some).map_err(exception)
        } else {
            Ok(None)
        };
    }
    let kind = object.get_type();
    // Arrays convert to numbers too, but have a length.
    if kind.hasattr("__len__")? || object.cast::<PyString>().is_ok() {
        return Ok(None);
    }
    if kind.hasattr("__index__")? {
        return whole(object).map(Some);
    }
    if kind.name()?.to_cow()? == "bool" || kind.name()?.to_cow()? == "bool_" {
        return object.is_truthy().map(|value| Some(Scalar::Bool(value)));
    }
    if kind.hasattr("__float__")? {
        return object.extract().map(|number| Some(Scalar::Float(number)));
    }
    Ok(None)
}

/// Converts an integer of up to 64 bits.
fn whole(object: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    match object.extract::<i64>() {
        Ok(number) => Ok(Scalar::Int(number)),
        // The first error says that the number is too small, or is no number.
        Err(error) => object.extract::<u64>().map(Scalar::from).map_err(|_| error),
    }
}

/// Converts an integer, or an object that stands for one, such as a tensor of one integer.
pub(super) fn integer(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if object.cast::<PyBool>().is_ok() {
        return Ok(None);
    }
    if object.cast::<PyInt>().is_ok() {
        return object.extract().map(Some);
    }
    if let Some(tensor) = tensor(object) {
        let is_integer = tensor.rank() == 0 && !tensor.dtype().is_floating() && tensor.dtype() != DType::Bool;
        return if is_integer { object.extract().map(Some) } else { Ok(None) };
    }
    if object.get_type().hasattr("__index__")? && !object.get_type().hasattr("__len__")? {
        return object.extract().map(Some);
    }
    Ok(None)
}

/// Converts an integer or a sequence of integers.
pub(super) fn integers(object: &Bound<'_, PyAny>) -> PyResult<Option<SmallVec<[isize; 6]>>> {
    let mut numbers = SmallVec::new();
    if let Some(number) = integer(object)? {
        numbers.push(number as isize);
        return Ok(Some(numbers));
    }
    if object.cast::<PyTuple>().is_err() && object.cast::<PyList>().is_err() {
        return Ok(None);
    }
    for item in object.try_iter()? {
        let Some(number) = integer(&item?)? else { return Ok(None) };
        numbers.push(number as isize);
    }
    Ok(Some(numbers))
}

/// Converts numbers of elements.
///
/// # Errors
/// A negative number.
pub(super) fn sizes(numbers: &[isize]) -> PyResult<SmallVec<[usize; 6]>> {
    let sizes = numbers.iter().map(|number| usize::try_from(*number));
    sizes
        .collect::<Result<_, _>>()
        .map_err(|_| pyo3::exceptions::PyRuntimeError::new_err(format!("sizes cannot be negative, got {numbers:?}")))
}

/// Converts a dtype, or Python's `bool`, `int` or `float`.
pub(super) fn dtype(object: &Bound<'_, PyAny>) -> Option<DType> {
    if let Ok(dtype) = object.cast::<DTypeObject>() {
        return Some(dtype.get().dtype());
    }
    let py = object.py();
    if object.is(py.get_type::<PyFloat>()) {
        Some(super::dtype::default_dtype())
    } else if object.is(py.get_type::<PyInt>()) {
        Some(DType::I64)
    } else if object.is(py.get_type::<PyBool>()) {
        Some(DType::Bool)
    } else {
        None
    }
}

/// Returns the memory format of a name.
pub(super) fn memory_format(name: &str) -> PyResult<MemoryFormat> {
    MemoryFormat::named(name).ok_or_else(|| {
        let formats = "contiguous_format, channels_last or channels_last_3d";
        complaint(format!("memory_format: must be {formats}, got {name:?}"))
    })
}

/// Converts a device, its name, or the number of a CUDA device.
///
/// # Errors
/// A string that names no device.
pub(super) fn device(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if let Ok(device) = object.cast::<DeviceObject>() {
        return Ok(Some(device.get().device()));
    }
    if let Ok(name) = object.cast::<PyString>() {
        return super::device::parsed(&name.to_cow()?).map(Some);
    }
    match integer(object)? {
        Some(number) => super::device::numbered(number).map(Some),
        None => Ok(None),
    }
}
