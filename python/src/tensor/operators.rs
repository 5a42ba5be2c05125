//! The operators of `tenure.Tensor`.

use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use tenure::core::{DType, Operand, result_type};
use tenure::tensor::{Device, Scalar, Tensor, Value};

use super::{TensorObject, call, convert, data, wrapped};
use crate::errors::complaint;

/// An operation of two operands, of which the first is a tensor.
type Binary = for<'a> fn(&'a Tensor, Value<'a>) -> tenure::tensor::Result<Tensor>;

/// The right operand of an operator.
enum RightOperand {
    Tensor(Tensor),
    Number(Scalar),
}

impl RightOperand {
    /// Converts an object; `None` if it is no tensor, no number and no array of NumPy.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Some(tensor) = convert::tensor(object) {
            return Ok(Some(Self::Tensor(tensor)));
        }
        match convert::scalar(object)? {
            Some(number) => Ok(Some(Self::Number(number))),
            None => Ok(array(object)?.map(Self::Tensor)),
        }
    }

    fn as_value(&self) -> Value<'_> {
        match self {
            Self::Tensor(tensor) => Value::Tensor(tensor),
            Self::Number(number) => Value::Number(*number),
        }
    }

    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Number(_) => None,
        }
    }
}

/// Returns the values of an array of NumPy, which is an operand as a tensor is; `None` for other objects.
fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if !object.get_type().hasattr("__array_interface__")? {
        return Ok(None);
    }
    data::tensor_of(object, None, Device::CPU).map(Some)
}

fn not_implemented(py: Python<'_>) -> Bound<'_, PyAny> {
    py.NotImplemented().into_bound(py)
}

/// Computes `left operation right`. Returns Python's `NotImplemented` for operands of other types.
fn binary<'py>(
    left: &Bound<'py, TensorObject>,
    right: &Bound<'py, PyAny>,
    operation: Binary,
) -> PyResult<Bound<'py, PyAny>> {
    let py = left.py();
    let Some(right) = RightOperand::of(right)? else { return Ok(not_implemented(py)) };
    let left = left.get().tensor();
    let operands = std::iter::once(&left).chain(right.tensor());
    wrapped(py, call::computed(py, operands, || operation(&left, right.as_value()))?).map(Bound::into_any)
}

/// Computes `left operation right` of a number or an array of NumPy on the left. A number wraps if it does not fit an
/// integer dtype.
fn reflected<'py>(
    right: &Bound<'py, TensorObject>,
    left: &Bound<'py, PyAny>,
    operation: Binary,
) -> PyResult<Bound<'py, PyAny>> {
    reflected_in(right, left, operation, |kind| kind)
}

/// Computes `left operation right` of a number or an array of NumPy on the left. A number is made in the dtype that `made`
/// returns for the one that both promote to.
fn reflected_in<'py>(
    right: &Bound<'py, TensorObject>,
    left: &Bound<'py, PyAny>,
    operation: Binary,
    made: fn(DType) -> DType,
) -> PyResult<Bound<'py, PyAny>> {
    let py = right.py();
    let right = right.get().tensor();
    let Some(number) = convert::scalar(left)? else {
        let Some(left) = array(left)? else { return Ok(not_implemented(py)) };
        let result = call::computed(py, [&left, &right].into_iter(), || operation(&left, Value::Tensor(&right)));
        return wrapped(py, result?).map(Bound::into_any);
    };
    let kind = result_type([Operand::Tensor(right.dtype()), Operand::Number(number_dtype(number))]);
    let kind = kind.map_err(|error| complaint(error.to_string()))?;
    let result = call::computed(py, std::iter::once(&right), || {
        let made = made(kind.unwrap_or(right.dtype()));
        // An integer of 2⁶³ or more does not wrap.
        let wraps = !made.is_floating() && !matches!(number, Scalar::Unsigned(_));
        let given = if wraps { number.dtype() } else { made };
        let left = Tensor::full(&[], number, given, Device::CPU)?.to_dtype(made)?;
        operation(&left, Value::Tensor(&right))
    });
    wrapped(py, result?).map(Bound::into_any)
}

/// Returns the dtype that a number counts as beside tensors.
fn number_dtype(number: Scalar) -> DType {
    match number {
        Scalar::Float(_) => super::dtype::default_dtype(),
        other => other.dtype(),
    }
}

/// Writes `left operation right` to `left`.
fn in_place(
    left: &Bound<'_, TensorObject>,
    right: &Bound<'_, PyAny>,
    operation: for<'a> fn(&'a Tensor, Value<'a>) -> tenure::tensor::Result<()>,
) -> PyResult<()> {
    let py = left.py();
    let Some(right) = RightOperand::of(right)? else {
        let text = format!("a tensor or a number is needed, not {}", right.get_type().name()?);
        return Err(pyo3::exceptions::PyTypeError::new_err(text));
    };
    let left = left.get().tensor();
    let operands = std::iter::once(&left).chain(right.tensor());
    call::computed(py, operands, || operation(&left, right.as_value()))
}

/// Writes the result of an operation that has no form in place to its first operand.
fn assign(left: &Tensor, right: Value<'_>, operation: Binary) -> tenure::tensor::Result<()> {
    let result = operation(left, right)?;
    left.copy_(&result)
}

/// Returns a new tensor of an operation of one operand.
fn unary<'py>(
    operand: &Bound<'py, TensorObject>,
    operation: fn(&Tensor) -> tenure::tensor::Result<Tensor>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = operand.py();
    let tensor = operand.get().tensor();
    wrapped(py, call::computed(py, std::iter::once(&tensor), || operation(&tensor))?).map(Bound::into_any)
}

/// Computes the matrix product of two operands of any dimensions.
fn matmul(left: &Tensor, right: Value<'_>) -> tenure::tensor::Result<Tensor> {
    match right {
        Value::Tensor(right) => left.matmul(right),
        Value::Number(_) => {
            Err(tenure::tensor::TensorError::argument("matmul", "both operands must be tensors: use * for a number"))
        }
    }
}

#[pymethods]
impl TensorObject {
    fn __add__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.add(right))
    }

    fn __radd__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.add(right))
    }

    fn __iadd__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| left.add_(right))
    }

    fn __sub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.sub(right))
    }

    fn __rsub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.sub(right))
    }

    fn __isub__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| left.sub_(right))
    }

    fn __mul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.mul(right))
    }

    fn __rmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.mul(right))
    }

    fn __imul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| left.mul_(right))
    }

    fn __truediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.div(right))
    }

    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // A quotient of integers is a float: the number must not wrap before.
        reflected_in(
            slf,
            other,
            |left, right| left.div(right),
            |kind| match kind.is_floating() {
                true => kind,
                false => super::dtype::default_dtype(),
            },
        )
    }

    fn __itruediv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| left.div_(right))
    }

    fn __floordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.div_floor(right))
    }

    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.div_floor(right))
    }

    fn __ifloordiv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.div_floor(right)))
    }

    fn __mod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.remainder(right))
    }

    fn __rmod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.remainder(right))
    }

    fn __imod__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.remainder(right)))
    }

    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, matmul)
    }

    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, matmul)
    }

    fn __imatmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, matmul))
    }

    fn __and__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.bitwise_and(right))
    }

    fn __rand__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.bitwise_and(right))
    }

    fn __iand__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.bitwise_and(right)))
    }

    fn __or__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.bitwise_or(right))
    }

    fn __ror__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.bitwise_or(right))
    }

    fn __ior__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.bitwise_or(right)))
    }

    fn __xor__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.bitwise_xor(right))
    }

    fn __rxor__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.bitwise_xor(right))
    }

    fn __ixor__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.bitwise_xor(right)))
    }

    fn __lshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.shift_left(right))
    }

    fn __rlshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.shift_left(right))
    }

    fn __ilshift__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.shift_left(right)))
    }

    fn __rshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, |left, right| left.shift_right(right))
    }

    fn __rrshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, other, |left, right| left.shift_right(right))
    }

    fn __irshift__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(slf, other, |left, right| assign(left, right, |left, right| left.shift_right(right)))
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        exponent: &Bound<'py, PyAny>,
        _modulus: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, exponent, |left, right| left.pow(right))
    }

    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        base: &Bound<'py, PyAny>,
        _modulus: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reflected(slf, base, |left, right| left.pow(right))
    }

    fn __ipow__(
        slf: &Bound<'_, Self>,
        exponent: &Bound<'_, PyAny>,
        _modulus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        in_place(slf, exponent, |left, right| assign(left, right, |left, right| left.pow(right)))
    }

    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        unary(slf, Tensor::neg)
    }

    fn __pos__<'py>(slf: Bound<'py, Self>) -> Bound<'py, PyAny> {
        slf.into_any()
    }

    fn __abs__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        unary(slf, Tensor::abs)
    }

    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        unary(slf, Tensor::bitwise_not)
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        operator: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operation: Binary = match operator {
            CompareOp::Lt => |left, right| left.lt(right),
            CompareOp::Le => |left, right| left.le(right),
            CompareOp::Eq => |left, right| left.eq(right),
            CompareOp::Ne => |left, right| left.ne(right),
            CompareOp::Gt => |left, right| left.gt(right),
            CompareOp::Ge => |left, right| left.ge(right),
        };
        binary(slf, other, operation)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        slf.as_ptr().addr() as isize >> 4
    }
}
