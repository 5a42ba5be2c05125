//! The tensor itself.

mod array;
mod bytes;
mod create;
mod format;
mod operators;
mod read;
mod series;

pub use array::Nested;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tenure_core::{DType, Device, Layout, Storage};

use crate::autograd::{self, Edge, HookHandle, Kind, Meta, Node, View};
use crate::error::AutogradError;
use crate::{Result, TensorError, cuda};

/// Elements of one dtype, laid out on a storage that views share. C10's `TensorImpl`.
///
/// A `Tensor` is a handle: clones are the same tensor, with the same gradient. What a view ([`view`](Self::view),
/// [`select`](Self::select), ...) shares is the storage: what is written to one shows in the other.
///
/// Dimensions are counted from 0, or from -1 backwards. Operations return errors and panic never.
#[derive(Clone)]
pub struct Tensor {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Storage,
    layout: Layout,
    dtype: DType,
    device: Device,
    version: Arc<Version>,
    meta: Meta,
}

/// The writes in place to a storage, through whichever of its views: a handle that does not keep its bytes.
#[derive(Clone)]
pub struct Writes {
    version: Arc<Version>,
}

/// Counts writes in place, for all views together.
#[derive(Default)]
struct Version {
    count: AtomicU64,
    /// The operation that wrote last.
    writer: Mutex<&'static str>,
}

impl Version {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn last_writer(&self) -> &'static str {
        *self.writer.lock()
    }
}

impl Writes {
    /// How many there were: [`Tensor::version`].
    pub fn count(&self) -> u64 {
        self.version.count()
    }

    /// The operation that wrote last; empty if none has.
    pub fn last_writer(&self) -> &'static str {
        self.version.last_writer()
    }
}

impl Tensor {
    /// A tensor on a storage.
    ///
    /// # Errors
    /// The storage is too small for the layout.
    pub fn from_storage(storage: Storage, layout: Layout, dtype: DType) -> Result<Self> {
        Self::with_writes(storage, layout, dtype, &Writes { version: Arc::default() })
    }

    fn new(storage: Storage, layout: Layout, dtype: DType, device: Device, version: Arc<Version>) -> Self {
        Self { inner: Arc::new(Inner { storage, layout, dtype, device, version, meta: Meta::default() }) }
    }

    /// The same of elements whose writes were counted before, such as those of a tensor that was moved away and came back: who
    /// saves it is told of all writes, and takes it for no other version.
    ///
    /// # Errors
    /// Those of [`from_storage`](Self::from_storage).
    pub fn with_writes(storage: Storage, layout: Layout, dtype: DType, writes: &Writes) -> Result<Self> {
        let (device, bytes) = storage.place();
        layout.check_bounds(dtype, bytes)?;
        Ok(Self::new(storage, layout, dtype, device, Arc::clone(&writes.version)))
    }

    /// Other elements of the same storage, without a gradient.
    pub(crate) fn alias(&self, layout: Layout) -> Self {
        let Inner { storage, dtype, device, version, .. } = &*self.inner;
        Self::new(storage.clone(), layout, *dtype, *device, Arc::clone(version))
    }

    /// The bytes that it is laid out on.
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// Sizes, strides and offset on the storage.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Elements along each dimension.
    pub fn sizes(&self) -> &[usize] {
        self.layout().sizes()
    }

    /// Distance of neighbours along each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        self.layout().strides()
    }

    /// Elements along a dimension.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn size(&self, dim: isize) -> Result<usize> {
        Ok(self.sizes()[self.existing_dim("size", dim)?])
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.layout().rank()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.layout().numel()
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Whether its elements lie one after the other, the last dimension densest.
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    /// Whether both are one tensor.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// What no other tensor has while this one is there: for sets of tensors that are held.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// How often it, or a view of its storage, was written to in place.
    pub fn version(&self) -> u64 {
        self.inner.version.count()
    }

    /// The writes in place to it, and to all views of its storage, those to come too.
    pub fn writes(&self) -> Writes {
        Writes { version: Arc::clone(&self.inner.version) }
    }

    /// Notes a write in place by the operation `op`, so that a graph that saved this tensor refuses to use it. For
    /// whoever writes through [`Access`](crate::Access); operations do it themselves.
    pub fn bump_version(&self, op: &'static str) {
        *self.inner.version.writer.lock() = op;
        self.inner.version.count.fetch_add(1, Ordering::AcqRel);
        if !self.device().is_cpu() {
            cuda::note_write(self, op);
        }
    }

    /// Whether both are views of the same writes.
    pub(crate) fn shares_version(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.version, &other.inner.version)
    }

    /// The operation that wrote to it last, or to a view of its storage.
    pub(crate) fn last_writer(&self) -> &'static str {
        self.inner.version.last_writer()
    }

    /// The dimension that `dim` means, for the operation `op`.
    pub(crate) fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        dimension(op, dim, self.rank())
    }

    /// The same, for what needs a dimension: a tensor of none has not even dimension 0.
    pub(crate) fn existing_dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        if self.rank() == 0 {
            return Err(TensorError::shape(op, format!("dimension {dim} was asked for, but the tensor has none")));
        }
        self.dim(op, dim)
    }

    /// Whether gradients with respect to it are computed: it was said so, or it was computed from what they are for.
    pub fn requires_grad(&self) -> bool {
        self.meta().requires_grad()
    }

    /// Says whether gradients with respect to this leaf are computed. Returns it.
    ///
    /// # Errors
    /// It is no leaf, or has no floating dtype.
    pub fn requires_grad_(self, requires_grad: bool) -> Result<Self> {
        self.meta().set_requires_grad(self.dtype(), requires_grad)?;
        Ok(self)
    }

    /// Whether it was not computed by an operation that has a gradient.
    pub fn is_leaf(&self) -> bool {
        self.meta().is_leaf()
    }

    /// What made it; none for a leaf.
    pub fn grad_fn(&self) -> Option<Arc<Node>> {
        self.meta().edge().map(|edge| edge.node)
    }

    /// What [`backward`](Self::backward) has added up.
    pub fn grad(&self) -> Option<Self> {
        self.inner.meta.grad()
    }

    /// Replaces what has been added up. Returns what was there.
    ///
    /// # Errors
    /// A gradient of other sizes, dtype or device; this tensor as its own. Taking the gradient away never fails.
    pub fn set_grad(&self, grad: Option<Self>) -> Result<Option<Self>> {
        let mistake = grad.as_ref().and_then(|grad| {
            let (found, expected) = (Kind::of(grad), Kind::of(self));
            if grad.is_same(self) {
                return Some("a tensor cannot be its own gradient".to_owned());
            }
            (found != expected).then(|| format!("a gradient of {found} was given for a tensor of {expected}"))
        });
        match mistake {
            None => Ok(self.inner.meta.set_grad(grad)),
            Some(reason) => Err(AutogradError::Other { node: "set_grad".into(), reason }.into()),
        }
    }

    /// The same elements, on the same storage, of which no gradient goes further.
    pub fn detach(&self) -> Self {
        self.alias(self.layout().clone())
    }

    /// Adds the gradients of this tensor of one element to the leaves that it was computed from.
    ///
    /// # Errors
    /// Those of [`autograd::backward`].
    pub fn backward(&self) -> Result<()> {
        autograd::backward(&[self], &[], autograd::Options::default())
    }

    /// Calls `hook` with every gradient with respect to this tensor; it may give another in its place.
    ///
    /// # Errors
    /// It requires no gradient.
    pub fn register_hook(
        &self,
        hook: impl Fn(&Self) -> Result<Option<Self>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.requires_grad() {
            return Err(no_gradient("register_hook"));
        }
        Ok(self.meta().add_hook(Arc::new(hook)))
    }

    /// Calls `hook` with this leaf whenever [`backward`](Self::backward) has added to its [`grad`](Self::grad), while it
    /// goes on with others: once in a pass, when the gradient is whole.
    ///
    /// # Errors
    /// It is no leaf, or requires no gradient.
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Self) -> Result<()> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.is_leaf() {
            return Err(AutogradError::NotLeaf.into());
        }
        if !self.requires_grad() {
            return Err(no_gradient("register_post_accumulate_grad_hook"));
        }
        Ok(self.meta().add_accumulated_hook(Arc::new(move |leaf| hook(leaf).map(|()| None))))
    }

    /// Makes [`backward`](Self::backward) leave the gradient of this tensor in [`grad`](Self::grad), though it is no leaf.
    ///
    /// # Errors
    /// It requires no gradient.
    pub fn retain_grad(&self) -> Result<()> {
        if self.is_leaf() {
            return if self.requires_grad() { Ok(()) } else { Err(no_gradient("retain_grad")) };
        }
        let inner = Arc::downgrade(&self.inner);
        self.meta().retain_grad(Arc::new(move |grad| {
            if let Some(inner) = inner.upgrade() {
                Self { inner }.accumulate_grad(grad.clone())?;
            }
            Ok(None)
        }));
        Ok(())
    }

    pub(crate) fn gradient_edge(&self) -> Option<Edge> {
        self.meta().gradient_edge(self)
    }

    /// Makes it the result of a node.
    pub(crate) fn set_edge(&self, edge: Edge) {
        self.inner.meta.set_edge(edge, self.version());
    }

    /// Says that it is a view of another tensor.
    pub(crate) fn set_view_of(&self, other: &Self) {
        let (base, in_no_grad) = match other.view_of() {
            Some(view) => (view.base, view.in_no_grad || !autograd::is_grad_enabled()),
            None => (other.clone(), !autograd::is_grad_enabled()),
        };
        self.inner.meta.set_view(base, self.version(), in_no_grad);
    }

    /// What it is a view of.
    pub(crate) fn view_of(&self) -> Option<View> {
        self.inner.meta.view()
    }

    /// With the edge that it has now: see [`autograd::view_edge`].
    fn meta(&self) -> &Meta {
        let meta = &self.inner.meta;
        if let Some(edge) = meta.stale_base(self.version()).and_then(|base| autograd::view_edge(&base, self)) {
            self.set_edge(edge);
        }
        meta
    }

    pub(crate) fn with_edge(self, edge: Edge) -> Self {
        self.set_edge(edge);
        self
    }

    /// Adds to the gradient.
    pub(crate) fn accumulate_grad(&self, grad: Self) -> Result<()> {
        let _one = self.inner.meta.accumulating();
        let mut sum = self.inner.meta.set_grad(None);
        let added = match &mut sum {
            None => autograd::own(grad, self.layout()).map(|grad| sum = Some(grad)),
            Some(sum) => autograd::add_to(sum, grad),
        };
        self.inner.meta.set_grad(sum);
        added
    }

    /// Calls the hooks of a leaf whose gradient was added to.
    pub(crate) fn accumulated(&self) -> Result<()> {
        match self.inner.meta.accumulated_hooks() {
            Some(hooks) => hooks.run(|| "a leaf".to_owned(), self.clone()).map(drop),
            None => Ok(()),
        }
    }

    /// Whether nobody else has it, nor a view of its storage, which came from an allocator: it can be overwritten unseen.
    pub(crate) fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.inner)
            .is_some_and(|inner| inner.storage.is_unique() && inner.storage.allocator().is_some())
    }
}

fn no_gradient(op: &str) -> TensorError {
    let reason = "a tensor that requires a gradient is needed".to_owned();
    AutogradError::Other { node: op.to_owned(), reason }.into()
}

/// The dimension of a tensor of `rank` dimensions that `dim` means. One of none has dimension 0 too.
pub(crate) fn dimension(op: &'static str, dim: isize, rank: usize) -> Result<usize> {
    let count = rank.max(1) as isize;
    let wrapped = if dim < 0 { dim + count } else { dim };
    if (0..count).contains(&wrapped) { Ok(wrapped as usize) } else { Err(TensorError::Dim { op, dim, rank }) }
}
