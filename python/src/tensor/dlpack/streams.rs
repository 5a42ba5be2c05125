//! The order between the streams of Tenure and those of another library.

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use tenure::core::{Device, StreamId};
use tenure::device::memory::DeviceMemory;
use tenure::device::{Executor, Stream};
use tenure::tensor::Tensor;
use tenure_device::memory;

use crate::errors::exception;

/// CUDA's number of the legacy default stream, the null stream.
const LEGACY_DEFAULT: i64 = 1;
/// CUDA's number of the per-thread default stream, and its handle.
const PER_THREAD_DEFAULT: StreamId = StreamId(2);

/// Returns the stream that a consumer names by a `stream` argument. `None` if it wants no synchronisation.
///
/// # Errors
/// A number that names no stream, or a stream for the CPU.
pub(super) fn asked(device: Device, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<StreamId>> {
    let number = match stream.filter(|stream| !stream.is_none()) {
        None if device.is_cpu() => return Ok(None),
        None => LEGACY_DEFAULT,
        Some(stream) => stream.extract().map_err(|_| PyTypeError::new_err("stream must be an integer or None"))?,
    };
    match number {
        -1 => Ok(None),
        _ if device.is_cpu() => {
            Err(PyBufferError::new_err("a tensor on the CPU has no stream: stream must be None or -1"))
        }
        0 => Err(PyBufferError::new_err(
            "stream 0 may be the legacy or the per-thread default stream: pass 1 for the legacy one, 2 for the other",
        )),
        LEGACY_DEFAULT => Ok(Some(StreamId::NULL)),
        number => match u64::try_from(number) {
            Ok(handle) => Ok(Some(StreamId(handle))),
            Err(_) => Err(PyBufferError::new_err(format!("stream {number} does not exist"))),
        },
    }
}

/// Makes a stream of a consumer wait, on the device, for the work that is on the thread's current stream now. The
/// tensor's memory is not reused before the consumer's stream is done with it. The host does not wait.
pub(super) fn lead_to(tensor: &Tensor, consumer: StreamId) -> PyResult<()> {
    let memory = opened(tensor.device())?;
    if consumer == PER_THREAD_DEFAULT {
        // The allocator records no use of a stream that is another one in each thread. The legacy default stream waits
        // for all of them.
        let current = memory.streams().current();
        current.lead_to(&memory.streams().external(consumer)).map_err(exception)?;
        return memory::record_stream(tensor.storage(), StreamId::NULL).map(drop).map_err(exception);
    }
    memory::lead_to(tensor.storage(), &known(memory, consumer)).map_err(exception)
}

/// Records that the thread's current stream uses a tensor, whose memory is then not reused before the stream is done.
pub(super) fn record_current(tensor: &Tensor) -> PyResult<()> {
    if tensor.device().is_cpu() {
        return Ok(());
    }
    let stream = opened(tensor.device())?.streams().current_id();
    memory::record_stream(tensor.storage(), stream).map(drop).map_err(exception)
}

/// Returns the handle of the thread's current stream.
pub(super) fn current_handle(device: Device) -> PyResult<u64> {
    Ok(opened(device)?.streams().current_id().0)
}

/// Returns the thread's current stream as Python's protocols name it.
pub(in super::super) fn current_number(device: Device) -> PyResult<i64> {
    let handle = current_handle(device)?;
    Ok(if handle == StreamId::NULL.0 { LEGACY_DEFAULT } else { handle as i64 })
}

fn opened(device: Device) -> PyResult<&'static DeviceMemory> {
    memory::device(device.index()).map_err(exception)
}

/// Returns a stream that another library created, or the null stream.
pub(in super::super) fn known(memory: &DeviceMemory, id: StreamId) -> Stream {
    if id == StreamId::NULL {
        return memory.streams().null();
    }
    match memory.driver().executor() {
        // SAFETY: the stream is one of this device: DLPack's protocol and `tenure.cuda.ExternalStream` require that of
        // the consumer and of the caller.
        Executor::Cuda(driver) => unsafe { driver.adopt_stream(id) },
        Executor::Sim(driver) => driver.adopt_stream(id),
    }
    memory.streams().external(id)
}
