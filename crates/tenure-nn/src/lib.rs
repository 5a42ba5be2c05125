//! Layers, initialisation, optimizers, data, checkpoints and models, on Tenure's tensors.
//!
//! - A [`Module`] is a struct of [`Parameter`]s, [`Buffer`]s and other modules, listed by [`module!`]. They have
//!   PyTorch's names, such as `layer1.0.conv1.weight`, from the [`Scope`] that they were made in.
//! - An [`optim::Optimizer`] steps parameters by a rule; an [`optim::Schedule`] sets the learning rate of each step.
//! - A [`data::DataLoader`] reads batches ahead. The batches are the same for any number of workers.
//! - A [`train::Trainer`] makes steps, measures them, and resumes interrupted runs.
//! - A [`checkpoint::Checkpoint`] holds all that a run needs to resume, bit for bit, in one safetensors file.
//! - A [`sentence::SentenceEncoder`] computes vectors of texts.
//! - A [`switched::Switcher`] keeps more [`networks`] than fit on a device, and computes with each while its weights
//!   arrive.
//!
//! ```
//! use tenure_nn::layers::{Activation, Layer, Linear, Sequential};
//! use tenure_nn::optim::{Adam, Optimizer};
//! use tenure_nn::{Module, Scope};
//! use tenure_tensor::{Tensor, random::Generator};
//!
//! let generator = Generator::new(0);
//! let scope = Scope::new(&generator);
//! let model = Sequential::default()
//!     .then(&scope, |at| Linear::new(at, 2, 8))?
//!     .then(&scope, |_| Ok(Activation::Tanh))?
//!     .then(&scope, |at| Linear::new(at, 8, 1))?;
//! let mut optimizer = Optimizer::new(model.parameters(), 0.05, Adam::w());
//! let inputs = Tensor::from_slice(&[0.0_f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2])?;
//! let either = Tensor::from_slice(&[0.0_f32, 1.0, 1.0, 0.0], &[4, 1])?;
//! for _ in 0..200 {
//!     let error = model.forward(&inputs)?.sub(&either)?;
//!     optimizer.zero_grad();
//!     error.mul(&error)?.mean_all()?.backward()?;
//!     optimizer.step()?;
//! }
//! assert!((model.forward(&inputs)?.select(0, 1)?.item::<f32>()? - 1.0).abs() < 0.1);
//! # Ok::<(), tenure_nn::Error>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod checkpoint;
pub mod data;
mod error;
mod init;
pub mod layers;
pub mod models;
mod module;
pub mod networks;
pub mod offload;
mod operators;
pub mod optim;
mod panics;
pub mod purpose;
mod scope;
pub mod sentence;
pub mod switched;
pub mod train;

pub use error::{Error, Result, StateError};
pub use init::{Fan, Init};
pub use module::{Buffer, Member, MemberMut, Mode, Module, Parameter, Part, Source};
pub use scope::Scope;
