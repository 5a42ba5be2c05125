//! Operations of the program's own, with an implementation for each kind of device.

use std::ffi::{CStr, c_char, c_int, c_void};

use tenure_tensor::Tensor;
use tenure_tensor::autograd::GradMode;

use super::autograd::{Formula, OwnedFormula, PushedModes, attach};
use super::refuse_while_open;
use super::value::{Value, elements, text};
use crate::failure::{Failure, Status, guarded, last_error};

/// `tenure_implementation` of `tenure_tensor.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Implementation {
    call: Option<unsafe extern "C" fn(*mut c_void, *const Value, usize, *mut Value) -> c_int>,
    context: *mut c_void,
}

/// `tenure_operation` of `tenure_tensor.h`.
#[repr(C)]
pub struct OperationEntry {
    name: *const c_char,
    cpu: Implementation,
    cuda: Implementation,
    formula: Option<Formula>,
    formula_context: *mut c_void,
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `operation` is null or an operation as the header says; `arguments` has `count` arguments; `result` is null or a place
/// to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_operation_call(
    operation: *const OperationEntry,
    arguments: *const Value,
    count: usize,
    result: *mut Value,
) -> Status {
    guarded(|| {
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        let operation = unsafe { operation.as_ref() }.ok_or_else(|| Failure::null("the operation"))?;
        if result.is_null() {
            return Err(Failure::null("the result's place"));
        }
        // SAFETY: by the function's contract.
        let (name, arguments) = unsafe { (text(operation.name)?, elements(arguments, count)) };
        // SAFETY: likewise.
        let inputs: Vec<&Tensor> =
            arguments.iter().flat_map(|argument| unsafe { argument.referred_tensors() }).collect();
        let device = inputs.first().map(|tensor| tensor.device());
        let (kind, implementation) = match device.filter(|device| !device.is_cpu()) {
            None => ("the CPU", operation.cpu),
            Some(_) => ("CUDA devices", operation.cuda),
        };
        // SAFETY: by the header, it does what an implementation does.
        let mut made = unsafe { implementation.run(name, kind, arguments, operation.formula.is_some()) }?;
        if let Some(formula) = operation.formula {
            // SAFETY: a result that is not freed yet.
            let outputs = unsafe { made.referred_tensors() };
            let saved: Vec<&Tensor> = inputs.iter().chain(&outputs).copied().collect();
            let formula = OwnedFormula::of_process(formula, operation.formula_context);
            if let Err(failure) = attach(name.to_owned(), &outputs, &inputs, &saved, formula) {
                // SAFETY: likewise, and nothing refers to it any more.
                unsafe { made.free() };
                return Err(failure);
            }
        }
        // SAFETY: not null, so a place to write to.
        unsafe { result.write(made) };
        Ok(())
    })
}

impl Implementation {
    /// Computes a result, with gradients switched off if the operation has a formula.
    ///
    /// # Safety
    /// The implementation does what the header says.
    unsafe fn run(self, name: &str, kind: &str, arguments: &[Value], has_formula: bool) -> Result<Value, Failure> {
        let Some(call) = self.call else {
            let reason = format!("{name} is not implemented for {kind}: move its tensors, or add an implementation");
            return Err(Failure::Invalid(reason));
        };
        let mut result = Value::NONE;
        let _off = has_formula.then(|| GradMode::enter(false));
        let _pushed = PushedModes::begin();
        // SAFETY: by the function's contract.
        let status = Status::of(unsafe { call(self.context, arguments.as_ptr(), arguments.len(), &raw mut result) });
        if status == Status::Ok {
            return Ok(result);
        }
        // SAFETY: a C string of this thread.
        let message = unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned();
        Err(match status {
            Status::WrongType => Failure::WrongType(message),
            _ => Failure::Invalid(message),
        })
    }
}
