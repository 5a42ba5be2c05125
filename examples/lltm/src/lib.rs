//! An operation added to Tenure from outside: LLTM, the cell of PyTorch's tutorial on C++ extensions, which is an LSTM
//! that forgets nothing. `README.md` explains how to add your own.
//!
//! ```
//! use lltm::Lltm;
//! use tenure_nn::Scope;
//! use tenure_tensor::random::Generator;
//! use tenure_tensor::{DType, Device, Tensor};
//!
//! let layer = Lltm::new(&Scope::new(&Generator::new(0)), 4, 3)?;
//! let zeros = Tensor::zeros(&[2, 3], DType::F32, Device::CPU)?;
//! let input = Tensor::ones(&[2, 4], DType::F32, Device::CPU)?;
//! let (hidden, cell) = layer.forward(&input, (&zeros, &zeros))?;
//! assert_eq!((hidden.sizes(), cell.sizes()), (&[2, 3][..], &[2, 3][..]));
//! # Ok::<(), tenure_tensor::TensorError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cpu;
mod layer;
mod op;

pub use layer::Lltm;
pub use op::{BACKWARD, Backward, FORWARD, Forward, lltm_cell};

/// The README's examples, which are compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
