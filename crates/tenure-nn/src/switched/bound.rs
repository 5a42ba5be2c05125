//! Binding: a network without values gets tensors that are views of an image's groups.

use std::collections::HashMap;

use tenure_core::{Layout, Storage};
use tenure_tensor::{DType, Tensor, TensorError};

use crate::networks::Network;
use crate::{Result, StateError};

/// The place of a network's tensor in an image. The tensor is contiguous there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<'a> {
    /// The tensor's name in the network.
    pub name: &'a str,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The number of its group.
    pub group: usize,
    /// The offset in bytes from the group's beginning.
    pub begin: u64,
}

/// The tensors that replace a network's tensors without values.
#[derive(Default)]
pub struct BoundTensors {
    /// Pairs of a tensor without values and its replacement.
    tensors: Vec<(Tensor, Tensor)>,
}

impl BoundTensors {
    /// Replaces the network's tensors without values by views of groups, whose storages `storage` returns by number.
    ///
    /// # Errors
    /// The network has no tensor of a name; a tensor does not lie within its group. The network is unchanged then.
    pub fn bind<'a>(
        network: &mut dyn Network,
        placed: impl IntoIterator<Item = Placed<'a>>,
        storage: impl Fn(usize) -> Storage,
    ) -> Result<Self> {
        let shapes: HashMap<&str, &Tensor> = network.state().into_iter().collect();
        let mut storages = HashMap::new();
        let mut tensors = Vec::new();
        for Placed { name, dtype, group, begin } in placed {
            let shape = *shapes.get(name).ok_or_else(|| StateError::Names {
                of: "model",
                missing: Vec::new(),
                unexpected: vec![name.into()],
            })?;
            let to_error = |error| TensorError::from(tenure_core::Error::from(error));
            let contiguous = Layout::contiguous(shape.sizes()).map_err(to_error)?;
            let offset = begin as usize / dtype.size();
            let layout = Layout::strided(contiguous.sizes(), contiguous.strides(), offset).map_err(to_error)?;
            let storage = storages.entry(group).or_insert_with(|| storage(group)).clone();
            tensors.push((shape.clone(), Tensor::from_storage(storage, layout, dtype)?));
        }
        replace(network, tensors.iter().map(|(shape, view)| (shape, view)))?;
        Ok(Self { tensors })
    }

    /// Puts the tensors without values back.
    ///
    /// # Errors
    /// A network of parameters and buffers gives no error. After an error of another one it keeps the groups.
    pub fn unbind(self, network: &mut dyn Network) -> Result<()> {
        replace(network, self.tensors.iter().map(|(shape, view)| (view, shape)))
    }
}

/// Returns a network's outputs, of which those that are views of weights are copied: the weights may be evicted.
pub(super) fn copy_weight_views(bound: &BoundTensors, answers: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let is_weight =
        |answer: &Tensor| bound.tensors.iter().any(|(_, view)| view.storage().is_alias_of(answer.storage()));
    let owned = answers.into_iter().map(|answer| if is_weight(&answer) { answer.copy() } else { Ok(answer) });
    Ok(owned.collect::<tenure_tensor::Result<_>>()?)
}

/// Replaces each pair's first tensor by the second wherever the network has it. Tensors are the same if their ids are.
fn replace<'a>(network: &mut dyn Network, pairs: impl Iterator<Item = (&'a Tensor, &'a Tensor)>) -> Result<()> {
    let by_id: HashMap<usize, &Tensor> = pairs.map(|(from, to)| (from.id(), to)).collect();
    network.change(&|tensor| Ok(by_id.get(&tensor.id()).map_or(tensor, |to| to).clone()))
}
