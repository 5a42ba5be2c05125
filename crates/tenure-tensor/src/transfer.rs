//! Elements from one device to another.

use tenure_device::memory;

use crate::cuda;
use crate::ops::pointwise::dense_like;
use crate::{Access, Device, Result, Tensor, TensorError};

/// The same values on another device, in the same order in memory.
pub(crate) fn to_device(tensor: &Tensor, device: Device) -> Result<Tensor> {
    const OP: &str = "to_device";
    let layout = dense_like(tensor.sizes(), Some(tensor.layout()))?;
    let dense =
        if *tensor.layout() == layout { tensor.clone() } else { tensor.copied(OP, layout.clone(), tensor.dtype())? };
    let out = Tensor::empty_strided(layout, tensor.dtype(), device)?;
    let bytes = out.numel() * out.dtype().size();
    if bytes == 0 {
        return Ok(out);
    }
    if !tensor.device().is_cpu() && !device.is_cpu() {
        return to_device(&to_device(&dense, Device::CPU)?, device);
    }
    let mut access = Access::on_any(OP, &[&out], &[&dense])?;
    let (to, from) = (access.write_ptr(0), access.read_ptr(0));
    let there = if device.is_cpu() { tensor.device() } else { device };
    let memory = memory::device(there.index()).map_err(|error| TensorError::memory(OP, error))?;
    let stream = memory.streams().current_id();
    let copied = if device.is_cpu() {
        cuda::arrive(OP, there)?;
        // SAFETY: the fresh tensor is dense, so it is this many bytes from its first element, which nobody else has.
        let to = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        memory.driver().copy_from_device(to, from.addr() as u64, stream)
    } else {
        // SAFETY: dense elements, locked while the copy is waited for.
        let from = unsafe { std::slice::from_raw_parts(from, bytes) };
        memory.driver().copy_to_device(to.addr() as u64, from, stream)
    };
    copied.map_err(|error| TensorError::device(OP, error))?;
    drop(access);
    if device.is_cpu() {
        // What the device met while it computed these values.
        cuda::arrive(OP, there)?;
    }
    Ok(out)
}
