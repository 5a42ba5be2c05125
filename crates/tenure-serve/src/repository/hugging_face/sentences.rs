//! Folders of sentence-transformers: what follows the network that computes the tokens' vectors.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{CONFIG, ComputedBy, Described, START_PYTHON, WRITE_CONFIG, refusal, size, tokens};
use crate::repository::config::json;
use crate::repository::files::Folder;
use crate::repository::{Dimension, RepositoryError};

/// The file that makes a folder one of sentence-transformers.
pub(super) const MODULES: &str = "modules.json";

/// Modes of pooling by their keys of older releases, and by their names of newer ones.
const MODES: [(&str, &str); 6] = [
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
];

const MEAN: &str = "mean";

/// A module of a folder.
#[derive(Deserialize)]
struct SentenceModule {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

/// How one vector is made of many.
struct Pooling {
    /// The file that says so.
    file: String,
    /// Names of modes, one vector behind the other.
    modes: Vec<String>,
    width: Option<Dimension>,
}

impl SentenceModule {
    /// The class without its package: packages were renamed from one release to another.
    fn kind(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }

    fn file(&self) -> String {
        format!("{}/{CONFIG}", self.path)
    }
}

/// Refuses folders whose vectors are not averages of length 1, which are all that the network here computes.
pub(super) fn check_native(folder: &Folder) -> Result<(), RepositoryError> {
    let modules: Vec<SentenceModule> = json(folder, MODULES)?;
    let kinds: Vec<&str> = modules.iter().map(SentenceModule::kind).collect();
    if kinds != ["Transformer", "Pooling", "Normalize"] {
        let given = format!("are {}, and only Transformer, Pooling, Normalize are computed here", kinds.join(", "));
        return Err(refusal(folder, MODULES, "modules", given, START_PYTHON));
    }
    check_transformer(folder, &modules[0])?;
    let pooling = Pooling::read(folder, &modules[1])?;
    if pooling.modes != [MEAN] {
        let given = format!("is {}, and only averages of tokens (mean) are computed here", pooling.modes.join(" and "));
        return Err(refusal(folder, &pooling.file, "the pooling", given, START_PYTHON));
    }
    Ok(())
}

/// Describes a folder as Python computes it.
pub(super) fn describe(folder: &Folder, options: &Map<String, Value>) -> Result<Described, RepositoryError> {
    let modules: Vec<SentenceModule> = json(folder, MODULES)?;
    let [transformer, pooling, rest @ ..] = &modules[..] else {
        let given = "have no Transformer and Pooling".into();
        return Err(refusal(folder, MODULES, "modules", given, WRITE_CONFIG));
    };
    let is_known = |(place, module): &(usize, &SentenceModule)| match place {
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
    check_transformer(folder, transformer)?;
    if options.get("is_encoder_decoder") == Some(&Value::Bool(true)) {
        let given = "is true, and only encoders or decoders alone can be computed".into();
        return Err(refusal(folder, CONFIG, "is_encoder_decoder", given, WRITE_CONFIG));
    }
    let mut width = Pooling::read(folder, pooling)?.vector();
    for dense in rest.iter().filter(|module| module.kind() == "Dense") {
        let said: Map<String, Value> = json(folder, &dense.file())?;
        width = size(folder, &dense.file(), "out_features", said.get("out_features").unwrap_or(&Value::Null))?;
    }
    Ok(Described {
        computed_by: ComputedBy::Loader("sentences"),
        inputs: tokens(&["input_ids", "attention_mask"]),
        outputs: vec![("sentence_embedding", vec![Dimension::Free, width])],
    })
}

fn check_transformer(folder: &Folder, module: &SentenceModule) -> Result<(), RepositoryError> {
    if module.path.is_empty() {
        return Ok(());
    }
    let given = format!("is in {:?}, and only one in the folder itself can be computed", module.path);
    Err(refusal(folder, MODULES, "the Transformer", given, WRITE_CONFIG))
}

impl Pooling {
    fn read(folder: &Folder, module: &SentenceModule) -> Result<Self, RepositoryError> {
        let file = module.file();
        let said: Map<String, Value> = json(folder, &file)?;
        let unknown = |given: String| {
            refusal(folder, &file, "the pooling", format!("is {given}, which is unknown"), WRITE_CONFIG)
        };
        let modes = match said.get("pooling_mode") {
            Some(Value::String(mode)) => vec![mode.clone()],
            Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).map(String::from).collect(),
            Some(other) => return Err(unknown(other.to_string())),
            None => old_modes(&said).map_err(|key| unknown(key.into()))?,
        };
        if let Some(mode) = modes.iter().find(|mode| MODES.iter().all(|(_, known)| mode != known)) {
            return Err(unknown(mode.clone()));
        }
        let width =
            ["word_embedding_dimension", "embedding_dimension"].into_iter().find_map(|key| said.get_key_value(key));
        let width = width.map(|(key, value)| size(folder, &file, key, value)).transpose()?;
        Ok(Self { file, modes, width })
    }

    /// Size of the vector of a text.
    fn vector(&self) -> Dimension {
        match self.width {
            Some(Dimension::Fixed(width)) => Dimension::Fixed(width * self.modes.len() as u64),
            _ => Dimension::Free,
        }
    }
}

/// The modes whose keys are true, or else a key that is unknown.
fn old_modes(said: &Map<String, Value>) -> Result<Vec<String>, &str> {
    let is_true = |key: &str| said.get(key) == Some(&Value::Bool(true));
    let is_unknown = |key: &str| key.starts_with("pooling_mode_") && MODES.iter().all(|(known, _)| key != *known);
    if let Some(key) = said.keys().find(|key| is_unknown(key) && is_true(key)) {
        return Err(key);
    }
    let modes: Vec<String> = MODES.iter().filter(|(key, _)| is_true(key)).map(|(_, mode)| (*mode).into()).collect();
    Ok(if modes.is_empty() { vec![MEAN.into()] } else { modes })
}
