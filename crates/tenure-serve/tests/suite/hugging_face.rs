//! Folders of Hugging Face, served as they are.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_nn::models::{Bert, BertConfig, Gpt2, Gpt2Config};
use tenure_nn::{Module, Scope, checkpoint};
use tenure_serve::http::Service;
use tenure_serve::protocol::{Datatype, InferResponse, ModelState};
use tenure_serve::repository::{Config, Dimension, Repository};
use tenure_tensor::random::Generator;

use crate::served::{Served, example_models, integers, request};

const LLAMA: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "vocab_size": 256, "hidden_size": 64,
  "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2
}"#;

const BERT: &str = r#"{
  "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128
}"#;

const MODULES: &str = r#"[
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
]"#;

const POOLING: &str =
    r#"{"word_embedding_dimension": 32, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#;

fn write_sentence_modules(folder: &Path, modules: &str, pooling: &str) {
    fs::write(folder.join("modules.json"), modules).unwrap();
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    fs::write(folder.join("1_Pooling/config.json"), pooling).unwrap();
}

/// Makes a folder one of Hugging Face's.
fn convert(folder: &Path, config: &str) {
    fs::remove_file(folder.join("config.toml")).unwrap();
    fs::write(folder.join("config.json"), config).unwrap();
}

fn save(folder: &Path, model: &dyn Module) {
    let state = model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    checkpoint::save(&folder.join("model.safetensors"), state, ("of", "a test")).unwrap();
}

/// A repository whose only folder, `m`, has a tiny BERT.
fn one_bert() -> (TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("m");
    fs::create_dir(&folder).unwrap();
    let config: BertConfig = serde_json::from_str(BERT).unwrap();
    save(&folder, &Bert::new(&Scope::new(&Generator::new(3)), &config).unwrap());
    fs::write(folder.join("config.json"), BERT).unwrap();
    (root, folder)
}

fn read(root: &Path) -> Result<Config, String> {
    let changes = Repository::new(root).scan().unwrap();
    match (&changes.added[..], &changes.broken[..]) {
        ([model], []) => Ok(model.config.clone()),
        ([], [broken]) => Err(broken.reason.to_string().replace(&format!("{}/m/", root.display()), "")),
        _ => panic!("{changes:?}"),
    }
}

#[test]
fn a_llama_and_sentences_answer_the_same_without_a_configuration_of_ours() {
    let (ids, mask) =
        (integers("input_ids", &[2, 3], &[5, 9, 3, 7, 1, 0]), integers("attention_mask", &[2, 3], &[1; 6]));
    let bytes = |answer: &InferResponse| answer.outputs[0].bytes().clone();
    let ours = Served::examples();
    let tokens = integers("tokens", &[1, 5], &[72, 101, 108, 108, 111]);
    let expected_scores = ours.infer(&request("next-byte", vec![tokens])).unwrap();
    let expected_vectors = ours.infer(&request("tiny-sentences", vec![ids.clone(), mask.clone()])).unwrap();

    let folder = example_models();
    convert(&folder.path().join("next-byte"), LLAMA);
    let sentences = folder.path().join("tiny-sentences");
    convert(&sentences, BERT);
    write_sentence_modules(&sentences, MODULES, POOLING);
    let served = Served::new(folder, 1 << 30);
    let tokens = integers("input_ids", &[1, 5], &[72, 101, 108, 108, 111]);
    let scores = served.infer(&request("next-byte", vec![tokens])).unwrap();
    assert_eq!((scores.outputs[0].name(), scores.outputs[0].shape()), ("logits", &[1, 5, 256][..]));
    assert_eq!(bytes(&scores), bytes(&expected_scores));
    let vectors = served.infer(&request("tiny-sentences", vec![ids.clone(), mask.clone()])).unwrap();
    assert_eq!((vectors.outputs[0].name(), vectors.outputs[0].shape()), ("sentence_embedding", &[2, 32][..]));
    assert_eq!(bytes(&vectors), bytes(&expected_vectors));

    // The same weights are a BERT without the modules.
    fs::remove_file(served.folder.path().join("tiny-sentences/modules.json")).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(served.serving.load("tiny-sentences")).unwrap();
    let numbers = served.infer(&request("tiny-sentences", vec![ids, mask])).unwrap();
    assert_eq!((numbers.outputs[0].name(), numbers.outputs[0].shape()), ("last_hidden_state", &[2, 3, 32][..]));
}

#[test]
fn a_gpt2_in_several_files_whose_names_have_a_prefix_is_served() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("m");
    fs::create_dir(&folder).unwrap();
    let text = r#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 40, "n_positions": 16, "n_embd": 8,
        "n_layer": 1, "n_head": 2}"#;
    let config: Gpt2Config = serde_json::from_str(text).unwrap();
    let scope = Scope::new(&Generator::new(4));
    save(&folder, &Gpt2::new(&scope.at("transformer"), &config).unwrap());
    fs::rename(folder.join("model.safetensors"), folder.join("model-00001-of-00001.safetensors")).unwrap();
    let index = json!({"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(folder.join("config.json"), text).unwrap();
    let served = Served::new(root, 1 << 30);
    let answer = served.infer(&request("m", vec![integers("input_ids", &[1, 4], &[1, 2, 3, 39])])).unwrap();
    assert_eq!((answer.outputs[0].name(), answer.outputs[0].shape()), ("logits", &[1, 4, 40][..]));
}

#[test]
fn the_datatype_of_answers_is_that_of_the_stored_weights() {
    let (root, folder) = one_bert();
    let config = read(root.path()).unwrap();
    assert_eq!((config.outputs[0].datatype, &*config.architecture), (Datatype::Fp32, "bert"));
    assert_eq!(config.outputs[0].shape, [Dimension::Free, Dimension::Free, Dimension::Fixed(32)]);
    assert_eq!(config.batching.max_rows.get(), 32);
    let header = json!({
        "__metadata__": {"format": "pt"},
        "embeddings.position_ids": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]},
        "embeddings.word_embeddings.weight": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]},
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    assert_eq!(read(root.path()).unwrap().outputs[0].datatype, Datatype::Bf16);
    fs::write(folder.join("model.safetensors"), [0xff; 100]).unwrap();
    assert!(read(root.path()).unwrap_err().contains("bytes is too long: it is no file of safetensors"));
    fs::write(folder.join("model.safetensors"), [9, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
    assert!(read(root.path()).unwrap_err().starts_with("model.safetensors: no file of safetensors: "));
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    assert!(read(root.path()).unwrap_err().starts_with("model.safetensors: No such file"));
}

#[test]
fn what_is_not_computed_here_is_a_broken_model_that_says_what_to_do() {
    let (root, folder) = one_bert();
    let remedy = ": add a config.toml with python = \"model.py:load\" to serve it with PyTorch";
    let with = |key: &str, value: Value| {
        let mut config: Value = serde_json::from_str(BERT).unwrap();
        config[key] = value;
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        read(root.path()).unwrap_err()
    };
    let expected =
        format!("config.json: model_type is \"mamba\", and only bert, gpt2 and llama can be computed{remedy}");
    assert_eq!(with("model_type", json!("mamba")), expected);
    assert_eq!(with("model_type", Value::Null), format!("config.json: model_type is not there{remedy}"));
    assert_eq!(
        with("architectures", json!(["BertForSequenceClassification"])),
        format!(
            "config.json: architectures has \"BertForSequenceClassification\", and only BertModel of this type can be \
             computed{remedy}"
        )
    );
    assert_eq!(with("hidden_size", json!(-7)), format!("config.json: hidden_size is not a size{remedy}"));

    fs::write(folder.join("config.json"), BERT).unwrap();
    let modules = |modules: &str, pooling: &str| {
        write_sentence_modules(&folder, modules, pooling);
        read(root.path()).map(|config| config.architecture)
    };
    assert_eq!(modules(MODULES, POOLING).unwrap(), "sentences");
    let without_normalize = MODULES.replace("Normalize\"}", "Dense\"}");
    assert!(
        modules(&without_normalize, POOLING)
            .unwrap_err()
            .starts_with("modules.json: modules are Transformer, Pooling, Dense")
    );
    for other in ["cls_token", "weightedmean_tokens"] {
        let pooling = format!("{{\"pooling_mode_mean_tokens\": true, \"pooling_mode_{other}\": true}}");
        assert!(
            modules(MODULES, &pooling).unwrap_err().starts_with("1_Pooling/config.json: pooling_mode_mean_tokens ")
        );
    }
    let elsewhere = MODULES.replacen("\"path\": \"\"", "\"path\": \"0_Transformer\"", 1);
    assert!(modules(&elsewhere, POOLING).unwrap_err().contains("the Transformer is in \"0_Transformer\""));
}

#[test]
fn a_pooling_out_of_the_repository_is_refused() {
    let (root, folder) = one_bert();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("config.json"), POOLING).unwrap();
    fs::write(folder.join("modules.json"), MODULES.replace("1_Pooling", outside.path().to_str().unwrap())).unwrap();
    assert!(read(root.path()).unwrap_err().contains("out of the repository"));
}

#[test]
fn options_that_a_network_does_not_take_leave_the_others_served() {
    let folder = example_models();
    convert(
        &folder.path().join("next-byte"),
        &LLAMA.replacen("\"vocab_size\"", "\"hidden_act\": \"odd\", \"vocab_size\"", 1),
    );
    let served = Served::new(folder, 1 << 30);
    let index = served.serving.index();
    let broken: Vec<_> = index.iter().filter(|entry| entry.state == ModelState::Unavailable).collect();
    assert!(
        matches!(&broken[..], [entry] if entry.name == "next-byte" && entry.reason.contains("hidden_act is \"odd\""))
    );
    assert_eq!(index.len(), 3);
}
