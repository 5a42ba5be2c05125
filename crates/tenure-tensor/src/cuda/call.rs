//! A function of tensors that is captured once.

use tenure_core::{DataPtr, Storage};
use tenure_device::graph::GraphPool;

use super::Captured;
use crate::{Result, Tensor, TensorError, autograd};

const OP: &str = "CapturedCall";

/// A function of tensors, captured for inputs of fixed sizes and dtypes. A call copies its inputs to where the capture read
/// them, replays, and copies what it answers out of the graph's memory. Nothing of that memory is the call's alone: it is a
/// pool's, which other calls have that do not run at the same time.
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
    /// In the pool's memory.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl CapturedCall {
    /// Captures what `function` puts on the thread's current stream, for inputs like these; it must have run before.
    /// [`Captured::new`] says what it may not do. Gradients are not computed.
    ///
    /// # Errors
    /// Those of [`Captured::new_in`].
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

    /// What the function answers, on the thread's current stream, in memory of its own. The stream must come after all that used
    /// the pool before.
    ///
    /// # Errors
    /// Other sizes or dtypes than the captured ones; no memory; a driver call failed.
    pub fn call(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let is_alike = |(own, given): (&Tensor, &Tensor)| own.sizes() == given.sizes() && own.dtype() == given.dtype();
        if inputs.len() != self.inputs.len() || !self.inputs.iter().zip(inputs).all(is_alike) {
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

/// A tensor at the same address, which does not keep its memory: the block that it is in goes back to the graph's pool.
fn lent(tensor: &Tensor) -> Result<Tensor> {
    let guard = tensor.storage().lock();
    let data = DataPtr::foreign(guard.as_ptr(), guard.device(), || ());
    // SAFETY: the address is the pool's, or of a storage that the capture keeps, and stays theirs as long as the graph that is
    // beside this. Others of the pool write there, but not between a replay and what reads its answers.
    let storage = unsafe { Storage::from_data_ptr(data, guard.bytes(), None) };
    Tensor::from_storage(storage, tensor.layout().clone(), tensor.dtype())
}
