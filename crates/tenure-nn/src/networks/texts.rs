//! Networks for texts, given as tokens.

use tenure_tensor::{Result, Tensor};

use super::{Architectures, Network, one_to_one, parse};
use crate::models::{Bert, BertConfig, Gpt2, Gpt2Config, Llama, LlamaConfig};
use crate::{module, sentence};

pub(super) fn register(architectures: &mut Architectures) {
    for (name, has_vectors) in [("bert", false), ("sentences", true)] {
        architectures.register(name, move |scope, options| {
            let bert = Bert::new(scope, &parse::<BertConfig>(options)?)?;
            Ok(Box::new(Encoder { bert, has_vectors }))
        });
    }
    architectures.register("gpt2", |scope, options| Ok(one_to_one(Gpt2::new(scope, &parse::<Gpt2Config>(options)?)?)));
    architectures
        .register("llama", |scope, options| Ok(one_to_one(Llama::new(scope, &parse::<LlamaConfig>(options)?)?)));
}

struct Encoder {
    bert: Bert,
    /// Whether the output is a vector for each text rather than for each token.
    has_vectors: bool,
}
module!(Encoder { bert });

impl Network for Encoder {
    fn inputs(&self) -> usize {
        2
    }

    fn outputs(&self) -> usize {
        1
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let tokens = &inputs[0];
        let mask = &inputs[1];
        Ok(vec![match self.has_vectors {
            true => sentence::vectors(&self.bert, tokens, mask)?,
            false => self.bert.forward(tokens, Some(mask))?,
        }])
    }
}
