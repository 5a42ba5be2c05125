//! The policy of the agents that place tensors: its two networks, and their file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use safetensors::{SafeTensorError, SafeTensors};
use tenure_core::user_files::expect_fetched;
use tenure_nn::checkpoint;
use tenure_nn::layers::{Activation, Layer, Linear, Sequential};
use tenure_nn::{Module, Scope, module};
use tenure_plan::planner::Treatment;
use tenure_tensor::random::Generator;
use tenure_tensor::{Tensor, autograd};

use crate::features::FEATURES;

/// The name of the file format, which says what the networks' inputs and outputs are. Each file has it in its metadata
/// under [`FORMAT_KEY`]; a file with another name is refused.
const FORMAT: &str = "tenure-policy 1: 18 numbers of a kernel, its price; 25 of a tensor, 5 leanings";
const FORMAT_KEY: &str = "format";
const HIDDEN: usize = 32;

/// The number of features of each tensor. A change of their meaning needs another [`FORMAT`].
pub(crate) const TENSOR_FEATURES: usize = 25;
/// The number of leanings of a tensor. A *leaning* is a score that the policy gives: one for each treatment, of which
/// the highest wins, and one that is added to the bid and so gives the tensor an earlier turn.
pub(crate) const LEANINGS: usize = Treatment::ALL.len() + 1;
/// The number of rounds that sellers are trained for: after these, prices have settled.
pub(crate) const ROUNDS: usize = 8;

/// Two small networks. Placement is a market: each kernel sells fast memory, and each tensor buys it for
/// the kernels of its lifetime.
///
/// The first network is shared by all sellers and changes their prices. The second is shared by all tensors and gives
/// each its *leanings*: a score for each treatment (keep it, move it away between uses, recompute it, leave it in a
/// slower tier), of which the highest decides, and a number that is added to the tensor's priority.
pub struct Policy {
    prices: Sequential,
    pub(crate) leanings: Sequential,
}
module!(Policy { prices, leanings });

impl Policy {
    /// Creates an untrained policy.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(seed: u64) -> tenure_nn::Result<Self> {
        let generator = Generator::new(seed);
        let scope = Scope::new(&generator);
        Ok(Self {
            prices: network(&scope.at("prices"), FEATURES, 1)?,
            leanings: network(&scope.at("leanings"), TENSOR_FEATURES, LEANINGS)?,
        })
    }

    /// Creates a policy whose networks return 0 for all inputs, since all their parameters are 0.
    ///
    /// It never changes a price, so every kernel keeps the same first price. It has no leanings, so every tensor is
    /// kept if there is room. Room is given in descending order of a tensor's worth per byte and per kernel of its
    /// lifetime. If the worth is the number of accessed bytes, this is the order of
    /// [`Rule::Density`](tenure_plan::Rule::Density).
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn zero() -> tenure_nn::Result<Self> {
        let policy = Self::new(0)?;
        autograd::no_grad(|| policy.parameters().iter().try_for_each(|parameter| parameter.zero_()))?;
        Ok(policy)
    }

    /// Returns the change of the logarithm of each seller's price, as a vector. `features` has a row for each seller.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn changes(&self, features: Vec<f32>) -> tenure_tensor::Result<Tensor> {
        let rows = features.len() / FEATURES;
        let features = Tensor::from_vec(features, &[rows, FEATURES])?;
        self.prices.forward(&features)?.reshape(&[rows as isize])
    }

    /// Returns each tensor's leanings: a matrix with a row of [`LEANINGS`] numbers per tensor. `features` has
    /// [`TENSOR_FEATURES`] numbers per tensor.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn leanings(&self, features: &[f32]) -> tenure_tensor::Result<Tensor> {
        let rows = features.len() / TENSOR_FEATURES;
        self.leanings.forward(&Tensor::from_slice(features, &[rows, TENSOR_FEATURES])?)
    }
}

/// Makes a network of three linear layers with SiLU between them.
fn network(scope: &Scope, inputs: usize, outputs: usize) -> tenure_tensor::Result<Sequential> {
    Sequential::default()
        .then(scope, |at| Linear::new(at, inputs, HIDDEN))?
        .then(scope, |_| Ok(Activation::Silu))?
        .then(scope, |at| Linear::new(at, HIDDEN, HIDDEN))?
        .then(scope, |_| Ok(Activation::Silu))?
        .then(scope, |at| Linear::new(at, HIDDEN, outputs))
}

/// The reason why a policy cannot be read or written. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The bytes are not in the safetensors format.
    #[error("invalid policy: {0}")]
    Safetensors(#[from] SafeTensorError),
    /// The file has no policy, or one of another format, whose networks may have other inputs or outputs.
    #[error("the policy has the format {found:?}, and this program reads {FORMAT:?}: train it again")]
    Format {
        /// The name of the file's format; empty if it has none.
        found: String,
    },
    /// A tensor contains NaN or infinity.
    #[error("invalid policy: {name} contains a NaN or an infinity: train it again")]
    NotFinite {
        /// The tensor's name.
        name: String,
    },
    /// The file's tensors have other names or sizes than the networks' parameters; there is not enough memory for them;
    /// or the file cannot be written.
    #[error("invalid policy: {0}")]
    Network(#[from] tenure_nn::Error),
}

impl Policy {
    /// Returns the policy that comes with the crate, which [`train`](crate::train::train) makes with default options.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn trained() -> Result<Self, PolicyError> {
        Self::from_bytes(include_bytes!("policy.safetensors"))
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// [`PolicyError::Io`] if the file cannot be read; the errors of [`from_bytes`](Self::from_bytes).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        let path = path.as_ref();
        let bytes = fs::read(path)
            .and_then(|bytes| expect_fetched(&bytes).map(|()| bytes))
            .map_err(|source| PolicyError::Io { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Reads a policy from the bytes of a file.
    ///
    /// # Errors
    /// The bytes are not in the safetensors format; they have another format of policies, other tensors, or values that
    /// are not finite; or there is not enough memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PolicyError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let found = metadata.metadata().as_ref().and_then(|metadata| metadata.get(FORMAT_KEY));
        if found.is_none_or(|found| found != FORMAT) {
            return Err(PolicyError::Format { found: found.cloned().unwrap_or_default() });
        }
        let mut tensors = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(bytes)?.tensors() {
            // The parameters of this format are all f32, so the file's dtype is not looked at.
            let values = view.data().chunks_exact(4).filter_map(|bytes| bytes.try_into().ok().map(f32::from_le_bytes));
            let values: Vec<f32> = values.collect();
            if values.iter().any(|value| !value.is_finite()) {
                return Err(PolicyError::NotFinite { name });
            }
            let tensor = Tensor::from_vec(values, view.shape()).map_err(tenure_nn::Error::from)?;
            tensors.insert(name, tensor);
        }
        let policy = Self::new(0).map_err(PolicyError::Network)?;
        policy.load(&tensors)?;
        Ok(policy)
    }

    /// Writes the policy as safetensors. The file is written atomically.
    ///
    /// # Errors
    /// [`PolicyError::Network`] if the file cannot be written; its message names the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PolicyError> {
        let state = self.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        Ok(checkpoint::save(path.as_ref(), state, (FORMAT_KEY, FORMAT))?)
    }
}
