//! Small models that `goldens/*.py` make too, with every kind of layer of the large ones.
#![allow(dead_code, reason = "each test uses some of it")]

use tenure_nn::models::{BertConfig, DenseNetConfig, Gpt2Config, LlamaConfig, R3dConfig, ResNetConfig};

pub(crate) const RESNET_BASIC: ResNetConfig = ResNetConfig { blocks: [1; 4], classes: 5, ..ResNetConfig::RESNET18 };
pub(crate) const RESNET_BOTTLENECK: ResNetConfig = ResNetConfig { is_bottleneck: true, ..RESNET_BASIC };
pub(crate) const R3D: R3dConfig = R3dConfig { blocks: [1; 4], classes: 5, ..R3dConfig::R3D18 };
pub(crate) const DENSENET: DenseNetConfig = DenseNetConfig { layers: [2, 1, 1, 1], growth: 8, channels: 3, classes: 5 };

pub(crate) fn bert() -> BertConfig {
    BertConfig {
        vocab_size: 11,
        hidden_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 20,
        max_position_embeddings: 8,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..BertConfig::default()
    }
}

pub(crate) fn gpt2() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 11,
        n_positions: 8,
        n_embd: 12,
        n_layer: 2,
        n_head: 3,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        resid_pdrop: 0.0,
        ..Gpt2Config::default()
    }
}

pub(crate) fn llama() -> LlamaConfig {
    LlamaConfig {
        vocab_size: 11,
        hidden_size: 24,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    }
}
