//! Models of text beside those that `goldens/models.py` has after Hugging Face: names, results, gradients.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{check, with_scope};
use serde_json::Value;
use tenure_nn::layers::Layer;
use tenure_nn::models::{Bert, BertConfig, Gpt2, Gpt2Config, Llama, LlamaConfig};
use tenure_tensor::{Tensor, ops};

fn golden(name: &str) -> Value {
    let goldens: Value = serde_json::from_str(include_str!("goldens/models.json")).unwrap();
    goldens[name].clone()
}

fn tokens() -> Tensor {
    let tokens: Vec<i64> = (0..10).map(|i| (7 * i + 3) % 11).collect();
    Tensor::from_slice(&tokens, &[2, 5]).unwrap()
}

#[test]
fn bert_is_hugging_faces() {
    let config = BertConfig {
        vocab_size: 11,
        hidden_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 20,
        max_position_embeddings: 8,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..BertConfig::default()
    };
    let model = with_scope(|scope| Bert::new(scope, &config).unwrap());
    let mask = Tensor::from_slice(&[1_i64, 1, 1, 1, 1, 1, 1, 1, 0, 0], &[2, 5]).unwrap();
    check(&golden("bert"), &model, 1e-8, || {
        let hidden = model.forward(&tokens(), Some(&mask))?;
        ops::cat(&[&hidden.flatten(1, -1)?, &model.pool(&hidden)?], 1)
    });
}

#[test]
fn gpt2_is_hugging_faces() {
    let config = Gpt2Config {
        vocab_size: 11,
        n_positions: 8,
        n_embd: 12,
        n_layer: 2,
        n_head: 3,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        resid_pdrop: 0.0,
        ..Gpt2Config::default()
    };
    let model = with_scope(|scope| Gpt2::new(scope, &config).unwrap());
    check(&golden("gpt2"), &model, 1e-8, || model.forward(&tokens()));
}

#[test]
fn llama_is_hugging_faces() {
    let config = LlamaConfig {
        vocab_size: 11,
        hidden_size: 24,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    let model = with_scope(|scope| Llama::new(scope, &config).unwrap());
    // Cosines and sines are of single precision.
    check(&golden("llama"), &model, 1e-6, || model.forward(&tokens()));
}
