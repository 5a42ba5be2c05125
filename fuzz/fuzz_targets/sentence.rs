//! Takes any bytes as one of the files that configure a folder's encoder. The first byte chooses the file.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use tenure_nn::sentence::SentenceEncoder;

/// The files, and their contents while another one is fuzzed.
const FILES: [(&str, &str); 5] = [
    (
        "modules.json",
        r#"[{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}, {"path": "", "type": "Normalize"}]"#,
    ),
    ("1_Pooling/config.json", r#"{"pooling_mode": ["mean", "cls"]}"#),
    ("config_sentence_transformers.json", r#"{"prompts": {"query": "the "}, "default_prompt_name": "query"}"#),
    ("sentence_bert_config.json", r#"{"max_seq_length": 12, "do_lower_case": true}"#),
    ("tokenizer_config.json", r#"{"model_max_length": 12}"#),
];

/// The folder of a tiny encoder with these files.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = env::temp_dir().join(format!("tenure-fuzz-sentence-{}", process::id()));
    fs::create_dir_all(folder.join("1_Pooling")).expect("a folder for temporary files");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/tenure-nn/tests/goldens/tiny_bert");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(tiny.join(file), folder.join(file)).expect("a file of the sources");
    }
    FILES.iter().for_each(|(file, content)| fs::write(folder.join(file), content).expect("a temporary file"));
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let [first, bytes @ ..] = bytes else { return };
    let (file, content) = FILES[usize::from(*first) % FILES.len()];
    fs::write(FOLDER.join(file), bytes).expect("a temporary file");
    match SentenceEncoder::open(&FOLDER) {
        Ok(encoder) => {
            // A limit may leave no room for the tokens around each text.
            if let Ok(vectors) = encoder.embed(&["a cat", ""]) {
                assert_eq!(vectors.sizes(), [2, encoder.width()]);
            }
        }
        Err(error) => assert!(error.to_string().starts_with(&*FOLDER.to_string_lossy()), "{error}"),
    }
    fs::write(FOLDER.join(file), content).expect("a temporary file");
});
