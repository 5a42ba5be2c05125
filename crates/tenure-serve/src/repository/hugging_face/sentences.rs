//! Folders of sentence-transformers: the modules that follow the network which computes the tokens' vectors.

use serde_json::{Map, Value};
use tenure_nn::sentence::{ListedModule, MODULES, PoolingMode, SETTINGS, default_prompt, token_width};

use super::{CONFIG, ComputedBy, Described, START_PYTHON, WRITE_CONFIG, refusal, size, tokens};
use crate::repository::config::json;
use crate::repository::files::Folder;
use crate::repository::{Dimension, RepositoryError};

/// The pooling of tokens' vectors into one vector.
struct Pooling {
    /// The file that describes the pooling.
    file: String,
    /// The modes, whose vectors are concatenated.
    modes: Vec<PoolingMode>,
    width: Option<Dimension>,
}

/// Rejects folders whose vectors are not averages normalized to length 1, the only ones that the network here computes.
pub(super) fn check_native(folder: &Folder) -> Result<(), RepositoryError> {
    let modules: Vec<ListedModule> = json(folder, MODULES)?;
    let kinds: Vec<&str> = modules.iter().map(ListedModule::kind).collect();
    if kinds != ["Transformer", "Pooling", "Normalize"] {
        let given = format!("are {}, and only Transformer, Pooling, Normalize are computed here", kinds.join(", "));
        return Err(refusal(folder, MODULES, "modules", given, START_PYTHON));
    }
    let pooling = Pooling::read(folder, &modules[1])?;
    if pooling.modes != [PoolingMode::Mean] {
        let modes: Vec<String> = pooling.modes.iter().map(PoolingMode::to_string).collect();
        let given = format!("is {}, and only averages of tokens (mean) are computed here", modes.join(" and "));
        return Err(refusal(folder, &pooling.file, "the pooling", given, START_PYTHON));
    }
    check_settings(folder)
}

/// Describes a folder's inputs and outputs as Python computes them.
pub(super) fn describe(
    folder: &Folder,
    model: &Folder,
    options: &Map<String, Value>,
) -> Result<Described, RepositoryError> {
    let modules: Vec<ListedModule> = json(folder, MODULES)?;
    let [_, pooling, rest @ ..] = &modules[..] else {
        let given = "have no Transformer and Pooling".into();
        return Err(refusal(folder, MODULES, "modules", given, WRITE_CONFIG));
    };
    let is_known = |(place, module): &(usize, &ListedModule)| match place {
        0 => module.kind() == "Transformer",
        1 => module.kind() == "Pooling",
        _ => matches!(module.kind(), "Dense" | "Normalize"),
    };
    if let Some((_, module)) = modules.iter().enumerate().find(|module| !is_known(module)) {
        let given = format!(
            "have {}, and only Transformer, Pooling and then Dense and Normalize can be computed",
            module.class
        );
        return Err(refusal(folder, MODULES, "modules", given, WRITE_CONFIG));
    }
    if options.get("is_encoder_decoder") == Some(&Value::Bool(true)) {
        let given = "is true, and only encoders or decoders alone can be computed".into();
        return Err(refusal(model, CONFIG, "is_encoder_decoder", given, WRITE_CONFIG));
    }
    let mut width = Pooling::read(folder, pooling)?.vector();
    check_settings(folder)?;
    for dense in rest.iter().filter(|module| module.kind() == "Dense") {
        let said: Map<String, Value> = json(folder, &config_of(dense))?;
        width = size(folder, &config_of(dense), "out_features", said.get("out_features").unwrap_or(&Value::Null))?;
    }
    Ok(Described {
        computed_by: ComputedBy::Loader("sentences"),
        inputs: tokens(&["input_ids", "attention_mask"]),
        outputs: vec![("sentence_embedding", vec![Dimension::Free, width])],
    })
}

/// Rejects settings that the text tokenizer or the vectors cannot follow. The pooling's file must have been read
/// before.
fn check_settings(folder: &Folder) -> Result<(), RepositoryError> {
    if folder.path(SETTINGS).exists() {
        folder.file(SETTINGS)?;
        default_prompt(&folder.path(""))?;
    }
    Ok(())
}

impl Pooling {
    fn read(folder: &Folder, module: &ListedModule) -> Result<Self, RepositoryError> {
        let file = config_of(module);
        let said: Map<String, Value> = json(folder, &file)?;
        let modes = PoolingMode::read(&said).map_err(|given| {
            refusal(folder, &file, "the pooling", format!("is {given}, which is unknown"), WRITE_CONFIG)
        })?;
        let width = token_width(&said).map(|(key, value)| size(folder, &file, key, value)).transpose()?;
        Ok(Self { file, modes, width })
    }

    /// Returns the size of a text's vector.
    fn vector(&self) -> Dimension {
        match self.width {
            Some(Dimension::Fixed(width)) => Dimension::Fixed(width * self.modes.len() as u64),
            _ => Dimension::Free,
        }
    }
}

/// Returns the path of a module's configuration in its folder.
fn config_of(module: &ListedModule) -> String {
    format!("{}/{CONFIG}", module.path)
}
