//! Views of a layout: other layouts on the same storage.

use super::{Dims, Layout, product, sum};
use crate::LayoutError;

/// The result of a reshape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reshape {
    /// A view: this layout on the same storage.
    View(Layout),
    /// A copy of the elements, in order, to a fresh storage with this contiguous layout.
    Copy(Layout),
}

/// Views: other layouts on the same storage. No view needs a larger storage than the layout that it comes from.
impl Layout {
    /// Returns the elements whose index along `dim` is `index`, without that dimension.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`], [`LayoutError::IndexOutOfRange`].
    pub fn select(&self, dim: usize, index: usize) -> Result<Self, LayoutError> {
        self.check_dim(dim)?;
        let size = self.sizes[dim];
        if index >= size {
            return Err(LayoutError::IndexOutOfRange { index, dim, size });
        }
        let offset = self.offset_from(dim, index)?;
        let mut sizes = self.sizes.clone();
        let mut strides = self.strides.clone();
        sizes.remove(dim);
        strides.remove(dim);
        Self::checked(sizes, strides, offset)
    }

    /// Returns every `step`-th element along `dim`, from `start` on and before `end`. Both are cut to the dimension's
    /// size: as in Python, a slice past the end is shorter or empty.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`], [`LayoutError::ZeroStep`], [`LayoutError::TooLarge`] if the step makes the
    /// stride too large.
    pub fn slice(&self, dim: usize, start: usize, end: usize, step: usize) -> Result<Self, LayoutError> {
        self.check_dim(dim)?;
        if step == 0 {
            return Err(LayoutError::ZeroStep);
        }
        let start = start.min(self.sizes[dim]);
        let end = end.clamp(start, self.sizes[dim]);
        let offset = self.offset_from(dim, start)?;
        let mut sizes = self.sizes.clone();
        let mut strides = self.strides.clone();
        sizes[dim] = (end - start).div_ceil(step);
        strides[dim] = self.fit(product(strides[dim], step))?;
        Self::checked(sizes, strides, offset)
    }

    /// Returns the `length` elements along `dim` from `start` on.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`], [`LayoutError::RangeOutOfRange`].
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self, LayoutError> {
        self.check_dim(dim)?;
        let size = self.sizes[dim];
        match start.checked_add(length) {
            Some(end) if end <= size => self.slice(dim, start, end, 1),
            _ => Err(LayoutError::RangeOutOfRange { start, length, dim, size }),
        }
    }

    /// Returns the same elements with two dimensions swapped.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self, LayoutError> {
        self.check_dim(a)?;
        self.check_dim(b)?;
        let mut view = self.clone();
        view.sizes.swap(a, b);
        view.strides.swap(a, b);
        Ok(view)
    }

    /// Returns the same elements with dimension `dims[i]` as dimension `i`.
    ///
    /// # Errors
    /// [`LayoutError::NotAPermutation`].
    pub fn permute(&self, dims: &[usize]) -> Result<Self, LayoutError> {
        let mut sorted = Dims::from_slice(dims);
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.rank()) {
            return Err(LayoutError::NotAPermutation { dims: dims.to_vec(), rank: self.rank() });
        }
        Ok(self.with_dims(dims.iter().copied()))
    }

    /// Repeats dimensions of size 1 to the sizes of `target`, and adds new dimensions before the first. Nothing is
    /// copied: repeated elements share one place. Source: `inferExpandGeometry` in `ATen/ExpandUtils.cpp`.
    ///
    /// # Errors
    /// [`LayoutError::NotExpandable`] if the target has fewer dimensions, or differs from a size that is not 1;
    /// [`LayoutError::TooLarge`].
    pub fn expand(&self, target: &[usize]) -> Result<Self, LayoutError> {
        let refuse = || LayoutError::NotExpandable { sizes: self.sizes.to_vec(), target: target.to_vec() };
        let added = target.len().checked_sub(self.rank()).ok_or_else(refuse)?;
        let mut strides = Dims::from_elem(0, target.len());
        for (dim, &wanted) in target.iter().enumerate().rev() {
            let (size, stride) = match dim.checked_sub(added) {
                Some(own) => (self.sizes[own], self.strides[own]),
                None => (1, self.fit(next_stride(&target[dim + 1..], &strides[dim + 1..]))?),
            };
            strides[dim] = match size {
                _ if size == wanted => stride,
                1 => 0,
                _ => return Err(refuse()),
            };
        }
        Self::checked(target.into(), strides, self.offset)
    }

    /// Returns the same elements without dimension `dim` if its size is 1, and the layout unchanged otherwise.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`].
    pub fn squeeze(&self, dim: usize) -> Result<Self, LayoutError> {
        self.check_dim(dim)?;
        if self.sizes[dim] == 1 { self.select(dim, 0) } else { Ok(self.clone()) }
    }

    /// Returns the same elements without any dimension of size 1.
    pub fn squeeze_all(&self) -> Self {
        self.with_dims((0..self.rank()).filter(|&dim| self.sizes[dim] != 1))
    }

    /// Returns the same elements with a dimension of size 1 before dimension `dim`, or after the last if `dim` is the
    /// rank.
    ///
    /// # Errors
    /// [`LayoutError::DimOutOfRange`], [`LayoutError::TooLarge`].
    pub fn unsqueeze(&self, dim: usize) -> Result<Self, LayoutError> {
        if dim > self.rank() {
            return Err(LayoutError::DimOutOfRange { dim, rank: self.rank() + 1 });
        }
        let stride = self.fit(next_stride(&self.sizes[dim..], &self.strides[dim..]))?;
        let mut sizes = self.sizes.clone();
        let mut strides = self.strides.clone();
        sizes.insert(dim, 1);
        strides.insert(dim, stride);
        Self::checked(sizes, strides, self.offset)
    }

    /// Returns the same elements in the same order with other sizes, without a copy.
    ///
    /// # Errors
    /// [`LayoutError::NumelMismatch`]; [`LayoutError::NotViewable`] if no strides give such a view;
    /// [`LayoutError::TooLarge`].
    pub fn view(&self, target: &[usize]) -> Result<Self, LayoutError> {
        match self.reshape(target)? {
            Reshape::View(view) => Ok(view),
            Reshape::Copy(_) => Err(LayoutError::NotViewable {
                sizes: self.sizes.to_vec(),
                strides: self.strides.to_vec(),
                target: target.to_vec(),
            }),
        }
    }

    /// Returns the same elements in the same order with other sizes: a view if there are strides for it, and a copy if
    /// not.
    ///
    /// # Errors
    /// [`LayoutError::NumelMismatch`], [`LayoutError::TooLarge`].
    pub fn reshape(&self, target: &[usize]) -> Result<Reshape, LayoutError> {
        let fresh = Self::contiguous(target)?;
        if fresh.numel != self.numel {
            return Err(LayoutError::NumelMismatch {
                sizes: self.sizes.to_vec(),
                numel: self.numel,
                target: target.to_vec(),
            });
        }
        match self.view_strides(target, fresh.strides()) {
            Some(strides) => Self::checked(target.into(), strides, self.offset).map(Reshape::View),
            None => Ok(Reshape::Copy(fresh)),
        }
    }

    /// Returns strides that give `target` these elements in order, if there are any. `target` has as many elements, and
    /// the contiguous strides `fresh`. Source: `computeStride` in `ATen/TensorUtils.cpp`.
    ///
    /// Dimensions fall into runs. The dimensions of a run are contiguous with each other, at some stride. A view may
    /// split and merge dimensions within a run, but never across two runs.
    fn view_strides(&self, target: &[usize], fresh: &[usize]) -> Option<Dims> {
        if self.is_empty() {
            // No element has a place, so any strides work. If the sizes are the same, the strides stay, too.
            return Some(if target == self.sizes() { self.strides.clone() } else { fresh.into() });
        }
        let mut strides = Dims::from_elem(1, target.len());
        let mut unset = target.len();
        for (numel, stride) in self.runs() {
            let mut taken = 1;
            while unset > 0 && (taken < numel || target[unset - 1] == 1) {
                unset -= 1;
                strides[unset] = product(taken, stride)?;
                taken *= target[unset];
            }
            if taken != numel {
                return None;
            }
        }
        (unset == 0).then_some(strides)
    }

    /// Returns the number of elements and the innermost stride of each run, the innermost run first. A layout without
    /// dimensions has one run, with its one element.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut dims = self.sizes.iter().copied().zip(self.strides.iter().copied()).rev().peekable();
        let scalar = self.sizes.is_empty().then_some((1, 1));
        let runs = std::iter::from_fn(move || {
            let (mut numel, stride) = dims.next()?;
            while let Some((size, _)) =
                dims.next_if(|&(size, outer)| size == 1 || Some(outer) == product(numel, stride))
            {
                numel *= size;
            }
            Some((numel, stride))
        });
        scalar.into_iter().chain(runs)
    }

    /// Returns the layout with the dimensions `dims`, in that order. The dimensions that are left out must have size 1.
    fn with_dims(&self, dims: impl Iterator<Item = usize>) -> Self {
        let (sizes, strides) = dims.map(|dim| (self.sizes[dim], self.strides[dim])).unzip();
        Self { sizes, strides, ..*self }
    }

    /// Returns the offset of the elements from `index` of `dim` on. If the index is at the end, there are no elements,
    /// and the offset may be past the largest one allowed.
    fn offset_from(&self, dim: usize, index: usize) -> Result<usize, LayoutError> {
        self.fit(product(index, self.strides[dim]).and_then(|distance| sum(self.offset, distance)))
    }

    fn fit(&self, value: Option<usize>) -> Result<usize, LayoutError> {
        value.ok_or_else(|| LayoutError::TooLarge { sizes: self.sizes.to_vec() })
    }
}

/// Returns the stride of a new dimension of size 1 just outside the given ones, as if it were contiguous with the first
/// of them.
fn next_stride(sizes: &[usize], strides: &[usize]) -> Option<usize> {
    match (sizes.first(), strides.first()) {
        (Some(&size), Some(&stride)) => product(size, stride),
        _ => Some(1),
    }
}
