//! Tensors on Tenure's storages: views, operations, kernels and autograd.
//!
//! - A [`Tensor`] is a layout on a shared storage. Views share the storage: a write to one shows in all.
//! - An operation ([`ops`]) allocates its result, calls a kernel, and records its gradient formula with [`autograd`].
//! - A [`Kernel`] is a table of functions by device and dtype. Any crate can add functions, and make its own tables.
//!
//! ```
//! use tenure_tensor::Tensor;
//!
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3])?.requires_grad_(true)?;
//! let y = x.mul(&x)?.sum_all()?;
//! y.backward()?;
//! assert_eq!(x.grad().expect("a leaf").to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), tenure_tensor::TensorError>(())
//! ```
#![warn(missing_docs)]

mod access;
mod arrays;
#[forbid(unsafe_code)]
pub mod autocast;
#[forbid(unsafe_code)]
pub mod autograd;
#[forbid(unsafe_code)]
pub mod collective;
mod cpu;
pub mod cuda;
mod element;
mod elementwise;
#[forbid(unsafe_code)]
mod error;
pub mod file_mapping;
#[forbid(unsafe_code)]
mod geometry;
#[forbid(unsafe_code)]
mod kernel;
#[forbid(unsafe_code)]
pub mod observe;
pub mod operation;
#[forbid(unsafe_code)]
pub mod ops;
mod order;
#[forbid(unsafe_code)]
pub mod profile;
#[forbid(unsafe_code)]
pub mod random;
#[forbid(unsafe_code)]
mod scalar;
#[forbid(unsafe_code)]
mod scopes;
#[forbid(unsafe_code)]
mod settings;
mod tensor;
#[forbid(unsafe_code)]
pub mod threads;
mod transfer;
mod upload;

pub use access::Access;
pub use element::{Element, Float, Number};
pub use elementwise::{Elementwise, ElementwiseOperand};
pub use error::{AutogradError, Result, TensorError};
pub use kernel::{Entry, Kernel};
pub use ops::{Attention, Conv, Pool, einsum};
pub use scalar::{Scalar, Value};
pub use settings::{precision, tuning};
pub use tensor::{Nested, Tensor, Writes};
pub use tenure_core::{DType, Device, DeviceKind, Layout, MemoryFormat, vectorized};
pub use upload::{Upload, Uploader};
