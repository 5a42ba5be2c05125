//! CPU kernels.

mod along_dim;
mod cast;
mod depthwise_conv;
mod disjoint_slice;
mod elementwise;
mod elementwise_runs;
mod gemm_bf16;
mod half_precision;
mod reduction;
mod row_reduction;
mod strided;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod binary;
pub(crate) mod compare;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod flip;
pub(crate) mod gamma;
pub(crate) mod gather;
pub(crate) mod gemm;
mod im2col;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod linalg;
pub(crate) mod loss;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod ranges;
pub(crate) mod reduce;
pub(crate) mod rotary;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod select;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod unary;

use tenure_core::{KeyId, Purpose, Site, Tag};

use crate::{Result, Tensor};

/// Makes a temporary tensor of a kernel, tagged as workspace.
fn scratch(make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let _purpose = Purpose::enter(Tag::Workspace, KeyId::NONE);
    let _site = Site::enter_scratch();
    make()
}
