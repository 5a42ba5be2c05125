//! The functions of `tenure_tensor.h`.

use std::ffi::{c_char, c_int, c_void};

use crate::value::Value;

#[repr(C)]
pub(crate) struct Handle {
    private: [u8; 0],
}

#[repr(C)]
pub(crate) struct RawGenerator {
    private: [u8; 0],
}

#[repr(C)]
pub(crate) struct RawAccess {
    private: [u8; 0],
}

pub(crate) const OK: c_int = 0;
pub(crate) const INVALID: c_int = 5;
pub(crate) const WRONG_TYPE: c_int = 9;

pub(crate) type Formula = unsafe extern "C" fn(
    context: *mut c_void,
    saved: *const *const Handle,
    saved_count: usize,
    grads: *const *const Handle,
    output_count: usize,
    input_grads: *mut *mut Handle,
    input_count: usize,
) -> c_int;

unsafe extern "C" {
    pub(crate) fn tenure_last_error() -> *const c_char;
    pub(crate) fn tenure_fail(status: c_int, message: *const c_char) -> c_int;

    pub(crate) fn tenure_tensor_from(
        data: *const c_void,
        sizes: *const i64,
        rank: usize,
        dtype: c_int,
        device: c_int,
        tensor: *mut *mut Handle,
    ) -> c_int;
    pub(crate) fn tenure_tensor_read(tensor: *const Handle, data: *mut c_void, bytes: usize) -> c_int;
    pub(crate) fn tenure_tensor_share(tensor: *const Handle, other: *mut *mut Handle) -> c_int;
    pub(crate) fn tenure_tensor_free(tensor: *mut Handle);
    pub(crate) fn tenure_tensor_rank(tensor: *const Handle) -> usize;
    pub(crate) fn tenure_tensor_sizes(tensor: *const Handle) -> *const i64;
    pub(crate) fn tenure_tensor_strides(tensor: *const Handle) -> *const i64;
    pub(crate) fn tenure_tensor_numel(tensor: *const Handle) -> usize;
    pub(crate) fn tenure_tensor_dtype(tensor: *const Handle) -> c_int;
    pub(crate) fn tenure_tensor_device(tensor: *const Handle) -> c_int;
    pub(crate) fn tenure_tensor_is_contiguous(tensor: *const Handle) -> bool;
    pub(crate) fn tenure_tensor_requires_grad(tensor: *const Handle) -> bool;
    pub(crate) fn tenure_tensor_set_requires_grad(tensor: *mut Handle, requires_grad: bool) -> c_int;
    pub(crate) fn tenure_tensor_grad(tensor: *const Handle, grad: *mut *mut Handle) -> c_int;
    pub(crate) fn tenure_tensor_backward(tensor: *const Handle) -> c_int;
    pub(crate) fn tenure_tensor_detach(tensor: *const Handle, detached: *mut *mut Handle) -> c_int;

    pub(crate) fn tenure_generator_new(seed: u64) -> *mut RawGenerator;
    pub(crate) fn tenure_generator_free(generator: *mut RawGenerator);

    pub(crate) fn tenure_call(
        operation: *const c_char,
        arguments: *const Value,
        count: usize,
        result: *mut Value,
    ) -> c_int;
    pub(crate) fn tenure_take_tensors(value: *mut Value, places: *const *mut *mut Handle);
    pub(crate) fn tenure_owned_text(text: *const c_char) -> Value;
    pub(crate) fn tenure_owned_tensors(tensors: *const *mut Handle, count: usize) -> Value;
    pub(crate) fn tenure_owned_tuple(values: *const Value, count: usize) -> Value;
    pub(crate) fn tenure_value_free(value: *mut Value);

    pub(crate) fn tenure_access_begin(
        written: *const *const Handle,
        written_count: usize,
        read: *const *const Handle,
        read_count: usize,
        access: *mut *mut RawAccess,
    ) -> c_int;
    pub(crate) fn tenure_access_data(access: *mut RawAccess, tensor: *const Handle, data: *mut *mut c_void) -> c_int;
    pub(crate) fn tenure_access_end(access: *mut RawAccess);

    pub(crate) fn tenure_grad_enabled() -> bool;
    pub(crate) fn tenure_grad_mode_push(enabled: bool);
    pub(crate) fn tenure_grad_mode_pop();
    pub(crate) fn tenure_attach(
        name: *const c_char,
        outputs: *const *const Handle,
        output_count: usize,
        inputs: *const *const Handle,
        input_count: usize,
        saved: *const *const Handle,
        saved_count: usize,
        formula: Formula,
        context: *mut c_void,
        free_context: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
}
