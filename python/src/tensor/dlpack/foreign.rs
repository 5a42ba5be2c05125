//! Tensors on memory of other libraries, whatever the protocol.

use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use tenure::core::{DType, DataPtr, Device, Layout, Storage};
use tenure::device::memory::DeviceMemory;
use tenure::device::{Event, EventKind, Stream};
use tenure::tensor::Tensor;
use tenure_device::memory;

use super::super::exception;

/// An array of another library. Its strides are in elements, and may be negative.
pub(in super::super) struct ForeignArray {
    pub(in super::super) first: *mut u8,
    pub(in super::super) device: Device,
    pub(in super::super) dtype: DType,
    pub(in super::super) sizes: Vec<usize>,
    pub(in super::super) strides: Vec<isize>,
    pub(in super::super) is_read_only: bool,
}

impl ForeignArray {
    /// Returns a tensor on the array's memory, which `owner` keeps. On the CPU, elements that Tenure cannot address,
    /// with negative strides or not aligned, are copied, unless `copy` forbids it.
    ///
    /// # Errors
    /// The elements need a copy, which is forbidden or impossible.
    ///
    /// # Safety
    /// The elements can be read, and written unless the array is read-only, until `owner` is dropped.
    pub(in super::super) unsafe fn adopt(self, copy: Option<bool>, owner: impl Send + 'static) -> PyResult<Tensor> {
        let Self { first, device, dtype, sizes, mut strides, is_read_only } = self;
        let dense = Layout::contiguous(&sizes).map_err(|error| exception(error.into()))?;
        if dense.numel() == 0 {
            return Tensor::empty(&sizes, dtype, device).map_err(exception);
        }
        if first.is_null() {
            return Err(PyBufferError::new_err(format!("an array of sizes {sizes:?} has no memory")));
        }
        for (stride, size) in strides.iter_mut().zip(&sizes) {
            // The stride of a single element is never used.
            *stride = if *size == 1 { (*stride).max(0) } else { *stride };
        }
        let unsigned: Option<Vec<usize>> = strides.iter().map(|stride| usize::try_from(*stride).ok()).collect();
        match unsigned {
            Some(strides) if first.addr() % dtype.alignment() == 0 => {
                let layout = Layout::strided(&sizes, &strides, 0).map_err(|error| exception(error.into()))?;
                let bytes = layout.required_bytes(dtype).map_err(|error| exception(error.into()))?;
                let release = Release::new(first, device, owner)?;
                let data = DataPtr::foreign(first, device, move || drop(release));
                let storage = if is_read_only {
                    // SAFETY: by the function's contract, these bytes can be read until `owner` is dropped.
                    unsafe { Storage::read_only(data, bytes) }
                } else {
                    // SAFETY: by the function's contract, these bytes live until `owner` is dropped.
                    unsafe { Storage::from_data_ptr(data, bytes, None) }
                };
                Tensor::from_storage(storage, layout, dtype).map_err(exception)
            }
            _ if !device.is_cpu() || copy == Some(false) => Err(PyBufferError::new_err(format!(
                "an array whose strides are negative, {strides:?}, or whose elements are not aligned to {} bytes needs \
                 a copy: copy it first",
                dtype.alignment()
            ))),
            _ => {
                // SAFETY: by the function's contract, for memory that the host can read.
                let bytes = unsafe { gathered(first, &sizes, &strides, dtype.size()) };
                drop(owner);
                Tensor::from_bytes(&bytes, &sizes, dtype).map_err(exception)
            }
        }
    }
}

/// Copies the elements of an array with any strides, the last dimension fastest.
///
/// # Safety
/// Every element of these sizes and strides, in elements of `size` bytes from `first`, can be read.
unsafe fn gathered(first: *const u8, sizes: &[usize], strides: &[isize], size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sizes.iter().product::<usize>() * size);
    let mut index = vec![0; sizes.len()];
    loop {
        let offset: isize = index.iter().zip(strides).map(|(index, stride)| *index as isize * stride).sum();
        // SAFETY: by the function's contract.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(first.offset(offset * size as isize), size) });
        let Some(dim) = (0..sizes.len()).rev().find(|dim| index[*dim] + 1 < sizes[*dim]) else { return bytes };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

/// The owner of another library's memory, which is dropped when no stream of ours uses the memory any more: the stream
/// that was current at the import, and the one that is current when the last tensor is dropped.
struct Release<T: Send + 'static> {
    owner: Option<T>,
    imported_on: Option<Stream>,
}

/// An owner of memory that streams still use, with the events that they must pass.
struct InUse {
    events: Vec<Event>,
    owner: Box<dyn Send>,
}

/// Each import and each drop of an imported tensor drops the owners whose events have been passed.
static IN_USE: Mutex<Vec<InUse>> = Mutex::new(Vec::new());

impl<T: Send + 'static> Release<T> {
    fn new(first: *mut u8, device: Device, owner: T) -> PyResult<Self> {
        if device.is_cpu() {
            return Ok(Self { owner: Some(owner), imported_on: None });
        }
        drop_unused();
        let memory = memory::device(device.index()).map_err(crate::errors::exception)?;
        let stream = memory.streams().current();
        // Tenure's own memory, such as PyTorch's on Tenure's allocator, is not reused before its streams are done.
        let is_own = memory.record_use(first.addr() as u64, stream.id()).map_err(crate::errors::exception)?;
        Ok(Self { owner: Some(owner), imported_on: (!is_own).then_some(stream) })
    }
}

impl<T: Send + 'static> Drop for Release<T> {
    fn drop(&mut self) {
        let (Some(stream), Some(owner)) = (self.imported_on.take(), self.owner.take()) else { return };
        let current = memory::installed(stream.device().index().into()).map(DeviceMemory::streams).map(|streams| {
            let current = streams.current();
            if current == stream { None } else { Some(current) }
        });
        let events = [Some(stream), current.flatten()].into_iter().flatten().filter_map(|stream| {
            let mut event = Event::new(stream.driver().clone(), EventKind::Order);
            // A stream that takes no event any more does no work either.
            event.record(&stream).ok().map(|()| event)
        });
        IN_USE.lock().push(InUse { events: events.collect(), owner: Box::new(owner) });
        drop_unused();
    }
}

/// Drops the owners whose events have been passed.
fn drop_unused() {
    let mut in_use = IN_USE.lock();
    let passed = in_use.extract_if(.., |owner| owner.events.iter().all(|event| event.query().unwrap_or(true)));
    let passed: Vec<_> = passed.map(|passed| passed.owner).collect();
    drop(in_use);
    // An owner may call Python, which may drop other tensors: no lock is held here.
    drop(passed);
}
