//! Formulas for gradients.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ffi::{self, Handle};
use crate::function::{check, guarded, no_zero};
use crate::tensor::{elements, handles};
use crate::{Error, Result, Tensor};

/// Returns whether this thread records operations for gradients.
pub fn is_grad_enabled() -> bool {
    // SAFETY: a call of C.
    unsafe { ffi::tenure_grad_enabled() }
}

/// Calls a function with gradients switched off.
pub fn no_grad<T>(function: impl FnOnce() -> T) -> T {
    struct Pushed;
    impl Drop for Pushed {
        fn drop(&mut self) {
            // SAFETY: this thread has pushed a mode.
            unsafe { ffi::tenure_grad_mode_pop() }
        }
    }
    // SAFETY: a call of C.
    unsafe { ffi::tenure_grad_mode_push(false) }
    let _pushed = Pushed;
    function()
}

/// Makes `outputs`, which were computed by [`no_grad`], the results of an operation on `inputs`.
///
/// `formula` gets the tensors of `saved` and the gradients of the outputs, `None` where nothing depends on an output,
/// and returns a gradient or `None` for each input. It is called several times, by any thread. One that captures an
/// output keeps it, and itself, for ever: save it instead.
///
/// # Errors
/// An output is an input, or has a history of its own.
pub fn attach<F>(name: &str, outputs: &[&Tensor], inputs: &[&Tensor], saved: &[&Tensor], formula: F) -> Result<()>
where
    F: Fn(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
{
    let outputs = handles(outputs);
    let inputs = handles(inputs);
    let saved = handles(saved);
    let name = no_zero(name)?;
    let context = Box::into_raw(Box::new(formula)).cast();
    // SAFETY: so many handles each, and a formula with its context, which the call takes over.
    check(unsafe {
        ffi::tenure_attach(
            name.as_ptr(),
            outputs.as_ptr(),
            outputs.len(),
            inputs.as_ptr(),
            inputs.len(),
            saved.as_ptr(),
            saved.len(),
            run::<F>,
            context,
            Some(free::<F>),
        )
    })
}

/// # Safety
/// The arguments are those of `tenure_formula`, and the context is a formula of this type.
unsafe extern "C" fn run<F>(
    context: *mut c_void,
    saved: *const *const Handle,
    saved_count: usize,
    grads: *const *const Handle,
    output_count: usize,
    input_grads: *mut *mut Handle,
    input_count: usize,
) -> c_int
where
    F: Fn(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
{
    guarded("the formula", || {
        // SAFETY: by the function's contract. A tensor has the layout of its handle, and none that of NULL.
        let (formula, saved, grads) = unsafe {
            (
                &*context.cast_const().cast::<F>(),
                elements(saved.cast::<Tensor>(), saved_count),
                elements(grads.cast::<Option<Tensor>>(), output_count),
            )
        };
        let given = formula(saved, grads)?;
        if given.len() != input_count {
            let count = given.len();
            return Err(Error::new(format!("the formula has returned {count} gradients for {input_count} inputs")));
        }
        for (index, grad) in given.into_iter().enumerate() {
            // SAFETY: there are so many places.
            unsafe { *input_grads.add(index) = grad.map_or(ptr::null_mut(), Tensor::into_handle) };
        }
        Ok(())
    })
}

/// # Safety
/// The context is a formula of this type, which nothing uses any more.
unsafe extern "C" fn free<F>(context: *mut c_void) {
    // SAFETY: by the function's contract.
    drop(unsafe { Box::from_raw(context.cast::<F>()) });
}
