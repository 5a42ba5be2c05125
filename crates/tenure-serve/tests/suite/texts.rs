//! Tests of texts, and of the vectors that models answer for them.

use std::path::{Path, PathBuf};
use std::{env, fs};

use bytes::Bytes;
use tenure_nn::checkpoint::{CheckpointError, Weights, save};
use tenure_nn::sentence::SentenceEncoder;
use tenure_nn::{Error, Source};
use tenure_serve::examples::{self, ExampleError};
use tenure_serve::service::{ServeError, Service};
use tenure_tensor::Tensor;
use tokio::runtime::Runtime;

use crate::served::{Served, integers, request};

/// Returns the folder of tenure-nn's encoders.
fn goldens() -> PathBuf {
    // The variable names the folder on a machine without the sources.
    env::var_os("TENURE_NN_GOLDENS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure-nn/tests/goldens"), PathBuf::from)
}

/// Returns the vector that the model `tiny` answers for a text's tokens.
fn answer(served: &Served, tokens: &[u32]) -> Bytes {
    let ids: Vec<i64> = tokens.iter().copied().map(i64::from).collect();
    let shape = [1, ids.len()];
    let inputs = vec![integers("input_ids", &shape, &ids), integers("attention_mask", &shape, &vec![1; ids.len()])];
    served.infer(&request("tiny", inputs)).unwrap().outputs[0].bytes().clone()
}

#[test]
fn texts_are_made_tokens_with_the_tokenizer_of_a_models_folder() {
    let encoder = goldens().join("tiny_bert");
    let folder = tempfile::tempdir().unwrap();
    examples::write(folder.path(), Some(("tiny", &encoder))).unwrap();
    let served = Served::new(folder, 1 << 30);
    let runtime = Runtime::new().unwrap();
    let texts = |model: &str| runtime.block_on(served.serving.texts(model));
    let tiny = texts("tiny").unwrap();
    assert_eq!(tiny.max_rows, 32);
    let answer = answer(&served, &tiny.tokenizer.unwrap()("a cat").unwrap());
    let expected = SentenceEncoder::open(&encoder).unwrap().embed(&["a cat"]).unwrap();
    assert_eq!(answer[..], expected.to_bytes().unwrap());

    assert!(texts("next-byte").unwrap().tokenizer.is_none());
    assert!(matches!(texts("unknown"), Err(ServeError::UnknownModel { .. })));
    // The tokenizer is read again with its model.
    runtime.block_on(served.serving.unload("tiny")).unwrap();
    assert!(matches!(texts("tiny"), Err(ServeError::NotReady { .. })));
    fs::write(served.folder.path().join("tiny/tokenizer.json"), "{").unwrap();
    runtime.block_on(served.serving.load("tiny")).unwrap();
    let error = texts("tiny").err().unwrap().to_string();
    assert!(error.starts_with("the tokenizer of \"tiny\" cannot be read: "), "{error}");
}

#[test]
fn texts_have_the_vectors_of_an_encoder_with_a_default_prompt_and_lower_case() {
    let golden = goldens().join("tiny_bert");
    let encoder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join(file), encoder.path().join(file)).unwrap();
    }
    let write = |file: &str, text: &str| fs::write(encoder.path().join(file), text).unwrap();
    write("sentence_bert_config.json", r#"{"max_seq_length": 9, "do_lower_case": true}"#);
    write(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "The dog: "}, "default_prompt_name": "query"}"#,
    );
    let folder = tempfile::tempdir().unwrap();
    examples::write(folder.path(), Some(("tiny", encoder.path()))).unwrap();
    let served = Served::new(folder, 1 << 30);
    let tokenizer = Runtime::new().unwrap().block_on(served.serving.texts("tiny")).unwrap().tokenizer.unwrap();
    for text in ["a CAT", "the memory and the cat and the dog and the mat"] {
        let answer = answer(&served, &tokenizer(text).unwrap());
        let expected = SentenceEncoder::open(encoder.path()).unwrap().embed(&[text]).unwrap();
        assert_eq!(answer[..], expected.to_bytes().unwrap(), "{text}");
    }
}

#[test]
fn an_encoder_whose_model_is_in_a_subfolder_answers_as_the_library_does() {
    let golden = goldens().join("tiny_bert");
    let root = tempfile::tempdir().unwrap();
    let encoder = root.path().join("tiny");
    fs::create_dir_all(encoder.join("0_Transformer")).unwrap();
    fs::create_dir_all(encoder.join("1_Pooling")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join(file), encoder.join("0_Transformer").join(file)).unwrap();
    }
    let write = |file: &str, text: &str| fs::write(encoder.join(file), text).unwrap();
    write("0_Transformer/sentence_bert_config.json", r#"{"max_seq_length": 9, "do_lower_case": true}"#);
    write("1_Pooling/config.json", r#"{"pooling_mode": "mean"}"#);
    write(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "The dog: "}, "default_prompt_name": "query"}"#,
    );
    let module =
        |path: &str, kind: &str| format!("{{\"path\": {path:?}, \"type\": \"sentence_transformers.models.{kind}\"}}");
    let modules = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        .map(|(path, kind)| module(path, kind));
    write("modules.json", &format!("[{}]", modules.join(", ")));
    let text = "the memory and the CAT and the dog and the mat";
    let expected = SentenceEncoder::open(&encoder).unwrap().embed(&[text]).unwrap().to_bytes().unwrap();
    let examples = tempfile::tempdir().unwrap();
    examples::write(examples.path(), Some(("tiny", &encoder))).unwrap();
    for folder in [root, examples] {
        let served = Served::new(folder, 1 << 30);
        let tokenizer = Runtime::new().unwrap().block_on(served.serving.texts("tiny")).unwrap().tokenizer.unwrap();
        assert_eq!(answer(&served, &tokenizer(text).unwrap())[..], expected);
    }
}

/// Splits the tiny encoder's weights into two files and an index.
fn shard(encoder: &Path) {
    let golden = goldens().join("tiny_bert");
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(golden.join(file), encoder.join(file)).unwrap();
    }
    let weights = Weights::open(&golden.join("model.safetensors")).unwrap();
    let mut weight_map = serde_json::Map::new();
    for part in 0..2 {
        let file = format!("model-{part}.safetensors");
        let names: Vec<String> = weights.names().into_iter().skip(part).step_by(2).collect();
        let tensors: Vec<Tensor> = names.iter().map(|name| weights.tensor(name).unwrap()).collect();
        save(&encoder.join(&file), names.iter().cloned().zip(&tensors), ("format", "pt")).unwrap();
        weight_map.extend(names.into_iter().map(|name| (name, file.clone().into())));
    }
    let index = serde_json::json!({ "weight_map": weight_map });
    fs::write(encoder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn an_encoder_in_several_files_is_an_example() {
    let encoder = tempfile::tempdir().unwrap();
    shard(encoder.path());
    let folder = tempfile::tempdir().unwrap();
    examples::write(folder.path(), Some(("tiny", encoder.path()))).unwrap();
    let served = Served::new(folder, 1 << 30);
    let tokenizer = Runtime::new().unwrap().block_on(served.serving.texts("tiny")).unwrap().tokenizer.unwrap();
    let expected = SentenceEncoder::open(encoder.path()).unwrap().embed(&["a cat"]).unwrap();
    assert_eq!(answer(&served, &tokenizer("a cat").unwrap())[..], expected.to_bytes().unwrap());
}

#[test]
fn examples_that_cannot_be_written_leave_nothing_and_the_next_try_works() {
    let encoder = tempfile::tempdir().unwrap();
    shard(encoder.path());
    let shard = encoder.path().join("model-1.safetensors");
    fs::rename(&shard, encoder.path().join("kept")).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("models");
    let write = || examples::write(&folder, Some(("tiny", encoder.path()))).map_err(Box::new);
    let said = write().unwrap_err().to_string();
    let index = encoder.path().join("model.safetensors.index.json");
    assert!(said.starts_with(&format!("{}: weight_map[", index.display())), "{said}");
    assert!(said.contains("\"model-1.safetensors\", which is not there"), "{said}");
    assert!(!folder.exists());

    fs::create_dir(&folder).unwrap();
    write().unwrap_err();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::rename(encoder.path().join("kept"), &shard).unwrap();
    assert_eq!(write().unwrap(), ["digits", "next-byte", "tiny"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}

#[test]
fn an_encoder_whose_weights_are_damaged_is_no_example_and_is_not_copied() {
    let golden = goldens().join("tiny_bert");
    let folder = tempfile::tempdir().unwrap();
    let refusal = |encoder: &Path| {
        let error = examples::write(folder.path(), Some(("tiny", encoder))).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
        error
    };
    let cut = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    let encoder = tempfile::tempdir().unwrap();
    shard(encoder.path());
    cut(&encoder.path().join("model-1.safetensors"));
    let error = refusal(encoder.path());
    assert!(matches!(error, ExampleError::Weights(Error::Checkpoint(CheckpointError::Format { .. }))), "{error}");

    let encoder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join(file), encoder.path().join(file)).unwrap();
    }
    let path = encoder.path().join("model.safetensors");
    cut(&path);
    let error = refusal(encoder.path());
    assert!(matches!(error, ExampleError::Weights(Error::Checkpoint(CheckpointError::Format { .. }))), "{error}");

    let whole = Weights::open(&golden.join("model.safetensors")).unwrap();
    let write = |change: &dyn Fn(&str, Tensor) -> Option<Tensor>| {
        let tensors = whole.names().into_iter().map(|name| (change(&name, whole.tensor(&name).unwrap()), name));
        let tensors: Vec<_> = tensors.filter_map(|(tensor, name)| Some((name, tensor?))).collect();
        save(&path, tensors.iter().map(|(name, tensor)| (name.clone(), tensor)), ("format", "pt")).unwrap();
    };
    let last = "encoder.layer.1.output.LayerNorm.bias";
    write(&|name, tensor| {
        let values = vec![f32::NAN; tensor.numel()];
        Some(if name.ends_with(last) { Tensor::from_slice(&values, tensor.sizes()).unwrap() } else { tensor })
    });
    assert!(matches!(refusal(encoder.path()), ExampleError::NotFinite { path } if path == encoder.path()));
    write(&|name, tensor| (!name.ends_with(last)).then_some(tensor));
    assert!(matches!(refusal(encoder.path()), ExampleError::Weights(_)));
}

#[test]
fn an_unfinished_folder_of_a_killed_program_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(".tenure-models-a1b2c3");
    fs::create_dir_all(left.join("digits")).unwrap();
    fs::write(left.join("digits/model.safetensors"), "half").unwrap();
    fs::create_dir(folder.path().join(".git")).unwrap();
    examples::write(folder.path(), None).unwrap();
    assert!(!left.exists() && folder.path().join(".git").exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn an_encoder_of_other_modules_is_no_example() {
    let encoders = goldens().join("encoders");
    for (name, expected) in
        [("bert", "modules.json: modules are Transformer, Pooling, Dense, "), ("xlm-roberta", "the pooling is cls")]
    {
        let folder = tempfile::tempdir().unwrap();
        let error = examples::write(folder.path(), Some(("tiny", &encoders.join(name)))).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
