//! Arguments and results of operations and of functions: `tenure_value` of `tenure_tensor.h`.

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::{mem, ptr};

use crate::ffi::{self, Handle, RawGenerator};
use crate::function::{check, no_zero};
use crate::tensor::{DType, Device, Generator, Tensor, handles};
use crate::{Error, Result};

/// `tenure_type` of `tenure_tensor.h`.
pub(crate) mod types {
    pub(crate) const NONE: i32 = 1;
    pub(crate) const BOOL: i32 = 2;
    pub(crate) const INT: i32 = 3;
    pub(crate) const FLOAT: i32 = 4;
    pub(crate) const TEXT: i32 = 5;
    pub(crate) const DTYPE: i32 = 6;
    pub(crate) const DEVICE: i32 = 7;
    pub(crate) const TENSOR: i32 = 8;
    pub(crate) const INTS: i32 = 9;
    pub(crate) const TENSORS: i32 = 10;
    pub(crate) const GENERATOR: i32 = 11;
}

/// `tenure_value` of `tenure_tensor.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Value {
    pub(crate) kind: i32,
    pub(crate) count: usize,
    pub(crate) content: Content,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Content {
    pub(crate) boolean: bool,
    pub(crate) int: i64,
    pub(crate) float: f64,
    pub(crate) text: *const c_char,
    pub(crate) number: c_int,
    pub(crate) tensor: *const Handle,
    pub(crate) ints: *const i64,
    pub(crate) tensors: *const *const Handle,
    pub(crate) generator: *const RawGenerator,
}

impl Value {
    pub(crate) const NONE: Self = Self::new(types::NONE, Content { int: 0 });

    pub(crate) const fn new(kind: i32, content: Content) -> Self {
        Self { kind, count: 0, content }
    }

    pub(crate) fn bool(boolean: bool) -> Self {
        Self::new(types::BOOL, Content { boolean })
    }

    pub(crate) fn int(int: i64) -> Self {
        Self::new(types::INT, Content { int })
    }

    pub(crate) fn float(float: f64) -> Self {
        Self::new(types::FLOAT, Content { float })
    }

    pub(crate) fn dtype(dtype: DType) -> Self {
        Self::new(types::DTYPE, Content { number: dtype as c_int })
    }
}

/// A result, and what it refers to.
pub struct Owned(Value);

impl Owned {
    /// # Safety
    /// The value is a result, which nothing else owns.
    pub(crate) unsafe fn new(value: Value) -> Self {
        Self(value)
    }

    /// Gives up what the result refers to.
    pub(crate) fn into_value(self) -> Value {
        let value = self.0;
        mem::forget(self);
        value
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: a result, which this owns.
        unsafe { ffi::tenure_value_free(&raw mut self.0) }
    }
}

/// An argument of [`call`]. It is made by `into()` from a tensor, a list of tensors, a number, a text, a list of
/// integers, a dtype, a device, a generator, or an option of one of these.
pub struct Argument<'a> {
    value: Value,
    held: Held,
    refers: PhantomData<&'a ()>,
}

/// The data that a value refers to, where the caller has it in another form.
enum Held {
    Nothing,
    Text(Result<CString>),
    Handles(Vec<*const Handle>),
}

impl Argument<'_> {
    fn plain(value: Value) -> Self {
        Self { value, held: Held::Nothing, refers: PhantomData }
    }

    fn value(&self) -> Result<Value> {
        let content = match &self.held {
            Held::Nothing => return Ok(self.value),
            Held::Text(Ok(text)) => Content { text: text.as_ptr() },
            Held::Text(Err(error)) => return Err(error.clone()),
            Held::Handles(handles) => Content { tensors: handles.as_ptr() },
        };
        Ok(Value { content, ..self.value })
    }
}

impl<'a> From<&'a Tensor> for Argument<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::plain(Value::new(types::TENSOR, Content { tensor: tensor.handle() }))
    }
}

impl<'a> From<&'a [&'a Tensor]> for Argument<'a> {
    fn from(tensors: &'a [&'a Tensor]) -> Self {
        let handles = handles(tensors);
        let value = Value { count: handles.len(), ..Value::new(types::TENSORS, Content { int: 0 }) };
        Self { value, held: Held::Handles(handles), refers: PhantomData }
    }
}

impl<'a> From<&'a [Tensor]> for Argument<'a> {
    fn from(tensors: &'a [Tensor]) -> Self {
        // A tensor has the layout of its handle.
        let content = Content { tensors: tensors.as_ptr().cast() };
        Self::plain(Value { count: tensors.len(), ..Value::new(types::TENSORS, content) })
    }
}

impl<'a> From<&'a [i64]> for Argument<'a> {
    fn from(ints: &'a [i64]) -> Self {
        Self::plain(Value { count: ints.len(), ..Value::new(types::INTS, Content { ints: ints.as_ptr() }) })
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Argument<'a>
where
    Argument<'a>: From<&'a [T]>,
{
    fn from(list: &'a [T; N]) -> Self {
        list.as_slice().into()
    }
}

impl<'a, T> From<&'a Vec<T>> for Argument<'a>
where
    Argument<'a>: From<&'a [T]>,
{
    fn from(list: &'a Vec<T>) -> Self {
        list.as_slice().into()
    }
}

impl<'a> From<&'a str> for Argument<'a> {
    fn from(text: &'a str) -> Self {
        Self {
            value: Value::new(types::TEXT, Content { int: 0 }),
            held: Held::Text(no_zero(text)),
            refers: PhantomData,
        }
    }
}

impl<'a> From<&'a Generator> for Argument<'a> {
    fn from(generator: &'a Generator) -> Self {
        Self::plain(Value::new(types::GENERATOR, Content { generator: generator.handle() }))
    }
}

macro_rules! plain {
    ($($type:ty: |$given:ident| $value:expr;)*) => {$(
        impl From<$type> for Argument<'_> {
            fn from($given: $type) -> Self {
                Self::plain($value)
            }
        }
    )*};
}

plain! {
    bool: |given| Value::bool(given);
    i32: |given| Value::int(given.into());
    i64: |given| Value::int(given);
    f32: |given| Value::float(given.into());
    f64: |given| Value::float(given);
    DType: |given| Value::dtype(given);
    Device: |given| Value::new(types::DEVICE, Content { number: given.number() });
    (): |_given| Value::NONE;
}

impl<'a, T: Into<Argument<'a>>> From<Option<T>> for Argument<'a> {
    fn from(given: Option<T>) -> Self {
        given.map_or_else(|| Self::plain(Value::NONE), Into::into)
    }
}

/// The result of an operation.
#[derive(Debug)]
pub enum Output {
    /// None: the operation has written to its first argument.
    None,
    /// A truth value.
    Bool(bool),
    /// A tensor.
    Tensor(Tensor),
    /// Several tensors.
    Tensors(Vec<Tensor>),
}

impl Output {
    /// Returns the tensor of an operation that has one result.
    pub fn tensor(self) -> Result<Tensor> {
        if let Self::Tensor(tensor) = self { Ok(tensor) } else { Err(self.other("a tensor")) }
    }

    /// Returns the tensors of an operation that has several results.
    pub fn tensors(self) -> Result<Vec<Tensor>> {
        if let Self::Tensors(tensors) = self { Ok(tensors) } else { Err(self.other("a list of tensors")) }
    }

    /// Returns the truth value of an operation that has one.
    pub fn bool(self) -> Result<bool> {
        if let Self::Bool(boolean) = self { Ok(boolean) } else { Err(self.other("a truth value")) }
    }

    pub(crate) fn array<const N: usize>(self) -> Result<[Tensor; N]> {
        let tensors = self.tensors()?;
        let count = tensors.len();
        tensors.try_into().map_err(|_| Error::new(format!("the operation has {count} results, and not {N}")))
    }

    fn other(&self, what: &str) -> Error {
        let own = match self {
            Self::None => "nothing".to_owned(),
            Self::Bool(_) => "a truth value".to_owned(),
            Self::Tensor(_) => "a tensor".to_owned(),
            Self::Tensors(tensors) => format!("{} tensors", tensors.len()),
        };
        Error::new(format!("the operation returns {own}, and not {what}"))
    }
}

/// Calls an operation by its name in Tenure's reference of operations, with arguments in the order of its parameters.
/// Arguments that are left out at the end have their defaults.
///
/// # Errors
/// There is no such operation, it does not take the arguments, or it fails.
pub fn call(operation: &str, arguments: &[Argument<'_>]) -> Result<Output> {
    let operation = no_zero(operation)?;
    let values: Vec<Value> = arguments.iter().map(Argument::value).collect::<Result<_>>()?;
    let mut result = Value::NONE;
    // SAFETY: a C string, values that live as long as the call, and a place for the result.
    check(unsafe { ffi::tenure_call(operation.as_ptr(), values.as_ptr(), values.len(), &raw mut result) })?;
    // SAFETY: the content is that of the type.
    Ok(unsafe {
        match result.kind {
            types::BOOL => Output::Bool(result.content.boolean),
            types::TENSOR => Output::Tensor(Tensor::adopt(result.content.tensor.cast_mut())?),
            types::TENSORS => {
                let mut handles = vec![ptr::null_mut::<Handle>(); result.count];
                let places: Vec<*mut *mut Handle> = handles.iter_mut().map(|handle| handle as *mut _).collect();
                ffi::tenure_take_tensors(&raw mut result, places.as_ptr());
                Output::Tensors(handles.into_iter().map(|handle| Tensor::adopt(handle)).collect::<Result<_>>()?)
            }
            _ => Output::None,
        }
    })
}
