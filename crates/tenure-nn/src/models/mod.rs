//! Models whose parameters have the names of torchvision and Hugging Face, so that their files load.

mod bert;
mod bert_files;
mod config;
mod densenet;
mod gpt2;
mod inception;
mod llama;
mod modern_bert;
mod positions;
mod r3d;
mod resnet;

pub use bert::{Bert, BertConfig};
pub(crate) use bert_files::BertNames;
pub use densenet::{DenseNet, DenseNetConfig};
pub use gpt2::{Gpt2, Gpt2Config};
pub use inception::{InceptionConfig, InceptionV3};
pub use llama::{Llama, LlamaConfig};
pub use modern_bert::{ModernBert, ModernBertConfig, Sight};
pub use positions::{Rope, RopeScaling};
pub use r3d::{R3d, R3dConfig};
pub use resnet::{ResNet, ResNetConfig};
