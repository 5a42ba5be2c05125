//! Extensions of Tenure in Rust: functions on tensors that Python calls.
//!
//! ```ignore
//! use tenure_extension::{Result, Tensor};
//!
//! tenure_extension::functions! {
//!     /// Returns x times a factor.
//!     fn scaled(x: &Tensor, factor: f64) -> Result<Tensor> {
//!         x * factor
//!     }
//! }
//! ```
//!
//! `tenure.extension.load` compiles this crate with the extension's compiler. The operations are those of Tenure's
//! table: a function or a method of [`Tensor`] for each, with all parameters given.

mod autograd;
mod ffi;
mod function;
mod operations;
mod operators;
mod tensor;
mod value;

pub use autograd::{attach, is_grad_enabled, no_grad};
pub use function::{Arguments, Error, Extension, Function, Parameter, Result, Returned, run, signature};
pub use operations::*;
pub use tensor::{Access, DType, Device, Element, Generator, Tensor};
pub use value::{Argument, Output, Owned, Value, call};
