//! Files of BERT and of models with the same layers: their keys in `config.json` and the names of their tensors.

use tenure_tensor::Tensor;

use super::BertConfig;
use super::config::{ConfigFile, Refusal};
use crate::Result;
use crate::layers::Activation;
use crate::module::Source;

/// The values of `model_type` whose models have BERT's layers.
const KNOWN: [&str; 6] = ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert"];

impl TryFrom<ConfigFile> for BertConfig {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        let model = file.or("model_type", "bert".to_owned())?;
        if !KNOWN.contains(&&*model) {
            return Err(format!("model_type is {model:?}: only models with one of {} can be loaded", KNOWN.join(", ")));
        }
        file.only("position_embedding_type", "absolute".to_owned())?;
        file.only("is_decoder", false)?;
        file.only("add_cross_attention", false)?;
        file.no_heads_are_pruned()?;
        let is_mpnet = model == "mpnet";
        let is_distilbert = model == "distilbert";
        let key = |name, of_distilbert| if is_distilbert { of_distilbert } else { name };
        let pad_token_id = file.nullable("pad_token_id", isize::from(!is_distilbert && model != "bert"))?;
        Ok(Self {
            vocab_size: file.required("vocab_size")?,
            hidden_size: file.required(key("hidden_size", "dim"))?,
            num_hidden_layers: file.required(key("num_hidden_layers", "n_layers"))?,
            num_attention_heads: file.required(key("num_attention_heads", "n_heads"))?,
            intermediate_size: file.required(key("intermediate_size", "hidden_dim"))?,
            max_position_embeddings: file.required("max_position_embeddings")?,
            first_position: match &*model {
                "bert" | "distilbert" => 0,
                // MPNet's positions begin at 2 with any padding token.
                "mpnet" => 2,
                _ => first_position(pad_token_id)?,
            },
            relative_attention_num_buckets: is_mpnet.then(|| buckets(&file)).transpose()?,
            type_vocab_size: if is_mpnet || is_distilbert { 0 } else { file.or("type_vocab_size", 2)? },
            hidden_act: file.activation(key("hidden_act", "activation"), Activation::Gelu)?,
            layer_norm_eps: file.or("layer_norm_eps", 1e-12)?,
            hidden_dropout_prob: file.or(key("hidden_dropout_prob", "dropout"), 0.1)?,
            attention_probs_dropout_prob: file.or(key("attention_probs_dropout_prob", "attention_dropout"), 0.1)?,
            pad_token_id,
            initializer_range: file.or("initializer_range", 0.02)?,
        })
    }
}

/// Reads the number of distance buckets. Half of them are for each direction, and half of those for near distances.
fn buckets(file: &ConfigFile) -> Result<usize, Refusal> {
    let buckets = file.or("relative_attention_num_buckets", 32)?;
    if buckets >= 4 {
        return Ok(buckets);
    }
    Err(format!("relative_attention_num_buckets is {buckets}: at least 4 are expected"))
}

/// Returns the position of a text's first token, which is one after the padding token's position.
fn first_position(padding: Option<isize>) -> Result<usize, Refusal> {
    let padding = padding.and_then(|padding| usize::try_from(padding).ok());
    padding
        .map(|padding| padding + 1)
        .ok_or_else(|| "pad_token_id: a token is expected, from which positions are counted".into())
}

/// The tensors of a file of BERT, or of a model with the same layers, under BERT's names.
pub(crate) struct BertNames<'a> {
    source: &'a dyn Source,
    /// The prefix of all names in a model with more layers on top, such as `roberta.`.
    prefix: String,
}

/// Parts of BERT's names, each with the part that other files have in its place: old files, MPNet's and DistilBERT's.
const OTHER_NAMES: [&[(&str, &str)]; 3] = [
    &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")],
    &[
        ("attention.self.query", "attention.attn.q"),
        ("attention.self.key", "attention.attn.k"),
        ("attention.self.value", "attention.attn.v"),
        ("attention.output.dense", "attention.attn.o"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
    ],
    &[
        ("encoder.layer", "transformer.layer"),
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
    ],
];

impl<'a> BertNames<'a> {
    /// Wraps the tensors of `source`.
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        const FIRST: &str = "embeddings.word_embeddings.weight";
        let prefix = source.names().into_iter().find_map(|name| name.strip_suffix(FIRST).map(str::to_owned));
        Self { source, prefix: prefix.unwrap_or_default() }
    }

    /// Returns the name that a tensor has in the file, or BERT's name if the file has none of them.
    fn in_file(&self, name: &str) -> String {
        let name = format!("{}{name}", self.prefix);
        let other =
            |parts: &&[(&str, &str)]| parts.iter().fold(name.clone(), |name, (part, other)| name.replace(part, other));
        let others = OTHER_NAMES.iter().map(other);
        std::iter::once(name.clone()).chain(others).find(|name| self.source.sizes(name).is_some()).unwrap_or(name)
    }
}

impl Source for BertNames<'_> {
    /// Returns the names in the file.
    fn names(&self) -> Vec<String> {
        self.source.names()
    }

    fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.source.sizes(&self.in_file(name))
    }

    fn check(&self, name: &str) -> Result<()> {
        self.source.check(&self.in_file(name))
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        self.source.tensor(&self.in_file(name))
    }
}
