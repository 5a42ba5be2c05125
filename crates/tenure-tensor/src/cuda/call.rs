//! A function of tensors that is captured once and called many times.

use tenure_core::{DataPtr, Storage};
use tenure_device::graph::GraphPool;

use super::Captured;
use crate::{Result, Tensor, TensorError, autograd};

const OP: &str = "CapturedCall";

/// A function of tensors, captured for inputs of fixed sizes and dtypes. A call copies its inputs to where the capture
/// reads them, replays the graph, and copies the outputs out of the graph's memory. That memory belongs to a pool,
/// which other calls share that do not run at the same time.
///
/// ```
/// use tenure_device::graph::GraphPool;
/// use tenure_tensor::cuda::CapturedCall;
/// use tenure_tensor::{DType, Device, Tensor, TensorError};
/// # use std::sync::Arc;
/// # use tenure_device::{memory::{self, MemoryConfig}, sim::{SimConfig, SimDriver}};
/// # let memory = memory::install(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default())?;
///
/// let x = Tensor::ones(&[3], DType::F32, Device::cuda(0))?;
/// let double = |inputs: &[Tensor]| Ok::<_, TensorError>(vec![inputs[0].mul(2.0)?]);
/// double(&[x.clone()])?; // once outside, so that kernels are compiled
/// let mut call = CapturedCall::new(&GraphPool::new(memory)?, &[x.clone()], double)?;
/// assert_eq!(call.call(&[x.add(1.0)?])?[0].to_vec::<f32>()?, [4.0; 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CapturedCall {
    captured: Captured,
    /// The inputs that the capture reads, in the pool's memory.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl CapturedCall {
    /// Captures the work that `function` puts on the thread's current stream, for inputs like these. `function` must
    /// have run before; [`Captured::new`] lists the limits on it. Gradients are not computed.
    ///
    /// # Errors
    /// The errors of [`Captured::new_in`].
    pub fn new<E: From<TensorError>>(
        pool: &GraphPool,
        inputs: &[Tensor],
        function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<Self, E> {
        let (captured, (inputs, outputs)) = Captured::new_in(pool, || {
            autograd::no_grad(|| {
                let inputs = inputs.iter().map(Tensor::empty_like).collect::<Result<Vec<_>>>()?;
                let outputs = function(&inputs)?;
                let lent = |tensors: &[Tensor]| tensors.iter().map(lent).collect::<Result<Vec<_>>>();
                Ok::<_, E>((lent(&inputs)?, lent(&outputs)?))
            })
        })?;
        Ok(Self { captured, inputs, outputs })
    }

    /// Computes the function on the thread's current stream. The results have memory of their own. The stream must be
    /// ordered after all earlier uses of the pool.
    ///
    /// # Errors
    /// The inputs have other sizes or dtypes than the captured ones; out of memory; a driver call failed.
    pub fn call(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len()
            || !self
                .inputs
                .iter()
                .zip(inputs)
                .all(|(own, given)| own.sizes() == given.sizes() && own.dtype() == given.dtype())
        {
            return Err(TensorError::argument(
                OP,
                "its inputs have other sizes or dtypes than those it was captured with",
            ));
        }
        autograd::no_grad(|| {
            self.inputs.iter().zip(inputs).try_for_each(|(own, given)| own.copy_(given))?;
            self.captured.replay()?;
            self.outputs.iter().map(Tensor::copy).collect()
        })
    }
}

/// Returns a tensor at the same address that does not keep its memory alive: the block goes back to the graph's pool.
fn lent(tensor: &Tensor) -> Result<Tensor> {
    let guard = tensor.storage().lock();
    let data = DataPtr::foreign(guard.as_ptr(), guard.device(), || ());
    // SAFETY: the address belongs to the pool, or to a storage that the capture keeps, and both live as long as the
    // graph in the same struct. Others of the pool write there, but not between a replay and the reads of its outputs.
    let storage = unsafe { Storage::from_data_ptr(data, guard.bytes(), None) };
    Tensor::from_storage(storage, tensor.layout().clone(), tensor.dtype())
}
