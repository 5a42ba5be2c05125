//! Models on our own tensors, computed by a [`Backend`].
//!
//! An [`OpenModel`] is a network without values and a description of its image: the tensors of its files in the order
//! in which they are needed. On a CUDA device a [`Switcher`](tenure_nn::switched::Switcher) holds the weights. It lends
//! them to the process that computes, unless that is this process. On the CPU a [`ComputeProcess`], which may be this
//! process, computes directly on the image in host memory: tensors are views of it, and the first use of a group waits
//! until the group is read. In the first run each tensor is its own group, which reveals the order. Later runs use the
//! groups that let the last layer end soonest. Evicting a model frees its image, since its files hold the same bytes.

mod backend;
mod batch_control;
mod borrowed;
mod compute_process;
mod cpu;
mod cuda;
mod error;
mod lent;
mod model;
mod network;
mod resident;
mod shared_budget;
mod stored;
mod tensors;
pub(crate) mod text;
mod with_python;

pub(crate) use backend::{Backend, BackendWeights, Callbacks, LoadedCallback, TimedOutputs};
pub(crate) use batch_control::BatchControl;
pub(crate) use borrowed::{BorrowedWeights, LentNetwork};
pub(crate) use compute_process::{ComputeProcess, ModelRunner, ThisProcess};
pub(crate) use cpu::CpuBackend;
pub(crate) use cuda::CudaBackend;
pub use error::ModelError;
pub(crate) use lent::LentBackend;
pub(crate) use model::{BatchAnswer, OpenModel};
pub(crate) use network::{BoundNetwork, Computed, Placed};
pub(crate) use resident::DeviceWeights;
pub(crate) use shared_budget::SharedBudget;
pub(crate) use tensors::RawTensor;
pub use tensors::dtype_of;
pub(crate) use with_python::WithPython;
