//! Gradients: backward passes, and operations with formulas of C.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use tenure_tensor::autograd::{self, Context, GradMode, SavedHandle};
use tenure_tensor::{AutogradError, Tensor, TensorError};

use super::handle::{give, given, given_all};
use super::refuse_while_open;
use super::value::text;
use crate::failure::{Failure, Status, guarded, last_error};

thread_local! {
    /// The settings that this thread has pushed.
    static PUSHED: RefCell<Vec<GradMode>> = const { RefCell::new(Vec::new()) };
}

/// The number of settings that this thread had pushed before it called a function of C: when this is dropped, those that
/// the function has left are popped.
pub(crate) struct PushedModes(usize);

impl PushedModes {
    pub(crate) fn begin() -> Self {
        Self(PUSHED.with_borrow(Vec::len))
    }
}

impl Drop for PushedModes {
    fn drop(&mut self) {
        PUSHED.with_borrow_mut(|pushed| {
            while pushed.len() > self.0 {
                // The latest first: scopes end in the order in which they were entered, backwards.
                drop(pushed.pop());
            }
        });
    }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_requires_grad(tensor: *const Tensor) -> bool {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.requires_grad()
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_set_requires_grad(tensor: *mut Tensor, requires_grad: bool) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let tensor = unsafe { tensor.as_mut() }.ok_or_else(|| Failure::null("a tensor"))?;
        *tensor = tensor.clone().requires_grad_(requires_grad)?;
        Ok(())
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle; `grad` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_grad(tensor: *const Tensor, grad: *mut *mut Tensor) -> Status {
    guarded(|| {
        if grad.is_null() {
            return Err(Failure::null("the gradient's place"));
        }
        // SAFETY: by the function's contract.
        match unsafe { given(tensor) }?.grad() {
            // SAFETY: by the function's contract.
            Some(found) => unsafe { give(found, grad) },
            None => {
                // SAFETY: not null, so a place to write to.
                unsafe { grad.write(ptr::null_mut()) };
                Ok(())
            }
        }
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_backward(tensor: *const Tensor) -> Status {
    guarded(|| {
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        Ok(unsafe { given(tensor) }?.backward()?)
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle; `detached` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_detach(tensor: *const Tensor, detached: *mut *mut Tensor) -> Status {
    // SAFETY: by the function's contract.
    guarded(|| unsafe { give(given(tensor)?.detach(), detached) })
}

/// See `tenure_tensor.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_grad_enabled() -> bool {
    autograd::is_grad_enabled()
}

/// See `tenure_tensor.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_grad_mode_push(enabled: bool) {
    PUSHED.with_borrow_mut(|pushed| pushed.push(GradMode::enter(enabled)));
}

/// See `tenure_tensor.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_grad_mode_pop() {
    PUSHED.with_borrow_mut(|pushed| drop(pushed.pop()));
}

/// `tenure_formula` of `tenure_tensor.h`.
pub(super) type Formula = unsafe extern "C" fn(
    context: *mut c_void,
    saved: *const *const Tensor,
    saved_count: usize,
    grads: *const *const Tensor,
    output_count: usize,
    input_grads: *mut *mut Tensor,
    input_count: usize,
) -> c_int;

/// A formula with its context.
pub(super) struct OwnedFormula {
    formula: Formula,
    context: OwnedContext,
}

/// The context of a formula, which the program gave it to keep.
struct OwnedContext {
    context: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: by the header, a formula may be called by any thread, and its context freed by any.
unsafe impl Send for OwnedContext {}
// SAFETY: by the header, several threads may call a formula at the same time.
unsafe impl Sync for OwnedContext {}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: by the header, it frees the context, which is not used again.
            unsafe { free(self.context) };
        }
    }
}

impl OwnedFormula {
    /// Makes a formula whose context lives as long as the process.
    pub(super) fn of_process(formula: Formula, context: *mut c_void) -> Self {
        Self { formula, context: OwnedContext { context, free: None } }
    }

    /// Returns the gradients of the `inputs` inputs.
    fn call(&self, saved: &[Tensor], grads: &[Option<&Tensor>], inputs: usize) -> Result<Vec<Option<Tensor>>, String> {
        let saved: Vec<*const Tensor> = saved.iter().map(ptr::from_ref).collect();
        let grads: Vec<*const Tensor> = grads.iter().map(|grad| grad.map_or(ptr::null(), ptr::from_ref)).collect();
        let mut given: Vec<*mut Tensor> = vec![ptr::null_mut(); inputs];
        let _pushed = PushedModes::begin();
        // SAFETY: by the header: it reads the tensors, and writes a handle or leaves null for each input.
        let status = unsafe {
            let (saved, grads) = ((saved.as_ptr(), saved.len()), (grads.as_ptr(), grads.len()));
            (self.formula)(self.context.context, saved.0, saved.1, grads.0, grads.1, given.as_mut_ptr(), inputs)
        };
        let given = given.into_iter().map(|grad| {
            // SAFETY: not null, so a handle that the formula gives up.
            (!grad.is_null()).then(|| *unsafe { Box::from_raw(grad) })
        });
        let given = given.collect();
        if Status::of(status) == Status::Ok {
            return Ok(given);
        }
        // SAFETY: a C string of this thread.
        Err(unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned())
    }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `name` is null or a C string. The lists have so many handles each. `formula` does what the header says, with
/// `context`, which `free_context` frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_attach(
    name: *const c_char,
    outputs: *const *const Tensor,
    output_count: usize,
    inputs: *const *const Tensor,
    input_count: usize,
    saved: *const *const Tensor,
    saved_count: usize,
    formula: Option<Formula>,
    context: *mut c_void,
    free_context: Option<unsafe extern "C" fn(*mut c_void)>,
) -> Status {
    guarded(|| {
        let context = OwnedContext { context, free: free_context };
        let formula = OwnedFormula { formula: formula.ok_or_else(|| Failure::null("the formula"))?, context };
        // SAFETY: by the function's contract.
        let (name, outputs, inputs, saved) = unsafe {
            (
                text(name)?.to_owned(),
                given_all(outputs, output_count)?,
                given_all(inputs, input_count)?,
                given_all(saved, saved_count)?,
            )
        };
        attach(name, &outputs, &inputs, &saved, formula)
    })
}

/// Makes `outputs`, which were computed with gradients switched off, the results of an operation with a formula.
pub(super) fn attach(
    name: String,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: &[&Tensor],
    formula: OwnedFormula,
) -> Result<(), Failure> {
    if let Some(stale) =
        outputs.iter().position(|output| output.requires_grad() || inputs.iter().any(|input| input.is_same(output)))
    {
        let reason = "is an input, or has a gradient already: compute outputs with gradients switched off";
        return Err(Failure::Invalid(format!("tenure_attach: output {stale} {reason}")));
    }
    let node = name.clone();
    let (output_count, input_count) = (outputs.len(), inputs.len());
    autograd::attach_all(outputs, name, inputs, |saver| {
        let handles = saved.iter().map(|tensor| match outputs.iter().position(|output| output.is_same(tensor)) {
            Some(output) => saver.save_output(tensor, output),
            None => saver.save(tensor),
        });
        let handles: Vec<SavedHandle> = handles.collect::<Result<_, TensorError>>()?;
        Ok(move |context: &Context<'_>| {
            let saved = handles.iter().map(|handle| context.unpack(*handle));
            let saved: Vec<Tensor> = saved.collect::<Result<_, TensorError>>()?;
            let grads: Vec<Option<&Tensor>> = (0..output_count).map(|output| context.grad_if_any(output)).collect();
            let given = formula.call(&saved, &grads, input_count);
            let given = given.map_err(|reason| AutogradError::Other { node: node.clone(), reason })?;
            Ok(given.into_iter().collect())
        })
    })?;
    Ok(())
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `message` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_fail(status: c_int, message: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let message = unsafe { message.as_ref().map(|message| CStr::from_ptr(message)) };
        let message = message.map_or("it gives no reason".into(), CStr::to_string_lossy).into_owned();
        Err(match Status::of(status) {
            Status::WrongType => Failure::WrongType(message),
            _ => Failure::Invalid(message),
        })
    })
}
