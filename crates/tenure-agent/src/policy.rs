//! The networks that agents share, and their files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use safetensors::{SafeTensorError, SafeTensors};
use tenure_core::user_files::expect_fetched;
use tenure_nn::checkpoint;
use tenure_nn::layers::{Activation, Layer, Linear, Sequential};
use tenure_nn::{Module, Scope, module};
use tenure_tensor::random::Generator;
use tenure_tensor::{Tensor, autograd};

use crate::choices::{LEANINGS, TENSOR_FEATURES};
use crate::features::FEATURES;

/// The format of policies: their inputs and outputs. It is written to files, and files of another format are refused.
const FORMAT: &str = "tenure-policy 1: 18 numbers of a kernel, its price; 25 of a tensor, 5 leanings";
const FORMAT_KEY: &str = "format";
const HIDDEN: usize = 32;

/// Two small networks: one, shared by all sellers, changes prices; one, shared by all tensors, gives leanings.
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

    /// Creates a policy that never changes a price and has no leanings: tensors get room in the order of the density
    /// rule.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn density() -> tenure_nn::Result<Self> {
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

    /// Returns each tensor's leanings, one row per tensor.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn leanings(&self, features: &[f32]) -> tenure_tensor::Result<Tensor> {
        let rows = features.len() / TENSOR_FEATURES;
        self.leanings.forward(&Tensor::from_slice(features, &[rows, TENSOR_FEATURES])?)
    }
}

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
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The bytes are not in the safetensors format.
    #[error("no policy: {0}")]
    Safetensors(#[from] SafeTensorError),
    /// The policy has other inputs or outputs.
    #[error("a policy of the form {found:?}, and this program has {FORMAT:?}: train it anew")]
    Format {
        /// The format of the file.
        found: String,
    },
    /// A value is NaN or infinite.
    #[error("no policy: {name} has what is no finite number: train it anew")]
    NotFinite {
        /// The tensor.
        name: String,
    },
    /// The tensors are not those of the networks, or there is not enough memory for them.
    #[error("no policy: {0}")]
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
    /// [`PolicyError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        let path = path.as_ref();
        let bytes = fs::read(path)
            .and_then(|bytes| expect_fetched(&bytes).map(|()| bytes))
            .map_err(|source| PolicyError::Io { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Reads a policy from a file's bytes.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PolicyError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let found = metadata.metadata().as_ref().and_then(|metadata| metadata.get(FORMAT_KEY));
        if found.is_none_or(|found| found != FORMAT) {
            return Err(PolicyError::Format { found: found.cloned().unwrap_or_default() });
        }
        let mut tensors = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(bytes)?.tensors() {
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
    /// [`PolicyError::Network`], with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PolicyError> {
        let state = self.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        Ok(checkpoint::save(path.as_ref(), state, (FORMAT_KEY, FORMAT))?)
    }
}
