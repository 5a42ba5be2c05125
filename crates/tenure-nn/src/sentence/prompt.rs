//! The default prompt of an encoder: a text before each text, as `config_sentence_transformers.json` states it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::files::{CONFIG, optional};
use super::modules::Modules;
use crate::Result;
use crate::checkpoint::CheckpointError;

/// The file of an encoder's prompts, and of further settings of sentence-transformers for its vectors.
pub const SETTINGS: &str = "config_sentence_transformers.json";

/// The prompts that sentence-transformers has in every folder. They are empty unless the folder states them.
const EMPTY: [&str; 2] = ["query", "document"];

/// The contents of [`SETTINGS`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    prompts: HashMap<String, String>,
    default_prompt_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// Reads the default prompt of a folder. It is empty if the folder has none.
///
/// # Errors
/// A setting is not supported that would change the vectors: `truncate_dim`, or a Pooling that leaves the prompt out.
pub fn default_prompt(folder: &Path) -> Result<String> {
    let refused = |reason| CheckpointError::format(&folder.join(SETTINGS), reason);
    let mut settings: Settings = optional(folder, SETTINGS)?.unwrap_or_default();
    if let Some(numbers) = settings.truncate_dim {
        let reason = format!("truncate_dim is {numbers}: only whole vectors can be computed, so remove it to get them");
        return Err(refused(reason).into());
    }
    let Some(name) = settings.default_prompt_name else { return Ok(String::new()) };
    let known = settings.prompts.remove(&name).or_else(|| EMPTY.contains(&&*name).then(String::new));
    let prompt =
        known.ok_or_else(|| refused(format!("default_prompt_name is {name:?}, which prompts does not have")))?;
    if !prompt.is_empty() {
        expect_pooled_prompts(folder)?;
    }
    Ok(prompt)
}

/// Refuses a folder whose Pooling leaves out the tokens of prompts.
fn expect_pooled_prompts(folder: &Path) -> Result<()> {
    for pooling in Modules::read(folder)?.poolings(folder)? {
        let config: Map<String, Value> = optional(&pooling, CONFIG)?.unwrap_or_default();
        if config.get("include_prompt") == Some(&Value::Bool(false)) {
            let reason = "include_prompt is false: only encoders whose prompts count can be computed";
            return Err(CheckpointError::format(&pooling.join(CONFIG), reason).into());
        }
    }
    Ok(())
}
