//! Helpers between our tensors and the offload engine: the current stream, and errors.

use tenure_device::{Stream, memory};
use tenure_offload::OffloadError;
use tenure_tensor::{AutogradError, Device, TensorError};

/// Returns the calling thread's current stream on a device; `None` on the CPU.
pub(crate) fn stream(device: Device) -> Option<Stream> {
    let memory = memory::installed(device.index().into()).filter(|_| !device.is_cpu());
    memory.map(|memory| memory.streams().current())
}

/// Converts an offload error into an error of the operation `node`.
pub(crate) fn told(node: &str, error: OffloadError) -> TensorError {
    AutogradError::Other { node: node.into(), reason: error.to_string() }.into()
}
