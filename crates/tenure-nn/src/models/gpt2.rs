//! GPT-2 (Radford et al., 2019), as Hugging Face has it.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor};

use crate::layers::{Dropout, Embedding, Layer, LayerNorm};
use crate::{Init, Mode, Parameter, Scope, module};

/// How large a GPT-2 is: what `config.json` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Gpt2Config {
    /// Tokens that there are.
    pub vocab_size: usize,
    /// Tokens of the longest text.
    pub n_positions: usize,
    /// Numbers of one token.
    pub n_embd: usize,
    /// Layers.
    pub n_layer: usize,
    /// Heads of each layer.
    pub n_head: usize,
    /// Of the normalisation.
    pub layer_norm_epsilon: f64,
    /// How much of the embedding is left out in training.
    pub embd_pdrop: f64,
    /// How much attention is left out in training.
    pub attn_pdrop: f64,
    /// How much of each part's result is left out in training.
    pub resid_pdrop: f64,
}

impl Default for Gpt2Config {
    /// The small one, of 124 million parameters.
    fn default() -> Self {
        Self {
            vocab_size: 50_257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            layer_norm_epsilon: 1e-5,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            resid_pdrop: 0.1,
        }
    }
}

/// Scores for the token that follows each. The table of tokens is the last layer too.
pub struct Gpt2 {
    wte: Embedding,
    wpe: Embedding,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
    dropout: Dropout,
}
module!(Gpt2 { wte, wpe, blocks, ln_f, dropout });

impl Gpt2 {
    /// A fresh model. `scope` may be at `transformer`, as in some files.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        let table = |name: &str, count| Embedding::with_init(&scope.at(name), count, config.n_embd, normal(0.02));
        let block = |number| Block::new(&scope.at("h").at(number), config);
        Ok(Self {
            wte: table("wte", config.vocab_size)?,
            wpe: table("wpe", config.n_positions)?,
            blocks: (0..config.n_layer).map(block).collect::<Result<_>>()?,
            ln_f: norm(&scope.at("ln_f"), config)?,
            dropout: Dropout::new(config.embd_pdrop),
        })
    }
}

impl Layer for Gpt2 {
    /// Scores `[batch, length, vocabulary]` of tokens `[batch, length]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = self.wpe.weight.narrow(0, 0, tokens.size(-1)?)?;
        let x = self.dropout.forward(&self.wte.forward(tokens)?.add(&positions)?)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x))?;
        self.ln_f.forward(&x)?.linear(&self.wte.weight, None)
    }
}

struct Block {
    ln_1: LayerNorm,
    attn: SelfAttention,
    ln_2: LayerNorm,
    c_fc: Projection,
    c_proj: Projection,
    dropout: Dropout,
}
module!(Block { ln_1, attn, ln_2, c_fc, c_proj, dropout });

impl Block {
    fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        let (size, mlp) = (config.n_embd, scope.at("mlp"));
        Ok(Self {
            ln_1: norm(&scope.at("ln_1"), config)?,
            attn: SelfAttention::new(&scope.at("attn"), config)?,
            ln_2: norm(&scope.at("ln_2"), config)?,
            c_fc: Projection::new(&mlp.at("c_fc"), size, 4 * size, 0.02)?,
            c_proj: Projection::new(&mlp.at("c_proj"), 4 * size, size, residual(config))?,
            dropout: Dropout::new(config.resid_pdrop),
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.dropout.forward(&self.attn.forward(&self.ln_1.forward(x)?)?)?)?;
        let inner = self.c_fc.forward(&self.ln_2.forward(&x)?)?.gelu_tanh()?;
        x.add(&self.dropout.forward(&self.c_proj.forward(&inner)?)?)
    }
}

struct SelfAttention {
    c_attn: Projection,
    c_proj: Projection,
    mode: Mode,
    heads: usize,
    dropout: f64,
}
module!(SelfAttention { c_attn, c_proj, mode });

impl SelfAttention {
    fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        let size = config.n_embd;
        Ok(Self {
            c_attn: Projection::new(&scope.at("c_attn"), size, 3 * size, 0.02)?,
            c_proj: Projection::new(&scope.at("c_proj"), size, size, residual(config))?,
            mode: Mode::default(),
            heads: config.n_head,
            dropout: config.attn_pdrop,
        })
    }
}

impl Layer for SelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (all, size) = (self.c_attn.forward(x)?, x.size(-1)?);
        let heads =
            |part: usize| all.narrow(-1, part * size, size)?.unflatten(-1, &[self.heads as isize, -1])?.transpose(1, 2);
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { is_causal: true, dropout, ..Attention::default() };
        let found = heads(0)?.attention(&heads(1)?, &heads(2)?, &how)?;
        self.c_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}

/// x W + b, the weight the other way round than in a linear layer: Hugging Face's `Conv1D`.
struct Projection {
    /// `[inputs, outputs]`.
    weight: Parameter,
    bias: Parameter,
}
module!(Projection { weight, bias });

impl Projection {
    fn new(scope: &Scope, inputs: usize, outputs: usize, deviation: f64) -> Result<Self> {
        let weight = scope.parameter("weight", &[inputs, outputs], normal(deviation))?;
        Ok(Self { weight, bias: scope.parameter("bias", &[outputs], Init::ZEROS)? })
    }
}

impl Layer for Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.weight.transpose(0, 1)?, Some(&self.bias))
    }
}

fn norm(scope: &Scope, config: &Gpt2Config) -> Result<LayerNorm> {
    LayerNorm::new(scope, &[config.n_embd], config.layer_norm_epsilon)
}

fn normal(deviation: f64) -> Init {
    Init::Normal { mean: 0.0, deviation }
}

/// Of what is added up over the layers, so that the sum stays as large for any number of them.
fn residual(config: &Gpt2Config) -> f64 {
    0.02 / (2.0 * config.n_layer as f64).sqrt()
}
