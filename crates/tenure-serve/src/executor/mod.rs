//! Models on our own tensors, computed by a [`Backend`].
//!
//! An [`OpenModel`] is a network without values and a description of its image: the tensors of its files in the order
//! in which they are needed. On a CUDA device a [`Switcher`](tenure_nn::switched::Switcher) holds the weights. It lends
//! them to the process that computes, unless that is this process. On the CPU this process or a [`ComputePlace`]
//! elsewhere computes directly on the image in host memory: tensors are views of it, and the first use of a group waits
//! until the group is read. In the first run each tensor is its own group, which reveals the order. Later runs use the
//! groups that let the last layer end soonest. Evicting a model frees its image, since its files hold the same bytes.

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

pub(crate) use backend::{Backend, BackendWeights, LoadedCallback, Timed};
pub(crate) use borrowed::{BorrowedWeights, LentNetwork};
pub(crate) use callbacks::Callbacks;
pub(crate) use cpu::CpuBackend;
pub(crate) use cuda::CudaBackend;
pub use error::ModelError;
pub(crate) use lent::LentBackend;
pub(crate) use model::{BatchAnswer, OpenModel};
pub(crate) use network::{BoundNetwork, Computed, Placed};
pub(crate) use place::{ComputePlace, Computer, Here};
pub(crate) use resident::DeviceWeights;
pub(crate) use shared_room::SharedRoom;
pub(crate) use tensors::{RawTensor, dtype};
pub(crate) use with_python::WithPython;
