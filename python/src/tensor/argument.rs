//! The arguments of operations, converted from Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use smallvec::SmallVec;
use tenure::core::{DType, Device};
use tenure::tensor::operation::{Argument, Kind};
use tenure::tensor::random::Generator;
use tenure::tensor::{Scalar, Tensor};

use super::generator::GeneratorObject;
use super::{convert, device, dtype};

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
        Kind::Tensor | Kind::OptionalTensor => convert::tensor(object).map(OwnedArgument::Tensor),
        Kind::Tensors => convert::tensors(object)?.map(OwnedArgument::Tensors),
        Kind::Value => match convert::tensor(object) {
            Some(tensor) => Some(OwnedArgument::Tensor(tensor)),
            None => convert::scalar(object)?.map(OwnedArgument::Scalar),
        },
        Kind::Scalar | Kind::OptionalScalar => convert::scalar(object)?.map(OwnedArgument::Scalar),
        Kind::Int | Kind::OptionalInt | Kind::Size => {
            convert::integer(object)?.map(|number| OwnedArgument::Scalar(Scalar::Int(number)))
        }
        Kind::Float | Kind::OptionalFloat => {
            let number = convert::scalar(object)?.filter(|number| !matches!(number, Scalar::Bool(_)));
            number.map(|number| OwnedArgument::Scalar(Scalar::Float(number.to_f64())))
        }
        Kind::Bool => object.cast::<PyBool>().ok().map(|value| OwnedArgument::Scalar(Scalar::Bool(value.is_true()))),
        Kind::Ints if is_none => Some(OwnedArgument::Ints(SmallVec::new())),
        Kind::Ints => convert::integers(object)?.map(OwnedArgument::Ints),
        Kind::Sizes => match convert::integers(object)? {
            Some(numbers) => Some(OwnedArgument::Sizes(convert::sizes(&numbers)?)),
            None => None,
        },
        Kind::Text | Kind::OptionalText | Kind::Reduction => {
            object.cast::<PyString>().ok().map(|text| text.to_string()).map(OwnedArgument::Text)
        }
        Kind::DType | Kind::OptionalDType => dtype::converted(object).map(OwnedArgument::DType),
        Kind::Device | Kind::OptionalDevice => device::converted(object)?.map(OwnedArgument::Device),
        Kind::Generator => {
            object.cast::<GeneratorObject>().ok().map(|generator| OwnedArgument::Generator(generator.get().generator()))
        }
    })
}
