//! The tensor type.

mod array;
pub(crate) mod create;
mod format;
mod operators;
pub(crate) mod ranges;
mod read;

pub use array::Nested;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tenure_core::{DType, Device, Layout, Storage};

use crate::autograd::{self, Edge, HookHandle, Meta, Node, TensorKind, View};
use crate::error::AutogradError;
use crate::{Result, TensorError, cuda};

/// Elements of one dtype, laid out on a storage that views share. C10's `TensorImpl`.
///
/// A `Tensor` is a handle: a clone is the same tensor, with the same gradient. A view ([`view`](Self::view),
/// [`select`](Self::select), ...) is another tensor on the same storage: a write to one shows in the other.
///
/// Dimensions are counted from 0, or from -1 backwards. Operations return errors and never panic.
#[derive(Clone)]
pub struct Tensor {
    inner: Arc<TensorInner>,
}

struct TensorInner {
    storage: Storage,
    layout: Layout,
    dtype: DType,
    device: Device,
    version: Arc<Version>,
    meta: Meta,
}

/// A handle to the count of writes in place to a storage, through any of its views. It does not keep the bytes alive.
#[derive(Clone)]
pub struct Writes {
    version: Arc<Version>,
}

/// The count of writes in place, shared by all views of a storage.
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
    /// Returns the number of writes so far: [`Tensor::version`].
    pub fn count(&self) -> u64 {
        self.version.count()
    }

    /// Returns the operation that wrote last, or an empty string.
    pub fn last_writer(&self) -> &'static str {
        self.version.last_writer()
    }
}

impl Tensor {
    /// Returns a tensor on a storage.
    ///
    /// # Errors
    /// The storage is too small for the layout.
    pub fn from_storage(storage: Storage, layout: Layout, dtype: DType) -> Result<Self> {
        Self::with_writes(storage, layout, dtype, &Writes { version: Arc::default() })
    }

    fn new(storage: Storage, layout: Layout, dtype: DType, device: Device, version: Arc<Version>) -> Self {
        Self { inner: Arc::new(TensorInner { storage, layout, dtype, device, version, meta: Meta::default() }) }
    }

    /// Returns a tensor that goes on with an earlier count of writes, such as one that was moved away and came back. A
    /// graph that saved it sees all its writes, and no new version.
    ///
    /// # Errors
    /// The errors of [`from_storage`](Self::from_storage).
    pub fn with_writes(storage: Storage, layout: Layout, dtype: DType, writes: &Writes) -> Result<Self> {
        let (device, bytes) = storage.place();
        layout.check_bounds(dtype, bytes)?;
        Ok(Self::new(storage, layout, dtype, device, Arc::clone(&writes.version)))
    }

    /// Returns a tensor of other elements of the same storage, without a gradient.
    pub(crate) fn alias(&self, layout: Layout) -> Self {
        self.alias_as(layout, self.dtype())
    }

    /// Returns a tensor of the same storage's bytes as elements of a dtype, without a gradient.
    pub(crate) fn alias_as(&self, layout: Layout, dtype: DType) -> Self {
        let TensorInner { storage, device, version, .. } = &*self.inner;
        Self::new(storage.clone(), layout, dtype, *device, Arc::clone(version))
    }

    /// Returns the storage that the elements are in.
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// Returns sizes, strides and offset on the storage.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Returns the number of elements along each dimension.
    pub fn sizes(&self) -> &[usize] {
        self.layout().sizes()
    }

    /// Returns the distance between neighbours along each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        self.layout().strides()
    }

    /// Returns the number of elements along a dimension.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn size(&self, dim: isize) -> Result<usize> {
        Ok(self.sizes()[self.existing_dim("size", dim)?])
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.layout().rank()
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.layout().numel()
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Returns the device that the tensor is on.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Returns whether the elements lie one after the other, the last dimension dense.
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    /// Returns whether both are one tensor.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns whether this is the only handle to the tensor, and to the node of the operation that made it.
    pub fn is_only_handle(&self) -> bool {
        // The edge that is looked at is a second handle to the node.
        Arc::strong_count(&self.inner) == 1
            && self.inner.meta.edge().is_none_or(|edge| Arc::strong_count(&edge.node) == 2)
    }

    /// Returns a number that no other tensor has while this one is alive, for use as a key.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Returns how often this tensor, or a view of its storage, was written to in place.
    pub fn version(&self) -> u64 {
        self.inner.version.count()
    }

    /// Returns a handle to the count of writes in place to this tensor and all views of its storage, including later
    /// ones.
    pub fn writes(&self) -> Writes {
        Writes { version: Arc::clone(&self.inner.version) }
    }

    /// Notes a write in place by the operation `op`, so that a graph that saved this tensor refuses to use it.
    /// Operations call it themselves; code that writes through [`Access`](crate::Access) has to call it.
    pub fn bump_version(&self, op: &'static str) {
        *self.inner.version.writer.lock() = op;
        self.inner.version.count.fetch_add(1, Ordering::AcqRel);
        if !self.device().is_cpu() {
            cuda::note_write(self, op);
        }
    }

    /// Returns whether both share one count of writes.
    pub(crate) fn shares_version(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.version, &other.inner.version)
    }

    /// Returns the operation that wrote last to this tensor or to a view of its storage.
    pub(crate) fn last_writer(&self) -> &'static str {
        self.inner.version.last_writer()
    }

    /// Returns the index of the dimension that `dim` means, for the operation `op`.
    pub(crate) fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        dimension(op, dim, self.rank())
    }

    /// Returns the index of the dimension as [`dim`](Self::dim) does, but fails for a tensor of no dimensions.
    pub(crate) fn existing_dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        if self.rank() == 0 {
            return Err(TensorError::shape(op, format!("dimension {dim} was asked for, but the tensor has none")));
        }
        self.dim(op, dim)
    }

    /// Returns whether gradients with respect to this tensor are computed: it was set, or the tensor was computed from
    /// one that requires a gradient.
    pub fn requires_grad(&self) -> bool {
        self.meta().requires_grad()
    }

    /// Sets whether gradients with respect to this leaf are computed. Returns the tensor.
    ///
    /// # Errors
    /// The tensor is no leaf, or its dtype is not floating.
    pub fn requires_grad_(self, requires_grad: bool) -> Result<Self> {
        self.meta().set_requires_grad(self.dtype(), requires_grad)?;
        Ok(self)
    }

    /// Returns whether no operation with a gradient made this tensor.
    pub fn is_leaf(&self) -> bool {
        self.meta().is_leaf()
    }

    /// Returns the node of the operation that made this tensor; `None` for a leaf.
    pub fn grad_fn(&self) -> Option<Arc<Node>> {
        self.meta().edge().map(|edge| edge.node)
    }

    /// Returns the number of the node of the operation that made this tensor; `None` for a leaf.
    pub(crate) fn made_by(&self) -> Option<u64> {
        self.inner.meta.edge().map(|edge| edge.node.sequence())
    }

    /// Returns the gradient that [`backward`](Self::backward) has added up.
    pub fn grad(&self) -> Option<Self> {
        self.inner.meta.grad()
    }

    /// Replaces the gradient and returns the old one.
    ///
    /// # Errors
    /// The gradient has other sizes, dtype or device, or is this tensor itself. Removing the gradient never fails.
    pub fn set_grad(&self, grad: Option<Self>) -> Result<Option<Self>> {
        let mistake = grad.as_ref().and_then(|grad| {
            let found = TensorKind::of(grad);
            let expected = TensorKind::of(self);
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

    /// Returns a tensor of the same elements, on the same storage, that passes no gradient on.
    pub fn detach(&self) -> Self {
        self.alias(self.layout().clone())
    }

    /// Adds the gradients of this tensor of one element to the leaves that it was computed from.
    ///
    /// # Errors
    /// The errors of [`autograd::backward`].
    pub fn backward(&self) -> Result<()> {
        autograd::backward(&[self], &[], autograd::BackwardOptions::default())
    }

    /// Calls `hook` with every gradient with respect to this tensor; the hook may return another in its place.
    ///
    /// # Errors
    /// The tensor requires no gradient.
    pub fn register_hook(
        &self,
        hook: impl Fn(&Self) -> Result<Option<Self>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.requires_grad() {
            return Err(no_gradient("register_hook"));
        }
        Ok(self.meta().add_hook(Arc::new(hook)))
    }

    /// Calls `hook` with this leaf whenever [`backward`](Self::backward) has added to its [`grad`](Self::grad), before
    /// the pass goes on to other tensors: once in a pass, when the gradient is complete.
    ///
    /// # Errors
    /// The tensor is no leaf, or requires no gradient.
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
        Ok(self.meta().add_post_accumulate_hook(Arc::new(move |leaf| hook(leaf).map(|()| None))))
    }

    /// Makes [`backward`](Self::backward) store the gradient of this tensor in [`grad`](Self::grad), though it is no
    /// leaf.
    ///
    /// # Errors
    /// The tensor requires no gradient.
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

    /// Makes this tensor the result of a node.
    pub(crate) fn set_edge(&self, edge: Edge) {
        self.inner.meta.set_edge(edge, self.version());
    }

    /// Records that this tensor is a view of another.
    pub(crate) fn set_view_of(&self, other: &Self) {
        let (base, in_no_grad) = match other.view_of() {
            Some(view) => (view.base, view.in_no_grad || !autograd::is_grad_enabled()),
            None => (other.clone(), !autograd::is_grad_enabled()),
        };
        self.inner.meta.set_view(base, self.version(), in_no_grad);
    }

    /// Returns the base that this tensor is a view of.
    pub(crate) fn view_of(&self) -> Option<View> {
        self.inner.meta.view()
    }

    /// Returns the autograd state, with the edge brought up to date: see [`autograd::view_edge`].
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

    /// Adds `grad` to the gradient.
    pub(crate) fn accumulate_grad(&self, grad: Self) -> Result<()> {
        let _one = self.inner.meta.lock_grad();
        let mut sum = self.inner.meta.set_grad(None);
        let added = match &mut sum {
            None => autograd::into_leaf_grad(grad, self.layout()).map(|grad| sum = Some(grad)),
            Some(sum) => autograd::add_to(sum, grad),
        };
        self.inner.meta.set_grad(sum);
        added
    }

    /// Calls the hooks of a leaf after its gradient was added to.
    pub(crate) fn run_post_accumulate_hooks(&self) -> Result<()> {
        match self.inner.meta.post_accumulate_hooks() {
            Some(hooks) => hooks.run(|| "a leaf".to_owned(), self.clone()).map(drop),
            None => Ok(()),
        }
    }

    /// Returns whether this is the only handle to the tensor and its storage, and the storage came from an allocator.
    /// If so, it can be overwritten unseen.
    pub(crate) fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.inner)
            .is_some_and(|inner| inner.storage.is_unique() && inner.storage.allocator().is_some())
    }
}

fn no_gradient(op: &str) -> TensorError {
    let reason = "a tensor that requires a gradient is needed".to_owned();
    AutogradError::Other { node: op.to_owned(), reason }.into()
}

/// Returns the dimension that `dim` means for a tensor of `rank` dimensions. A tensor of no dimensions has a dimension
/// 0 too.
pub(crate) fn dimension(op: &'static str, dim: isize, rank: usize) -> Result<usize> {
    let count = rank.max(1) as isize;
    let wrapped = if dim < 0 { dim + count } else { dim };
    if (0..count).contains(&wrapped) { Ok(wrapped as usize) } else { Err(TensorError::Dim { op, dim, rank }) }
}
