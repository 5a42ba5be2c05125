//! Factorizations and solvers of dense matrices, by the library faer.
//!
//! Matrices are slices, row by row without gaps, of at least one row and one column. Each function uses one thread, so
//! that results have the same bits for any number of threads. faer's generic code is compiled in this crate only, and
//! only with the feature `faer`, which is on by default: without it, no type of elements is [`Real`].
//!
//! ```
//! use tenure_linalg::{Matrix, Real};
//!
//! let matrix = Matrix::new(&[4.0, 2.0, 2.0, 3.0], 2, 2);
//! let mut x = [8.0, 7.0];
//! assert_eq!(f64::solve(matrix, &mut x, 1), None);
//! assert_eq!(x, [1.25, 1.5]);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "faer"), expect(dead_code, reason = "only faer reads the matrices"))]

#[cfg(feature = "faer")]
mod solvers;

/// A matrix in memory row by row.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
}

/// A matrix to write to, in memory row by row.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    elements: &'a mut [T],
    rows: usize,
    columns: usize,
}

/// The iteration of a decomposition did not converge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotConverged;

/// The leading minor of this order is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPositiveDefinite {
    /// The number of the minor's rows.
    pub order: usize,
}

/// The kind of a triangular matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triangle {
    /// Whether the elements below the diagonal are zero, not those above it.
    pub is_upper: bool,
    /// Whether the diagonal counts as ones, whatever its elements.
    pub is_unit: bool,
}

impl<'a, T> Matrix<'a, T> {
    /// Takes elements as a matrix.
    ///
    /// # Panics
    /// If there are not `rows · columns` elements.
    pub fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(elements.len(), rows * columns, "{rows} rows of {columns} elements");
        Self { elements, rows, columns }
    }
}

impl<'a, T> MatrixMut<'a, T> {
    /// Takes elements as a matrix to write to.
    ///
    /// # Panics
    /// If there are not `rows · columns` elements.
    pub fn new(elements: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(elements.len(), rows * columns, "{rows} rows of {columns} elements");
        Self { elements, rows, columns }
    }
}

/// A type of elements: `f32` and `f64`, with the feature `faer`.
pub trait Real: Sized {
    /// Computes the lower triangular L of a symmetric matrix A = L·Lᵀ, of which it reads the lower triangle.
    ///
    /// # Errors
    /// The matrix is not positive definite.
    fn cholesky(matrix: Matrix<'_, Self>, lower: MatrixMut<'_, Self>) -> Result<(), NotPositiveDefinite>;

    /// Solves A·X = B, where B has `columns` columns, and writes X in its place. Returns the number of the first zero on
    /// the diagonal of the factor U, if there is one: then the matrix is singular, and X is not finite.
    fn solve(matrix: Matrix<'_, Self>, right: &mut [Self], columns: usize) -> Option<usize>;

    /// Solves A·X = B for a triangular A, and writes X in the place of B. It reads one triangle of A.
    fn solve_triangular(matrix: Matrix<'_, Self>, triangle: Triangle, right: &mut [Self], columns: usize);

    /// Writes the diagonal of the factor U of A = P·L·U, whose product is the determinant but for its sign. Returns
    /// whether the permutation P is odd, which changes the sign.
    fn pivots(matrix: Matrix<'_, Self>, diagonal: &mut [Self]) -> bool;

    /// Computes an orthogonal Q, if it is wanted, and an upper triangular R with A = Q·R. Q has as many columns as R has
    /// rows: as many as A has rows, or the smaller number of A's rows and columns.
    fn qr(matrix: Matrix<'_, Self>, q: Option<MatrixMut<'_, Self>>, r: MatrixMut<'_, Self>);

    /// Computes A = U·diag(s)·Vᵀ with singular values in descending order. U and V are square, or they have as many
    /// columns as there are singular values.
    ///
    /// # Errors
    /// An element is not finite.
    fn svd(
        matrix: Matrix<'_, Self>,
        u: MatrixMut<'_, Self>,
        values: &mut [Self],
        v_transposed: MatrixMut<'_, Self>,
    ) -> Result<(), NotConverged>;

    /// Computes singular values in descending order.
    ///
    /// # Errors
    /// An element is not finite.
    fn singular_values(matrix: Matrix<'_, Self>, values: &mut [Self]) -> Result<(), NotConverged>;

    /// Computes eigenvalues in ascending order, and eigenvectors as columns, of a symmetric matrix, of which it reads
    /// the lower triangle.
    ///
    /// # Errors
    /// An element is not finite.
    fn eigh(matrix: Matrix<'_, Self>, values: &mut [Self], vectors: MatrixMut<'_, Self>) -> Result<(), NotConverged>;

    /// Computes the eigenvalues of a symmetric matrix in ascending order. It reads the lower triangle.
    ///
    /// # Errors
    /// An element is not finite.
    fn eigenvalues(matrix: Matrix<'_, Self>, values: &mut [Self]) -> Result<(), NotConverged>;
}
