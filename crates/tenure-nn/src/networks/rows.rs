//! Networks for rows of numbers.

use serde::Deserialize;

use super::{Architectures, one_to_one, parse};
use crate::layers::{Activation, Linear, Sequential};

/// The options of a multilayer perceptron.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mlp {
    /// The sizes of a row before each layer and after the last.
    sizes: Vec<usize>,
}

pub(super) fn register(architectures: &mut Architectures) {
    architectures.register("mlp", |scope, options| {
        let Mlp { sizes } = parse(options)?;
        let mut layers = Sequential::default();
        for (index, ends) in sizes.windows(2).enumerate() {
            if index > 0 {
                layers = layers.then(scope, |_| Ok(Activation::Relu))?;
            }
            layers = layers.then(scope, |at| Linear::new(at, ends[0], ends[1]))?;
        }
        Ok(one_to_one(layers))
    });
}
