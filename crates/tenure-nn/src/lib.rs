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
