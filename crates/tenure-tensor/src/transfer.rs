//! Copies of tensors between devices.

use tenure_device::memory::{self, DeviceMemory};

use crate::cuda;
use crate::tensor::create::dense_like;
use crate::{Access, Device, Result, Tensor, TensorError};

const OP: &str = "to_device";

/// Copies a tensor to another device, in the same order in memory.
pub(crate) fn to_device(tensor: &Tensor, device: Device) -> Result<Tensor> {
    let dense = dense(OP, tensor)?;
    let out = Tensor::empty_strided(dense.layout().clone(), tensor.dtype(), device)?;
    move_dense(&out, &dense)?;
    Ok(out)
}

/// Returns the same elements without gaps, from the start of a storage, in the same order in memory.
pub(crate) fn dense(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    let layout = dense_like(tensor.sizes(), Some(tensor.layout()))?;
    if *tensor.layout() == layout { Ok(tensor.detach()) } else { tensor.copied(op, layout, tensor.dtype()) }
}

/// Writes the values of a tensor of another device to `target`, broadcast and converted. If both have the same dtype
/// and dense layout, it copies the bytes directly.
pub(crate) fn copy_across(target: &Tensor, source: &Tensor) -> Result<()> {
    let is_alike = target.dtype() == source.dtype()
        && (target.sizes(), target.strides()) == (source.sizes(), source.strides())
        && dense_like(target.sizes(), Some(target.layout()))?.strides() == target.strides();
    if is_alike { move_dense(target, source) } else { target.copy_raw(&to_device(source, target.device())?) }
}

/// Copies the elements of a dense tensor to another dense tensor of the same dtype and layout.
fn move_dense(out: &Tensor, dense: &Tensor) -> Result<()> {
    let device = out.device();
    let from_device = dense.device();
    let bytes = out.numel() * out.dtype().size();
    if bytes == 0 {
        return Ok(());
    }
    if !from_device.is_cpu() && !device.is_cpu() {
        return move_to_peer(out, dense, bytes);
    }
    let mut access = Access::on_any(OP, &[out], &[dense])?;
    let to = access.write_ptr(0);
    let from = access.read_ptr(0);
    let there = if device.is_cpu() { from_device } else { device };
    let memory = memory::device(there.index()).map_err(|error| TensorError::memory(OP, error))?;
    let stream = memory.streams().current_id();
    let copied = if device.is_cpu() {
        cuda::check_earlier_errors(OP, there)?;
        // SAFETY: the tensor is dense, so it has this many bytes from its first element on; its lock is exclusive.
        let to = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        memory.driver().copy_from_device(to, from.addr() as u64, stream)
    } else {
        // SAFETY: the elements are dense, and locked until the copy has finished.
        let from = unsafe { std::slice::from_raw_parts(from, bytes) };
        memory.driver().copy_to_device(to.addr() as u64, from, stream)
    };
    copied.map_err(|error| TensorError::device(OP, error))?;
    drop(access);
    if device.is_cpu() {
        // Reports errors that the device found while it computed these values.
        cuda::check_earlier_errors(OP, there)?;
    }
    Ok(())
}

/// Copies between two CUDA devices, in the order of the thread's streams on both. The host does not wait.
fn move_to_peer(out: &Tensor, dense: &Tensor, bytes: usize) -> Result<()> {
    let there = checked_memory(out.device())?;
    let here = checked_memory(dense.device())?;
    let mut access = Access::on_any(OP, &[out], &[dense])?;
    let to = there.streams().current();
    let from = here.streams().current();
    for (memory, stream) in [(there, &to), (here, &from)] {
        // Each device's allocator records its own storages.
        cuda::record_use(OP, memory, access.storages(), stream.id())?;
    }
    let target = access.write_word(0);
    let source = access.read_word(0);
    let copied = from.copy_to_peer(source, &to, target, bytes as u64);
    copied.map_err(|error| TensorError::memory(OP, error.into()))
}

/// Returns the memory of a device on which no earlier operation failed.
fn checked_memory(device: Device) -> Result<&'static DeviceMemory> {
    cuda::check_earlier_errors(OP, device)?;
    memory::device(device.index()).map_err(|error| TensorError::memory(OP, error))
}
