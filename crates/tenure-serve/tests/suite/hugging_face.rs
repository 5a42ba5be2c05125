//! Tests of Hugging Face folders that are served unchanged.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_nn::models::{Bert, BertConfig, Gpt2, Gpt2Config};
use tenure_nn::{Module, Scope, checkpoint};
use tenure_serve::protocol::{Datatype, InferResponse, ModelState};
use tenure_serve::repository::{Config, Dimension, Repository, TensorSpec};
use tenure_serve::service::Service;
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

/// Turns a folder into a Hugging Face folder.
fn convert(folder: &Path, config: &str) {
    fs::remove_file(folder.join("config.toml")).unwrap();
    fs::write(folder.join("config.json"), config).unwrap();
}

fn save(folder: &Path, model: &dyn Module) {
    let state = model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    checkpoint::save(&folder.join("model.safetensors"), state, ("of", "a test")).unwrap();
}

/// Writes a weight file whose header has tensors without elements.
fn write_header(folder: &Path, dtype: &str) {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "embeddings.position_ids": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]},
        "embeddings.word_embeddings.weight": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]},
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Creates a repository whose only folder, `m`, has a tiny BERT.
fn one_bert() -> (TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("m");
    fs::create_dir(&folder).unwrap();
    let config: BertConfig = serde_json::from_str(BERT).unwrap();
    save(&folder, &Bert::new(&Scope::new(&Generator::new(3)), &config).unwrap());
    fs::write(folder.join("config.json"), BERT).unwrap();
    (root, folder)
}

/// The remedies that errors name.
const START_PYTHON: &str = ": start the server with --python PROGRAM, a Python that has PyTorch and transformers, which \
                            serves it, or add a config.toml with python = \"model.py:load\"";
const WRITE_CONFIG: &str = ": add a config.toml with python = \"model.py:load\" to serve it with PyTorch";

fn read(root: &Path) -> Result<Config, String> {
    read_by(Repository::new(root), root)
}

fn read_with_python(root: &Path) -> Result<Config, String> {
    read_by(Repository::new(root).with_python(), root)
}

fn read_by(mut repository: Repository, root: &Path) -> Result<Config, String> {
    let changes = repository.scan().unwrap();
    match (&changes.added[..], &changes.broken[..]) {
        ([model], []) => Ok(model.config.clone()),
        ([], [broken]) => Err(broken.reason.to_string().replace(&format!("{}/m/", root.display()), "")),
        _ => panic!("{changes:?}"),
    }
}

#[test]
fn a_llama_and_sentences_answer_the_same_without_a_configuration_of_ours() {
    let ids = integers("input_ids", &[2, 3], &[5, 9, 3, 7, 1, 0]);
    let mask = integers("attention_mask", &[2, 3], &[1; 6]);
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

    // The same weights are a plain BERT without the modules.
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
fn byte_order_marks_before_a_folders_files_are_skipped() {
    let (root, folder) = one_bert();
    fs::write(folder.join("config.json"), format!("\u{feff}{BERT}")).unwrap();
    write_sentence_modules(&folder, &format!("\u{feff}{MODULES}"), &format!("\u{feff}{POOLING}"));
    assert_eq!(read(root.path()).unwrap().architecture, "sentences");
    let config = r#"
        architecture = "bert"
        config = "config.json"
        inputs = [{ name = "input_ids", datatype = "INT64", shape = [-1, -1] }]
        outputs = [{ name = "vectors", datatype = "FP32", shape = [-1, -1, 32] }]"#;
    fs::write(folder.join("config.toml"), format!("\u{feff}{config}")).unwrap();
    assert_eq!(read(root.path()).unwrap().architecture, "bert");
}

#[test]
fn files_that_git_lfs_did_not_fetch_are_pointers() {
    let (root, folder) = one_bert();
    for name in ["model.safetensors", "config.json"] {
        fs::write(folder.join(name), "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
            .unwrap();
        let said = read(root.path()).unwrap_err();
        assert!(said.starts_with(&format!("{name}: this is a git-lfs pointer")), "{said}");
    }
}

#[test]
fn the_datatype_of_answers_is_that_of_the_stored_weights() {
    let (root, folder) = one_bert();
    let config = read(root.path()).unwrap();
    assert_eq!((config.outputs[0].datatype, &*config.architecture), (Datatype::Fp32, "bert"));
    assert_eq!(config.outputs[0].shape, [Dimension::Free, Dimension::Free, Dimension::Fixed(32)]);
    assert_eq!(config.batching.max_rows.get(), 32);
    write_header(&folder, "BF16");
    assert_eq!(read(root.path()).unwrap().outputs[0].datatype, Datatype::Bf16);
    fs::write(folder.join("model.safetensors"), [0xff; 100]).unwrap();
    assert!(read(root.path()).unwrap_err().contains("bytes is too long: it is not a safetensors file"));
    fs::write(folder.join("model.safetensors"), [9, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
    assert!(read(root.path()).unwrap_err().starts_with("model.safetensors: no file of safetensors: "));
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    assert!(read(root.path()).unwrap_err().starts_with("model.safetensors: No such file"));
}

#[test]
fn an_unsupported_folder_is_a_broken_model_that_says_what_to_do() {
    let (root, folder) = one_bert();
    let with = |key: &str, value: Value| {
        let mut config: Value = serde_json::from_str(BERT).unwrap();
        config[key] = value;
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        read(root.path()).unwrap_err()
    };
    let expected = format!(
        "config.json: model_type is \"roberta\", and only bert, gpt2 and llama are computed here{START_PYTHON}"
    );
    assert_eq!(with("model_type", json!("roberta")), expected);
    assert_eq!(with("model_type", Value::Null), format!("config.json: model_type is not there{WRITE_CONFIG}"));
    assert_eq!(
        with("architectures", json!(["BertForSequenceClassification"])),
        format!(
            "config.json: architectures has \"BertForSequenceClassification\", and only BertModel of this type is \
             computed here{START_PYTHON}"
        )
    );
    assert_eq!(with("hidden_size", json!(-7)), format!("config.json: hidden_size is not a size{WRITE_CONFIG}"));

    fs::write(folder.join("config.json"), BERT).unwrap();
    let modules = |modules: &str, pooling: &str| {
        write_sentence_modules(&folder, modules, pooling);
        read(root.path()).map(|config| config.architecture)
    };
    assert_eq!(modules(MODULES, POOLING).unwrap(), "sentences");
    let twice_normalized = MODULES.replace("Pooling\"},", "Pooling\"}, {\"path\": \"\", \"type\": \"m.Normalize\"},");
    let said = modules(&twice_normalized, POOLING).unwrap_err();
    assert!(said.starts_with("modules.json: modules are Transformer, Pooling, Normalize, Normalize"), "{said}");
    assert!(said.ends_with(START_PYTHON), "{said}");
    for (other, mode) in [("cls_token", "cls and mean"), ("weightedmean_tokens", "mean and weightedmean")] {
        let pooling = format!("{{\"pooling_mode_mean_tokens\": true, \"pooling_mode_{other}\": true}}");
        let expected = format!(
            "1_Pooling/config.json: the pooling is {mode}, and only averages of tokens (mean) are computed here{START_PYTHON}"
        );
        assert_eq!(modules(MODULES, &pooling).unwrap_err(), expected);
    }
    let elsewhere = MODULES.replacen("\"path\": \"\"", "\"path\": \"../other\"", 1);
    assert!(modules(&elsewhere, POOLING).unwrap_err().contains("the Transformer is in \"../other\": it must be"));
}

#[test]
fn a_header_is_read_again_only_when_its_file_has_changed() {
    let (root, folder) = one_bert();
    let weights = folder.join("model.safetensors");
    let mut repository = Repository::new(root.path());
    let mut datatype = || {
        repository.scan().unwrap();
        repository.model("m").unwrap().config.outputs[0].datatype
    };
    write_header(&folder, "F16");
    assert_eq!(datatype(), Datatype::Fp16);
    let modified = fs::metadata(&weights).unwrap().modified().unwrap();
    write_header(&folder, "F64");
    let file = fs::File::options().write(true).open(&weights).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(datatype(), Datatype::Fp16, "nothing tells that the file was written");
    file.set_modified(modified + Duration::from_secs(1)).unwrap();
    assert_eq!(datatype(), Datatype::Fp64);
}

#[test]
fn pickled_weights_are_refused() {
    let (root, folder) = one_bert();
    fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    assert_eq!(
        read(root.path()).unwrap_err(),
        "pytorch_model.bin: weights are pickled, and no pickle is loaded: save them as model.safetensors, as save_pretrained \
         of transformers does"
    );
}

/// Returns how a Python serves a folder with a BERT's weights: the function, and the names, datatypes and shapes of
/// inputs and outputs.
fn described(config: &Value) -> Result<[String; 3], String> {
    let (root, folder) = one_bert();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    read_with_python(root.path()).map(|config| words(&config))
}

fn words(config: &Config) -> [String; 3] {
    let python = config.python.as_ref().unwrap();
    assert_eq!((&*python.source, &*config.architecture), ("tenure.serving.hugging_face", "pytorch"));
    let tensors = |specs: &[TensorSpec]| {
        let sizes = |spec: &TensorSpec| spec.shape.iter().map(Dimension::to_string).collect::<Vec<_>>().join(", ");
        specs
            .iter()
            .map(|spec| format!("{} {} [{}]", spec.name, spec.datatype, sizes(spec)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    [python.function.clone(), tensors(&config.inputs), tensors(&config.outputs)]
}

#[test]
fn a_python_takes_folders_by_the_kind_of_their_class() {
    const TOKENS: [&str; 2] = ["tokens", "input_ids INT64 [-1, -1]"];
    const MASKED: [&str; 2] = ["masked_tokens", "input_ids INT64 [-1, -1], attention_mask INT64 [-1, -1]"];
    let labels = json!({"0": "a", "1": "b", "2": "c"});
    let vocabulary = json!({"vocab_size": 9});
    let cases = [
        ("Qwen3ForCausalLM", vocabulary.clone(), TOKENS, "logits FP32 [-1, -1, 9]"),
        ("OpenAIGPTLMHeadModel", json!({}), TOKENS, "logits FP32 [-1, -1, -1]"),
        (
            "Gemma3ForConditionalGeneration",
            json!({"text_config": vocabulary, "vocab_size": 10}),
            TOKENS,
            "logits FP32 [-1, -1, 9]",
        ),
        ("RobertaForMaskedLM", vocabulary.clone(), MASKED, "logits FP32 [-1, -1, 9]"),
        ("DistilBertForSequenceClassification", json!({"id2label": labels}), MASKED, "logits FP32 [-1, 3]"),
        ("BertForSequenceClassification", json!({"num_labels": 5}), MASKED, "logits FP32 [-1, 5]"),
        ("BertForSequenceClassification", json!({}), MASKED, "logits FP32 [-1, -1]"),
        ("XLMRobertaForTokenClassification", json!({"id2label": labels}), MASKED, "logits FP32 [-1, -1, 3]"),
        ("RobertaForQuestionAnswering", json!({}), MASKED, "start_logits FP32 [-1, -1], end_logits FP32 [-1, -1]"),
        ("MPNetModel", json!({"vocab_size": 9, "hidden_size": 8}), MASKED, "last_hidden_state FP32 [-1, -1, 8]"),
        ("DistilBertModel", json!({"vocab_size": 9, "dim": 7}), MASKED, "last_hidden_state FP32 [-1, -1, 7]"),
        (
            "T5EncoderModel",
            json!({"vocab_size": 9, "d_model": 6, "is_encoder_decoder": true}),
            MASKED,
            "last_hidden_state FP32 [-1, -1, 6]",
        ),
        (
            "ViTForImageClassification",
            json!({"num_channels": 3, "image_size": 32, "id2label": labels}),
            ["images", "pixel_values FP32 [-1, 3, 32, 32]"],
            "logits FP32 [-1, 3]",
        ),
        (
            "ResNetForImageClassification",
            json!({"num_channels": 3}),
            ["images", "pixel_values FP32 [-1, 3, -1, -1]"],
            "logits FP32 [-1, -1]",
        ),
        (
            "BeitModel",
            json!({"image_size": [32, 16], "patch_size": 4, "hidden_size": 8, "vocab_size": 9}),
            ["images", "pixel_values FP32 [-1, -1, 32, 16]"],
            "last_hidden_state FP32 [-1, -1, 8]",
        ),
    ];
    for (class, mut config, [function, inputs], outputs) in cases {
        config["architectures"] = json!([class]);
        config["model_type"] = json!("any");
        assert_eq!(described(&config), Ok([function.into(), inputs.into(), outputs.into()]), "{class}");
    }
    let dino = json!({"architectures": ["Dinov2Model"], "model_type": "dinov2", "num_channels": 3, "image_size": 518,
        "patch_size": 14, "hidden_size": 8});
    let free = "pixel_values FP32 [-1, 3, -1, -1]";
    assert_eq!(described(&dino).unwrap()[1], free, "images of any size");
}

#[test]
fn classes_of_other_kinds_are_refused_with_python_too() {
    let cases = [
        ("T5ForConditionalGeneration", json!({"vocab_size": 9, "is_encoder_decoder": true})),
        ("T5Model", json!({"vocab_size": 9, "is_encoder_decoder": true})),
        ("CLIPModel", json!({"text_config": {"vocab_size": 9}, "vision_config": {"patch_size": 4}})),
        ("ConvNextModel", json!({"patch_size": 4, "hidden_sizes": [8, 16]})),
        ("TimesformerModel", json!({"patch_size": 4, "hidden_size": 8, "num_frames": 8})),
        ("BertForPreTraining", json!({"vocab_size": 9})),
    ];
    for (class, mut config) in cases {
        config["architectures"] = json!([class]);
        config["model_type"] = json!("any");
        let given = "a class whose inputs and outputs are not known here";
        assert_eq!(
            described(&config).unwrap_err(),
            format!("config.json: architectures has {class:?}, {given}{WRITE_CONFIG}")
        );
    }
    let without_class = json!({"model_type": "roberta"});
    let said = described(&without_class).unwrap_err();
    assert_eq!(said, format!("config.json: architectures is not there{WRITE_CONFIG}"));
}

#[test]
fn a_python_takes_sentences_that_are_pooled_in_other_ways() {
    let (root, folder) = one_bert();
    let modules = |modules: &str, pooling: &str| {
        write_sentence_modules(&folder, modules, pooling);
        read_with_python(root.path()).map(|config| words(&config))
    };
    let inputs = "input_ids INT64 [-1, -1], attention_mask INT64 [-1, -1]";
    let vectors =
        |width: &str| Ok(["sentences".to_owned(), inputs.to_owned(), format!("sentence_embedding FP32 [-1, {width}]")]);
    let cls = r#"{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true}"#;
    assert_eq!(modules(MODULES, cls), vectors("32"));
    assert_eq!(modules(MODULES, r#"{"embedding_dimension": 32, "pooling_mode": ["cls", "max"]}"#), vectors("64"));
    assert_eq!(modules(MODULES, r#"{"pooling_mode": "lasttoken"}"#), vectors("-1"));
    fs::create_dir(folder.join("2_Normalize")).unwrap();
    fs::write(folder.join("2_Normalize/config.json"), r#"{"in_features": 32, "out_features": 5}"#).unwrap();
    assert_eq!(modules(&MODULES.replace(".Normalize", ".Dense"), POOLING), vectors("5"));

    let unknown = format!(
        "modules.json: modules have m.WordWeights, and only Transformer, Pooling and then Dense and Normalize can \
         be computed{WRITE_CONFIG}"
    );
    let weighted = MODULES.replace("sentence_transformers.models.Normalize", "m.WordWeights");
    assert_eq!(modules(&weighted, POOLING), Err(unknown));
    let said = modules(MODULES, r#"{"pooling_mode": "median"}"#).unwrap_err();
    assert_eq!(said, format!("1_Pooling/config.json: the pooling is median, which is unknown{WRITE_CONFIG}"));
    let said = modules(MODULES, r#"{"pooling_mode_median_token": true}"#).unwrap_err();
    assert!(said.starts_with("1_Pooling/config.json: the pooling is pooling_mode_median_token, which is"), "{said}");
}

#[test]
fn settings_of_an_encoder_that_change_its_vectors_are_refused_by_name() {
    let (root, folder) = one_bert();
    let without_prompt = POOLING.replacen('{', "{\"include_prompt\": false, ", 1);
    let prompt = r#"{"prompts": {"query": "find: "}, "default_prompt_name": "query"}"#;
    let cases = [
        (r#"{"truncate_dim": 8}"#, POOLING, "config_sentence_transformers.json: truncate_dim is 8: "),
        (prompt, &*without_prompt, "1_Pooling/config.json: include_prompt is false: "),
        (
            r#"{"default_prompt_name": "search"}"#,
            POOLING,
            "config_sentence_transformers.json: default_prompt_name is \"search\", which prompts does not have",
        ),
    ];
    for (settings, pooling, expected) in cases {
        fs::write(folder.join("config_sentence_transformers.json"), settings).unwrap();
        write_sentence_modules(&folder, MODULES, pooling);
        for said in [read(root.path()).unwrap_err(), read_with_python(root.path()).unwrap_err()] {
            assert!(said.starts_with(expected), "{said}");
        }
    }
    write_sentence_modules(&folder, MODULES, POOLING);
    // Every folder has an empty prompt of this name.
    let unstated = r#"{"default_prompt_name": "document"}"#;
    for settings in [r#"{"truncate_dim": null}"#, prompt, unstated] {
        fs::write(folder.join("config_sentence_transformers.json"), settings).unwrap();
        assert_eq!(read(root.path()).unwrap().architecture, "sentences");
    }
}

#[test]
fn networks_here_compute_what_they_can_beside_a_python() {
    let (root, _) = one_bert();
    let config = read_with_python(root.path()).unwrap();
    assert_eq!((&*config.architecture, config.python), ("bert", None));
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
