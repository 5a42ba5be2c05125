//! Calls of the operations of the table by name.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use smallvec::SmallVec;
use tenure_tensor::Tensor;
use tenure_tensor::operation::{Argument, Operation, Output, Parameter};
use tenure_tensor::ops::OPERATIONS;

use super::refuse_while_open;
use super::value::{Value, elements, text};
use crate::failure::{Failure, Status, guarded};

/// The operations of each name, overloads in the order of the table, and each overload under its own name.
static NAMED: LazyLock<HashMap<&'static str, SmallVec<[&'static Operation; 2]>>> = LazyLock::new(|| {
    let mut named: HashMap<_, SmallVec<[&'static Operation; 2]>> = HashMap::new();
    for operation in OPERATIONS.iter().copied().flatten() {
        named.entry(operation.name).or_default().push(operation);
    }
    for operation in OPERATIONS.iter().copied().flatten() {
        let own = named.entry(operation.own_name).or_default();
        if !own.iter().any(|other| std::ptr::eq(*other, operation)) {
            own.push(operation);
        }
    }
    named
});

/// See `tenure_tensor.h`.
///
/// # Safety
/// `operation` is null or a C string; `arguments` has `count` values that the header allows; `result` is null or a
/// place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_call(
    operation: *const c_char,
    arguments: *const Value,
    count: usize,
    result: *mut Value,
) -> Status {
    guarded(|| {
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        let (name, arguments) = unsafe { (text(operation)?, elements(arguments, count)) };
        // SAFETY: by the function's contract.
        let value = Value::of(unsafe { call(name, arguments) }?);
        if !result.is_null() {
            // SAFETY: not null, so a place to write to.
            unsafe { result.write(value) };
        } else {
            let mut unwanted = value;
            // SAFETY: the value was not given to the caller.
            unsafe { unwanted.free() };
        }
        Ok(())
    })
}

/// Calls the first overload that takes the arguments.
///
/// # Safety
/// The values are ones that the header allows.
unsafe fn call(name: &str, values: &[Value]) -> Result<Output, Failure> {
    let overloads = NAMED.get(name).ok_or_else(|| Failure::Invalid(format!("unknown operation {name}")))?;
    for operation in overloads {
        // SAFETY: by the function's contract.
        if let Some(arguments) = unsafe { bind(operation, values) }? {
            return Ok((operation.call)(&arguments)?);
        }
    }
    let given: Vec<&str> = values.iter().map(Value::describe).collect();
    let forms: Vec<String> = overloads.iter().map(|operation| form(operation)).collect();
    Err(Failure::WrongType(format!("{name} does not take ({}); it takes {}", given.join(", "), forms.join(" or "))))
}

/// Returns an argument for each parameter, or `None` if the operation does not take the values.
///
/// # Safety
/// The values are ones that the header allows, and live as long as the arguments.
unsafe fn bind<'a>(
    operation: &'static Operation,
    values: &'a [Value],
) -> Result<Option<SmallVec<[Argument<'a>; 8]>>, Failure> {
    if values.len() > operation.parameters.len() {
        return Ok(None);
    }
    let mut arguments = SmallVec::new();
    for (index, parameter) in operation.parameters.iter().enumerate() {
        let argument = match values.get(index) {
            // SAFETY: by the function's contract.
            Some(value) => unsafe { value.argument(parameter) }?,
            None => parameter.default,
        };
        match argument {
            Some(argument) => arguments.push(argument),
            None => return Ok(None),
        }
    }
    Ok(Some(arguments))
}

/// Returns an operation's parameters as an error shows them.
fn form(operation: &Operation) -> String {
    let parameters = operation.parameters.iter().map(|Parameter { name, kind, default }| match default {
        Some(default) => format!("{name}: {kind} = {default}"),
        None => format!("{name}: {kind}"),
    });
    format!("({})", parameters.collect::<Vec<_>>().join(", "))
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `value` is a result of `tenure_call` with several tensors, and `places` has a place to write to for each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_take_tensors(value: *mut Value, places: *const *mut *mut Tensor) {
    // SAFETY: by the function's contract.
    let tensors = unsafe { (*value).take_tensors() };
    for (index, tensor) in tensors.iter().enumerate() {
        // SAFETY: by the function's contract, there are as many places.
        unsafe { places.add(index).read().write(*tensor) };
    }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `value` is null or a result of `tenure_call` none of whose tensors was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_value_free(value: *mut Value) {
    // SAFETY: by the function's contract.
    if let Some(value) = unsafe { value.as_mut() } {
        // SAFETY: by the function's contract.
        unsafe { value.free() };
    }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_owned_text(text: *const c_char) -> Value {
    if text.is_null() {
        return Value::NONE;
    }
    // SAFETY: by the function's contract.
    Value::owned_text(unsafe { CStr::from_ptr(text) }.to_owned())
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensors` has `count` handles, which are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_owned_tensors(tensors: *const *mut Tensor, count: usize) -> Value {
    // SAFETY: by the function's contract.
    Value::owned_tensors(unsafe { elements(tensors, count) }.into())
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `values` has `count` results, which are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_owned_tuple(values: *const Value, count: usize) -> Value {
    // SAFETY: by the function's contract.
    Value::owned_tuple(unsafe { elements(values, count) }.into())
}
