//! Models, whose parameters have the names of torchvision and Hugging Face, so that their files load.

mod densenet;
mod resnet;

pub use densenet::{DenseNet, DenseNetConfig};
pub use resnet::{ResNet, ResNetConfig};
