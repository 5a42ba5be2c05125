//! Kernels on CUDA devices, and what stands for them on simulated ones.

mod add;
mod check;
mod elementwise;
mod late;
mod queue;
mod radix;
mod space;
mod transpose;
mod written;

pub(crate) mod activation;
pub(crate) mod binary;
pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod flip;
pub(crate) mod gather;
pub(crate) mod index;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod scatter;
pub(crate) mod select;
pub(crate) mod series;
pub(crate) mod sort;
pub(crate) mod unary;

pub(crate) use check::probabilities;
pub(crate) use queue::arrive;

use crate::DType;

/// What every kernel begins with.
const PRELUDE: &str = include_str!("source/prelude.cu");

/// What a dtype is called in a kernel.
fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// What a dtype is computed in.
fn computed(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "float",
        other => stored(other),
    }
}
