//! Tensors that are kept for backward.

use std::any::Any;

use super::hooks::{SavedId, Unpack, saved_hooks};
use super::meta::Kind;
use super::node::Edge;
use crate::error::AutogradError;
use crate::{Result, Tensor, autograd};

/// A tensor as it was when it was saved. PyTorch's `SavedVariable`.
pub(crate) struct SavedTensor {
    content: Content,
    kind: Kind,
    /// The version that it had.
    version: u64,
    /// How it requires a gradient: of what was made by the node that saves it, the node does not own itself.
    origin: Origin,
}

enum Content {
    Tensor(Tensor),
    Packed { packed: Box<dyn Any + Send + Sync>, unpack: Unpack },
}

enum Origin {
    /// It is as it was.
    Itself,
    /// Made by this edge, or nothing.
    Edge(Option<Edge>),
    /// Which of the outputs of the node that saves it.
    Output(usize),
}

impl SavedTensor {
    /// Saves an input of a node.
    pub(crate) fn input(tensor: &Tensor) -> Result<Self> {
        Self::new(tensor, None)
    }

    /// Saves an output of the node that saves it.
    pub(crate) fn output(tensor: &Tensor, output: usize) -> Result<Self> {
        Self::new(tensor, Some(output))
    }

    fn new(tensor: &Tensor, output: Option<usize>) -> Result<Self> {
        let (kind, version) = (Kind::of(tensor), tensor.version());
        let (content, origin) = match (saved_hooks(), output) {
            (Some((pack, unpack)), _) => {
                let id = SavedId { generation: tensor.storage().generation(), version };
                let packed = autograd::no_grad(|| pack(&tensor.detach(), id))?;
                let origin = match output {
                    Some(output) => Origin::Output(output),
                    None => Origin::Edge(tensor.gradient_edge()),
                };
                (Content::Packed { packed, unpack }, origin)
            }
            // Not the tensor itself, which has the node that would have it.
            (None, Some(output)) => (Content::Tensor(tensor.detach()), Origin::Output(output)),
            (None, None) => (Content::Tensor(tensor.clone()), Origin::Itself),
        };
        Ok(Self { content, kind, version, origin })
    }

    /// The tensor, as it was. `edge` makes an edge of the node that saved it.
    pub(crate) fn unpack(&self, node: &str, edge: impl Fn(usize) -> Edge) -> Result<Tensor> {
        let tensor = match &self.content {
            Content::Tensor(tensor) => {
                self.check_version(node, tensor)?;
                tensor.clone()
            }
            Content::Packed { packed, unpack } => {
                let tensor = autograd::no_grad(|| unpack(&**packed))?.detach();
                if tensor.sizes() != &self.kind.sizes[..] || tensor.dtype() != self.kind.dtype {
                    let reason = format!(
                        "a saved tensor was unpacked as {} {:?}, but packed as {} {:?}",
                        tensor.dtype(),
                        tensor.sizes(),
                        self.kind.dtype,
                        self.kind.sizes
                    );
                    return Err(AutogradError::Other { node: node.to_owned(), reason }.into());
                }
                tensor
            }
        };
        match &self.origin {
            Origin::Itself => Ok(tensor),
            Origin::Edge(None) => Ok(tensor),
            Origin::Edge(Some(edge)) => Ok(tensor.detach().with_edge(edge.clone())),
            Origin::Output(output) => Ok(tensor.detach().with_edge(edge(*output))),
        }
    }

    fn check_version(&self, node: &str, tensor: &Tensor) -> Result<()> {
        let found = tensor.version();
        if found == self.version {
            return Ok(());
        }
        let origin = match (&self.origin, tensor.grad_fn()) {
            (Origin::Output(output), _) => format!(", output {output} of {node},"),
            (_, Some(made_by)) => format!(", which {} made,", made_by.name()),
            _ => String::new(),
        };
        let Kind { sizes, dtype, .. } = &self.kind;
        let (node, sizes) = (node.to_owned(), sizes.to_vec());
        Err(AutogradError::Modified { node, dtype: *dtype, sizes, origin, found, saved: self.version }.into())
    }
}
