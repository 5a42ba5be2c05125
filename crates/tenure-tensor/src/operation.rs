//! The table of operations: each one is declared once, and Rust's methods, Python, C and the reference are made of it.
//!
//! `operations!` declares the operations of a file beside their implementations, as PyTorch's `native_functions.yaml`
//! does for ATen. Front ends read [`OPERATIONS`](crate::ops::OPERATIONS): names, parameters with defaults, documentation,
//! and a function that takes any arguments.

use std::fmt;

use smallvec::SmallVec;
use tenure_core::{DType, Device};

use crate::ops::LossReduction;
use crate::random::Generator;
use crate::{Result, Scalar, Tensor, TensorError, Value};

/// An operation on tensors, as front ends see it.
#[derive(Debug)]
pub struct Operation {
    /// The name. Overloads share it: a front end takes the first whose parameters the arguments match.
    pub name: &'static str,
    /// The name that no overload shares: that of Rust's function.
    pub own_name: &'static str,
    /// Whether it is a method of the first parameter, a function, or both.
    pub form: Form,
    /// The parameters, in order.
    pub parameters: &'static [Parameter],
    /// The type of the result.
    pub result: ResultKind,
    /// The documentation: sentences in Markdown, and a section of errors.
    pub doc: &'static str,
    /// The function. It takes an argument for each parameter, in order.
    pub call: fn(&[Argument<'_>]) -> Result<Output>,
}

/// The forms in which front ends offer an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A function and a method of its first parameter.
    Method,
    /// A function only.
    Function,
}

/// A parameter of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name, by which it can be given too.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The default; `None` if the parameter must be given.
    pub default: Option<Argument<'static>>,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A tensor, or none.
    OptionalTensor,
    /// A list of tensors.
    Tensors,
    /// A tensor or a number.
    Value,
    /// A number.
    Scalar,
    /// A number, or none.
    OptionalScalar,
    /// An integer.
    Int,
    /// An integer, or none.
    OptionalInt,
    /// A list of integers; one integer is a list of one, and none is an empty list.
    Ints,
    /// An integer that is not negative.
    Size,
    /// A list of integers that are not negative; one integer is a list of one.
    Sizes,
    /// A floating-point number.
    Float,
    /// A floating-point number, or none.
    OptionalFloat,
    /// A truth value.
    Bool,
    /// A word or another text.
    Text,
    /// A word or another text, or none.
    OptionalText,
    /// A dtype.
    DType,
    /// A dtype, or none.
    OptionalDType,
    /// A device.
    Device,
    /// A device, or none.
    OptionalDevice,
    /// A generator of random numbers, or none for the device's default one.
    Generator,
    /// The reduction of a loss: `none`, `mean` or `sum`.
    Reduction,
}

/// An argument of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Nothing is given.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// A list of tensors.
    Tensors(&'a [&'a Tensor]),
    /// A number or a truth value.
    Scalar(Scalar),
    /// A list of integers.
    Ints(&'a [isize]),
    /// A list of integers that are not negative.
    Sizes(&'a [usize]),
    /// A text.
    Text(&'a str),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// A generator of random numbers.
    Generator(&'a Generator),
}

/// The type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// None: the operation writes to its first parameter.
    InPlace,
    /// A truth value.
    Bool,
    /// A tensor.
    Tensor,
    /// So many tensors.
    Tuple(usize),
    /// A list of tensors.
    List,
}

/// The result of an operation.
#[derive(Debug)]
pub enum Output {
    /// None: the operation wrote to its first parameter.
    InPlace,
    /// A truth value.
    Bool(bool),
    /// A tensor.
    Tensor(Tensor),
    /// Several tensors.
    Tensors(SmallVec<[Tensor; 2]>),
}

impl fmt::Display for Kind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Tensor => "a tensor",
            Self::OptionalTensor => "a tensor or None",
            Self::Tensors => "a list of tensors",
            Self::Value => "a tensor or a number",
            Self::Scalar => "a number",
            Self::OptionalScalar => "a number or None",
            Self::Int => "an integer",
            Self::OptionalInt => "an integer or None",
            Self::Ints => "a list of integers",
            Self::Size => "an integer that is not negative",
            Self::Sizes => "a list of integers that are not negative",
            Self::Float => "a number",
            Self::OptionalFloat => "a number or None",
            Self::Bool => "a bool",
            Self::Text => "a string",
            Self::OptionalText => "a string or None",
            Self::DType => "a dtype",
            Self::OptionalDType => "a dtype or None",
            Self::Device => "a device",
            Self::OptionalDevice => "a device or None",
            Self::Generator => "a generator or None",
            Self::Reduction => "\"none\", \"mean\" or \"sum\"",
        })
    }
}

impl fmt::Display for Argument<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => to.write_str("None"),
            Self::Tensor(_) => to.write_str("a tensor"),
            Self::Tensors(tensors) => write!(to, "a list of {} tensors", tensors.len()),
            Self::Scalar(number) => number.fmt(to),
            Self::Ints(numbers) => write!(to, "{numbers:?}"),
            Self::Sizes(sizes) => write!(to, "{sizes:?}"),
            Self::Text(text) => write!(to, "{text:?}"),
            Self::DType(dtype) => dtype.fmt(to),
            Self::Device(device) => device.fmt(to),
            Self::Generator(_) => to.write_str("a generator"),
        }
    }
}

/// A Rust type of parameters.
pub(crate) trait Take<'a>: Sized {
    /// The parameter's type in the table.
    const KIND: Kind;

    /// Returns the argument as this type, or `None` if it has another.
    fn take(argument: &Argument<'a>) -> Option<Self>;

    /// Returns the argument that is taken as this.
    fn argument(&'a self) -> Argument<'a>;
}

macro_rules! takes {
    ($($kind:ident: $type:ty = $pattern:pat => $value:expr, |$taken:ident| $argument:expr;)*) => {$(
        impl<'a> Take<'a> for $type {
            const KIND: Kind = Kind::$kind;

            fn take(argument: &Argument<'a>) -> Option<Self> {
                match *argument {
                    $pattern => $value,
                    _ => None,
                }
            }

            fn argument(&'a self) -> Argument<'a> {
                let $taken = *self;
                $argument
            }
        }
    )*};
    ($($kind:ident: optional $type:ty;)*) => {$(
        impl<'a> Take<'a> for Option<$type> {
            const KIND: Kind = Kind::$kind;

            fn take(argument: &Argument<'a>) -> Option<Self> {
                match argument {
                    Argument::None => Some(None),
                    given => <$type>::take(given).map(Some),
                }
            }

            fn argument(&'a self) -> Argument<'a> {
                self.as_ref().map_or(Argument::None, Take::argument)
            }
        }
    )*};
}

takes! {
    Tensor: &'a Tensor = Argument::Tensor(tensor) => Some(tensor), |tensor| Argument::Tensor(tensor);
    Tensors: &'a [&'a Tensor] = Argument::Tensors(tensors) => Some(tensors), |tensors| Argument::Tensors(tensors);
    Scalar: Scalar = Argument::Scalar(number) => Some(number), |number| Argument::Scalar(number);
    Int: isize = Argument::Scalar(Scalar::Int(number)) => number.try_into().ok(), |number| Argument::Scalar(Scalar::Int(number as i64));
    Ints: &'a [isize] = Argument::Ints(numbers) => Some(numbers), |numbers| Argument::Ints(numbers);
    Size: usize = Argument::Scalar(Scalar::Int(number)) => number.try_into().ok(), |number| Argument::Scalar(Scalar::Int(number as i64));
    Sizes: &'a [usize] = Argument::Sizes(sizes) => Some(sizes), |sizes| Argument::Sizes(sizes);
    Float: f64 = Argument::Scalar(number) => Some(number.to_f64()), |number| Argument::Scalar(Scalar::Float(number));
    Bool: bool = Argument::Scalar(Scalar::Bool(value)) => Some(value), |value| Argument::Scalar(Scalar::Bool(value));
    Text: &'a str = Argument::Text(text) => Some(text), |text| Argument::Text(text);
    DType: DType = Argument::DType(dtype) => Some(dtype), |dtype| Argument::DType(dtype);
    Device: Device = Argument::Device(device) => Some(device), |device| Argument::Device(device);
    Int: i64 = Argument::Scalar(Scalar::Int(number)) => Some(number), |number| Argument::Scalar(Scalar::Int(number));
    Reduction: LossReduction = Argument::Text(text) => LossReduction::named(text), |reduction| Argument::Text(reduction.name());
}

takes! {
    OptionalTensor: optional &'a Tensor;
    OptionalScalar: optional Scalar;
    OptionalInt: optional isize;
    OptionalFloat: optional f64;
    OptionalText: optional &'a str;
    OptionalDType: optional DType;
    OptionalDevice: optional Device;
}

impl<'a> Take<'a> for Value<'a> {
    const KIND: Kind = Kind::Value;

    fn take(argument: &Argument<'a>) -> Option<Self> {
        match *argument {
            Argument::Tensor(tensor) => Some(Self::Tensor(tensor)),
            Argument::Scalar(number) => Some(Self::Number(number)),
            _ => None,
        }
    }

    fn argument(&'a self) -> Argument<'a> {
        match *self {
            Self::Tensor(tensor) => Argument::Tensor(tensor),
            Self::Number(number) => Argument::Scalar(number),
        }
    }
}

impl<'a> Take<'a> for Generator {
    const KIND: Kind = Kind::Generator;

    fn take(argument: &Argument<'a>) -> Option<Self> {
        match argument {
            Argument::None => Some(Self::default()),
            Argument::Generator(generator) => Some((*generator).clone()),
            _ => None,
        }
    }

    fn argument(&'a self) -> Argument<'a> {
        if self.is_default() { Argument::None } else { Argument::Generator(self) }
    }
}

/// A Rust type of results.
pub(crate) trait Give: Clone + Into<Output> {
    /// The result's type in the table.
    const KIND: ResultKind;
}

macro_rules! gives {
    ($($kind:expr => $type:ty, |$value:pat_param| $output:expr;)*) => {$(
        impl Give for $type {
            const KIND: ResultKind = $kind;
        }

        impl From<$type> for Output {
            fn from($value: $type) -> Self {
                $output
            }
        }
    )*};
}

gives! {
    ResultKind::InPlace => (), |()| Self::InPlace;
    ResultKind::Bool => bool, |value| Self::Bool(value);
    ResultKind::Tensor => Tensor, |tensor| Self::Tensor(tensor);
    ResultKind::Tuple(2) => (Tensor, Tensor), |(a, b)| Self::Tensors([a, b].into_iter().collect());
    ResultKind::Tuple(3) => (Tensor, Tensor, Tensor), |(a, b, c)| Self::Tensors([a, b, c].into_iter().collect());
    ResultKind::List => Vec<Tensor>, |tensors| Self::Tensors(tensors.into());
}

/// The arguments of one call, taken one after the other.
pub(crate) struct Taker<'a, 'b> {
    op: &'static str,
    parameters: &'static [Parameter],
    arguments: &'b [Argument<'a>],
    next: usize,
}

impl<'a, 'b> Taker<'a, 'b> {
    pub(crate) fn new(
        op: &'static str,
        parameters: &'static [Parameter],
        arguments: &'b [Argument<'a>],
    ) -> Result<Self> {
        if arguments.len() != parameters.len() {
            let reason = format!("takes {} arguments, got {}", parameters.len(), arguments.len());
            return Err(TensorError::argument(op, reason));
        }
        Ok(Self { op, parameters, arguments, next: 0 })
    }

    /// Takes the next argument.
    pub(crate) fn take<T: Take<'a>>(&mut self) -> Result<T> {
        let index = self.next;
        self.next += 1;
        T::take(&self.arguments[index]).ok_or_else(|| {
            let Parameter { name, kind, .. } = self.parameters[index];
            TensorError::argument(self.op, format!("{name} must be {kind}, got {}", self.arguments[index]))
        })
    }
}

/// Declares the operations of a file. Each has a name, parameters with defaults, a result, a documentation, and the
/// function that computes it:
///
/// ```ignore
/// operations! {
///     static OPERATIONS;
///     methods {
///         /// Computes sums over dimensions.
///         sum(input, dim: Ints = [], keepdim: Bool = false) -> Tensor;
///     }
/// }
/// ```
///
/// `methods` are methods of [`Tensor`] in Rust, `functions` are its associated functions. An operation whose Rust method
/// is declared elsewhere, since it takes a structure of options, is one of `front_ends`: a function there, or one of
/// `front_end_methods`, where front ends offer it as a method too. Overloads of a name in front
/// ends have names of their own in Rust: `#[name(max)]` gives the common one.
macro_rules! operations {
    (
        static $table:ident;
        $(methods {$(
            $(#[doc = $m_doc:expr])* $(#[name($m_front:ident)])?
            $m:ident($m_self:ident $(, $m_p:ident: $m_t:ident $(<$m_g:ident>)? $(= $m_d:expr)?)* $(,)?) -> $m_r:ty $(= $m_f:expr)?;
        )*})?
        $(functions {$(
            $(#[doc = $f_doc:expr])* $(#[name($f_front:ident)])?
            $f:ident($($f_p:ident: $f_t:ident $(<$f_g:ident>)? $(= $f_d:expr)?),* $(,)?) -> $f_r:ty $(= $f_f:expr)?;
        )*})?
        $(front_ends {$(
            $(#[doc = $e_doc:expr])* $(#[name($e_front:ident)])?
            $e:ident($($e_p:ident: $e_t:ident $(<$e_g:ident>)? $(= $e_d:expr)?),* $(,)?) -> $e_r:ty $(= $e_f:expr)?;
        )*})?
        $(front_end_methods {$(
            $(#[doc = $o_doc:expr])* $(#[name($o_front:ident)])?
            $o:ident($($o_p:ident: $o_t:ident $(<$o_g:ident>)? $(= $o_d:expr)?),* $(,)?) -> $o_r:ty $(= $o_f:expr)?;
        )*})?
    ) => {
        $(impl $crate::Tensor {$(
            $(#[doc = $m_doc])*
            #[allow(clippy::needless_lifetimes, reason = "`'a` is for parameters that are a `Value`")]
            pub fn $m<'a>(&'a self $(, $m_p: $crate::operation::rust!($m_t $($m_g)?))*) -> $crate::Result<$m_r> {
                $(let $m_p = $crate::operation::forward!($m_t $m_p);)*
                $crate::operation::observed!(here stringify!($m), &[self.argument() $(, $m_p.argument())*], {
                    $crate::operation::body!($m $($m_f)?)(self $(, $m_p)*)
                })
            }
        )*})?
        $(impl $crate::Tensor {$(
            $(#[doc = $f_doc])*
            pub fn $f($($f_p: $crate::operation::rust!($f_t $($f_g)?)),*) -> $crate::Result<$f_r> {
                $(let $f_p = $crate::operation::forward!($f_t $f_p);)*
                $crate::operation::observed!(here stringify!($f), &[$($f_p.argument()),*], {
                    $crate::operation::body!($f $($f_f)?)($($f_p),*)
                })
            }
        )*})?

        /// The operations of this file.
        pub(crate) static $table: &[$crate::operation::Operation] = &[
            $($($crate::operation::entry!(
                Method $m $($m_front)?, concat!($($m_doc, "\n"),*),
                [$m_self: Tensor, $($m_p: $m_t $(<$m_g>)? $(= $m_d)?),*] -> $m_r = there by $crate::Tensor::$m
            ),)*)?
            $($($crate::operation::entry!(
                Function $f $($f_front)?, concat!($($f_doc, "\n"),*),
                [$($f_p: $f_t $(<$f_g>)? $(= $f_d)?),*] -> $f_r = there by $crate::Tensor::$f
            ),)*)?
            $($($crate::operation::entry!(
                Function $e $($e_front)?, concat!($($e_doc, "\n"),*),
                [$($e_p: $e_t $(<$e_g>)? $(= $e_d)?),*] -> $e_r = here by $crate::operation::body!($e $($e_f)?)
            ),)*)?
            $($($crate::operation::entry!(
                Method $o $($o_front)?, concat!($($o_doc, "\n"),*),
                [$($o_p: $o_t $(<$o_g>)? $(= $o_d)?),*] -> $o_r = here by $crate::operation::body!($o $($o_f)?)
            ),)*)?
        ];
    };
}

/// One entry of the table. A call is observed `here`, or `there`: by the method.
macro_rules! entry {
    (
        $form:ident $name:ident $($front:ident)?, $doc:expr,
        [$($p:ident: $t:ident $(<$g:ident>)? $(= $d:expr)?),* $(,)?] -> $r:ty = $observed:ident by $f:expr
    ) => {{
        const PARAMETERS: &[$crate::operation::Parameter] = &[$(
            $crate::operation::Parameter {
                name: stringify!($p),
                kind: <$crate::operation::taken!($t $($g)?) as $crate::operation::Take<'static>>::KIND,
                default: $crate::operation::default!($t $(<$g>)? $(= $d)?),
            }
        ),*];
        const NAME: &str = $crate::operation::front!($name $($front)?);
        $crate::operation::Operation {
            name: NAME,
            own_name: stringify!($name),
            form: $crate::operation::Form::$form,
            parameters: PARAMETERS,
            result: <$r as $crate::operation::Give>::KIND,
            doc: $doc,
            call: |arguments| {
                let mut taker = $crate::operation::Taker::new(NAME, PARAMETERS, arguments)?;
                $(let $p = taker.take::<$crate::operation::taken!($t $($g)?)>()?;)*
                let result = $crate::operation::observed!($observed stringify!($name), arguments, {
                    $f($($crate::operation::pass!($t $p)),*)
                });
                Ok(result?.into())
            },
        }
    }};
}

/// The type that a parameter has in a Rust method.
macro_rules! rust {
    (Value) => { impl Into<$crate::Value<'a>> };
    (Scalar) => { impl Into<$crate::Scalar> };
    (Generator) => { &$crate::random::Generator };
    ($kind:ident $($inner:ident)?) => { $crate::operation::taken!($kind $($inner)?) };
}

/// The type that an argument is taken as.
macro_rules! taken {
    (Tensor) => { &$crate::Tensor };
    (Tensors) => { &[&$crate::Tensor] };
    (Value) => { $crate::Value<'_> };
    (Scalar) => { $crate::Scalar };
    (Int) => { isize };
    (Ints) => { &[isize] };
    (Size) => { usize };
    (Sizes) => { &[usize] };
    (Float) => { f64 };
    (Bool) => { bool };
    (Text) => { &str };
    (DType) => { $crate::DType };
    (Device) => { $crate::Device };
    (Generator) => { $crate::random::Generator };
    (Reduction) => { $crate::ops::LossReduction };
    (Int64) => { i64 };
    (Option $inner:ident) => { Option<$crate::operation::taken!($inner)> };
}

/// The argument that a Rust method passes on.
macro_rules! forward {
    (Value $name:ident) => {
        $name.into()
    };
    (Scalar $name:ident) => {
        $name.into()
    };
    ($kind:ident $name:ident) => {
        $name
    };
}

/// The argument that a call through the table passes on.
macro_rules! pass {
    (Generator $name:ident) => {
        &$name
    };
    ($kind:ident $name:ident) => {
        $name
    };
}

/// The default of a parameter.
macro_rules! default {
    ($kind:ident) => {
        None
    };
    ($kind:ident<$inner:ident>) => {
        None
    };
    ($kind:ident<$inner:ident> = $default:expr) => {
        Some($crate::operation::Argument::None)
    };
    (Generator = $default:expr) => {
        Some($crate::operation::Argument::None)
    };
    (Scalar = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Int($default)))
    };
    (Int = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Int($default)))
    };
    (Int64 = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Int($default)))
    };
    (Size = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Int($default)))
    };
    (Float = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Float($default)))
    };
    (Bool = $default:expr) => {
        Some($crate::operation::Argument::Scalar($crate::Scalar::Bool($default)))
    };
    (Ints = $default:expr) => {
        Some($crate::operation::Argument::Ints(&$default))
    };
    (Sizes = $default:expr) => {
        Some($crate::operation::Argument::Sizes(&$default))
    };
    (Reduction = $default:expr) => {
        Some($crate::operation::Argument::Text($default))
    };
    (Text = $default:expr) => {
        Some($crate::operation::Argument::Text($default))
    };
    (DType = $default:expr) => {
        Some($crate::operation::Argument::DType($default))
    };
    (Device = $default:expr) => {
        Some($crate::operation::Argument::Device($default))
    };
}

/// Computes an operation, and shows the call to observers.
macro_rules! observed {
    (there $own_name:expr, $arguments:expr, $call:block) => {
        $call
    };
    (here $own_name:expr, $arguments:expr, $call:block) => {{
        #[allow(unused_imports, reason = "a table's entry has its arguments already")]
        use $crate::operation::Take as _;
        if $crate::observe::is_on() {
            let begun = $crate::observe::Begun::new($own_name, $arguments);
            let result = $call;
            if let Some(begun) = begun {
                begun.end(&result);
            }
            result
        } else {
            $call
        }
    }};
}

/// The function that computes an operation: the one of its name, if no other is given.
macro_rules! body {
    // A parameter may have the operation's name.
    ($name:ident) => {
        self::$name
    };
    ($name:ident $function:expr) => {
        $function
    };
}

macro_rules! front {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $front:ident) => {
        stringify!($front)
    };
}

pub(crate) use {body, default, entry, forward, front, observed, operations, pass, rust, taken};
