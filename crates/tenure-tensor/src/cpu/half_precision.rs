//! Kernels for `f16` and `bf16` that compute in `f32` and round once.

use super::scratch;
use crate::autograd::no_grad;
use crate::{DType, Layout, Result, Tensor};

/// Computes the output in `f32`, and rounds it to `out`.
pub(super) fn in_f32(out: &Tensor, compute: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
    no_grad(|| {
        let wide = scratch(|| Tensor::empty(out.sizes(), DType::F32, out.device()))?;
        compute(&wide)?;
        out.copy_raw(&wide)
    })
}

/// Converts a tensor to `f32`. Dimensions of stride 0 keep it.
pub(super) fn widened(tensor: &Tensor) -> Result<Tensor> {
    no_grad(|| {
        let strides = tensor.strides();
        let once: Vec<usize> =
            tensor.sizes().iter().zip(strides).map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
        let single = Layout::strided(&once, strides, tensor.layout().offset())?;
        let wide = tensor.alias(single).to_dtype(DType::F32)?;
        Ok(wide.alias(wide.layout().expand(tensor.sizes())?))
    })
}
