//! The text that an encoder has before each other one, as `config_sentence_transformers.json` states it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::files::{CONFIG, optional};
use super::modules::Modules;
use crate::Result;
use crate::checkpoint::CheckpointError;

/// The file of an encoder's prompts and of what else sentence-transformers does with its vectors.
pub const SETTINGS: &str = "config_sentence_transformers.json";

/// Prompts that sentence-transformers has in every folder, empty where the folder does not state them.
const EMPTY: [&str; 2] = ["query", "document"];

/// [`SETTINGS`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    prompts: HashMap<String, String>,
    default_prompt_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// Reads the default prompt of a folder: empty, if it has none.
///
/// # Errors
/// Settings with which the vectors would be others: `truncate_dim`, and a prompt that a Pooling leaves out.
pub fn default_prompt(folder: &Path) -> Result<String> {
    let refused = |reason| CheckpointError::format(&folder.join(SETTINGS), reason);
    let mut settings: Settings = optional(folder, SETTINGS)?.unwrap_or_default();
    if let Some(numbers) = settings.truncate_dim {
        let reason = format!("truncate_dim is {numbers}: only whole vectors can be computed, so remove it to get them");
        return Err(refused(reason).into());
    }
    let Some(name) = settings.default_prompt_name else { return Ok(String::new()) };
    let known = settings.prompts.remove(&name).or_else(|| EMPTY.contains(&&*name).then(String::new));
    let missing = || refused(format!("default_prompt_name is {name:?}, which prompts does not have"));
    let prompt = known.ok_or_else(missing)?;
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
