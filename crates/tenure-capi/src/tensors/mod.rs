//! Tensors: the functions that `include/tenure_tensor.h` and `include/tenure_cuda.h` declare and document.

pub mod access;
pub mod autograd;
pub mod call;
pub mod cuda;
pub mod handle;
pub mod operation;
pub mod value;

use std::cell::Cell;
use std::ffi::c_int;

use tenure_core::{DType, Device};

use crate::failure::Failure;

/// `TENURE_CPU` of `tenure_tensor.h`.
const CPU: c_int = -1;

/// Returns the dtype of a `tenure_dtype`.
fn dtype_of(number: c_int) -> Result<DType, Failure> {
    let dtype = usize::try_from(number).ok().and_then(|index| DType::ALL.get(index));
    dtype.copied().ok_or_else(|| Failure::Invalid(format!("{number} is not a tenure_dtype")))
}

/// Returns the device of a number: `TENURE_CPU`, or a CUDA device's.
fn device_of(number: c_int) -> Result<Device, Failure> {
    match u8::try_from(number) {
        Ok(index) => Ok(Device::cuda(index)),
        Err(_) if number == CPU => Ok(Device::CPU),
        Err(_) => {
            Err(Failure::Invalid(format!("{number} is not a device: give TENURE_CPU, or a CUDA device's number")))
        }
    }
}

/// Returns the number of a device.
fn number_of(device: Device) -> c_int {
    if device.is_cpu() { CPU } else { device.index().into() }
}

thread_local! {
    /// Whether this thread has begun an access and not ended it.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Fails while this thread has an open access: what waits for other uses of a tensor could wait for this thread.
fn refuse_while_open() -> Result<(), Failure> {
    if IS_OPEN.get() {
        return Err(Failure::Invalid("this thread has an open access: end it first".into()));
    }
    Ok(())
}
