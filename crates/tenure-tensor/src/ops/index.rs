//! Indexing as in Python: numbers, ranges, new dimensions, index tensors and masks.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::{SmallVec, smallvec};

use super::entered;
use super::pointwise::{self, broadcast};
use super::view::signed;
use crate::autocast::widest;
use crate::autograd::no_grad;
use crate::cpu::index::{self as kernels, Coordinate, Nonzero, Position};
use crate::observe;
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{DType, Elementwise, Kernel, Result, Tensor, TensorError, cuda};

static NONZERO: Kernel<Nonzero> = Kernel::new("nonzero", &[kernels::NONZERO, cuda::index::NONZERO]);
static POSITION: Kernel<Position> = Kernel::new("index", &[kernels::POSITION, cuda::index::POSITION]);
static COORDINATE: Kernel<Coordinate> = Kernel::new("nonzero", &[kernels::COORDINATE, cuda::index::COORDINATE]);

/// An index into one or more dimensions. Numbers, ranges and tensors convert to it.
#[derive(Clone, Debug)]
pub enum Index {
    /// One element, without the dimension. Negative numbers count from the end.
    At(isize),
    /// Every `step`-th element, as in Python. Without an end it goes to the last element.
    Slice {
        /// The first index.
        start: isize,
        /// One past the last index.
        end: Option<isize>,
        /// The distance between indices, at least 1.
        step: usize,
    },
    /// All dimensions that the other indices leave: Python's `...`.
    Ellipsis,
    /// A new dimension of size 1: Python's `None`.
    New,
    /// Elements by index (integers), or where the tensor is true (`bool`, of one or more dimensions). Several index
    /// tensors are broadcast together. Their dimensions are placed where the first was, or in front if other indices
    /// are in between: PyTorch's and NumPy's advanced indexing.
    Tensor(Tensor),
}

/// The index `...`: [`Index::Ellipsis`].
pub const ELLIPSIS: Index = Index::Ellipsis;
/// The index of a new dimension: [`Index::New`].
pub const NEW: Index = Index::New;

macro_rules! from_integers {
    ($($type:ty)*) => {$(
        impl From<$type> for Index {
            fn from(index: $type) -> Self {
                Self::At(signed_index(index))
            }
        }

        impl From<Range<$type>> for Index {
            fn from(range: Range<$type>) -> Self {
                Self::Slice { start: signed_index(range.start), end: Some(signed_index(range.end)), step: 1 }
            }
        }

        impl From<RangeInclusive<$type>> for Index {
            fn from(range: RangeInclusive<$type>) -> Self {
                Self::Slice { start: signed_index(*range.start()), end: after(signed_index(*range.end())), step: 1 }
            }
        }

        impl From<RangeFrom<$type>> for Index {
            fn from(range: RangeFrom<$type>) -> Self {
                Self::Slice { start: signed_index(range.start), end: None, step: 1 }
            }
        }

        impl From<RangeTo<$type>> for Index {
            fn from(range: RangeTo<$type>) -> Self {
                Self::Slice { start: 0, end: Some(signed_index(range.end)), step: 1 }
            }
        }

        impl From<RangeToInclusive<$type>> for Index {
            fn from(range: RangeToInclusive<$type>) -> Self {
                Self::Slice { start: 0, end: after(signed_index(range.end)), step: 1 }
            }
        }
    )*};
}
from_integers!(i32 i64 isize usize);

/// Converts an index that may count from the end. An index that is too large stays past any end.
fn signed_index(index: impl TryInto<isize>) -> isize {
    index.try_into().unwrap_or(isize::MAX)
}

/// Returns one past an index, or `None` after the last, -1.
fn after(index: isize) -> Option<isize> {
    Some(index.saturating_add(1)).filter(|_| index != -1)
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::Slice { start: 0, end: None, step: 1 }
    }
}

impl From<Tensor> for Index {
    fn from(index: Tensor) -> Self {
        Self::Tensor(index)
    }
}

impl From<&Tensor> for Index {
    fn from(index: &Tensor) -> Self {
        Self::Tensor(index.clone())
    }
}

/// One index, or a tuple or array of them.
pub trait Indices {
    /// Returns all of the indices.
    fn into_indices(self) -> Vec<Index>;
}

impl<T: Into<Index>> Indices for T {
    fn into_indices(self) -> Vec<Index> {
        vec![self.into()]
    }
}

impl Indices for Vec<Index> {
    fn into_indices(self) -> Vec<Index> {
        self
    }
}

impl<T: Into<Index>, const N: usize> Indices for [T; N] {
    fn into_indices(self) -> Vec<Index> {
        self.into_iter().map(Into::into).collect()
    }
}

macro_rules! from_tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: Into<Index>),*> Indices for ($($name,)*) {
            #[expect(non_snake_case, reason = "a value is named as its type")]
            fn into_indices(self) -> Vec<Index> {
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    )*};
}
from_tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns the indices of the nonzero elements, as `int64`: one row for each element, one column for each
        /// dimension.
        ///
        /// # Errors
        /// No memory.
        nonzero(input: Tensor) -> Tensor;

        /// Returns the elements where a mask is true, in one dimension. Tensor and mask are broadcast.
        ///
        /// # Errors
        /// The mask is not `bool`; sizes do not broadcast.
        masked_select(input: Tensor, mask: Tensor) -> Tensor;
    }
    Function for front_ends {
        /// Selects by index tensors, which are broadcast: one for each dimension from `dim` on. A mask stands for as many
        /// dimensions as it has. Python's `x[i, j]`.
        ///
        /// # Errors
        /// More indices than dimensions; an index that is out of range; index tensors that do not broadcast together, or
        /// are no integers; a mask of other sizes than its dimensions.
        index(input: Tensor, indices: Tensors, dim: Int = 0) -> Tensor = |input: &Tensor, indices, dim| {
            let dim = input.dim("index", dim)?;
            input.index([vec![Index::from(..); dim], placed(input, indices)?].concat())
        };
    }
    Method for front_ends {
        /// Returns the indices of the nonzero elements, as `int64`. If `as_tuple`, they are one tensor for each
        /// dimension, which together are an index; a tensor of no dimensions counts as a vector.
        ///
        /// # Errors
        /// No memory.
        #[name(nonzero)]
        nonzero_in_form(input: Tensor, as_tuple: Bool) -> Vec<Tensor> = |input: &Tensor, as_tuple| {
            if as_tuple { nonzero_by_dim(input) } else { Ok(vec![input.nonzero()?]) }
        };

        /// Returns a copy with `values`, broadcast, written to the elements that index tensors or masks select, one
        /// for each dimension from the first on; or added to them if `accumulate`: [`Tensor::index_put`].
        ///
        /// # Errors
        /// An index that is out of range; sizes that do not broadcast; another dtype; adding `bool`.
        index_put(input: Tensor, indices: Tensors, values: Tensor, accumulate: Bool = false) -> Tensor =
            |input: &Tensor, indices, values, accumulate| input.index_put(placed(input, indices)?, values, accumulate);

        /// Does [`index_put`](Tensor::index_put) in place.
        ///
        /// # Errors
        /// The errors of [`index_put`](Tensor::index_put), and of every write in place.
        index_put_(input: Tensor, indices: Tensors, values: Tensor, accumulate: Bool = false) -> () =
            |input: &Tensor, indices, values, accumulate| input.index_put_(placed(input, indices)?, values, accumulate);
    }
}

/// Returns index tensors as indices. Indices on the CPU are copied to the device of the tensor that they index.
fn placed(input: &Tensor, indices: &[&Tensor]) -> Result<Vec<Index>> {
    indices
        .iter()
        .map(|index: &&Tensor| {
            let index = if index.device().is_cpu() { index.to_device(input.device())? } else { (*index).clone() };
            Ok(Index::Tensor(index))
        })
        .collect()
}

/// Returns the indices of the nonzero elements, one tensor for each dimension.
pub(super) fn nonzero_by_dim(input: &Tensor) -> Result<Vec<Tensor>> {
    if input.rank() == 0 {
        return input.unsqueeze(0)?.nonzero()?.unbind(1);
    }
    input.nonzero()?.unbind(1)
}

fn nonzero(input: &Tensor) -> Result<Tensor> {
    let _op = entered("nonzero");
    let positions = input.positions()?;
    let out = Tensor::empty(&[positions.numel(), input.rank()], DType::I64, input.device())?;
    let mut stride = 1;
    for (dim, size) in input.sizes().iter().enumerate().rev() {
        let column = out.select(1, dim as isize)?;
        let iter = Elementwise::new("nonzero", &[&column], &[&positions])?;
        COORDINATE.find(input.device().kind(), DType::I64)?(&iter, stride, *size)?;
        stride *= (*size).max(1);
    }
    Ok(out)
}

fn masked_select(input: &Tensor, mask: &Tensor) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        let expected = "a mask is bool: compare first".to_owned();
        return Err(TensorError::DType { op: "masked_select", found: mask.dtype(), expected });
    }
    let sizes = signed(&broadcast("masked_select", input.sizes(), mask.sizes())?);
    let positions = mask.expand(&sizes)?.positions()?;
    let dims: SmallVec<[usize; 5]> = (0..sizes.len()).collect();
    input.expand(&sizes)?.picked("masked_select", &dims, 0, &positions)
}

impl Tensor {
    /// Selects by indices, one for each dimension from the first on. Returns a view, or a copy if one of them is a
    /// tensor.
    ///
    /// ```
    /// use tenure_tensor::ops::{ELLIPSIS, NEW};
    /// use tenure_tensor::{DType, Device, Tensor};
    ///
    /// let x = Tensor::arange(0, 24, 1, DType::I32, Device::CPU)?.view(&[2, 3, 4])?;
    /// assert_eq!(x.index((1, .., 2..))?.sizes(), [3, 2]);
    /// assert_eq!(x.index((ELLIPSIS, NEW, -1))?.sizes(), [2, 3, 1]);
    ///
    /// let rows = Tensor::from_slice(&[2_i64, 0], &[2])?;
    /// assert_eq!(x.index((0, &rows, ..2))?.to_vec::<i32>()?, [8, 9, 0, 1]);
    /// # Ok::<(), tenure_tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// More indices than dimensions; an index that is out of range; index tensors that do not broadcast together, or
    /// are no integers; a mask of other sizes than its dimensions.
    pub fn index(&self, indices: impl Indices) -> Result<Self> {
        let _op = entered("index");
        let (view, pick) = self.resolved("index", indices.into_indices())?;
        match pick {
            None => Ok(view),
            Some(Pick { dims, at, positions, shown }) => {
                let picked = || view.picked("index", &dims, at, &positions);
                let Some(tensors) = shown else { return picked() };
                let tensors: Vec<&Self> = tensors.iter().collect();
                let tensors = &tensors[..];
                observed("index", || arguments![&view, tensors, at], picked)
            }
        }
    }

    /// Returns a copy with `values`, broadcast, written or added to the elements that the indices select. PyTorch's
    /// `index_put`.
    ///
    /// # Errors
    /// The errors of [`index`](Self::index); values that do not broadcast, or are of another dtype; adding `bool`.
    pub fn index_put(&self, indices: impl Indices, values: &Self, accumulate: bool) -> Result<Self> {
        let _op = entered("index_put");
        let [this, values] = widest([self, values])?;
        let copy = this.copy()?;
        copy.index_put_(indices, &values, accumulate)?;
        Ok(copy)
    }

    /// Writes as [`index_put`](Self::index_put) does, in place: Python's `x[indices] = values`.
    ///
    /// # Errors
    /// The errors of [`index_put`](Self::index_put), and of every write in place.
    pub fn index_put_(&self, indices: impl Indices, values: &Self, accumulate: bool) -> Result<()> {
        if values.dtype() != self.dtype() {
            let expected = format!("the target is {}: convert with to_dtype() first", self.dtype());
            return Err(TensorError::DType { op: "index_put", found: values.dtype(), expected });
        }
        let (view, pick) = self.resolved("index_put", indices.into_indices())?;
        if let Some(Pick { dims, at, positions, .. }) = pick {
            return view.put_("index_put", &dims, at, &positions, values, accumulate);
        }
        pointwise::check_writes("index_put", &view, values.sizes())?;
        if accumulate { view.add_(values) } else { view.copy_(values) }
    }

    /// Checks these indices of a dimension of that size, and counts negative ones from its end.
    pub(super) fn counted(&self, op: &'static str, size: usize) -> Result<Self> {
        let _op = entered(op);
        let index = self.as_index(op)?;
        let counted = Self::zeros(index.sizes(), DType::I64, self.device())?;
        let iter = Elementwise::new(op, &[&counted], &[&counted, &index])?;
        POSITION.find(self.device().kind(), DType::I64)?(&iter, size, 0)?;
        drop(iter);
        Ok(counted)
    }

    /// Returns the flat indices of the elements that are not zero.
    fn positions(&self) -> Result<Self> {
        let mask = no_grad(|| self.to_dtype(DType::Bool)?.contiguous())?;
        NONZERO.find(self.device().kind(), DType::Bool)?(&mask)
    }

    /// Returns the view that numbers, ranges and new dimensions make, and the positions that index tensors select from
    /// it.
    fn resolved(&self, op: &'static str, indices: Vec<Index>) -> Result<(Self, Option<Pick>)> {
        let taken: usize = indices.iter().map(dims_taken).sum();
        let Some(left) = self.rank().checked_sub(taken) else {
            return Err(TensorError::TooManyIndices { op, count: taken, rank: self.rank() });
        };
        if indices.iter().filter(|index| matches!(index, Index::Ellipsis)).count() > 1 {
            return Err(TensorError::argument(op, "at most one ellipsis is allowed"));
        }
        let mut view = self.clone();
        let mut picks: Vec<(usize, Tensor)> = Vec::new();
        let mut dim = 0;
        for index in indices {
            let place = dim as isize;
            match index {
                Index::At(index) => {
                    view = observed("select", || arguments![&view, place, index], || view.selected(op, place, index))?;
                }
                Index::Slice { start, end, step } => {
                    let end = end.unwrap_or(isize::MAX);
                    view = observed(
                        "slice",
                        || arguments![&view, place, start, end, step],
                        || view.sliced(op, place, start, end, step),
                    )?;
                    dim += 1;
                }
                Index::Ellipsis => dim += left,
                Index::New => {
                    view = view.unsqueeze(place)?;
                    dim += 1;
                }
                Index::Tensor(tensor) => {
                    let takes = if tensor.dtype() == DType::Bool { tensor.rank() } else { 1 };
                    picks.push((dim, tensor));
                    dim += takes;
                }
            }
        }
        let pick = if picks.is_empty() { None } else { Some(view.pick_of(op, picks)?) };
        Ok((if view.is_same(self) { self.view_as(self)? } else { view }, pick))
    }

    /// Combines index tensors, each with its first dimension, into the positions that they select.
    fn pick_of(&self, op: &'static str, picks: Vec<(usize, Self)>) -> Result<Pick> {
        let tensors = observe::is_on().then(|| picks.iter().map(|(_, tensor)| tensor.clone()).collect());
        // The index, its first dimension, and the number of its dimensions.
        let mut parts: Vec<(Self, usize, usize)> = Vec::with_capacity(picks.len());
        for (first, tensor) in picks {
            if tensor.dtype() != DType::Bool {
                parts.push((tensor.as_index(op)?, first, 1));
                continue;
            }
            // As in NumPy, a mask without elements selects nothing of any size.
            let mut pairs = tensor.sizes().iter().zip(&self.sizes()[first..]);
            if let Some(dim) = pairs.position(|(own, size)| own != size && *own != 0) {
                let mask = tensor.sizes().to_vec();
                return Err(TensorError::Mask { op, mask, dim, sizes: self.sizes().to_vec(), first });
            }
            parts.push((tensor.positions()?, first, tensor.rank()));
        }
        let mut sizes: SmallVec<[usize; 5]> = smallvec![];
        for (index, ..) in &parts {
            sizes = broadcast(op, &sizes, index.sizes())?;
        }
        let positions = Self::zeros(&sizes, DType::I64, self.device())?;
        let mut dims: SmallVec<[usize; 5]> = smallvec![];
        for (index, first, count) in &parts {
            let size = self.sizes()[*first..first + count].iter().product();
            let iter = Elementwise::new(op, &[&positions], &[&positions, index])?;
            POSITION.find(self.device().kind(), DType::I64)?(&iter, size, *first)?;
            dims.extend(*first..first + count);
        }
        let is_one_run = dims.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let at = if is_one_run { parts[0].1 } else { 0 };
        Ok(Pick { dims, at, positions, shown: tensors.filter(|_| is_one_run) })
    }
}

/// Positions in some dimensions, the arguments of [`Tensor::picked`].
struct Pick {
    dims: SmallVec<[usize; 5]>,
    at: usize,
    positions: Tensor,
    /// The index tensors for observers, if they index neighbouring dimensions.
    shown: Option<Vec<Tensor>>,
}

/// Returns the number of dimensions that an index selects from.
fn dims_taken(index: &Index) -> usize {
    match index {
        Index::Ellipsis | Index::New => 0,
        Index::Tensor(mask) if mask.dtype() == DType::Bool => mask.rank(),
        _ => 1,
    }
}
