//! Layouts: the positions of a tensor's elements in its storage, and their order.

mod format;
mod view;

use std::ops::Range;

use smallvec::SmallVec;

pub use self::format::MemoryFormat;
pub use self::view::Reshape;
use crate::{DType, LayoutError};

/// One number for each dimension. Five are kept in place, as in c10's `SizesAndStrides`: images and sequences need no
/// heap.
pub(crate) type Dims = SmallVec<[usize; 5]>;

/// The sizes, strides and offset of a tensor on its storage, all in elements.
///
/// Element `(i, j, k)` is element `offset + i * s0 + j * s1 + k * s2` of the storage. Strides are never negative. The
/// stride of a dimension of size 1 has no meaning.
///
/// Arithmetic on a layout never wraps: its sizes, strides and offset, its number of elements, and the place one past
/// its last element are at most `isize::MAX`. A larger layout is refused with [`LayoutError::TooLarge`]. A layout does
/// not know whether a storage is large enough; [`check_bounds`](Self::check_bounds) checks that.
///
/// ```
/// use tenure_core::Layout;
///
/// let matrix = Layout::contiguous(&[3, 4])?;
/// let transposed = matrix.transpose(0, 1)?;
/// assert_eq!((transposed.sizes(), transposed.strides()), (&[4, 3][..], &[1, 4][..]));
/// assert_eq!(transposed.element(&[3, 2])?, 11);
/// assert!(transposed.view(&[12]).is_err()); // its elements are no longer in one run
/// # Ok::<(), tenure_core::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    sizes: Dims,
    strides: Dims,
    offset: usize,
    numel: usize,
}

impl Layout {
    /// Returns the layout of a fresh tensor: the last dimension is densest, and the first element is at offset 0.
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`].
    pub fn contiguous(sizes: &[usize]) -> Result<Self, LayoutError> {
        Self::with_format(sizes, MemoryFormat::Contiguous)
    }

    /// Returns a layout of any sizes, strides and offset. Its elements may share places.
    ///
    /// # Errors
    /// [`LayoutError::RankMismatch`] unless there are as many strides as sizes; [`LayoutError::TooLarge`].
    pub fn strided(sizes: &[usize], strides: &[usize], offset: usize) -> Result<Self, LayoutError> {
        if sizes.len() != strides.len() {
            return Err(LayoutError::RankMismatch { what: "strides", actual: strides.len(), expected: sizes.len() });
        }
        Self::checked(sizes.into(), strides.into(), offset)
    }

    /// Returns the layout of [`strided`](Self::strided), on a storage of `storage_bytes`: PyTorch's `as_strided`.
    ///
    /// # Errors
    /// The errors of `strided`, and [`LayoutError::OutOfBounds`] if an element is past the storage's end.
    pub fn as_strided(
        sizes: &[usize],
        strides: &[usize],
        offset: usize,
        dtype: DType,
        storage_bytes: usize,
    ) -> Result<Self, LayoutError> {
        let layout = Self::strided(sizes, strides, offset)?;
        layout.check_bounds(dtype, storage_bytes)?;
        Ok(layout)
    }

    /// Creates a layout. Every layout is made here, so every layout keeps the limits of the type.
    fn checked(sizes: Dims, strides: Dims, offset: usize) -> Result<Self, LayoutError> {
        debug_assert_eq!(sizes.len(), strides.len());
        match measure(&sizes, &strides, offset) {
            Some(numel) => Ok(Self { sizes, strides, offset, numel }),
            None => Err(LayoutError::TooLarge { sizes: sizes.into_vec() }),
        }
    }

    /// Returns the number of elements along each dimension.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the distance in the storage between neighbours along each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the place of the first element in the storage, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of elements, which is 1 without dimensions.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Returns whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.numel == 0
    }

    /// Returns the place in the storage of the element at `index`, in elements.
    ///
    /// # Errors
    /// [`LayoutError::RankMismatch`] unless there is an index for each dimension; [`LayoutError::IndexOutOfRange`].
    pub fn element(&self, index: &[usize]) -> Result<usize, LayoutError> {
        if index.len() != self.rank() {
            return Err(LayoutError::RankMismatch { what: "indices", actual: index.len(), expected: self.rank() });
        }
        let mut place = self.offset;
        for (dim, ((&index, &size), &stride)) in index.iter().zip(&self.sizes).zip(&self.strides).enumerate() {
            if index >= size {
                return Err(LayoutError::IndexOutOfRange { index, dim, size });
            }
            place += index * stride;
        }
        Ok(place)
    }

    /// Returns the smallest range of the storage that contains every element, in elements. It is empty if there is no
    /// element.
    pub fn extent(&self) -> Range<usize> {
        if self.is_empty() {
            return self.offset..self.offset;
        }
        let span: usize = self.sizes.iter().zip(&self.strides).map(|(&size, &stride)| (size - 1) * stride).sum();
        self.offset..self.offset + span + 1
    }

    /// Returns the bytes that a storage needs to hold every element: up to the end of the last one, and 0 if there is
    /// none.
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`].
    pub fn required_bytes(&self, dtype: DType) -> Result<usize, LayoutError> {
        if self.is_empty() {
            return Ok(0);
        }
        product(self.extent().end, dtype.size()).ok_or_else(|| LayoutError::TooLarge { sizes: self.sizes.to_vec() })
    }

    /// Checks that a storage of `storage_bytes` contains every element.
    ///
    /// # Errors
    /// [`LayoutError::OutOfBounds`], [`LayoutError::TooLarge`].
    pub fn check_bounds(&self, dtype: DType, storage_bytes: usize) -> Result<(), LayoutError> {
        let required = self.required_bytes(dtype)?;
        if required <= storage_bytes {
            return Ok(());
        }
        Err(LayoutError::OutOfBounds {
            sizes: self.sizes.to_vec(),
            strides: self.strides.to_vec(),
            offset: self.offset,
            dtype,
            required,
            available: storage_bytes,
        })
    }

    /// Returns whether two elements share a place in memory.
    ///
    /// `No` and `Yes` are certain. PyTorch's `has_internal_overlap` answers `No` only for dense layouts; this also
    /// sees slices and other gaps. Deciding every case is NP-hard.
    pub fn overlap(&self) -> Overlap {
        if self.is_empty() {
            return Overlap::No;
        }
        let mut dims: SmallVec<[(usize, usize); 5]> =
            self.strides.iter().copied().zip(self.sizes.iter().copied()).filter(|&(_, size)| size > 1).collect();
        dims.sort_unstable();
        let repeats = dims.first().is_some_and(|&(stride, _)| stride == 0);
        if repeats || dims.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Overlap::Yes;
        }
        // A step along a dimension that is longer than the reach of all denser dimensions never meets one of their
        // elements.
        let mut reach = 0;
        for (stride, size) in dims {
            if stride <= reach {
                return Overlap::TooHard;
            }
            reach += (size - 1) * stride;
        }
        Overlap::No
    }

    fn check_dim(&self, dim: usize) -> Result<(), LayoutError> {
        if dim < self.rank() { Ok(()) } else { Err(LayoutError::DimOutOfRange { dim, rank: self.rank() }) }
    }
}

/// The answer to whether two elements of a layout share a place in memory. ATen's `MemOverlap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// Every element has a place of its own: the layout can be written to.
    No,
    /// Two elements share a place.
    Yes,
    /// The strides alone do not tell. A caller that writes to such a layout must know that it does not overlap.
    TooHard,
}

/// Returns the number of elements, if the layout is within the limits of [`Layout`].
fn measure(sizes: &[usize], strides: &[usize], offset: usize) -> Option<usize> {
    for &number in sizes.iter().chain(strides) {
        within_limit(number)?;
    }
    if sizes.contains(&0) {
        return within_limit(offset).map(|_| 0);
    }
    let mut end = sum(offset, 1)?;
    for (&size, &stride) in sizes.iter().zip(strides) {
        end = sum(end, product(size - 1, stride)?)?;
    }
    sizes.iter().try_fold(1, |numel, &size| product(numel, size))
}

/// Returns `a * b`, if it is at most `isize::MAX`.
fn product(a: usize, b: usize) -> Option<usize> {
    a.checked_mul(b).and_then(within_limit)
}

/// Returns `a + b`, if it is at most `isize::MAX`.
fn sum(a: usize, b: usize) -> Option<usize> {
    a.checked_add(b).and_then(within_limit)
}

fn within_limit(value: usize) -> Option<usize> {
    isize::try_from(value).is_ok().then_some(value)
}
