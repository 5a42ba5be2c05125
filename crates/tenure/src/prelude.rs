//! The names that a small program needs: `use tenure::prelude::*`.

#[cfg(feature = "nn")]
pub use tenure_nn::{
    Module, Parameter, Scope,
    data::{DataLoader, Dataset, LoaderOptions},
    layers::Layer,
    optim::{Adam, Optimizer, Schedule, Sgd},
    train::{Classification, Task, Trainer, TrainerOptions},
};
#[cfg(feature = "nn")]
pub use tenure_tensor::{Tensor, autograd::no_grad, random::Generator};

pub use tenure_core::{DType, Device};
pub use tenure_offload::Budget;
pub use tenure_plan::Trace;

pub use crate::Error;
pub use crate::replay::{AllocatorKind, Replay};
