//! A network whose table stays on the host, and files with its values.

use std::path::{Path, PathBuf};

use tenure_nn::layers::{Embedding, Layer, Linear};
use tenure_nn::networks::Network;
use tenure_nn::{Module, Scope, checkpoint, module};
use tenure_tensor::random::Generator;
use tenure_tensor::{Device, Result, Tensor};

/// A network with a table that is large enough to stay on the host, and layers that are listed in another order than
/// they are used.
pub(crate) struct Texts {
    last: Linear,
    layers: Vec<Linear>,
    table: Embedding,
}
module!(Texts { last, layers, table });

/// The size of the table in bytes.
pub(crate) const TABLE_BYTES: u64 = 9000 * 32 * 4;

impl Texts {
    pub(crate) fn new(scope: &Scope) -> Result<Self> {
        let layers = (0..3).map(|index| Linear::new(&scope.at("layers").at(index), 32, 32));
        Ok(Self {
            last: Linear::new(&scope.at("last"), 32, 5)?,
            layers: layers.collect::<Result<_>>()?,
            table: Embedding::new(&scope.at("table"), 9000, 32)?,
        })
    }
}

impl Network for Texts {
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut x = self.table.forward(&inputs[0])?;
        for layer in self.layers.iter().rev() {
            x = layer.forward(&x)?.relu()?;
        }
        Ok(vec![self.last.forward(&x)?])
    }
}

/// Draws a network's values with a seed on the first CUDA device, and writes them to a file in a folder.
pub(crate) fn drawn(folder: &Path, seed: u64) -> (Texts, PathBuf) {
    let drawn = Texts::new(&Scope::new(&Generator::new(seed)).with_device(Device::cuda(0))).unwrap();
    let path = folder.join(format!("{seed}.safetensors"));
    let state = Module::state(&drawn).into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    checkpoint::save(&path, state, ("made", "by a test")).unwrap();
    (drawn, path)
}
