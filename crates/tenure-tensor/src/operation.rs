//! The table of operations: each one is declared once, and Rust's methods, Python, C and the reference are made of it.
//!
//! `operations!` declares the operations of a file beside their implementations, as PyTorch's `native_functions.yaml`
//! does for ATen. Front ends read [`OPERATIONS`](crate::ops::OPERATIONS): names, parameters with defaults, documentation,
//! and a function that takes any arguments.

use std::fmt;

use smallvec::SmallVec;
use tenure_core::{DType, Device};

use crate::random::{DEFAULT, Generator};
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
pub(crate) trait Take<'a>: Copy {
    /// The parameter's type in the table.
    const KIND: Kind;

    /// Returns the argument as this type, or `None` if it has another.
    fn take(argument: &Argument<'a>) -> Option<Self>;

    /// Returns the argument that is taken as this.
    fn argument(self) -> Argument<'a>;
}

/// A default in the table: [`Take::argument`] in constants, where no trait's function can be called.
#[derive(Clone, Copy)]
pub(crate) struct Given<T>(pub(crate) T);

macro_rules! takes {
    ($($kind:ident: $type:ty = $pattern:pat => $value:expr, |$taken:ident| $argument:expr;)*) => {$(
        impl<'a> Given<$type> {
            pub(crate) const fn argument(self) -> Argument<'a> {
                let $taken = self.0;
                $argument
            }
        }

        impl<'a> Take<'a> for $type {
            const KIND: Kind = Kind::$kind;

            fn take(argument: &Argument<'a>) -> Option<Self> {
                match *argument {
                    $pattern => $value,
                    _ => None,
                }
            }

            fn argument(self) -> Argument<'a> {
                Given(self).argument()
            }
        }
    )*};
}

takes! {
    Tensor: &'a Tensor = Argument::Tensor(tensor) => Some(tensor), |tensor| Argument::Tensor(tensor);
    Tensors: &'a [&'a Tensor] = Argument::Tensors(tensors) => Some(tensors), |tensors| Argument::Tensors(tensors);
    Scalar: Scalar = Argument::Scalar(number) => Some(number), |number| Argument::Scalar(number);
    Int: isize = Argument::Scalar(Scalar::Int(number)) => number.try_into().ok(), |number| Argument::Scalar(Scalar::Int(number as i64));
    Int: i64 = Argument::Scalar(Scalar::Int(number)) => Some(number), |number| Argument::Scalar(Scalar::Int(number));
    Ints: &'a [isize] = Argument::Ints(numbers) => Some(numbers), |numbers| Argument::Ints(numbers);
    Size: usize = Argument::Scalar(Scalar::Int(number)) => number.try_into().ok(), |number| Argument::Scalar(Scalar::Int(number as i64));
    Sizes: &'a [usize] = Argument::Sizes(sizes) => Some(sizes), |sizes| Argument::Sizes(sizes);
    Float: f64 = Argument::Scalar(number) => Some(number.to_f64()), |number| Argument::Scalar(Scalar::Float(number));
    Bool: bool = Argument::Scalar(Scalar::Bool(value)) => Some(value), |value| Argument::Scalar(Scalar::Bool(value));
    Text: &'a str = Argument::Text(text) => Some(text), |text| Argument::Text(text);
    DType: DType = Argument::DType(dtype) => Some(dtype), |dtype| Argument::DType(dtype);
    Device: Device = Argument::Device(device) => Some(device), |device| Argument::Device(device);
    Reduction: LossReduction = Argument::Text(text) => LossReduction::named(text), |reduction| Argument::Text(reduction.name());
}

/// The reduction of the losses of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossReduction {
    /// No reduction: one loss for each element.
    None,
    /// The mean of the losses; the weighted mean if they have weights.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
}

impl LossReduction {
    /// Returns the reduction of that name in front ends.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "mean" => Self::Mean,
            "sum" => Self::Sum,
            _ => return None,
        })
    }

    /// Returns the name in front ends.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Sum => "sum",
        }
    }
}

/// Types that may be none.
macro_rules! optional {
    ($($kind:ident: $type:ty;)*) => {$(
        impl<'a> Given<Option<$type>> {
            pub(crate) const fn argument(self) -> Argument<'a> {
                match self.0 {
                    Some(given) => Given(given).argument(),
                    None => Argument::None,
                }
            }
        }

        impl<'a> Take<'a> for Option<$type> {
            const KIND: Kind = Kind::$kind;

            fn take(argument: &Argument<'a>) -> Option<Self> {
                match argument {
                    Argument::None => Some(None),
                    given => <$type>::take(given).map(Some),
                }
            }

            fn argument(self) -> Argument<'a> {
                Given(self).argument()
            }
        }
    )*};
}

optional! {
    OptionalTensor: &'a Tensor;
    OptionalScalar: Scalar;
    OptionalInt: isize;
    OptionalFloat: f64;
    OptionalText: &'a str;
    OptionalDType: DType;
    OptionalDevice: Device;
}

impl<'a> Given<Value<'a>> {
    pub(crate) const fn argument(self) -> Argument<'a> {
        match self.0 {
            Value::Tensor(tensor) => Argument::Tensor(tensor),
            Value::Number(number) => Argument::Scalar(number),
        }
    }
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

    fn argument(self) -> Argument<'a> {
        Given(self).argument()
    }
}

impl<'a> Given<&'a Generator> {
    pub(crate) const fn argument(self) -> Argument<'a> {
        if self.0.is_default() { Argument::None } else { Argument::Generator(self.0) }
    }
}

impl<'a> Take<'a> for &'a Generator {
    const KIND: Kind = Kind::Generator;

    fn take(argument: &Argument<'a>) -> Option<Self> {
        match *argument {
            Argument::None => Some(&DEFAULT),
            Argument::Generator(generator) => Some(generator),
            _ => None,
        }
    }

    fn argument(self) -> Argument<'a> {
        Given(self).argument()
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
/// function that computes it, which is the one of the operation's name if no other is given:
///
/// ```ignore
/// operations! {
///     static OPERATIONS;
///     Method for all {
///         /// Computes sums over dimensions.
///         sum(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;
///
///         /// Computes the square of each element.
///         square(input: Tensor) -> Tensor = |input: &Tensor| input.mul(input);
///     }
/// }
/// ```
///
/// A block begins with the [`Form`] of its operations. If it is `for all`, Rust has them too: a `Method` is a method of
/// [`Tensor`], a `Function` is an associated function. If it is `for front_ends`, Rust has no such operation, or it is
/// declared elsewhere, since it takes a structure of options. Overloads of a name in front ends have names of
/// their own in Rust: `#[name(max)]` gives the common one.
///
/// [`taken!`] has the types of parameters. So the block above becomes
///
/// ```ignore
/// impl Tensor {
///     /// Computes sums over dimensions.
///     pub fn sum<'a>(&'a self, dim: &[isize], keepdim: bool) -> Result<Tensor> {
///         observed("sum", || [self.argument(), dim.argument(), keepdim.argument()], || self::sum(self, dim, keepdim))
///     }
/// }
///
/// pub(crate) static OPERATIONS: &[Operation] = &[Operation { name: "sum", form: Form::Method, .. }];
/// ```
macro_rules! operations {
    (
        static $table:ident;
        $($form:ident for $whom:ident {$(
            $(#[doc = $doc:expr])* $(#[name($front:ident)])?
            $name:ident($($p:ident: $t:ident $(<$g:ident>)? $(= $d:expr)?),* $(,)?) -> $r:ty $(= $f:expr)?;
        )*})*
    ) => {
        $($(
            $crate::operation::declare! {
                $form for $whom, $(#[doc = $doc])* $name($($p: $t $(<$g>)?),*) -> $r = $($f)?
            }
        )*)*

        /// The operations of this file.
        pub(crate) static $table: &[$crate::operation::Operation] = &[$($({
            const NAME: &str = [$(stringify!($front),)? stringify!($name)][0];
            const PARAMETERS: &[$crate::operation::Parameter] = &[$(
                $crate::operation::Parameter {
                    name: stringify!($p),
                    kind: <$crate::operation::taken!($t $($g)?) as $crate::operation::Take<'static>>::KIND,
                    default: {
                        let default: &[$crate::operation::Given<$crate::operation::taken!($t $($g)?)>] =
                            &[$($crate::operation::Given($d))?];
                        match default.first() {
                            Some(given) => Some(given.argument()),
                            None => None,
                        }
                    },
                }
            ),*];
            $crate::operation::Operation {
                name: NAME,
                own_name: stringify!($name),
                form: $crate::operation::Form::$form,
                parameters: PARAMETERS,
                result: <$r as $crate::operation::Give>::KIND,
                doc: concat!($($doc, "\n"),*),
                call: |arguments| {
                    let mut taker = $crate::operation::Taker::new(NAME, PARAMETERS, arguments)?;
                    $(let $p: $crate::operation::taken!($t $($g)?) = taker.take()?;)*
                    let result = $crate::observe::observed(stringify!($name), || arguments, || {
                        $crate::operation::callee!($form for $whom, $name $($f)?)($($p),*)
                    });
                    Ok(result?.into())
                },
            }
        }),*),*];
    };
}

/// Declares the method or function of an operation in Rust.
macro_rules! declare {
    (
        Method for all, $(#[doc = $doc:expr])*
        $name:ident($input:ident: Tensor $(, $p:ident: $t:ident $(<$g:ident>)?)*) -> $r:ty = $($f:expr)?
    ) => {
        impl $crate::Tensor {
            $(#[doc = $doc])*
            #[allow(clippy::needless_lifetimes, reason = "`'a` is for parameters that are a `Value`")]
            pub fn $name<'a>(&'a self $(, $p: $crate::operation::accepted!($t $($g)?))*) -> $crate::Result<$r> {
                $(let $p: $crate::operation::taken!($t $($g)?) = $p.into();)*
                $crate::observe::observed(
                    stringify!($name),
                    || $crate::operation::arguments![self $(, $p)*],
                    || $crate::operation::body!($name $($f)?)(self $(, $p)*),
                )
            }
        }
    };
    (
        Function for all, $(#[doc = $doc:expr])*
        $name:ident($($p:ident: $t:ident $(<$g:ident>)?),*) -> $r:ty = $($f:expr)?
    ) => {
        impl $crate::Tensor {
            $(#[doc = $doc])*
            pub fn $name($($p: $crate::operation::accepted!($t $($g)?)),*) -> $crate::Result<$r> {
                $(let $p: $crate::operation::taken!($t $($g)?) = $p.into();)*
                $crate::observe::observed(
                    stringify!($name),
                    || $crate::operation::arguments![$($p),*],
                    || $crate::operation::body!($name $($f)?)($($p),*),
                )
            }
        }
    };
    ($form:ident for front_ends, $($operation:tt)*) => {};
}

/// The array of these as arguments.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        {
            use $crate::operation::Take as _;
            [$($value.argument()),*]
        }
    };
}

/// The type that an argument is taken as, by the name of the parameter's type in the table.
macro_rules! taken {
    (Tensor) => { &$crate::Tensor };
    (Tensors) => { &[&$crate::Tensor] };
    (Value) => { $crate::Value<'_> };
    (Scalar) => { $crate::Scalar };
    (Int) => { isize };
    (Int64) => { i64 };
    (Ints) => { &[isize] };
    (Size) => { usize };
    (Sizes) => { &[usize] };
    (Float) => { f64 };
    (Bool) => { bool };
    (Text) => { &str };
    (DType) => { $crate::DType };
    (Device) => { $crate::Device };
    (Generator) => { &$crate::random::Generator };
    (Reduction) => { $crate::ops::LossReduction };
    (Option $inner:ident) => { Option<$crate::operation::taken!($inner)> };
}

/// The type that the method or function in Rust accepts.
macro_rules! accepted {
    (Value) => { impl Into<$crate::Value<'a>> };
    (Scalar) => { impl Into<$crate::Scalar> };
    ($type:ident $($inner:ident)?) => { $crate::operation::taken!($type $($inner)?) };
}

/// The function that computes an operation. A parameter may have the operation's name.
macro_rules! body {
    ($name:ident) => {
        self::$name
    };
    ($name:ident $function:expr) => {
        $function
    };
}

/// The function that the table calls: that of Rust, if there is one.
macro_rules! callee {
    ($form:ident for all, $name:ident $($function:expr)?) => {
        $crate::Tensor::$name
    };
    ($form:ident for front_ends, $name:ident $($function:expr)?) => {
        $crate::operation::body!($name $($function)?)
    };
}

pub(crate) use {accepted, arguments, body, callee, declare, operations, taken};
