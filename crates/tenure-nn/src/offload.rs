//! What our tensors and the offload engine tell each other.

use tenure_device::{Stream, memory};
use tenure_offload::OffloadError;
use tenure_tensor::{AutogradError, Device, TensorError};

/// In whose order a device computes for the calling thread.
pub(crate) fn stream(device: Device) -> Option<Stream> {
    let memory = memory::installed(device.index().into()).filter(|_| !device.is_cpu());
    memory.map(|memory| memory.streams().current())
}

/// To those who compute, why bytes did not come or go.
pub(crate) fn told(node: &str, error: OffloadError) -> TensorError {
    AutogradError::Other { node: node.into(), reason: error.to_string() }.into()
}
