//! Calls of operations from Python: the arguments are bound to the parameters of an overload, as PyTorch's
//! `PythonArgParser` does, and the result becomes a Python object.

use std::borrow::Cow;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;
use tenure::core::DType;
use tenure::tensor::operation::{Argument, Kind, Operation, Output, Parameter};
use tenure::tensor::{Scalar, Tensor};

use super::argument::{OwnedArgument, argument};
use super::{TensorObject, convert, exception, results, wrapped};

/// The number of elements from which on a call lets other Python threads run while it computes. The result of a
/// broadcast may have the square of it.
const ELEMENTS_TO_DETACH: usize = 1024;

/// The operations of one name.
pub(super) struct Overloads {
    pub(super) name: &'static str,
    pub(super) operations: Vec<&'static Operation>,
}

/// The arguments of a call, as Python gives them.
pub(super) struct GivenArguments<'py> {
    pub(super) positional: SmallVec<[Bound<'py, PyAny>; 6]>,
    pub(super) named: SmallVec<[(Bound<'py, PyString>, Bound<'py, PyAny>); 4]>,
}

/// The arguments of an operation, one for each parameter.
struct BoundArguments {
    arguments: SmallVec<[OwnedArgument; 6]>,
    requires_grad: bool,
}

/// The reason why arguments do not fit an overload.
enum Mismatch<'py> {
    TooMany,
    Missing(&'static str),
    Unexpected(Bound<'py, PyString>),
    Twice(&'static str),
    Type { parameter: &'static Parameter, given: Bound<'py, PyAny> },
}

impl Mismatch<'_> {
    fn describe(&self, name: &str, operation: &Operation, given: usize) -> String {
        match self {
            Self::TooMany => {
                let count = operation.parameters.len();
                format!("{name}() takes {count} positional arguments but {given} were given")
            }
            Self::Missing(parameter) => format!("{name}() missing required argument '{parameter}'"),
            Self::Unexpected(parameter) => format!("{name}() got an unexpected keyword argument '{parameter}'"),
            Self::Twice(parameter) => format!("{name}() got multiple values for argument '{parameter}'"),
            Self::Type { parameter: Parameter { name: parameter, kind, .. }, given } => {
                format!("{name}(): argument '{parameter}' must be {kind}, not {}", type_name(given))
            }
        }
    }
}

/// Calls the first overload that the arguments fit.
///
/// # Errors
/// A `TypeError` if the arguments fit none; the error of the operation.
pub(super) fn call<'py>(
    py: Python<'py>,
    overloads: &Overloads,
    given: &GivenArguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut mismatch = None;
    for operation in &overloads.operations {
        match bind(operation, given)? {
            Ok(bound) => return run(py, operation, &bound, given),
            Err(found) => mismatch = Some(found),
        }
    }
    let name = overloads.name;
    let text = match (mismatch, &overloads.operations[..]) {
        (Some(mismatch), [operation]) => mismatch.describe(name, operation, given.positional.len()),
        _ => {
            let given = given
                .positional
                .iter()
                .map(type_name)
                .chain(given.named.iter().map(|(name, value)| format!("{name}={}", type_name(value))));
            let given = given.collect::<Vec<_>>().join(", ");
            let expected = overloads.operations.iter().map(|operation| format!("\n * {}", signature(operation)));
            let expected: String = expected.collect();
            format!("{name}() received an invalid combination of arguments: got ({given}), expected one of:{expected}")
        }
    };
    Err(PyTypeError::new_err(text))
}

/// Returns an operation's parameters with their types, as `(Tensor input, int dim, bool keepdim=False)`.
fn signature(operation: &Operation) -> String {
    let parameters = operation.parameters.iter().map(|parameter| {
        let default = parameter.default.as_ref().map(|default| format!("={}", shown(default)));
        format!("{}: {}{}", parameter.name, parameter.kind, default.unwrap_or_default())
    });
    format!("({})", parameters.collect::<Vec<_>>().join(", "))
}

/// Writes a default as Python does.
pub(super) fn shown(default: &Argument<'_>) -> String {
    match default {
        Argument::Scalar(Scalar::Bool(true)) => "True".to_owned(),
        Argument::Scalar(Scalar::Bool(false)) => "False".to_owned(),
        Argument::Ints([]) => "None".to_owned(),
        Argument::DType(dtype) => format!("tenure.{dtype}"),
        Argument::Device(device) => format!("'{device}'"),
        other => other.to_string(),
    }
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// Binds arguments to the parameters of an operation.
fn bind<'py>(
    operation: &'static Operation,
    given: &GivenArguments<'py>,
) -> PyResult<Result<BoundArguments, Mismatch<'py>>> {
    let parameters = operation.parameters;
    let mut collected = collected(parameters, &given.positional);
    if collected.is_none() && given.positional.len() > parameters.len() {
        return Ok(Err(Mismatch::TooMany));
    }
    let is_creation = creates(parameters);
    let mut requires_grad = false;
    let mut named: SmallVec<[Option<&Bound<'py, PyAny>>; 8]> = SmallVec::from_elem(None, parameters.len());
    for (name, value) in &given.named {
        let text = name.to_cow()?;
        if is_creation && text == "requires_grad" {
            requires_grad = value.is_truthy()?;
            continue;
        }
        let Some(index) = position(parameters, &text) else {
            // PyTorch's `dtype=None` and the like ask for nothing.
            if value.is_none()
                && matches!(&*text, "dtype" | "device" | "layout" | "memory_format" | "out" | "min" | "max")
            {
                continue;
            }
            // Results keep the order of memory without being asked, where they have a choice.
            if text == "memory_format" && value.extract::<&str>().is_ok_and(|format| format == "preserve_format") {
                continue;
            }
            return Ok(Err(Mismatch::Unexpected(name.clone())));
        };
        named[index] = Some(value);
    }
    let last = collected.as_ref().map_or(given.positional.len(), |(at, _)| at + 1);
    let mut arguments = SmallVec::with_capacity(parameters.len());
    for (index, parameter) in parameters.iter().enumerate() {
        let positional = given.positional.get(index).filter(|_| index < last);
        let value = match (positional, named[index]) {
            (Some(_), Some(_)) => return Ok(Err(Mismatch::Twice(parameter.name))),
            (Some(_), None) if collected.as_ref().is_some_and(|(at, _)| *at == index) => {
                arguments.extend(collected.take().map(|(_, argument)| argument));
                continue;
            }
            (positional, named) => positional.or(named),
        };
        let is_default = value.is_none_or(|value| value.is_none() && takes_default_for_none(parameter));
        if is_default {
            let Some(default) = parameter.default else { return Ok(Err(Mismatch::Missing(parameter.name))) };
            arguments.push(OwnedArgument::Default(with_default_dtype(default, &arguments)));
            continue;
        }
        let Some(value) = value else { continue };
        match argument(value, parameter.kind)? {
            Some(argument) => arguments.push(argument),
            None => return Ok(Err(Mismatch::Type { parameter, given: value.clone() })),
        }
    }
    Ok(Ok(BoundArguments { arguments, requires_grad }))
}

/// Returns whether `None` stands for the default of a parameter whose type has no `None`.
fn takes_default_for_none(parameter: &Parameter) -> bool {
    matches!(parameter.kind, Kind::DType | Kind::Device | Kind::Bool | Kind::Float | Kind::Sizes)
        && parameter.default.is_some()
}

/// Replaces the table's `float32` by the dtype that floating-point tensors are created with, or by the dtype of the number
/// that a tensor is filled with. `given` are the arguments before this one.
fn with_default_dtype(default: Argument<'static>, given: &[OwnedArgument]) -> Argument<'static> {
    let is_filled = matches!(given.first(), Some(OwnedArgument::Sizes(_)));
    match (default, given.last()) {
        (Argument::DType(DType::F32), Some(OwnedArgument::Scalar(number))) if is_filled => {
            Argument::DType(super::data::inferred(*number))
        }
        (Argument::DType(DType::F32), _) => Argument::DType(super::dtype::default_dtype()),
        (other, _) => other,
    }
}

/// Returns whether an operation creates a tensor of a dtype on a device.
pub(super) fn creates(parameters: &[Parameter]) -> bool {
    index_of(parameters, "device").is_some()
        && (index_of(parameters, "dtype").is_some() || index_of(parameters, "n").is_some())
}

/// Returns the position of the parameter that a keyword names. NumPy's names stand for PyTorch's.
fn position(parameters: &[Parameter], name: &str) -> Option<usize> {
    index_of(parameters, name).or_else(|| {
        let name = match name {
            "axis" => "dim",
            "keepdims" => "keepdim",
            "self" | "x" | "x1" | "tensor" => "input",
            "x2" => "other",
            // The method's name for it.
            "split_size" => "split_size_or_sections",
            _ => return None,
        };
        index_of(parameters, name)
    })
}

fn index_of(parameters: &[Parameter], name: &str) -> Option<usize> {
    parameters.iter().position(|parameter| parameter.name == name)
}

/// Returns the sizes or tensors that are given as separate arguments, as in `x.view(2, 3)` or `einsum("ij,jk", a, b)`,
/// and their parameter's position.
fn collected(parameters: &[Parameter], positional: &[Bound<'_, PyAny>]) -> Option<(usize, OwnedArgument)> {
    let index = parameters.iter().take(2).position(|parameter| match parameter.kind {
        Kind::Tensors => true,
        Kind::Ints | Kind::Sizes => matches!(parameter.name, "size" | "shape" | "dims" | "repeats"),
        _ => false,
    })?;
    let given = positional.get(index..)?;
    let argument = match parameters[index].kind {
        Kind::Tensors => {
            let tensors = given.iter().map(convert::tensor).collect::<Option<Vec<_>>>()?;
            OwnedArgument::Tensors(Some(tensors).filter(|tensors| !tensors.is_empty())?)
        }
        kind if given.len() > 1 => {
            let numbers = given.iter().map(|number| Some(convert::integer(number).ok()?? as isize));
            let numbers: SmallVec<[isize; 6]> = numbers.collect::<Option<_>>()?;
            if kind == Kind::Sizes {
                OwnedArgument::Sizes(convert::sizes(&numbers).ok()?)
            } else {
                OwnedArgument::Ints(numbers)
            }
        }
        _ => return None,
    };
    Some((index, argument))
}

/// Runs an operation on its arguments.
fn run<'py>(
    py: Python<'py>,
    operation: &'static Operation,
    bound: &BoundArguments,
    given: &GivenArguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let lists: SmallVec<[Vec<&Tensor>; 6]> = bound.arguments.iter().map(OwnedArgument::borrowed_tensors).collect();
    let arguments: SmallVec<[Argument<'_>; 6]> =
        bound.arguments.iter().zip(&lists).map(|(argument, tensors)| argument.as_argument(tensors)).collect();
    let tensors = bound.arguments.iter().flat_map(OwnedArgument::tensors);
    let output = match computed(py, tensors, || (operation.call)(&arguments))? {
        Output::Tensor(tensor) if bound.requires_grad => {
            Output::Tensor(tensor.requires_grad_(true).map_err(exception)?)
        }
        output => output,
    };
    let returned = returned(py, operation, output, given)?;
    match operation.name {
        "unique" => results::asked(&returned, &arguments),
        "nonzero" => results::in_form(returned, &arguments),
        _ => Ok(returned),
    }
}

/// Runs an operation on these tensors. Other Python threads run meanwhile, unless letting them would take longer.
pub(super) fn computed<'a, R: Send>(
    py: Python<'_>,
    tensors: impl Iterator<Item = &'a Tensor>,
    operation: impl FnOnce() -> tenure::tensor::Result<R> + Send,
) -> PyResult<R> {
    if is_small(tensors) { operation() } else { py.detach(operation) }.map_err(exception)
}

fn is_small<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> bool {
    let mut count = None;
    for tensor in tensors {
        if !tensor.device().is_cpu() {
            return false;
        }
        count = Some(count.unwrap_or(0) + tensor.numel());
    }
    count.is_some_and(|count| count < ELEMENTS_TO_DETACH)
}

/// Converts a result. An operation in place returns the tensor object that it wrote to.
fn returned<'py>(
    py: Python<'py>,
    operation: &Operation,
    output: Output,
    given: &GivenArguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match output {
        Output::InPlace => match given.positional.first().or(given.named.first().map(|(_, value)| value)) {
            Some(target) => Ok(target.clone()),
            None => Ok(py.None().into_bound(py)),
        },
        Output::Bool(value) => Ok(value.into_pyobject(py)?.to_owned().into_any()),
        Output::Tensor(tensor) => wrapped(py, tensor).map(Bound::into_any),
        Output::Tensors(tensors) => {
            let objects = tensors.into_iter().map(|tensor| Py::new(py, TensorObject::from(tensor)));
            let tuple = PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)?;
            results::named(operation.name, tuple)
        }
    }
}

/// Returns a Markdown text without the links that Rust's documentation needs.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains('[') {
        // `[text](target)` and `[`name`]` lose their brackets and targets.
        let mut plain = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('[') {
            plain.push_str(&rest[..start]);
            let Some(length) = rest[start..].find(']') else { break };
            let inside = &rest[start + 1..start + length];
            let after = &rest[start + length + 1..];
            let target = after.strip_prefix('(').and_then(|after| after.find(')').map(|end| &after[end + 1..]));
            if target.is_some() || inside.starts_with('`') {
                plain.push_str(inside);
                rest = target.unwrap_or(after);
            } else {
                plain.push_str(&rest[start..=start + length]);
                rest = after;
            }
        }
        plain.push_str(rest);
        Cow::Owned(plain)
    } else {
        Cow::Borrowed(text)
    }
}
