//! Functions that Python calls, and their failures.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, ptr, slice};

use crate::tensor::elements;
use crate::value::{Content, Value, types};
use crate::{DType, Device, Owned, Tensor, ffi};

/// The result of what can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call has failed. Python raises it as an exception with the same message.
#[derive(Clone)]
pub struct Error {
    message: String,
    status: c_int,
}

impl Error {
    /// Makes an error.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: ffi::INVALID }
    }

    fn wrong_type(message: String) -> Self {
        Self { message, status: ffi::WRONG_TYPE }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// Returns this thread's last error unless a call has succeeded.
pub(crate) fn check(status: c_int) -> Result<()> {
    if status == ffi::OK {
        return Ok(());
    }
    // SAFETY: a C string, which is valid until the next failure.
    let message = unsafe { CStr::from_ptr(ffi::tenure_last_error()) }.to_string_lossy().into_owned();
    Err(Error { message, status })
}

/// Returns a text for C.
pub(crate) fn no_zero(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new("a text must have no zero in it"))
}

/// Runs a body, and turns its error or panic into a status.
pub(crate) fn guarded(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return ffi::OK,
        Ok(Err(error)) => error,
        Err(panic) => Error::new(format!("{name} has panicked: {}", reason(&*panic))),
    };
    let status = if error.status == ffi::WRONG_TYPE { ffi::WRONG_TYPE } else { ffi::INVALID };
    let message = CString::new(error.message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: a C string.
    unsafe { ffi::tenure_fail(status, message.as_ptr()) }
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it gives no reason")
}

/// The arguments of a call of a function.
pub struct Arguments<'a> {
    rest: slice::Iter<'a, Value>,
    signature: fn() -> String,
}

impl<'a> Arguments<'a> {
    /// Returns the next argument.
    ///
    /// # Errors
    /// The argument is of another type.
    pub fn next<T: Parameter<'a>>(&mut self, name: &str) -> Result<T> {
        self.rest
            .next()
            .and_then(T::from_value)
            .ok_or_else(|| Error::wrong_type(format!("{}: argument {name} must be {}", (self.signature)(), T::name())))
    }
}

/// The type of a parameter of a function.
pub trait Parameter<'a>: Sized {
    /// Returns the name of the type in Python.
    fn name() -> String;

    /// Returns an argument as this type, or `None` if it is of another.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! parameters {
    ($($type:ty, $name:literal, $kind:ident: |$value:ident| $given:expr;)*) => {$(
        impl<'a> Parameter<'a> for $type {
            fn name() -> String {
                $name.to_owned()
            }

            fn from_value($value: &'a Value) -> Option<Self> {
                // SAFETY: the content is that of the type, and lives as long as the call. A tensor has the layout of
                // its handle.
                if $value.kind == types::$kind { unsafe { $given } } else { None }
            }
        }
    )*};
}

parameters! {
    &'a Tensor, "Tensor", TENSOR: |value| Some(&*(&raw const value.content.tensor).cast::<Tensor>());
    bool, "bool", BOOL: |value| Some(value.content.boolean);
    &'a str, "str", TEXT: |value| CStr::from_ptr(value.content.text).to_str().ok();
    DType, "dtype", DTYPE: |value| DType::of(value.content.number);
    Device, "device", DEVICE: |value| Some(Device(value.content.number));
    &'a [i64], "list[int]", INTS: |value| Some(elements(value.content.ints, value.count));
}

impl<'a> Parameter<'a> for &'a [Tensor] {
    fn name() -> String {
        "list[Tensor]".to_owned()
    }

    fn from_value(value: &'a Value) -> Option<Self> {
        match value.kind {
            // SAFETY: the content is that of the type, and lives as long as the call.
            types::TENSORS => Some(unsafe { elements(value.content.tensors.cast::<Tensor>(), value.count) }),
            // An empty list has no type of its elements.
            types::INTS if value.count == 0 => Some(&[]),
            _ => None,
        }
    }
}

macro_rules! owned {
    ($($type:ty: $borrowed:ty;)*) => {$(
        impl<'a> Parameter<'a> for $type {
            fn name() -> String {
                <&'a $borrowed>::name()
            }

            fn from_value(value: &'a Value) -> Option<Self> {
                <&'a $borrowed>::from_value(value).map(ToOwned::to_owned)
            }
        }
    )*};
}

owned! {
    Tensor: Tensor;
    String: str;
    Vec<i64>: [i64];
    Vec<Tensor>: [Tensor];
}

impl<'a, T: Parameter<'a>> Parameter<'a> for Option<T> {
    fn name() -> String {
        T::name() + " | None"
    }

    fn from_value(value: &'a Value) -> Option<Self> {
        if value.kind == types::NONE { Some(None) } else { T::from_value(value).map(Some) }
    }
}

/// The type of a function's result.
pub trait Returned {
    /// Returns the name of the type in Python.
    fn name() -> String;

    /// Returns the result as a value.
    ///
    /// # Errors
    /// The function has failed, or its result is none that Python has.
    fn into_value(self) -> Result<Owned>;
}

macro_rules! results {
    ($($type:ty, $name:literal: |$given:ident| $value:expr;)*) => {$(
        impl Returned for $type {
            fn name() -> String {
                $name.to_owned()
            }

            fn into_value(self) -> Result<Owned> {
                let $given = self;
                // SAFETY: the value owns what it refers to.
                Ok(unsafe { Owned::new($value) })
            }
        }
    )*};
}

results! {
    (), "None": |_given| Value::NONE;
    bool, "bool": |given| Value::bool(given);
    DType, "dtype": |given| Value::dtype(given);
    String, "str": |given| ffi::tenure_owned_text(no_zero(&given)?.as_ptr());
    Tensor, "Tensor": |given| Value::new(types::TENSOR, Content { tensor: given.into_handle() });
    Vec<Tensor>, "list[Tensor]": |given| {
        let handles: Vec<_> = given.into_iter().map(Tensor::into_handle).collect();
        ffi::tenure_owned_tensors(handles.as_ptr(), handles.len())
    };
    Vec<i64>, "tuple[int, ...]": |given| {
        let values: Vec<Value> = given.into_iter().map(Value::int).collect();
        ffi::tenure_owned_tuple(values.as_ptr(), values.len())
    };
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Parameter<'_> for $type {
            fn name() -> String {
                "int".to_owned()
            }

            fn from_value(value: &Value) -> Option<Self> {
                // SAFETY: the content is that of the type.
                if value.kind == types::INT { unsafe { value.content.int.try_into().ok() } } else { None }
            }
        }

        impl Returned for $type {
            fn name() -> String {
                "int".to_owned()
            }

            fn into_value(self) -> Result<Owned> {
                let int = i64::try_from(self).map_err(|_| Error::new("an integer must be less than 2^63"))?;
                // SAFETY: the value refers to nothing.
                Ok(unsafe { Owned::new(Value::int(int)) })
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize }

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Parameter<'_> for $type {
            fn name() -> String {
                "float".to_owned()
            }

            fn from_value(value: &Value) -> Option<Self> {
                match value.kind {
                    // SAFETY: the content is that of the type.
                    types::FLOAT => Some(unsafe { value.content.float } as Self),
                    // SAFETY: likewise.
                    types::INT => Some(unsafe { value.content.int } as Self),
                    _ => None,
                }
            }
        }

        impl Returned for $type {
            fn name() -> String {
                "float".to_owned()
            }

            fn into_value(self) -> Result<Owned> {
                // SAFETY: the value refers to nothing.
                Ok(unsafe { Owned::new(Value::float(self.into())) })
            }
        }
    )*};
}

floats! { f32 f64 }

impl<T: Returned> Returned for Option<T> {
    fn name() -> String {
        T::name() + " | None"
    }

    fn into_value(self) -> Result<Owned> {
        self.map_or_else(|| ().into_value(), T::into_value)
    }
}

impl<T: Returned, E: Into<Error>> Returned for Result<T, E> {
    fn name() -> String {
        T::name()
    }

    fn into_value(self) -> Result<Owned> {
        self.map_err(Into::into)?.into_value()
    }
}

macro_rules! tuples {
    ($(($($type:ident $index:tt),+))*) => {$(
        impl<$($type: Returned),+> Returned for ($($type,)+) {
            fn name() -> String {
                format!("tuple[{}]", [$($type::name()),+].join(", "))
            }

            fn into_value(self) -> Result<Owned> {
                let owned = [$(self.$index.into_value()?),+];
                let values = owned.map(Owned::into_value);
                // SAFETY: the tuple takes the values over.
                Ok(unsafe { Owned::new(ffi::tenure_owned_tuple(values.as_ptr(), values.len())) })
            }
        }
    )*};
}

tuples! {
    (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4) (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6) (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

/// Returns the signature of a function.
pub fn signature(name: &str, parameters: &[(&str, String)], result: &str) -> String {
    let parameters: Vec<String> = parameters.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
    format!("{name}({}) -> {result}", parameters.join(", "))
}

/// Calls a function with arguments of C, and writes its result.
///
/// # Safety
/// The arguments are those of `call` in `tenure_function`.
pub unsafe fn run(
    name: &str,
    signature: fn() -> String,
    (arguments, count): (*const Value, usize),
    expected: usize,
    result: *mut Value,
    function: impl FnOnce(&mut Arguments<'_>) -> Result<Owned>,
) -> c_int {
    guarded(name, || {
        if count != expected {
            let signature = signature();
            return Err(Error::wrong_type(format!("{signature}: takes {expected} arguments, got {count}")));
        }
        // SAFETY: by the function's contract.
        let values = unsafe { elements(arguments, count) };
        let returned = function(&mut Arguments { rest: values.iter(), signature })?;
        // SAFETY: by the function's contract, this is a place for the result.
        unsafe { *result = returned.into_value() };
        Ok(())
    })
}

/// `tenure_function` of `tenure_extension.h`.
#[repr(C)]
pub struct Function {
    name: *const c_char,
    doc: *const c_char,
    call: unsafe extern "C" fn(*mut c_void, *const Value, usize, *mut Value) -> c_int,
    context: *mut c_void,
}

impl Function {
    /// Describes a function.
    pub fn new(
        name: &str,
        signature: &str,
        doc: &[&str],
        call: unsafe extern "C" fn(*mut c_void, *const Value, usize, *mut Value) -> c_int,
    ) -> Self {
        let lines: Vec<&str> = doc.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let doc = if lines.is_empty() { String::new() } else { format!("\n\n{}", lines.join("\n")) };
        // These live as long as the process, as the library does.
        let kept = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default().into_raw().cast_const();
        Self { name: kept(name.to_owned()), doc: kept(format!("{signature}{doc}")), call, context: ptr::null_mut() }
    }
}

/// `tenure_extension` of `tenure_extension.h`.
#[repr(C)]
pub struct Extension {
    abi: u32,
    count: usize,
    functions: *const Function,
}

// SAFETY: nothing changes an extension.
unsafe impl Send for Extension {}
// SAFETY: likewise.
unsafe impl Sync for Extension {}

impl Extension {
    /// Describes an extension.
    pub fn new(functions: Vec<Function>) -> Self {
        let functions = functions.leak();
        Self { abi: ABI, count: functions.len(), functions: functions.as_ptr() }
    }
}

/// `TENURE_ABI` of `tenure_extension.h`.
const ABI: u32 = 1;

/// Defines an extension: its functions, which Python calls. It stands once in an extension.
#[macro_export]
macro_rules! functions {
    ($(
        $(#[doc = $doc:literal])*
        $visibility:vis fn $name:ident($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {
        $(
            $(#[doc = $doc])*
            $visibility fn $name($($parameter: $type),*) $(-> $result)? $body
        )*

        #[unsafe(no_mangle)]
        extern "C" fn tenure_extension_entry() -> *const $crate::Extension {
            static ENTRY: ::std::sync::OnceLock<$crate::Extension> = ::std::sync::OnceLock::new();
            ENTRY.get_or_init(|| {
                $crate::Extension::new(::std::vec![$({
                    fn signature() -> ::std::string::String {
                        $crate::signature(
                            ::std::stringify!($name),
                            &[$((::std::stringify!($parameter), <$type as $crate::Parameter<'_>>::name())),*],
                            &$crate::functions!(@result $($result)?),
                        )
                    }
                    unsafe extern "C" fn call(
                        _: *mut ::std::ffi::c_void,
                        arguments: *const $crate::Value,
                        count: usize,
                        result: *mut $crate::Value,
                    ) -> ::std::ffi::c_int {
                        let names: &[&str] = &[$(::std::stringify!($parameter)),*];
                        // SAFETY: Tenure calls this as the header says.
                        unsafe {
                            $crate::run(
                                ::std::stringify!($name), signature, (arguments, count), names.len(), result,
                                |_arguments| $crate::Returned::into_value(
                                    $name($(_arguments.next::<$type>(::std::stringify!($parameter))?),*)
                                ),
                            )
                        }
                    }
                    $crate::Function::new(::std::stringify!($name), &signature(), &[$($doc),*], call)
                }),*])
            })
        }
    };
    (@result $result:ty) => { <$result as $crate::Returned>::name() };
    (@result) => { <() as $crate::Returned>::name() };
}
