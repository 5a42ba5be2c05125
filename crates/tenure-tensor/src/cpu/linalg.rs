//! Factorizations and solvers of the matrices of a batch, for `float32` and `float64`.
//!
//! All tensors are contiguous, on the CPU, of one dtype, with matrices in their last two dimensions, and have elements.
//! A function that can fail returns the number of the first matrix that it failed for, and the reason.
//!
//! Without the feature `linalg`, all functions return [`TensorError::NoLinalg`].
#![cfg_attr(not(feature = "linalg"), expect(unused, reason = "the functions only say that the feature is missing"))]

use std::array;

use parking_lot::Mutex;
use tenure_linalg::{Matrix, MatrixMut, NotConverged, NotPositiveDefinite, Real, Triangle};

use super::shared_memory::DisjointSlice;
use crate::{Access, DType, Element, Result, Tensor, TensorError, threads};

/// The number of a matrix of the batch, and the reason why it has no result.
pub(crate) type Failed<F> = Option<(usize, F)>;

/// Computes with the dtype's type of elements.
macro_rules! with_real {
    ($op:expr, $tensor:expr, $type:ident => $call:expr) => {{
        #[cfg(not(feature = "linalg"))]
        return Err(TensorError::NoLinalg { op: $op });
        #[cfg(feature = "linalg")]
        match $tensor.dtype() {
            DType::F32 => {
                type $type = f32;
                $call
            }
            DType::F64 => {
                type $type = f64;
                $call
            }
            dtype => Err(TensorError::NoKernel { op: $op, device: $tensor.device().kind(), dtype }),
        }
    }};
}

/// Computes lower triangular factors of symmetric matrices.
pub(crate) fn cholesky(lower: &Tensor, input: &Tensor) -> Result<Failed<NotPositiveDefinite>> {
    let (_, n, _) = shape(input);
    with_real!("linalg_cholesky", input, T => {
        each("linalg_cholesky", [lower], input, |matrix: &[T], [lower]| {
            T::cholesky(Matrix::new(matrix, n, n), MatrixMut::new(lower, n, n))
        })
    })
}

/// Computes A⁻¹·B in the place of B. The reason is the number of the pivot that is zero.
pub(crate) fn solve(right: &Tensor, input: &Tensor) -> Result<Failed<usize>> {
    let (_, n, columns) = shape(right);
    with_real!("linalg_solve", input, T => {
        each("linalg_solve", [right], input, |matrix: &[T], [right]| {
            T::solve(Matrix::new(matrix, n, n), right, columns).map_or(Ok(()), Err)
        })
    })
}

/// Computes A⁻¹·B for triangular matrices A in the place of B.
pub(crate) fn solve_triangular(right: &Tensor, input: &Tensor, triangle: Triangle) -> Result<()> {
    let (_, n, columns) = shape(right);
    with_real!("linalg_solve_triangular", input, T => {
        each("linalg_solve_triangular", [right], input, |matrix: &[T], [right]| {
            T::solve_triangular(Matrix::new(matrix, n, n), triangle, right, columns);
            Ok::<(), ()>(())
        })
        .map(drop)
    })
}

/// Computes the pivots of matrices, and 1 or -1, by which their product is the determinant.
pub(crate) fn pivots(diagonal: &Tensor, sign: &Tensor, input: &Tensor) -> Result<()> {
    let (_, n, _) = shape(input);
    with_real!("linalg_det", input, T => {
        each("linalg_det", [diagonal, sign], input, |matrix: &[T], [diagonal, sign]| {
            let is_odd = T::pivots(Matrix::new(matrix, n, n), diagonal);
            sign[0] = if is_odd { -1.0 } else { 1.0 };
            Ok::<(), ()>(())
        })
        .map(drop)
    })
}

/// Computes orthogonal and triangular factors, or the latter only.
pub(crate) fn qr(q: Option<&Tensor>, r: &Tensor, input: &Tensor) -> Result<()> {
    let (_, rows, columns) = shape(input);
    let (_, inner, _) = shape(r);
    with_real!("linalg_qr", input, T => match q {
        Some(q) => each("linalg_qr", [q, r], input, |matrix: &[T], [q, r]| {
            let q = MatrixMut::new(q, rows, inner);
            T::qr(Matrix::new(matrix, rows, columns), Some(q), MatrixMut::new(r, inner, columns));
            Ok::<(), ()>(())
        }),
        None => each("linalg_qr", [r], input, |matrix: &[T], [r]| {
            T::qr(Matrix::new(matrix, rows, columns), None, MatrixMut::new(r, inner, columns));
            Ok::<(), ()>(())
        }),
    }
    .map(drop))
}

/// Computes singular vectors and values.
pub(crate) fn svd([u, values, vh]: [&Tensor; 3], input: &Tensor) -> Result<Failed<NotConverged>> {
    let (_, rows, columns) = shape(input);
    let (_, _, left) = shape(u);
    let (_, right, _) = shape(vh);
    with_real!("linalg_svd", input, T => {
        each("linalg_svd", [u, values, vh], input, |matrix: &[T], [u, values, vh]| {
            let u = MatrixMut::new(u, rows, left);
            T::svd(Matrix::new(matrix, rows, columns), u, values, MatrixMut::new(vh, right, columns))
        })
    })
}

/// Computes singular values.
pub(crate) fn singular_values(values: &Tensor, input: &Tensor) -> Result<Failed<NotConverged>> {
    let (_, rows, columns) = shape(input);
    with_real!("linalg_svdvals", input, T => {
        each("linalg_svdvals", [values], input, |matrix: &[T], [values]| {
            T::singular_values(Matrix::new(matrix, rows, columns), values)
        })
    })
}

/// Computes eigenvalues and eigenvectors of symmetric matrices, of which it reads the lower triangles.
pub(crate) fn eigh(values: &Tensor, vectors: &Tensor, input: &Tensor) -> Result<Failed<NotConverged>> {
    let (_, n, _) = shape(input);
    with_real!("linalg_eigh", input, T => {
        each("linalg_eigh", [values, vectors], input, |matrix: &[T], [values, vectors]| {
            T::eigh(Matrix::new(matrix, n, n), values, MatrixMut::new(vectors, n, n))
        })
    })
}

/// Computes eigenvalues of symmetric matrices, of which it reads the lower triangles.
pub(crate) fn eigenvalues(values: &Tensor, input: &Tensor) -> Result<Failed<NotConverged>> {
    let (_, n, _) = shape(input);
    with_real!("linalg_eigvalsh", input, T => {
        each("linalg_eigvalsh", [values], input, |matrix: &[T], [values]| {
            T::eigenvalues(Matrix::new(matrix, n, n), values)
        })
    })
}

/// Returns the number of matrices, and the rows and columns of each.
fn shape(matrices: &Tensor) -> (usize, usize, usize) {
    let [batch @ .., rows, columns] = matrices.sizes() else { unreachable!("the operation checks the dimensions") };
    (batch.iter().product(), *rows, *columns)
}

/// Calls `work` with each matrix of the batch: with its part of each tensor.
fn each<T: Element + Real, F: Send, const WRITES: usize>(
    op: &'static str,
    writes: [&Tensor; WRITES],
    input: &Tensor,
    work: impl Fn(&[T], [&mut [T]; WRITES]) -> Result<(), F> + Sync,
) -> Result<Failed<F>> {
    /// The products of numbers from which on another thread is worth it.
    const GRAIN: usize = 100_000;
    let (count, rows, columns) = shape(input);
    let mut access = Access::new(op, &writes, &[input])?;
    let ([read], written) = access.split::<T, T, 1, WRITES>()?;
    let written = written.map(DisjointSlice::new);
    let failed = Mutex::new(None);
    let per_part = (GRAIN / (rows * columns * rows.min(columns)).max(1)).max(1);
    threads::for_each_range(count, per_part, |matrices| {
        for matrix in matrices {
            let part = |tensor: &Tensor| {
                let length = tensor.numel() / count;
                matrix * length..(matrix + 1) * length
            };
            // SAFETY: each matrix is computed once, and writes to its own part.
            let written = array::from_fn(|index| unsafe { written[index].range(part(writes[index])) });
            if let Err(reason) = work(&read[part(input)], written) {
                let mut failed = failed.lock();
                if failed.as_ref().is_none_or(|(first, _)| matrix < *first) {
                    *failed = Some((matrix, reason));
                }
            }
        }
    });
    Ok(failed.into_inner())
}
