//! Models, whose parameters have the names of torchvision and Hugging Face, so that their files load.

mod densenet;
mod inception;
mod r3d;
mod resnet;

pub use densenet::{DenseNet, DenseNetConfig};
pub use inception::InceptionV3;
pub use r3d::{R3d, R3dConfig};
pub use resnet::{ResNet, ResNetConfig};
