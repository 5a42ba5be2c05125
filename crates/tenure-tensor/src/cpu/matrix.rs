//! Matrices in memory, as the kernels of products take them.

use crate::Tensor;

/// A matrix in memory: a pointer to its first element, and the distances of neighbours in elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<T> {
    pub(crate) data: *mut T,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

// SAFETY: the code that uses the pointer answers for what it reads and writes through it.
unsafe impl<T: Send> Send for Matrix<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Matrix<T> {}

impl<T> Matrix<T> {
    #[inline]
    pub(crate) fn new(data: *const T, row: usize, column: usize) -> Self {
        Self { data: data.cast_mut(), row, column }
    }

    #[inline]
    pub(crate) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    /// Returns the part of the matrix that begins at an element.
    #[inline]
    pub(crate) fn at(self, row: usize, column: usize) -> Self {
        Self { data: self.data.wrapping_add(row * self.row + column * self.column), ..self }
    }
}

/// Returns the first matrix of a tensor whose elements begin at `data`.
pub(super) fn first_matrix<T>(data: *const u8, tensor: &Tensor) -> Matrix<T> {
    let rank = tensor.rank();
    Matrix::new(data.cast(), tensor.strides()[rank - 2], tensor.strides()[rank - 1])
}

/// Returns where a batch begins, in elements.
pub(super) fn place(mut batch: usize, sizes: &[usize], strides: &[usize]) -> usize {
    let mut place = 0;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        place += batch % size * stride;
        batch /= size;
    }
    place
}

/// Returns one of the matrices of a tensor.
pub(super) fn matrix_of_batch<T>(data: *const u8, tensor: &Tensor, batch: usize) -> Matrix<T> {
    let sizes = tensor.sizes();
    let strides = tensor.strides();
    let last = tensor.rank() - 1;
    let place = place(batch, &sizes[..last - 1], strides);
    Matrix::new(data.cast::<T>().wrapping_add(place), strides[last - 1], strides[last])
}
