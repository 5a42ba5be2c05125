//! Hugging Face folders that a network of `tenure-nn` computes.

use serde_json::{Map, Value};
use tenure_nn::sentence::MODULES;

use super::{CONFIG, ComputedBy, Described, START_PYTHON, class, model_type, refusal, sentences, size, tokens};
use crate::repository::files::Folder;
use crate::repository::{Dimension, RepositoryError};

/// Describes a folder's inputs and outputs as its network has them. `options` are those of the `config.json` in
/// `model`, which may be a subfolder of `folder`.
pub(super) fn describe(
    folder: &Folder,
    model: &Folder,
    options: &Map<String, Value>,
) -> Result<Described, RepositoryError> {
    let size = |key: &str| size(model, CONFIG, key, options.get(key).unwrap_or(&Value::Null));
    let only = |known: &[&str]| match class(options) {
        Some(class) if !known.contains(&class) => {
            let given = format!("has {class:?}, and only {} of this type is computed here", known.join(" and "));
            Err(refusal(model, CONFIG, "architectures", given, START_PYTHON))
        }
        _ => Ok(()),
    };
    let is_sentences = folder.path(MODULES).exists();
    let (architecture, inputs, output) = match model_type(model, options)? {
        "bert" if is_sentences => {
            sentences::check_native(folder)?;
            let shape = vec![Dimension::Free, size("hidden_size")?];
            ("sentences", &["input_ids", "attention_mask"][..], ("sentence_embedding", shape))
        }
        "bert" => {
            only(&["BertModel"])?;
            let shape = vec![Dimension::Free, Dimension::Free, size("hidden_size")?];
            ("bert", &["input_ids", "attention_mask"][..], ("last_hidden_state", shape))
        }
        model_type @ ("gpt2" | "llama") if !is_sentences => {
            let (architecture, class) =
                if model_type == "gpt2" { ("gpt2", "GPT2LMHeadModel") } else { ("llama", "LlamaForCausalLM") };
            only(&[class])?;
            let shape = vec![Dimension::Free, Dimension::Free, size("vocab_size")?];
            (architecture, &["input_ids"][..], ("logits", shape))
        }
        other => {
            let given = format!("is {other:?}, and only bert, gpt2 and llama are computed here");
            return Err(refusal(model, CONFIG, "model_type", given, START_PYTHON));
        }
    };
    Ok(Described { computed_by: ComputedBy::Network(architecture), inputs: tokens(inputs), outputs: vec![output] })
}
