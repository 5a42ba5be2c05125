//! Checks of elements on the device, which reports errors later.

use tenure_device::cuda::KernelName;

use super::iteration_space::{linear, unit};
use super::queue::{self, Queue};
use super::{async_errors, stored};
use crate::autograd::no_grad;
use crate::{Access, DType, Result, Tensor, TensorError};

const TEMPLATE: &str = include_str!("source/check.cu");

/// Checks on the device that all elements of a contiguous tensor are from 0 to 1.
pub(crate) fn probabilities(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.numel() == 0 {
        return Ok(());
    }
    let access = Access::new(op, &[], &[tensor])?;
    let from = access.read_ptr(0).addr();
    let dtype = tensor.dtype();
    let count = tensor.numel();
    let width = unit([from, count * dtype.size()]) / dtype.size();
    let launch = |queue: &mut Queue| {
        let [fault, code] = queue.fault(async_errors::PROBABILITY)?;
        let mut words = [from as u64, (count / width) as u64, fault, code];
        let name = KernelName { op: "check_probabilities", variant: (width << 4) as u64 | dtype as u64 };
        queue.launch(
            name,
            || format!("#define V {width}\ntypedef {} T;\n{TEMPLATE}", stored(dtype)),
            linear(count / width),
            &mut words,
        )
    };
    queue::submit(&access, launch, move |_, reads| {
        let elements = no_grad(|| reads[0].to_dtype(DType::F64))?.to_vec::<f64>()?;
        match elements.iter().find(|element| !(0.0..=1.0).contains(*element)) {
            Some(wrong) => Err(TensorError::argument(op, format!("probabilities are between 0 and 1, got {wrong}"))),
            None => Ok(()),
        }
    })
}
