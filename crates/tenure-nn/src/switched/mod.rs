//! Model switching: more models than a device has room for, each computed while its weights arrive.
//!
//! A [`Switcher`] keeps [networks](crate::networks::Network) for one device. A model's weights are read once from its
//! files into the host's memory. When the model is called, they are copied from there to the device: group by group, in
//! the order in which its layers are used, while the groups that have arrived are computed with. The models that are
//! worth least make room, without any copy. On the CPU, models are read from their files into the host's memory in the
//! same way, and computed there.
//!
//! One process may own the device's memory while another computes: a switcher [lends](SwitchedModel::lend) a model, and
//! a [`BorrowedNetwork`] computes with its weights, without a copy. A crash of the computing process then loses no
//! weights.
//!
//! ```
//! use tenure_nn::networks::Architectures;
//! use tenure_nn::switched::{Switcher, SwitcherOptions};
//! use tenure_tensor::{DType, Device, Tensor};
//! # use tenure_nn::{Scope, checkpoint};
//! # use tenure_tensor::random::Generator;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let options: serde_json::Map<_, _> = serde_json::from_str(r#"{"width": 4, "classes": 10}"#)?;
//! # let config = tenure_nn::models::ResNetConfig { width: 4, classes: 10, ..tenure_nn::models::ResNetConfig::RESNET18 };
//! # let made = tenure_nn::models::ResNet::new(&Scope::new(&Generator::new(1)), config)?;
//! # let state = tenure_nn::Module::state(&made).into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
//! # checkpoint::save(&path, state, ("made", "here"))?;
//! let switcher = Switcher::new(Device::CPU, SwitcherOptions::new(1 << 20, 0))?;
//! let network = Architectures::default().build("resnet18", options)?;
//! let model = switcher.add("resnet", network, &[&path])?; // nothing is read yet
//! let answers = model.forward(&[Tensor::zeros(&[1, 3, 32, 32], DType::F32, Device::CPU)?])?;
//! assert_eq!(answers[0].sizes(), [1, 10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod borrowed;
mod bound;
mod calls;
mod host_images;
mod lent;
mod managed;
mod model;
mod on_cpu;
mod on_cuda;
mod switcher;
mod weights;

pub use borrowed::{BorrowedNetwork, Borrower};
pub use bound::{BoundTensors, Placed};
pub use calls::Measured;
pub use lent::{LentModel, LentTerms};
pub use model::SwitchedModel;
pub use switcher::{Switcher, SwitcherOptions, SwitcherReport};
pub use tenure_switch::Orders;
pub use tenure_switch::groups::Grouping;
pub use weights::{StoredTensor, StoredTensors, WeightOrder};

/// The reason why a model cannot be used or lent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchedError {
    /// Another model has this name.
    #[error("there is a model {name:?} already: remove it first, or choose another name")]
    Known {
        /// The name.
        name: String,
    },
    /// The model was removed.
    #[error("the model {name:?} was removed: add it again")]
    Removed {
        /// The model's name.
        name: String,
    },
    /// A model on the CPU cannot be lent.
    #[error("model {name:?} is on the CPU, and models on a CUDA device are lent: share its image instead")]
    OnCpu {
        /// The model's name.
        name: String,
    },
}
