//! Tests that models built from a `config.json` equal those that Transformers builds from it (`goldens/configs.py`).

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tenure_nn::layers::{Activation, Layer};
use tenure_nn::models::{Bert, BertConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, Rope, RopeScaling};
use tenure_tensor::Tensor;

use crate::common::{check, configs, golden, on_devices, tensor, with_scope};
use crate::fixtures::expect_error;

on_devices! {
    an_unusual_llama_is_what_its_file_says
    an_unusual_gpt2_is_what_its_file_says
    an_unusual_bert_is_what_its_file_says
}

fn read<C: DeserializeOwned>(file: &Value) -> Result<C, serde_json::Error> {
    serde_json::from_str(&file.to_string())
}

fn tokens() -> Tensor {
    let tokens: Vec<i64> = (0..10).map(|i| (7 * i + 3) % 11).collect();
    tensor(&tokens, &[2, 5])
}

fn an_unusual_llama_is_what_its_file_says() {
    let golden = golden("configs", "llama");
    let model = with_scope(|scope| Llama::new(scope, &read(&golden["file"]).unwrap()).unwrap());
    // Hugging Face's model computes normalisation, rotary positions and softmax in single precision.
    check(&golden, &model, 1e-5, || model.forward(&tokens()));
}

fn an_unusual_gpt2_is_what_its_file_says() {
    let golden = golden("configs", "gpt2");
    let model = with_scope(|scope| Gpt2::new(&scope.at("transformer"), &read(&golden["file"]).unwrap()).unwrap());
    check(&golden, &model, 1e-8, || model.forward(&tokens()));
}

fn an_unusual_bert_is_what_its_file_says() {
    let mut golden = golden("configs", "bert");
    for name in ["pooler.dense.weight", "pooler.dense.bias"] {
        golden["norms"][name] = json!(0.0);
    }
    let model = with_scope(|scope| Bert::new(scope, &read(&golden["file"]).unwrap()).unwrap());
    check(&golden, &model, 1e-8, || model.forward(&tokens(), None));
}

#[test]
fn missing_keys_have_the_values_of_transformers() {
    let sizes = json!({ "vocab_size": 11, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 8, "num_key_value_heads": null });
    let expected = LlamaConfig { num_key_value_heads: 4, rms_norm_eps: 1e-6, ..configs::llama() };
    assert_eq!(read::<LlamaConfig>(&sizes).unwrap(), expected);
    let bert: BertConfig = read(&sizes).unwrap();
    assert_eq!((bert.hidden_act, bert.pad_token_id, bert.hidden_dropout_prob), (Activation::Gelu, Some(0), 0.1));
    let mut without_padding = sizes;
    without_padding["pad_token_id"] = Value::Null;
    assert_eq!(read::<BertConfig>(&without_padding).unwrap().pad_token_id, None);
    let sizes = json!({ "vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12 });
    assert_eq!(read::<Gpt2Config>(&sizes).unwrap(), Gpt2Config::default());
}

/// Returns the refusal of a file in which one key has another value.
fn refusal<C: DeserializeOwned>(model: &str, key: &str, value: Value) -> String {
    let mut file = golden("configs", model)["file"].clone();
    file[key] = value;
    read::<C>(&file).err().unwrap_or_else(|| panic!("{key} of {model} is taken")).to_string()
}

#[test]
fn a_file_of_what_models_here_cannot_be_is_refused() {
    let only =
        |key: &str, found: &str, known: &str| format!("{key} is {found}: only models with {known} can be loaded");
    let known = "gelu, gelu_new, relu, relu6, leaky_relu, silu, mish, sigmoid, tanh";
    let unknown = format!("hidden_act is \"xielu\": only models with one of {known} can be loaded");
    let cases = [
        ("model_type", json!("mistral"), only("model_type", r#""mistral""#, r#""llama""#)),
        ("hidden_act", json!("xielu"), unknown),
        ("attention_bias", json!("yes"), r#"attention_bias: invalid type: string "yes", expected a boolean"#.into()),
        ("pruned_heads", json!({ "1": [0] }), only("pruned_heads", r#"{"1": Array [Number(0)]}"#, "{}")),
        ("partial_rotary_factor", json!(0.5), only("partial_rotary_factor", "0.5", "1.0")),
        ("hidden_size", Value::Null, "missing field `hidden_size`".into()),
    ];
    for (key, value, expected) in cases {
        assert_eq!(refusal::<LlamaConfig>("llama", key, value), expected);
    }
    let cases = [
        ("model_type", json!("gpt_neo"), only("model_type", r#""gpt_neo""#, r#""gpt2""#)),
        ("tie_word_embeddings", json!(false), only("tie_word_embeddings", "false", "true")),
        ("add_cross_attention", json!(true), only("add_cross_attention", "true", "false")),
    ];
    for (key, value, expected) in cases {
        assert_eq!(refusal::<Gpt2Config>("gpt2", key, value), expected);
    }
    let cases = [
        (
            "position_embedding_type",
            json!("relative_key"),
            only("position_embedding_type", r#""relative_key""#, r#""absolute""#),
        ),
        ("is_decoder", json!(true), only("is_decoder", "true", "false")),
        ("add_cross_attention", json!(true), only("add_cross_attention", "true", "false")),
    ];
    for (key, value, expected) in cases {
        assert_eq!(refusal::<BertConfig>("bert", key, value), expected);
    }
}

#[test]
fn heads_that_do_not_go_together_are_refused() {
    let llama = configs::llama();
    for (config, expected) in [
        (
            LlamaConfig { num_attention_heads: 0, ..llama.clone() },
            "0 attention heads do not divide a hidden size of 24",
        ),
        (
            LlamaConfig { num_attention_heads: 5, ..llama.clone() },
            "5 attention heads do not divide a hidden size of 24",
        ),
        (LlamaConfig { num_key_value_heads: 0, ..llama.clone() }, "0 heads of keys and values cannot be shared by 4"),
        (LlamaConfig { num_key_value_heads: 3, ..llama.clone() }, "3 heads of keys and values cannot be shared by 4"),
        (LlamaConfig { head_dim: Some(5), ..llama.clone() }, "pairs of a head's numbers, of which there are 5"),
        (LlamaConfig { pad_token_id: Some(11), ..llama }, "the token 11 for padding is not one of 11"),
    ] {
        expect_error(with_scope(|scope| Llama::new(scope, &config)), expected);
    }
    let gpt2 = Gpt2Config { n_head: 0, ..configs::gpt2() };
    expect_error(with_scope(|scope| Gpt2::new(scope, &gpt2)), "0 attention heads do not divide a hidden size of 12");
    let bert = BertConfig { num_attention_heads: 5, ..configs::bert() };
    expect_error(with_scope(|scope| Bert::new(scope, &bert)), "5 attention heads do not divide a hidden size of 12");
}

#[test]
fn numbers_that_make_no_sense_are_refused_when_a_model_is_made() {
    let probability = "dropout is a probability, between 0 and 1, got 2";
    let llama = configs::llama();
    let below = Rope { theta: -1.0, scaling: RopeScaling::Default };
    let divided = Rope { theta: 1e4, scaling: RopeScaling::Linear { factor: 0.0 } };
    for (config, expected) in [
        (LlamaConfig { rope: below, ..llama.clone() }, "theta is -1: a number above 0"),
        (LlamaConfig { rope: divided, ..llama.clone() }, "factor is 0: a number above 0"),
        (LlamaConfig { rms_norm_eps: -1.0, ..llama.clone() }, "eps is -1: a number from 0 on"),
        (LlamaConfig { attention_dropout: 2.0, ..llama }, probability),
    ] {
        expect_error(with_scope(|scope| Llama::new(scope, &config)), expected);
    }
    let hidden = BertConfig { hidden_dropout_prob: 2.0, ..configs::bert() };
    for config in [hidden, BertConfig { attention_probs_dropout_prob: 2.0, ..configs::bert() }] {
        expect_error(with_scope(|scope| Bert::new(scope, &config)), probability);
    }
    let attention = Gpt2Config { attn_pdrop: 2.0, ..configs::gpt2() };
    for config in [attention, Gpt2Config { embd_pdrop: 2.0, ..configs::gpt2() }] {
        expect_error(with_scope(|scope| Gpt2::new(scope, &config)), probability);
    }
}
