//! Folders that `transformers` computes in Python. The kind of the class in `config.json` determines inputs and
//! outputs.

use serde_json::{Map, Value};
use tenure_nn::sentence::MODULES;

use super::{CONFIG, ComputedBy, Described, WRITE_CONFIG, class, model_type, refusal, sentences, size, tokens};
use crate::protocol::Datatype;
use crate::repository::files::Folder;
use crate::repository::{Dimension, RepositoryError, TensorSpec};

/// The keys for the size of a token's vector, in different model types. If several are present, the first is the
/// output's.
const HIDDEN_SIZES: [&str; 5] = ["word_embed_proj_dim", "hidden_size", "d_model", "n_embd", "dim"];

/// Describes a folder's inputs and outputs as its class has them. `options` are those of the `config.json` in `model`,
/// which may be a subfolder of `folder`.
pub(super) fn describe(
    folder: &Folder,
    model: &Folder,
    options: &Map<String, Value>,
) -> Result<Described, RepositoryError> {
    let config = ModelConfig { folder: model, options };
    let model_type = model_type(model, options)?;
    if folder.path(MODULES).exists() {
        return sentences::describe(folder, model, options);
    }
    let Some(class) = class(options) else {
        return Err(refusal(model, CONFIG, "architectures", "is not there".into(), WRITE_CONFIG));
    };
    let is = |suffix: &str| class.ends_with(suffix);
    let is_multimodal = is("ForConditionalGeneration") && options.contains_key("text_config");
    let of_each_token = |output, width| vec![(output, vec![Dimension::Free, Dimension::Free, width])];
    if is("ForCausalLM") || is("LMHeadModel") || is_multimodal && !config.is_encoder_decoder() {
        let inputs = tokens(&["input_ids"]);
        let outputs = of_each_token("logits", config.first_size(&["vocab_size"])?);
        return Ok(Described { computed_by: ComputedBy::Loader("tokens"), inputs, outputs });
    }
    let outputs = if is("ForSequenceClassification") {
        vec![("logits", vec![Dimension::Free, config.labels()?])]
    } else if is("ForTokenClassification") {
        of_each_token("logits", config.labels()?)
    } else if is("ForMaskedLM") {
        of_each_token("logits", config.first_size(&["vocab_size"])?)
    } else if is("ForQuestionAnswering") {
        let shape = vec![Dimension::Free, Dimension::Free];
        vec![("start_logits", shape.clone()), ("end_logits", shape)]
    } else if is("ForImageClassification") {
        return config.of_images(model_type, ("logits", vec![Dimension::Free, config.labels()?]));
    } else if config.is_image_encoder(class) {
        let shape = vec![Dimension::Free, Dimension::Free, config.first_size(&HIDDEN_SIZES)?];
        return config.of_images(model_type, ("last_hidden_state", shape));
    } else if config.is_text_encoder(class) {
        of_each_token("last_hidden_state", config.first_size(&HIDDEN_SIZES)?)
    } else {
        let given = format!("has {class:?}, a class whose inputs and outputs are not known here");
        return Err(refusal(model, CONFIG, "architectures", given, WRITE_CONFIG));
    };
    let inputs = tokens(&["input_ids", "attention_mask"]);
    Ok(Described { computed_by: ComputedBy::Loader("masked_tokens"), inputs, outputs })
}

/// A parsed `config.json`.
struct ModelConfig<'a> {
    folder: &'a Folder,
    options: &'a Map<String, Value>,
}

impl ModelConfig<'_> {
    fn has(&self, key: &str) -> bool {
        self.options.contains_key(key)
    }

    fn is_encoder_decoder(&self) -> bool {
        self.options.get("is_encoder_decoder") == Some(&Value::Bool(true))
    }

    /// Returns whether the model answers a vector for each patch of an image. Video models also have frames, and text
    /// models positions; the vocabulary of an image model may be that of patches.
    fn is_image_encoder(&self, class: &str) -> bool {
        let has_patches = ["patch_size", "hidden_size"].into_iter().all(|key| self.has(key));
        let has_others = ["num_frames", "max_position_embeddings"].into_iter().any(|key| self.has(key));
        class.ends_with("Model") && has_patches && !has_others
    }

    fn is_text_encoder(&self, class: &str) -> bool {
        let is_whole = !self.is_encoder_decoder() || class.ends_with("EncoderModel");
        class.ends_with("Model") && self.has("vocab_size") && is_whole
    }

    /// Returns the size of the first key that is present, looking in the text part first; any size if there is none.
    fn first_size(&self, keys: &[&str]) -> Result<Dimension, RepositoryError> {
        let text = self.options.get("text_config").and_then(Value::as_object);
        let found = text.into_iter().chain([self.options]).find_map(|options| {
            keys.iter().find_map(|key| Some((*key, options.get(*key).filter(|value| !value.is_null())?)))
        });
        found.map_or(Ok(Dimension::Free), |(key, value)| size(self.folder, CONFIG, key, value))
    }

    /// Returns the number of classes.
    fn labels(&self) -> Result<Dimension, RepositoryError> {
        match self.options.get("id2label").and_then(Value::as_object) {
            Some(labels) if !labels.is_empty() => Ok(Dimension::Fixed(labels.len() as u64)),
            _ => self.first_size(&["num_labels"]),
        }
    }

    fn of_images(
        &self,
        model_type: &str,
        output: (&'static str, Vec<Dimension>),
    ) -> Result<Described, RepositoryError> {
        let [height, width] = self.image_size(model_type)?;
        let shape = vec![Dimension::Free, self.first_size(&["num_channels"])?, height, width];
        let inputs = vec![TensorSpec { name: "pixel_values".into(), datatype: Datatype::Fp32, shape }];
        Ok(Described { computed_by: ComputedBy::Loader("images"), inputs, outputs: vec![output] })
    }

    /// Returns the height and width, which are written as one number or two.
    fn image_size(&self, model_type: &str) -> Result<[Dimension; 2], RepositoryError> {
        let of = |value| size(self.folder, CONFIG, "image_size", value);
        match self.options.get("image_size") {
            // These models take images of any size, and are mostly used with other sizes than their first training had.
            _ if model_type.starts_with("dino") => Ok([Dimension::Free; 2]),
            Some(Value::Array(sizes)) if sizes.len() == 2 => Ok([of(&sizes[0])?, of(&sizes[1])?]),
            Some(value) if value.is_number() => Ok([of(value)?; 2]),
            _ => Ok([Dimension::Free; 2]),
        }
    }
}
