//! CPU kernels.

mod cast;
mod depthwise_conv;
mod elementwise;
mod elementwise_runs;
mod gemm_bf16;
mod lines;
mod matrix;
mod reduction;
mod shared_memory;
mod strided;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod compare;
pub(crate) mod conv;
pub(crate) mod copy;
mod gamma;
pub(crate) mod gather;
pub(crate) mod gemm;
mod im2col;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod linalg;
pub(crate) mod loss;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod softmax;
pub(crate) mod sort;

use tenure_core::{KeyId, Purpose, Site, Tag};

use crate::autograd::no_grad;
use crate::{DType, Device, Element, Layout, Result, Tensor};

/// Runs a loop compiled for the widest vectors that the processor has.
macro_rules! vectorized {
    ($body:expr) => {
        $crate::vectorized(
            #[inline(always)]
            || $body,
        )
    };
}
use vectorized;

/// Makes a temporary tensor of a kernel, tagged as workspace.
fn scratch(make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let _purpose = Purpose::enter(Tag::Workspace, KeyId::NONE);
    let _site = Site::enter_scratch();
    make()
}

/// Computes the output in `f32`, and rounds it to `out`.
fn in_f32(out: &Tensor, compute: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
    no_grad(|| {
        let wide = scratch(|| Tensor::empty(out.sizes(), DType::F32, out.device()))?;
        compute(&wide)?;
        out.copy_raw(&wide)
    })
}

/// Converts a tensor to `f32`. Dimensions of stride 0 keep it.
fn widened(tensor: &Tensor) -> Result<Tensor> {
    no_grad(|| {
        let strides = tensor.strides();
        let once: Vec<usize> =
            tensor.sizes().iter().zip(strides).map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
        let single = Layout::strided(&once, strides, tensor.layout().offset())?;
        let wide = tensor.alias(single).to_dtype(DType::F32)?;
        Ok(wide.alias(wide.layout().expand(tensor.sizes())?))
    })
}

/// Makes a temporary vector whose elements have no values yet.
fn scratch_of<T: Element>(elements: usize) -> Result<Tensor> {
    scratch(|| Tensor::empty(&[elements], T::DTYPE, Device::CPU))
}
