//! Layers, initialisation, optimizers, data, checkpoints and models, on Tenure's tensors.
//!
//! - A [`Module`] is a struct of [`Parameter`]s, [`Buffer`]s and other modules, listed by [`module!`]. They have
//!   PyTorch's names, such as `layer1.0.conv1.weight`, from the [`Scope`] that they were made in.
//! - An [`optim::Optimizer`] steps parameters by a rule; a [`optim::Schedule`] says how far at which step.
//! - A [`data::DataLoader`] reads batches ahead, the same ones for any number of workers.
//! - A [`train::Trainer`] makes steps, measures them, and goes on where it was interrupted.
//! - A [`checkpoint::Checkpoint`] is all that a run needs to go on, bit for bit, in one safetensors file.
//! - A [`sentence::SentenceEncoder`] makes vectors of texts.
//! - A [`switched::Switcher`] keeps more [`networks`] than fit on a device, each computed with while its weights come.
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
mod offload;
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
