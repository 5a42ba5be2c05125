//! Handles of tensors and generators: making, reading, freeing, and what is known of a tensor.

use std::ffi::{c_int, c_void};
use std::slice;

use tenure_tensor::Tensor;
use tenure_tensor::random::{self, Generator};

use super::value::elements;
use super::{device_of, dtype_of, number_of, refuse_while_open};
use crate::failure::{Failure, Status, guarded};

/// Writes a new handle of a tensor.
///
/// # Safety
/// `to` is null or a place to write to.
pub(super) unsafe fn give(tensor: Tensor, to: *mut *mut Tensor) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::null("the result's place"));
    }
    // SAFETY: not null, so a place to write to.
    unsafe { to.write(Box::into_raw(Box::new(tensor))) };
    Ok(())
}

/// Returns the tensor of a handle.
///
/// # Safety
/// `tensor` is null or a handle that lives for `'a`.
pub(super) unsafe fn given<'a>(tensor: *const Tensor) -> Result<&'a Tensor, Failure> {
    // SAFETY: by the function's contract.
    unsafe { tensor.as_ref() }.ok_or_else(|| Failure::null("a tensor"))
}

/// Returns the tensors of several handles.
///
/// # Safety
/// `tensors` has `count` pointers, each null or a handle, that live for `'a`.
pub(super) unsafe fn given_all<'a>(tensors: *const *const Tensor, count: usize) -> Result<Vec<&'a Tensor>, Failure> {
    // SAFETY: by the function's contract.
    unsafe { elements(tensors, count).iter().map(|tensor| given(*tensor)).collect() }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `data` has the elements, `sizes` has `rank` numbers, and `tensor` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_from(
    data: *const c_void,
    sizes: *const i64,
    rank: usize,
    dtype: c_int,
    device: c_int,
    tensor: *mut *mut Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let sizes = unsafe { elements(sizes, rank) };
        let sizes: Result<Vec<usize>, _> = sizes.iter().map(|size| usize::try_from(*size)).collect();
        let sizes = sizes.map_err(|_| Failure::Invalid("a size must not be negative".into()))?;
        let (dtype, device) = (dtype_of(dtype)?, device_of(device)?);
        let count = sizes.iter().try_fold(dtype.size(), |bytes, size| bytes.checked_mul(*size));
        let count = count.ok_or_else(|| Failure::Invalid(format!("a tensor of sizes {sizes:?} has too many bytes")))?;
        if data.is_null() && count > 0 {
            return Err(Failure::null("the elements"));
        }
        // SAFETY: by the function's contract, the elements are that many bytes.
        let bytes = unsafe { elements(data.cast::<u8>(), count) };
        let made = Tensor::from_bytes(bytes, &sizes, dtype)?.to_device(device)?;
        // SAFETY: by the function's contract.
        unsafe { give(made, tensor) }
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle; `data` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_read(tensor: *const Tensor, data: *mut c_void, bytes: usize) -> Status {
    guarded(|| {
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        let tensor = unsafe { given(tensor) }?;
        let needed = tensor.numel() * tensor.dtype().size();
        if bytes != needed {
            return Err(Failure::Invalid(format!("the tensor's elements are {needed} bytes, and there are {bytes}")));
        }
        if needed == 0 {
            return Ok(());
        }
        if data.is_null() {
            return Err(Failure::null("the place of the elements"));
        }
        // SAFETY: by the function's contract, the place has that many bytes, which only this call uses.
        let to = unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), bytes) };
        Ok(tensor.with_bytes(|from| to.copy_from_slice(from))?)
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle; `other` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_share(tensor: *const Tensor, other: *mut *mut Tensor) -> Status {
    // SAFETY: by the function's contract.
    guarded(|| unsafe { give(given(tensor)?.clone(), other) })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is null or a handle that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_free(tensor: *mut Tensor) {
    if !tensor.is_null() {
        // SAFETY: a handle is a box of `give`.
        drop(unsafe { Box::from_raw(tensor) });
    }
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_rank(tensor: *const Tensor) -> usize {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.rank()
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_sizes(tensor: *const Tensor) -> *const i64 {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.sizes().as_ptr().cast()
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_strides(tensor: *const Tensor) -> *const i64 {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.strides().as_ptr().cast()
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_numel(tensor: *const Tensor) -> usize {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.numel()
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_dtype(tensor: *const Tensor) -> c_int {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.dtype() as c_int
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_device(tensor: *const Tensor) -> c_int {
    // SAFETY: by the function's contract.
    number_of(unsafe { &*tensor }.device())
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `tensor` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_tensor_is_contiguous(tensor: *const Tensor) -> bool {
    // SAFETY: by the function's contract.
    unsafe { &*tensor }.is_contiguous()
}

/// See `tenure_tensor.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_generator_new(seed: u64) -> *mut Generator {
    Box::into_raw(Box::new(Generator::new(seed)))
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `generator` is null or a generator that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_generator_free(generator: *mut Generator) {
    if !generator.is_null() {
        // SAFETY: a generator is a box of `tenure_generator_new`.
        drop(unsafe { Box::from_raw(generator) });
    }
}

/// See `tenure_tensor.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_manual_seed(seed: u64) {
    random::manual_seed(seed);
}
