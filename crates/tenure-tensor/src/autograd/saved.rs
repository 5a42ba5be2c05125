//! Tensors that are saved for backward.

use std::any::Any;
use std::sync::Arc;

use super::hooks::{SavedId, Unpack, saved_hooks};
use super::meta::TensorKind;
use super::node::{Edge, Node};
use crate::error::AutogradError;
use crate::{Result, Tensor, TensorError, autograd};

/// A tensor as it was when it was saved. PyTorch's `SavedVariable`.
pub(crate) struct SavedTensor {
    content: Content,
    kind: TensorKind,
    /// The storage's version when the tensor was saved.
    version: u64,
    /// The edge that the tensor's gradient goes to.
    origin: SavedOrigin,
}

enum Content {
    /// The tensor, detached. Otherwise a later write in place could make it the result of a node with an edge to the
    /// node that saves it, and the two would own each other.
    Tensor(Tensor),
    /// The result of a pack hook.
    Packed { packed: Box<dyn Any + Send + Sync>, unpack: Unpack },
}

enum SavedOrigin {
    /// The edge of an input, or `None` if it needs no gradient.
    Edge(Option<Edge>),
    /// The tensor is this output of the node that saves it. There is no reference to the node, so that it does not own
    /// itself.
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

    /// Saves a tensor for a hook that computes saved tensors again. `first` is the id of the tensor that was saved first:
    /// if it is this one, which the computation did not make, writes count from then on.
    pub(super) fn again(tensor: &Tensor, first: SavedId) -> Self {
        let is_same = tensor.storage().generation() == first.generation;
        let version = if is_same { first.version } else { tensor.version() };
        let content = Content::Tensor(tensor.detach());
        Self { content, kind: TensorKind::of(tensor), version, origin: SavedOrigin::Edge(None) }
    }

    fn new(tensor: &Tensor, output: Option<usize>) -> Result<Self> {
        let kind = TensorKind::of(tensor);
        let version = tensor.version();
        let origin = output.map_or_else(|| SavedOrigin::Edge(tensor.gradient_edge()), SavedOrigin::Output);
        let content = match saved_hooks() {
            Some((pack, unpack)) => {
                let packed = autograd::no_grad(|| pack(&tensor.detach(), SavedId::of(tensor)))?;
                check_unmodified_by_hook(tensor, version)?;
                Content::Packed { packed, unpack }
            }
            None => Content::Tensor(tensor.detach()),
        };
        Ok(Self { content, kind, version, origin })
    }

    /// Returns the tensor as it was when it was saved. `node` is the name of the node that needs it, for errors;
    /// `itself` is that node if the tensor may be its output.
    pub(crate) fn unpack(&self, node: &str, itself: Option<&Arc<Node>>) -> Result<Tensor> {
        let tensor = match &self.content {
            Content::Tensor(tensor) => {
                self.check_version(node, tensor)?;
                tensor.detach()
            }
            Content::Packed { packed, unpack } => {
                let tensor =
                    autograd::no_grad(|| unpack(&**packed)).map_err(|error| self.with_node(node, error))?.detach();
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
        let edge = match &self.origin {
            SavedOrigin::Edge(edge) => edge.clone(),
            SavedOrigin::Output(output) => itself.map(|node| Edge { node: Arc::clone(node), output: *output }),
        };
        Ok(match edge {
            Some(edge) => tensor.with_edge(edge),
            None => tensor,
        })
    }

    /// Returns an error if the tensor was written to in place after it was saved.
    fn check_version(&self, node: &str, tensor: &Tensor) -> Result<()> {
        let found = tensor.version();
        if found == self.version {
            return Ok(());
        }
        let TensorKind { sizes, dtype, .. } = &self.kind;
        let sizes = sizes.to_vec();
        let writer = tensor.last_writer();
        let (node, origin) = (node.to_owned(), self.origin(node));
        Err(AutogradError::Modified { node, dtype: *dtype, sizes, origin, writer, found, saved: self.version }.into())
    }

    /// Returns a phrase about the operation that made the tensor, or an empty string.
    fn origin(&self, node: &str) -> String {
        match &self.origin {
            SavedOrigin::Output(output) => format!(", output {output} of {node},"),
            SavedOrigin::Edge(Some(edge)) if edge.node.leaf().is_none() => {
                format!(", which {} made,", edge.node.name())
            }
            SavedOrigin::Edge(_) => String::new(),
        }
    }

    /// Fills in the node in a hook's [`Modified`](AutogradError::Modified) error, since a hook does not know the node.
    fn with_node(&self, of: &str, error: TensorError) -> TensorError {
        match error {
            TensorError::Autograd(AutogradError::Modified { node, dtype, sizes, writer, found, saved, .. })
                if node.is_empty() =>
            {
                let node = of.to_owned();
                let origin = self.origin(of);
                AutogradError::Modified { node, dtype, sizes, origin, writer, found, saved }.into()
            }
            error => error,
        }
    }
}

/// Checks that a pack hook did not modify its tensor, which the program goes on to use.
fn check_unmodified_by_hook(tensor: &Tensor, version: u64) -> Result<()> {
    if tensor.version() == version {
        return Ok(());
    }
    let dtype = tensor.dtype();
    let sizes = tensor.sizes();
    let writer = tensor.last_writer();
    let reason = format!(
        "it modified in place, by {writer}, the {dtype} {sizes:?} that it was given, which is used besides: let it \
         copy() the tensor, and modify the copy"
    );
    Err(AutogradError::Other { node: "pack hook of saved tensors".to_owned(), reason }.into())
}
