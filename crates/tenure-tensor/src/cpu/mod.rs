//! CPU kernels.

mod cast;
mod fold;
mod gemm_bf16;
mod halves;
mod lanes;
mod lines;
mod loops;
mod narrow;
mod runs;
mod slots;
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
pub(crate) mod gather;
pub(crate) mod gemm;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod loss;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rotary;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod select;
pub(crate) mod series;
pub(crate) mod softmax;
pub(crate) mod sort;
mod sweep;
pub(crate) mod unary;

use tenure_core::{KeyId, Purpose, Site, Tag};

use crate::{Result, Tensor};

/// Makes a temporary tensor of a kernel, tagged as workspace.
fn scratch(make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let _purpose = Purpose::enter(Tag::Workspace, KeyId::NONE);
    let _site = Site::enter_scratch();
    make()
}
