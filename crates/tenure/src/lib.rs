//! Tenure, a tensor memory runtime.
//!
//! This crate re-exports the others. [`tensor`] has tensors and autograd; [`nn`] has layers, optimizers, data, models and training;
//! [`onnx`] exports models;
//! [`offload`] keeps training within a memory budget. [`alloc`] has the allocators and [`device`] the drivers; [`tier`] places
//! tensors in tiers of memory, as [`plan`] and [`agent`] decide. [`replay`] plays a recorded program on any of the allocators, and
//! [`report`] draws it. [`prelude`] has the names that a small program needs.
//!
//! This program fits a line to points:
//!
//! ```
//! use tenure::nn::layers::Linear;
//! use tenure::prelude::*;
//!
//! let x = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0], &[4, 1])?;
//! let y = x.mul(2.0)?.add(1.0)?;
//! let model = Linear::new(&Scope::new(&Generator::new(0)), 1, 1)?;
//! let mut optimizer = Optimizer::new(model.parameters(), 0.1, Sgd { momentum: 0.5, ..Sgd::default() });
//! for _ in 0..200 {
//!     let error = model.forward(&x)?.sub(&y)?;
//!     optimizer.zero_grad();
//!     error.mul(&error)?.mean_all()?.backward()?;
//!     optimizer.step()?;
//! }
//! let five = model.forward(&Tensor::from_slice(&[5.0_f32], &[1, 1])?)?;
//! assert!((five.item::<f32>()? - 11.0).abs() < 1e-3);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! This one plays a recorded program again:
//!
//! ```
//! use tenure::prelude::*;
//! use tenure::units::Bytes;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");
//! let trace = Trace::read(path)?;
//! let outcome = Replay::new(AllocatorKind::Native).run(&trace)?;
//! assert_eq!(outcome.mismatched_addresses, Some(0)); // every block is where PyTorch put it
//! println!("{} reserved for {}", Bytes(outcome.peak_reserved_bytes), Bytes(outcome.peak_requested_bytes));
//! # Ok::<(), tenure::Error>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![forbid(unsafe_code)]

pub mod bench;
pub mod devices;
mod error;
pub mod prelude;
pub mod replay;
pub mod report;
pub mod tensorboard;
pub mod units;

pub use error::Error;
#[cfg(feature = "nn")]
pub use {tenure_agent as agent, tenure_nn as nn, tenure_onnx as onnx, tenure_tensor as tensor};
pub use {
    tenure_alloc as alloc, tenure_core as core, tenure_device as device, tenure_offload as offload,
    tenure_plan as plan, tenure_tier as tier,
};

/// Compiles and runs the Rust code of the documents.
#[cfg(all(doctest, feature = "nn"))]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/guide/training.md")]
    struct Training;
}
