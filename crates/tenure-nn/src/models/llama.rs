//! Llama (Touvron et al., 2023), as Hugging Face has it.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor};

use super::rope::{Rope, Waves};
use crate::layers::{Embedding, Layer, Linear, RmsNorm};
use crate::{Init, Scope, module};

/// How large a Llama is: what `config.json` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LlamaConfig {
    /// Tokens that there are.
    pub vocab_size: usize,
    /// Numbers of one token.
    pub hidden_size: usize,
    /// Numbers between the linear layers.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values, each for several of queries.
    pub num_key_value_heads: usize,
    /// Of the normalisation.
    pub rms_norm_eps: f64,
    /// Positions.
    #[serde(flatten)]
    pub rope: Rope,
    /// The table of tokens is the last layer too.
    #[serde(default)]
    pub tie_word_embeddings: bool,
}

impl Default for LlamaConfig {
    /// TinyLlama, of 1.1 billion parameters.
    fn default() -> Self {
        Self {
            vocab_size: 32_000,
            hidden_size: 2048,
            intermediate_size: 5632,
            num_hidden_layers: 22,
            num_attention_heads: 32,
            num_key_value_heads: 4,
            rms_norm_eps: 1e-5,
            rope: Rope::default(),
            tie_word_embeddings: false,
        }
    }
}

/// Scores for the token that follows each.
pub struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
    rope: Rope,
    head_size: usize,
}
module!(Llama { embed_tokens, layers, norm, lm_head });

impl Llama {
    /// A fresh model.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: &LlamaConfig) -> Result<Self> {
        let (model, hidden) = (scope.at("model"), config.hidden_size);
        let block = |number| Block::new(&model.at("layers").at(number), config);
        let lm_head = (!config.tie_word_embeddings).then(|| linear(&scope.at("lm_head"), hidden, config.vocab_size));
        Ok(Self {
            embed_tokens: Embedding::with_init(&model.at("embed_tokens"), config.vocab_size, hidden, INIT)?,
            layers: (0..config.num_hidden_layers).map(block).collect::<Result<_>>()?,
            norm: RmsNorm::new(&model.at("norm"), &[hidden], config.rms_norm_eps)?,
            lm_head: lm_head.transpose()?,
            rope: config.rope,
            head_size: hidden / config.num_attention_heads,
        })
    }
}

impl Layer for Llama {
    /// Scores `[batch, length, vocabulary]` of tokens `[batch, length]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let x = self.embed_tokens.forward(tokens)?;
        let waves = self.rope.waves(tokens.size(-1)?, self.head_size, x.dtype())?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &waves))?;
        let x = self.norm.forward(&x)?;
        match &self.lm_head {
            Some(head) => head.forward(&x),
            None => x.linear(&self.embed_tokens.weight, None),
        }
    }
}

struct Block {
    input_layernorm: RmsNorm,
    attention: SelfAttention,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}
module!(Block { attention, gate_proj, up_proj, down_proj, input_layernorm, post_attention_layernorm });

impl Block {
    fn new(scope: &Scope, config: &LlamaConfig) -> Result<Self> {
        let (hidden, inner, mlp) = (config.hidden_size, config.intermediate_size, scope.at("mlp"));
        let norm = |name: &str| RmsNorm::new(&scope.at(name), &[hidden], config.rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            attention: SelfAttention::new(&scope.at("self_attn"), config)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            gate_proj: linear(&mlp.at("gate_proj"), hidden, inner)?,
            up_proj: linear(&mlp.at("up_proj"), hidden, inner)?,
            down_proj: linear(&mlp.at("down_proj"), inner, hidden)?,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.input_layernorm.forward(x)?, waves)?)?;
        let normal = self.post_attention_layernorm.forward(&x)?;
        let gated = self.gate_proj.forward(&normal)?.silu()?.mul(&self.up_proj.forward(&normal)?)?;
        x.add(&self.down_proj.forward(&gated)?)
    }
}

struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: usize,
    key_heads: usize,
}
module!(SelfAttention { q_proj, k_proj, v_proj, o_proj });

impl SelfAttention {
    fn new(scope: &Scope, config: &LlamaConfig) -> Result<Self> {
        let (hidden, heads, key_heads) = (config.hidden_size, config.num_attention_heads, config.num_key_value_heads);
        let of_keys = hidden / heads * key_heads;
        Ok(Self {
            q_proj: linear(&scope.at("q_proj"), hidden, hidden)?,
            k_proj: linear(&scope.at("k_proj"), hidden, of_keys)?,
            v_proj: linear(&scope.at("v_proj"), hidden, of_keys)?,
            o_proj: linear(&scope.at("o_proj"), hidden, hidden)?,
            heads,
            key_heads,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves) -> Result<Tensor> {
        let heads =
            |layer: &Linear, count: usize| layer.forward(x)?.unflatten(-1, &[count as isize, -1])?.transpose(1, 2);
        let queries = waves.turn(&heads(&self.q_proj, self.heads)?)?;
        let keys = waves.turn(&heads(&self.k_proj, self.key_heads)?)?;
        let values = heads(&self.v_proj, self.key_heads)?;
        let how = Attention { is_causal: true, ..Attention::default() };
        let found = queries.attention(&keys, &values, &how)?;
        self.o_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}

const INIT: Init = Init::Normal { mean: 0.0, deviation: 0.02 };

fn linear(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
    Linear::with_init(scope, inputs, outputs, INIT, None)
}
