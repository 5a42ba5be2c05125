//! `tenure_value` of `tenure_tensor.h`: arguments and results of operations and of extensions' functions.

use std::ffi::{CStr, CString, c_char, c_int};
use std::{ptr, slice};

use tenure_core::{DType, Device};
use tenure_tensor::operation::{Argument, Kind, Output, Parameter};
use tenure_tensor::random::Generator;
use tenure_tensor::{Scalar, Tensor};

use super::{device_of, dtype_of, number_of};
use crate::failure::Failure;

/// `tenure_type` of `tenure_tensor.h`.
mod types {
    pub(super) const DEFAULT: i32 = 0;
    pub(super) const NONE: i32 = 1;
    pub(super) const BOOL: i32 = 2;
    pub(super) const INT: i32 = 3;
    pub(super) const FLOAT: i32 = 4;
    pub(super) const TEXT: i32 = 5;
    pub(super) const DTYPE: i32 = 6;
    pub(super) const DEVICE: i32 = 7;
    pub(super) const TENSOR: i32 = 8;
    pub(super) const INTS: i32 = 9;
    pub(super) const TENSORS: i32 = 10;
    pub(super) const GENERATOR: i32 = 11;
    pub(super) const TUPLE: i32 = 12;
}

/// `tenure_value` of `tenure_tensor.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Value {
    kind: i32,
    count: usize,
    content: Content,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Content {
    boolean: bool,
    int: i64,
    float: f64,
    text: *const c_char,
    number: c_int,
    tensor: *mut Tensor,
    ints: *const i64,
    tensors: *mut *mut Tensor,
    generator: *mut Generator,
    values: *mut Value,
}

/// The result of a function.
#[derive(Debug)]
pub enum Returned {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// A dtype.
    DType(DType),
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors.
    Tensors(Vec<Tensor>),
    /// Several values.
    Tuple(Vec<Self>),
}

/// Arguments. They refer to what they are made of: a function must be called while that lives.
impl Value {
    /// Nothing.
    pub const NONE: Self = Self { kind: types::NONE, count: 0, content: Content { int: 0 } };

    /// Makes an argument of a truth value.
    pub const fn bool(boolean: bool) -> Self {
        Self { kind: types::BOOL, count: 0, content: Content { boolean } }
    }

    /// Makes an argument of an integer.
    pub const fn int(int: i64) -> Self {
        Self { kind: types::INT, count: 0, content: Content { int } }
    }

    /// Makes an argument of a number.
    pub const fn float(float: f64) -> Self {
        Self { kind: types::FLOAT, count: 0, content: Content { float } }
    }

    /// Makes an argument of a text.
    pub const fn text(text: &CStr) -> Self {
        Self { kind: types::TEXT, count: 0, content: Content { text: text.as_ptr() } }
    }

    /// Makes an argument of a dtype.
    pub const fn dtype(dtype: DType) -> Self {
        Self { kind: types::DTYPE, count: 0, content: Content { number: dtype as c_int } }
    }

    /// Makes an argument of a device.
    pub fn device(device: Device) -> Self {
        Self { kind: types::DEVICE, count: 0, content: Content { number: number_of(device) } }
    }

    /// Makes an argument of a tensor.
    pub const fn tensor(tensor: &Tensor) -> Self {
        Self { kind: types::TENSOR, count: 0, content: Content { tensor: ptr::from_ref(tensor).cast_mut() } }
    }

    /// Makes an argument of a list of tensors.
    pub const fn tensors(tensors: &[&Tensor]) -> Self {
        let content = Content { tensors: tensors.as_ptr().cast_mut().cast() };
        Self { kind: types::TENSORS, count: tensors.len(), content }
    }

    /// Makes an argument of a list of integers.
    pub const fn ints(ints: &[i64]) -> Self {
        Self { kind: types::INTS, count: ints.len(), content: Content { ints: ints.as_ptr() } }
    }

    /// Makes an argument of a generator of random numbers.
    pub const fn generator(generator: &Generator) -> Self {
        let content = Content { generator: ptr::from_ref(generator).cast_mut() };
        Self { kind: types::GENERATOR, count: 0, content }
    }

    /// Returns the tensors that the value refers to, also in a tuple.
    ///
    /// # Safety
    /// The value is one that the header allows: its content is that of its type, and lives for `'a`.
    pub(super) unsafe fn referred_tensors<'a>(&self) -> Vec<&'a Tensor> {
        // SAFETY: by the function's contract.
        unsafe {
            match self.kind {
                types::TENSOR => self.content.tensor.as_ref().into_iter().collect(),
                types::TENSORS => {
                    let tensors = elements(self.content.tensors.cast_const(), self.count);
                    tensors.iter().filter_map(|tensor| tensor.as_ref()).collect()
                }
                types::TUPLE => {
                    let values = elements(self.content.values.cast_const(), self.count);
                    values.iter().flat_map(|value| value.referred_tensors()).collect()
                }
                _ => Vec::new(),
            }
        }
    }

    /// Takes a result out of its value.
    ///
    /// # Safety
    /// The value is a result that the header allows, and nothing of it was freed.
    ///
    /// # Errors
    /// The type, which a result cannot have.
    pub unsafe fn take(self) -> Result<Returned, i32> {
        let Self { kind, count, content } = self;
        // SAFETY: by the function's contract, the content is that of the type, and owned.
        unsafe {
            Ok(match kind {
                types::NONE | types::DEFAULT => Returned::None,
                types::BOOL => Returned::Bool(content.boolean),
                types::INT => Returned::Int(content.int),
                types::FLOAT => Returned::Float(content.float),
                types::TEXT => {
                    Returned::Text(CString::from_raw(content.text.cast_mut()).to_string_lossy().into_owned())
                }
                types::DTYPE => Returned::DType(dtype_of(content.number).map_err(|_| kind)?),
                types::TENSOR => Returned::Tensor(*Box::from_raw(content.tensor)),
                types::TENSORS => {
                    let mut value = self;
                    let tensors = value.take_tensors().into_iter().map(|tensor| *Box::from_raw(tensor));
                    Returned::Tensors(tensors.collect())
                }
                types::TUPLE => {
                    let values = Box::from_raw(ptr::slice_from_raw_parts_mut(content.values, count));
                    // All are taken, so that none is lost where one is no result.
                    let taken: Vec<Result<Returned, i32>> = values.into_iter().map(|value| value.take()).collect();
                    Returned::Tuple(taken.into_iter().collect::<Result<_, _>>()?)
                }
                other => return Err(other),
            })
        }
    }

    /// Makes a result of a text.
    pub(super) fn owned_text(text: CString) -> Self {
        Self { kind: types::TEXT, count: 0, content: Content { text: text.into_raw() } }
    }

    /// Makes a result of the handles of tensors, which it takes over.
    pub(super) fn owned_tensors(tensors: Box<[*mut Tensor]>) -> Self {
        let count = tensors.len();
        Self { kind: types::TENSORS, count, content: Content { tensors: Box::into_raw(tensors).cast() } }
    }

    /// Makes a result of several results, which it takes over.
    pub(super) fn owned_tuple(values: Box<[Self]>) -> Self {
        let count = values.len();
        Self { kind: types::TUPLE, count, content: Content { values: Box::into_raw(values).cast() } }
    }

    /// Returns the value as an argument for a parameter, or `None` if it is of a type that the parameter does not take.
    ///
    /// # Safety
    /// The value is one that the header allows: its content is that of its type, and lives as long as the argument.
    pub(super) unsafe fn argument<'a>(&'a self, parameter: &Parameter) -> Result<Option<Argument<'a>>, Failure> {
        let Parameter { kind, default, .. } = parameter;
        let missing = || Failure::null(parameter.name);
        // SAFETY: by the function's contract, the content is that of the type, and lives as long as the argument. Where a
        // list of tensors has no null pointer, each is a reference, which has the layout of a pointer.
        let argument = unsafe {
            match self.kind {
                types::DEFAULT => return Ok(*default),
                types::NONE if *kind == Kind::Ints => Argument::Ints(&[]),
                types::NONE => Argument::None,
                types::BOOL => Argument::Scalar(Scalar::Bool(self.content.boolean)),
                types::INT if matches!(kind, Kind::Ints | Kind::Sizes) => {
                    return list(kind, slice::from_ref(&self.content.int));
                }
                types::INT => Argument::Scalar(Scalar::Int(self.content.int)),
                types::FLOAT => Argument::Scalar(Scalar::Float(self.content.float)),
                types::TEXT => Argument::Text(text(self.content.text)?),
                types::DTYPE => Argument::DType(dtype_of(self.content.number)?),
                types::DEVICE => Argument::Device(device_of(self.content.number)?),
                types::TENSOR => Argument::Tensor(self.content.tensor.as_ref().ok_or_else(missing)?),
                types::INTS => return list(kind, elements(self.content.ints, self.count)),
                types::TENSORS => {
                    let tensors = elements(self.content.tensors.cast_const(), self.count);
                    if tensors.iter().any(|tensor| tensor.is_null()) {
                        return Err(missing());
                    }
                    Argument::Tensors(elements(tensors.as_ptr().cast::<&Tensor>(), tensors.len()))
                }
                types::GENERATOR => Argument::Generator(self.content.generator.as_ref().ok_or_else(missing)?),
                other => return Err(Failure::Invalid(format!("{other} is not a tenure_type"))),
            }
        };
        Ok(takes(*kind, &argument).then_some(argument))
    }

    /// Makes a value of a result. The caller owns what it refers to.
    pub(super) fn of(output: Output) -> Self {
        match output {
            Output::InPlace => Self::NONE,
            Output::Bool(boolean) => Self::bool(boolean),
            Output::Tensor(tensor) => {
                Self { kind: types::TENSOR, count: 0, content: Content { tensor: Box::into_raw(Box::new(tensor)) } }
            }
            Output::Tensors(tensors) => {
                let tensors: Box<[*mut Tensor]> =
                    tensors.into_iter().map(|tensor| Box::into_raw(Box::new(tensor))).collect();
                Self::owned_tensors(tensors)
            }
        }
    }

    /// Returns the tensors of a result, whose handles the caller owns, and leaves nothing.
    ///
    /// # Safety
    /// The value is one of [`of`](Self::of) with several tensors.
    pub(super) unsafe fn take_tensors(&mut self) -> Box<[*mut Tensor]> {
        let Self { count, content, .. } = std::mem::replace(self, Self::NONE);
        // SAFETY: by the function's contract, this is the box that `of` made.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(content.tensors, count)) }
    }

    /// Frees what a result refers to, and leaves nothing.
    ///
    /// # Safety
    /// The value is a result that the header allows, and nothing of it was freed.
    pub unsafe fn free(&mut self) {
        // SAFETY: by the function's contract.
        drop(unsafe { std::mem::replace(self, Self::NONE).take() });
    }

    /// Returns the value as an error shows it.
    pub(super) fn describe(&self) -> &'static str {
        match self.kind {
            types::DEFAULT => "the default",
            types::NONE => "none",
            types::BOOL => "a bool",
            types::INT => "an integer",
            types::FLOAT => "a number",
            types::TEXT => "a text",
            types::DTYPE => "a dtype",
            types::DEVICE => "a device",
            types::TENSOR => "a tensor",
            types::INTS => "a list of integers",
            types::TENSORS => "a list of tensors",
            types::GENERATOR => "a generator",
            types::TUPLE => "a tuple",
            _ => "a value of no type",
        }
    }
}

/// Returns a list of integers for a parameter of such a list.
fn list<'a>(kind: &Kind, numbers: &'a [i64]) -> Result<Option<Argument<'a>>, Failure> {
    Ok(match kind {
        // SAFETY: on the platforms that are supported, `isize` is `i64`.
        Kind::Ints => Some(Argument::Ints(unsafe { elements(numbers.as_ptr().cast(), numbers.len()) })),
        Kind::Sizes => {
            if let Some(negative) = numbers.iter().find(|number| **number < 0) {
                return Err(Failure::Invalid(format!("a size must not be negative, got {negative}")));
            }
            // SAFETY: likewise, and no number is negative.
            Some(Argument::Sizes(unsafe { elements(numbers.as_ptr().cast(), numbers.len()) }))
        }
        _ => None,
    })
}

/// Returns whether a parameter takes an argument.
fn takes(kind: Kind, argument: &Argument<'_>) -> bool {
    match argument {
        Argument::None => matches!(
            kind,
            Kind::OptionalTensor
                | Kind::OptionalScalar
                | Kind::OptionalInt
                | Kind::OptionalFloat
                | Kind::OptionalText
                | Kind::OptionalDType
                | Kind::OptionalDevice
                | Kind::Generator
        ),
        Argument::Tensor(_) => matches!(kind, Kind::Tensor | Kind::OptionalTensor | Kind::Value),
        Argument::Tensors(_) => kind == Kind::Tensors,
        Argument::Scalar(number) => match number {
            Scalar::Bool(_) => matches!(kind, Kind::Bool | Kind::Value | Kind::Scalar | Kind::OptionalScalar),
            Scalar::Int(number) => match kind {
                Kind::Size => *number >= 0,
                Kind::Int | Kind::OptionalInt => true,
                _ => takes_float(kind),
            },
            Scalar::Unsigned(_) | Scalar::Float(_) => takes_float(kind),
        },
        Argument::Ints(_) => kind == Kind::Ints,
        Argument::Sizes(_) => kind == Kind::Sizes,
        Argument::Text(_) => matches!(kind, Kind::Text | Kind::OptionalText | Kind::Reduction),
        Argument::DType(_) => matches!(kind, Kind::DType | Kind::OptionalDType),
        Argument::Device(_) => matches!(kind, Kind::Device | Kind::OptionalDevice),
        Argument::Generator(_) => kind == Kind::Generator,
    }
}

fn takes_float(kind: Kind) -> bool {
    matches!(kind, Kind::Value | Kind::Scalar | Kind::OptionalScalar | Kind::Float | Kind::OptionalFloat)
}

/// Returns the elements of an array of C. An array of no elements may have any address.
///
/// # Safety
/// `start` has `count` elements that live for `'a`.
pub(crate) unsafe fn elements<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the function's contract.
    unsafe { slice::from_raw_parts(start, count) }
}

/// Returns a text of C.
///
/// # Safety
/// `text` is null or a C string that lives for `'a`.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null("a text"));
    }
    // SAFETY: by the function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::Invalid("a text must be UTF-8".into()))
}

const _: () = assert!(size_of::<Value>() == 24 && DType::ALL.len() == 13 && size_of::<Device>() <= 8);
