//! The modules of sentence-transformers after the model. `modules.json` lists them. Each takes the output of the one
//! before.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use tenure_tensor::ops::cat;
use tenure_tensor::{DType, Result as TensorResult, Tensor};

use super::files::{CONFIG, WEIGHTS, inside, load, optional, required, scope, weights};
use super::module_list::{ListedModule, MODULES, PoolingMode, token_width};
use crate::Result;
use crate::checkpoint::{CheckpointError, Under};
use crate::layers::{Activation, Layer, LayerNorm, Linear};
use crate::module::Module;

/// The pooling's folder in encoders without a list of modules.
const POOLING: &str = "1_Pooling";

/// A module after the model.
pub(super) enum SentenceModule {
    /// Pools the tokens' vectors into one vector for each mode, and joins these.
    Pooling(Vec<PoolingMode>),
    Dense {
        linear: Linear,
        activation: Option<Activation>,
    },
    LayerNorm(LayerNorm),
    /// Scales vectors to length 1.
    Normalize,
}

/// The modules of a folder: the model's folder, and the modules after it.
pub(super) struct Modules {
    pub(super) model: String,
    listed: Vec<ListedModule>,
}

impl Modules {
    /// Reads the list of a folder. Without a list, vectors are pooled as `1_Pooling` says, or averaged, and scaled to
    /// length 1.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let file = folder.join(MODULES);
        let Some(mut listed) = optional::<Vec<ListedModule>>(folder, MODULES)? else {
            return Ok(Self { model: String::new(), listed: Vec::new() });
        };
        match listed.first() {
            Some(first) if first.kind() == "Transformer" => {}
            first => {
                let given = first.map_or("has no modules", |first| &first.class);
                let reason = format!("{given}: only encoders that begin with a Transformer can be loaded");
                return Err(CheckpointError::format(&file, reason).into());
            }
        }
        let model = listed.remove(0).path;
        inside(folder, &file, &model)?;
        Ok(Self { model, listed })
    }

    /// Returns the folders of the Pooling modules.
    pub(super) fn poolings(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let file = folder.join(MODULES);
        if !file.exists() {
            return Ok(vec![folder.join(POOLING)]);
        }
        let poolings = self.listed.iter().filter(|listed| listed.kind() == "Pooling");
        poolings.map(|listed| Ok(inside(folder, &file, &listed.path)?)).collect()
    }

    /// Opens the modules after a model whose tokens' vectors have `width` numbers. Returns them and the size of a
    /// text's vector.
    pub(super) fn open(&self, folder: &Path, mut width: usize) -> Result<(Vec<SentenceModule>, usize)> {
        if !folder.join(MODULES).exists() {
            let at = folder.join(POOLING);
            let modes = match optional::<Map<String, Value>>(&at, CONFIG)? {
                Some(said) => {
                    modes(&said, width).map_err(|reason| CheckpointError::format(&at.join(CONFIG), reason))?
                }
                None => vec![PoolingMode::Mean],
            };
            width *= modes.len();
            return Ok((vec![SentenceModule::Pooling(modes), SentenceModule::Normalize], width));
        }
        let file = folder.join(MODULES);
        let mut modules = Vec::new();
        for listed in &self.listed {
            let is_pooled = modules.iter().any(|module| matches!(module, SentenceModule::Pooling(_)));
            if is_pooled == (listed.kind() == "Pooling") {
                let reason =
                    format!("{} stands where it cannot: a Pooling comes once, behind the Transformer", listed.class);
                return Err(CheckpointError::format(&file, reason).into());
            }
            let at = inside(folder, &file, &listed.path)?;
            modules.extend(listed.open(&at, &file, &mut width)?);
        }
        if modules.is_empty() {
            let reason =
                "has no Pooling behind the Transformer: only encoders with one vector for each text can be loaded";
            return Err(CheckpointError::format(&file, reason).into());
        }
        Ok((modules, width))
    }
}

impl ListedModule {
    /// Opens the module in the folder `at`; returns `None` if it changes nothing. Sets `width` to the size of its
    /// vectors.
    fn open(&self, at: &Path, list: &Path, width: &mut usize) -> Result<Option<SentenceModule>> {
        let config = at.join(CONFIG);
        let refused = |reason| CheckpointError::format(&config, reason);
        Ok(match self.kind() {
            "Pooling" => {
                let modes = modes(&required(at, CONFIG)?, *width).map_err(refused)?;
                *width *= modes.len();
                Some(SentenceModule::Pooling(modes))
            }
            "Dense" => {
                let dense: DenseConfig = required(at, CONFIG)?;
                dense.check(*width).map_err(refused)?;
                let mut linear = match dense.bias {
                    true => Linear::new(&scope(), dense.in_features, dense.out_features)?,
                    false => Linear::without_bias(&scope(), dense.in_features, dense.out_features)?,
                };
                load_part(&mut linear, at, "linear.")?;
                *width = dense.out_features;
                Some(SentenceModule::Dense { linear, activation: dense.activation().map_err(refused)? })
            }
            "LayerNorm" => {
                let mut norm = LayerNorm::new(&scope(), &[*width], 1e-5)?;
                load_part(&mut norm, at, "norm.")?;
                Some(SentenceModule::LayerNorm(norm))
            }
            "Normalize" => Some(SentenceModule::Normalize),
            // Dropout has an effect in training only.
            "Dropout" => None,
            _ => {
                let known = "Transformer, Pooling, Dense, LayerNorm, Dropout and Normalize";
                let reason = format!("has {}, and only {known} can be computed", self.class);
                return Err(CheckpointError::format(list, reason).into());
            }
        })
    }
}

/// Loads a layer from the weights in the folder `at`, whose names begin with `prefix`.
fn load_part(layer: &mut dyn Module, at: &Path, prefix: &str) -> Result<()> {
    load(layer, &Under::new(&weights(at)?, prefix), &at.join(WEIGHTS))
}

/// Reads the modes of a Pooling's `config.json`, and checks that its width is the model's.
fn modes(said: &Map<String, Value>, width: usize) -> Result<Vec<PoolingMode>, String> {
    if let Some((key, said)) = token_width(said).filter(|(_, said)| said.as_u64() != Some(width as u64)) {
        return Err(format!("{key} is {said}, and the model's tokens have {width} numbers"));
    }
    PoolingMode::read(said).map_err(|unknown| format!("the pooling {unknown} is unknown"))
}

/// The `config.json` of a Dense.
#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn yes() -> bool {
    true
}

impl DenseConfig {
    fn check(&self, width: usize) -> Result<(), String> {
        let names = [("module_input_name", &self.module_input_name), ("module_output_name", &self.module_output_name)];
        for (key, name) in names {
            if let Some(name) = name.as_ref().filter(|name| *name != "sentence_embedding") {
                return Err(format!("{key} is {name:?}: only sentence_embedding can be computed"));
            }
        }
        if self.use_residual {
            return Err("use_residual is true: only a Dense without it can be computed".into());
        }
        if self.in_features != width {
            return Err(format!("in_features is {}, and vectors have {width} numbers before it", self.in_features));
        }
        Ok(())
    }

    /// Returns the activation after the linear layer: the hyperbolic tangent, if the file names none.
    fn activation(&self) -> Result<Option<Activation>, String> {
        let class = self.activation_function.as_deref().unwrap_or("Tanh");
        Ok(Some(match class.rsplit('.').next().unwrap_or_default() {
            "Identity" => return Ok(None),
            "Tanh" => Activation::Tanh,
            "ReLU" => Activation::Relu,
            "GELU" => Activation::Gelu,
            "SiLU" => Activation::Silu,
            "Sigmoid" => Activation::Sigmoid,
            _ => {
                let known = "Identity, Tanh, ReLU, GELU, SiLU and Sigmoid";
                return Err(format!("activation_function is {class}: only {known} can be computed"));
            }
        }))
    }
}

impl SentenceModule {
    /// Returns the module's parameters, if it has any.
    pub(super) fn module(&mut self) -> Option<&mut dyn Module> {
        match self {
            Self::Pooling(_) | Self::Normalize => None,
            Self::Dense { linear, .. } => Some(linear),
            Self::LayerNorm(norm) => Some(norm),
        }
    }

    /// Computes the module's output from that of the module before: `[texts, length, width]` for a Pooling, else
    /// `[texts, width]`. `mask`, `[texts, length]`, is true for a token.
    pub(super) fn forward(&self, x: &Tensor, mask: &Tensor) -> TensorResult<Tensor> {
        match self {
            Self::Pooling(modes) => {
                let vectors = modes.iter().map(|mode| mode.pool(x, mask)).collect::<TensorResult<Vec<_>>>()?;
                cat(&vectors.iter().collect::<Vec<_>>(), -1)
            }
            Self::Dense { linear, activation: Some(activation) } => activation.forward(&linear.forward(x)?),
            Self::Dense { linear, activation: None } => linear.forward(x),
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Normalize => normalized(x),
        }
    }
}

impl PoolingMode {
    /// Computes a vector for each text, `[texts, width]`, from its tokens' vectors `[texts, length, width]`.
    fn pool(self, hidden: &Tensor, mask: &Tensor) -> TensorResult<Tensor> {
        let is_token = mask.to_dtype(DType::Bool)?.unsqueeze(-1)?;
        let counted = is_token.to_dtype(hidden.dtype())?;
        let weights = match self {
            Self::Cls => return hidden.select(1, 0),
            Self::Max => return hidden.masked_fill(&is_token.logical_not()?, f64::NEG_INFINITY)?.amax(&[1], false),
            Self::Mean | Self::MeanSqrtLenTokens => counted,
            Self::WeightedMean => counted.cumsum(1)?.mul(&counted)?,
            Self::LastToken => {
                // At the last token, the running count of tokens reaches their total.
                let last = counted.cumsum(1)?.eq(&counted.sum(&[1], true)?)?.logical_and(&is_token)?;
                last.to_dtype(hidden.dtype())?
            }
        };
        let sum = hidden.mul(&weights)?.sum(&[1], false)?;
        if self == Self::LastToken {
            return Ok(sum);
        }
        let count = weights.sum(&[1], false)?.clamp_min(1e-9)?;
        sum.div(&if self == Self::MeanSqrtLenTokens { count.sqrt()? } else { count })
    }
}

/// Scales vectors to length 1; zeros stay zeros.
pub(super) fn normalized(vectors: &Tensor) -> TensorResult<Tensor> {
    vectors.div(&vectors.norm(2.0, &[-1], true)?.clamp_min(1e-12)?)
}

/// Averages `[texts, length, width]` over the tokens, without the padding.
pub(super) fn mean(hidden: &Tensor, mask: &Tensor) -> TensorResult<Tensor> {
    PoolingMode::Mean.pool(hidden, mask)
}
