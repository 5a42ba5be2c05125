//! Models on our own tensors, computed by a [`Backend`].
//!
//! A [`Model`] is a network without values, and a description of its image: the tensors of its files in the order in which they
//! are needed. On a CUDA device a [`Switcher`](tenure_nn::switched::Switcher) has them, and lends them to the process that computes,
//! unless that is this one. On the CPU they are computed in this process or
//! in a [`Place`] elsewhere, and the image in the host's memory is what is computed with: tensors are views of it, and a group that
//! is still read is waited for by who uses it first. The first time, each tensor is a group, which tells the order; from the
//! next on, groups are those that let the last layer end soonest. A model that leaves is freed, as its files have it.

mod backend;
mod borrowed;
mod callbacks;
mod cpu;
mod cuda;
mod error;
mod lent;
mod model;
mod network;
mod place;
mod resident;
mod shared_room;
mod stored;
mod tensors;
pub(crate) mod text;
mod with_python;

pub(crate) use backend::{Backend, Done, Timed, Weights};
pub(crate) use borrowed::{LentNetwork, Loan};
pub(crate) use callbacks::Callbacks;
pub(crate) use cpu::CpuBackend;
pub(crate) use cuda::CudaBackend;
pub use error::ModelError;
pub(crate) use lent::LentBackend;
pub(crate) use model::{Answer, Model};
pub(crate) use network::{Bound, Computed, Placed};
pub(crate) use place::{Computer, Here, Place};
pub(crate) use resident::DeviceWeights;
pub(crate) use shared_room::SharedRoom;
pub(crate) use tensors::{RawTensor, dtype};
pub(crate) use with_python::WithPython;
