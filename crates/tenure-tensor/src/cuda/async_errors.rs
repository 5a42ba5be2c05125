//! Asynchronous errors: errors that a device finds while it computes, after the call that caused them has returned.
//!
//! A kernel that meets an index out of range skips it, and writes the error to host memory. The next use of the device,
//! or the next wait for it, returns that error. The device can still be used, while PyTorch loses the CUDA context.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MAX_DEVICES};
use tenure_device::{AccessMode, CallError, Executor};

use crate::{Result, TensorError};

/// The memory that kernels write errors to: `Fault` in prelude.cu. It is on pages of its own, which are registered with
/// the driver.
#[repr(C, align(4096))]
struct Fault {
    /// 0 if there is no error; 1 if the fields below hold one, which the host then owns until it writes 0.
    reported: AtomicU64,
    code: AtomicU64,
    details: [AtomicU64; 3],
    /// The device address of a lock, so that kernels that run at the same time write one error at a time.
    lock: u64,
    rest: [u64; 506],
}

impl Fault {
    /// Allocates and registers the memory, which lives as long as the process.
    fn new(memory: &DeviceMemory) -> std::result::Result<&'static Self, CallError> {
        let driver = memory.driver();
        let mut fault = Self {
            reported: AtomicU64::default(),
            code: AtomicU64::default(),
            details: Default::default(),
            lock: 0,
            rest: [0; 506],
        };
        // A simulated device reports on the host (`report`).
        let Executor::Cuda(_) = driver.executor() else { return Ok(Box::leak(Box::new(fault))) };
        fault.lock = driver.malloc(size_of::<u32>() as u64)?;
        driver.memset(fault.lock, 0, size_of::<u32>() as u64, StreamId::NULL)?;
        driver.synchronize_stream(StreamId::NULL)?;
        let fault: &'static Self = Box::leak(Box::new(fault));
        let first = std::ptr::from_ref(fault).cast_mut().cast();
        let bytes = size_of::<Self>() as u64;
        // SAFETY: the memory is leaked, so it stays valid; the host accesses the fields that kernels write only
        // atomically.
        unsafe { driver.register_host(first, bytes, AccessMode::ReadWrite) }?;
        Ok(fault)
    }
}

// The codes of errors that kernels report.
pub(super) const DIVIDED_BY_ZERO: u64 = 1;
pub(super) const INDEX: u64 = 2;
pub(super) const PROBABILITY: u64 = 3;

/// A device's error state.
#[derive(Default)]
struct AsyncErrors {
    fault: OnceLock<&'static Fault>,
    /// Whether `simulated` holds an error.
    is_simulated: AtomicBool,
    simulated: Mutex<Option<TensorError>>,
    /// The names of operations. Kernels know each by its number.
    ops: Mutex<Vec<&'static str>>,
}

static ASYNC_ERRORS: [OnceLock<AsyncErrors>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

fn async_errors(memory: &DeviceMemory) -> &'static AsyncErrors {
    ASYNC_ERRORS[usize::from(memory.device().index())].get_or_init(AsyncErrors::default)
}

/// Returns the two words with which a kernel of `op` reports an error: an address, and a code.
pub(super) fn fault(memory: &DeviceMemory, op: &'static str, code: u64) -> Result<[u64; 2]> {
    let errors = async_errors(memory);
    let mut ops = errors.ops.lock();
    let fault = match errors.fault.get() {
        Some(fault) => *fault,
        None => {
            let fault = Fault::new(memory).map_err(|error| TensorError::device(op, error))?;
            errors.fault.get_or_init(|| fault)
        }
    };
    let number = ops.iter().position(|other| *other == op).unwrap_or_else(|| {
        ops.push(op);
        ops.len() - 1
    });
    Ok([std::ptr::from_ref(fault).addr() as u64, (number as u64) << 8 | code])
}

/// Records an error of a simulated kernel, unless there is one already.
pub(super) fn report(memory: &DeviceMemory, error: TensorError) {
    let errors = async_errors(memory);
    errors.simulated.lock().get_or_insert(error);
    errors.is_simulated.store(true, Ordering::Release);
}

/// Returns an error that an earlier operation on the device left, if any, and clears it.
#[inline]
pub(super) fn check(memory: &DeviceMemory) -> Result<()> {
    let Some(errors) = ASYNC_ERRORS[usize::from(memory.device().index())].get() else { return Ok(()) };
    if errors.is_simulated.load(Ordering::Relaxed)
        || errors.fault.get().is_some_and(|fault| fault.reported.load(Ordering::Relaxed) == 1)
    {
        return errors.take();
    }
    Ok(())
}

impl AsyncErrors {
    #[cold]
    fn take(&self) -> Result<()> {
        if self.is_simulated.swap(false, Ordering::AcqRel)
            && let Some(error) = self.simulated.lock().take()
        {
            return Err(TensorError::Late(Box::new(error)));
        }
        let Some(fault) = self.fault.get() else { return Ok(()) };
        let ops = self.ops.lock();
        if fault.reported.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let code = fault.code.load(Ordering::Relaxed);
        let [index, dim, size] = [0, 1, 2].map(|at| fault.details[at].load(Ordering::Relaxed));
        fault.reported.store(0, Ordering::Release);
        let op = ops.get((code >> 8) as usize).copied().unwrap_or("an operation");
        let error = match code & 0xff {
            INDEX => TensorError::Index { op, index: index as i64, dim: dim as usize, size: size as usize },
            PROBABILITY => {
                let reason = format!("probabilities are between 0 and 1, got {}", f64::from_bits(index));
                TensorError::argument(op, reason)
            }
            _ => TensorError::argument(op, "an integer was divided by zero"),
        };
        Err(TensorError::Late(Box::new(error)))
    }
}
