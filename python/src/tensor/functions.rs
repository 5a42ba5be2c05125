//! Python's functions and methods, one for each name in the table of operations.

use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::LazyLock;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use smallvec::SmallVec;
use tenure::tensor::operation::{Form, Parameter, ResultKind};
use tenure::tensor::ops::OPERATIONS;

use super::call::{self, GivenArguments, Overloads};
use super::results;

/// The names of the table, in its order.
static NAMES: LazyLock<Vec<Overloads>> = LazyLock::new(|| {
    let mut names: Vec<Overloads> = Vec::new();
    for operation in OPERATIONS.iter().copied().flatten() {
        match names.iter_mut().find(|overloads| overloads.name == operation.name) {
            Some(overloads) => overloads.operations.push(operation),
            None => names.push(Overloads { name: operation.name, operations: vec![operation] }),
        }
    }
    names
});

type Trampoline = ffi::PyCFunctionFastWithKeywords;

/// The function that Python calls for the name number `INDEX` of the table.
unsafe extern "C" fn function<const INDEX: usize>(
    _: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with `count` positional arguments, then one for each name.
    unsafe { called(INDEX, ptr::null_mut(), arguments, count, names) }
}

/// The method that Python calls for the name number `INDEX` of the table.
unsafe extern "C" fn method<const INDEX: usize>(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as above; `this` is the object of the method.
    unsafe { called(INDEX, this, arguments, count, names) }
}

macro_rules! eight {
    ($function:ident, $first:expr) => {
        [
            $function::<{ $first }>,
            $function::<{ $first + 1 }>,
            $function::<{ $first + 2 }>,
            $function::<{ $first + 3 }>,
            $function::<{ $first + 4 }>,
            $function::<{ $first + 5 }>,
            $function::<{ $first + 6 }>,
            $function::<{ $first + 7 }>,
        ]
    };
}

macro_rules! sixty_four {
    ($function:ident, $first:expr) => {
        [
            eight!($function, $first),
            eight!($function, $first + 8),
            eight!($function, $first + 16),
            eight!($function, $first + 24),
            eight!($function, $first + 32),
            eight!($function, $first + 40),
            eight!($function, $first + 48),
            eight!($function, $first + 56),
        ]
    };
}

macro_rules! all {
    ($function:ident) => {
        [
            sixty_four!($function, 0),
            sixty_four!($function, 64),
            sixty_four!($function, 128),
            sixty_four!($function, 192),
            sixty_four!($function, 256),
            sixty_four!($function, 320),
            sixty_four!($function, 384),
            sixty_four!($function, 448),
        ]
    };
}

/// Python's calling convention for methods has no room for data, so each name has functions of its own.
static FUNCTIONS: [[[Trampoline; 8]; 8]; 8] = all!(function);
static METHODS: [[[Trampoline; 8]; 8]; 8] = all!(method);

/// Calls the operation of the name number `index`.
///
/// # Safety
/// As Python calls a function: `arguments` are `count` positional arguments, then one for each of `names`, a tuple of
/// strings or null. `this` is null or the object of a method.
unsafe fn called(
    index: usize,
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    Python::attach(|py| {
        let run = || {
            let borrowed = |object| {
                // SAFETY: by the function's contract, `object` is an object that lives during the call.
                unsafe { Bound::from_borrowed_ptr(py, object) }
            };
            let count = count.unsigned_abs();
            let mut given = GivenArguments { positional: SmallVec::new(), named: SmallVec::new() };
            if !this.is_null() {
                given.positional.push(borrowed(this));
            }
            for position in 0..count {
                // SAFETY: by the function's contract.
                given.positional.push(borrowed(unsafe { *arguments.add(position) }));
            }
            if !names.is_null() {
                // SAFETY: by the function's contract, a tuple of strings.
                let names: Bound<'_, pyo3::types::PyTuple> = unsafe { borrowed(names).cast_into_unchecked() };
                for (position, name) in names.iter().enumerate() {
                    // SAFETY: by the function's contract.
                    let value = borrowed(unsafe { *arguments.add(count + position) });
                    given.named.push((name.cast_into::<PyString>()?, value));
                }
            }
            call::call(py, &NAMES[index], &given)
        };
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            let text = format!("{}(): Tenure has a bug: it panicked", NAMES[index].name);
            Err(PyRuntimeError::new_err(text))
        });
        match result {
            Ok(object) => object.into_ptr(),
            Err(error) => {
                error.restore(py);
                ptr::null_mut()
            }
        }
    })
}

/// Returns the definition of a function. It lives as long as the process, as Python requires.
fn definition(overloads: &Overloads, trampoline: Trampoline) -> *mut ffi::PyMethodDef {
    let name = CString::new(overloads.name).unwrap_or_default().into_raw();
    let documentation = CString::new(documentation(overloads)).unwrap_or_default().into_raw();
    Box::into_raw(Box::new(ffi::PyMethodDef {
        ml_name: name,
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: trampoline },
        ml_flags: (ffi::METH_FASTCALL | ffi::METH_KEYWORDS) as c_int,
        ml_doc: documentation,
    }))
}

/// Adds a method to the tensor class for each name that has that form and is no attribute of the class yet.
pub(super) fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let attributes: Bound<'_, PyAny> = class.getattr("__dict__")?;
    let trampolines = METHODS.iter().flatten().flatten();
    for (overloads, trampoline) in NAMES.iter().zip(trampolines) {
        let is_method = overloads.operations.iter().any(|operation| operation.form == Form::Method);
        if !is_method || attributes.contains(overloads.name)? {
            continue;
        }
        let definition = definition(overloads, *trampoline);
        // SAFETY: the class is a type, and the definition lives as long as the process.
        let descriptor = unsafe {
            let descriptor = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
            Bound::from_owned_ptr_or_err(class.py(), descriptor)?
        };
        class.setattr(overloads.name, descriptor)?;
    }
    Ok(())
}

/// Returns the functions by their names.
#[pyfunction]
pub(crate) fn operation_functions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let functions = PyDict::new(py);
    let module = PyString::new(py, "tenure");
    let trampolines = FUNCTIONS.iter().flatten().flatten();
    for (overloads, trampoline) in NAMES.iter().zip(trampolines) {
        let definition = definition(overloads, *trampoline);
        // SAFETY: the definition lives as long as the process.
        let function = unsafe {
            let function = ffi::PyCFunction_NewEx(definition, ptr::null_mut(), module.as_ptr());
            Bound::from_owned_ptr_or_err(py, function)?
        };
        functions.set_item(overloads.name, function)?;
    }
    Ok(functions)
}

/// Returns the table of operations, for the package's stubs: for each operation its name, whether it is a method, its
/// parameters (name, type, default or `None`), the number of its results (-1 for a list, 0 for a truth value, `None` for
/// a write to its first parameter), the names of its results, its documentation, and the name that no other overload has.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a row of the table, for one caller")]
pub(crate) fn operation_table() -> Vec<(
    &'static str,
    bool,
    Vec<(&'static str, String, Option<String>)>,
    Option<isize>,
    Option<&'static [&'static str]>,
    String,
    &'static str,
)> {
    let rows = OPERATIONS.iter().copied().flatten().map(|operation| {
        let parameters = operation.parameters.iter().map(|parameter| {
            (parameter.name, format!("{:?}", parameter.kind), parameter.default.as_ref().map(call::shown))
        });
        let results = match operation.result {
            ResultKind::InPlace => None,
            ResultKind::Bool => Some(0),
            ResultKind::Tensor => Some(1),
            ResultKind::Tuple(count) => Some(count as isize),
            ResultKind::List => Some(-1),
        };
        let is_method = operation.form == Form::Method;
        let fields = results::fields(operation.name).filter(|_| matches!(operation.result, ResultKind::Tuple(_)));
        let doc = call::plain(operation.doc).into_owned();
        (operation.name, is_method, parameters.collect(), results, fields, doc, operation.own_name)
    });
    rows.collect()
}

/// Writes the documentation of a name in NumPy's style.
fn documentation(overloads: &Overloads) -> String {
    let mut text = String::new();
    for operation in &overloads.operations {
        text.push_str(&format!("{}({})\n", overloads.name, signature(operation.parameters)));
    }
    for operation in &overloads.operations {
        let doc = call::plain(operation.doc);
        let (sentences, errors) = doc.split_once("# Errors").unwrap_or((&doc, ""));
        let sentences = sentences.split("```").next().unwrap_or(sentences);
        text.push_str(&format!("\n{}\n", lines(sentences)));
        if overloads.operations.len() == 1 && !operation.parameters.is_empty() {
            text.push_str("\nParameters\n----------\n");
            for parameter in operation.parameters {
                let default = parameter.default.as_ref();
                let default = default.map_or(String::new(), |default| format!(", default {}", call::shown(default)));
                text.push_str(&format!("{} : {}{default}\n", parameter.name, parameter.kind));
            }
        }
        if !errors.trim().is_empty() {
            text.push_str(&format!("\nRaises\n------\n{}\n", lines(errors)));
        }
    }
    text
}

/// Returns a text without the spaces and empty lines around its lines.
fn lines(text: &str) -> String {
    text.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

fn signature(parameters: &[Parameter]) -> String {
    let parameters = parameters.iter().map(|parameter| match &parameter.default {
        Some(default) => format!("{}={}", parameter.name, call::shown(default)),
        None => parameter.name.to_owned(),
    });
    parameters.collect::<Vec<_>>().join(", ")
}
