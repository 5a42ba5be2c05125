//! The functions of [`Real`], computed by faer.

use faer::linalg::solvers::{Llt, LltError, PartialPivLu, Qr, SelfAdjointEigen, Solve, Svd};
use faer::linalg::triangular_solve as triangular;
use faer::{MatMut, MatRef, Par, Side};

use crate::{Matrix, MatrixMut, NotConverged, NotPositiveDefinite, Real, Triangle};

impl<'a, T> Matrix<'a, T> {
    fn view(self) -> MatRef<'a, T> {
        MatRef::from_row_major_slice(self.elements, self.rows, self.columns)
    }
}

impl<'a, T> MatrixMut<'a, T> {
    fn view(self) -> MatMut<'a, T> {
        MatMut::from_row_major_slice_mut(self.elements, self.rows, self.columns)
    }
}

/// Returns the elements of a matrix divided by the largest one, and that one, if squares of the elements would overflow or
/// vanish; else no elements and 1. Fails for elements that are not finite, with which iterations would not end.
macro_rules! scaled {
    ($type:ty, $matrix:ident) => {{
        if !$matrix.elements.iter().all(|element| element.is_finite()) {
            return Err(NotConverged);
        }
        let largest = $matrix.elements.iter().fold(0.0, |so_far: $type, element| so_far.max(element.abs()));
        let limit = <$type>::MIN_POSITIVE.sqrt() / <$type>::EPSILON;
        let is_usual = largest == 0.0 || (limit..=1.0 / limit).contains(&largest);
        let divided = || $matrix.elements.iter().map(|element| element / largest).collect::<Vec<$type>>();
        if is_usual { (Vec::new(), 1.0) } else { (divided(), largest) }
    }};
}

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {
            fn cholesky(matrix: Matrix<'_, Self>, lower: MatrixMut<'_, Self>) -> Result<(), NotPositiveDefinite> {
                let factor = Llt::new(matrix.view(), Side::Lower)
                    .map_err(|LltError::NonPositivePivot { index }| NotPositiveDefinite { order: index + 1 })?;
                lower.view().copy_from(factor.L());
                Ok(())
            }

            fn solve(matrix: Matrix<'_, Self>, right: &mut [Self], columns: usize) -> Option<usize> {
                let rows = matrix.rows;
                let factors = PartialPivLu::new(matrix.view());
                factors.solve_in_place(MatrixMut::new(right, rows, columns).view());
                (0..rows).find(|i| factors.U()[(*i, *i)] == 0.0)
            }

            fn solve_triangular(matrix: Matrix<'_, Self>, triangle: Triangle, right: &mut [Self], columns: usize) {
                let rows = matrix.rows;
                let matrix = matrix.view();
                let right = MatrixMut::new(right, rows, columns).view();
                match (triangle.is_upper, triangle.is_unit) {
                    (false, false) => triangular::solve_lower_triangular_in_place(matrix, right, Par::Seq),
                    (false, true) => triangular::solve_unit_lower_triangular_in_place(matrix, right, Par::Seq),
                    (true, false) => triangular::solve_upper_triangular_in_place(matrix, right, Par::Seq),
                    (true, true) => triangular::solve_unit_upper_triangular_in_place(matrix, right, Par::Seq),
                }
            }

            fn pivots(matrix: Matrix<'_, Self>, diagonal: &mut [Self]) -> bool {
                let factors = PartialPivLu::new(matrix.view());
                diagonal.iter_mut().enumerate().for_each(|(i, to)| *to = factors.U()[(i, i)]);
                if diagonal.iter().all(|pivot| *pivot != 0.0 && pivot.is_finite()) {
                    return is_odd(factors.P().arrays().0);
                }
                // The library divides by a pivot that is zero.
                let n = matrix.rows;
                let mut rows = matrix.elements.to_vec();
                let mut is_odd = false;
                for k in 0..n {
                    let size = |row: &usize| rows[row * n + k].abs();
                    let largest = (k..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(k);
                    if largest != k {
                        (0..n).for_each(|column| rows.swap(k * n + column, largest * n + column));
                        is_odd = !is_odd;
                    }
                    diagonal[k] = rows[k * n + k];
                    for row in k + 1..n {
                        let factor = if diagonal[k] == 0.0 { 0.0 } else { rows[row * n + k] / diagonal[k] };
                        (k + 1..n).for_each(|column| rows[row * n + column] -= factor * rows[k * n + column]);
                    }
                }
                is_odd
            }

            fn qr(matrix: Matrix<'_, Self>, q: Option<MatrixMut<'_, Self>>, r: MatrixMut<'_, Self>) {
                let is_complete = r.rows == matrix.rows;
                let factors = Qr::new(matrix.view());
                let (rows, mut r) = (r.rows, r.view());
                r.fill(0.0);
                let triangle = factors.R();
                let common = rows.min(triangle.nrows());
                for i in 0..common {
                    (i..triangle.ncols()).for_each(|j| r[(i, j)] = triangle[(i, j)]);
                }
                if let Some(q) = q {
                    q.view().copy_from(if is_complete { factors.compute_Q() } else { factors.compute_thin_Q() });
                }
            }

            fn svd(
                matrix: Matrix<'_, Self>,
                u: MatrixMut<'_, Self>,
                values: &mut [Self],
                v_transposed: MatrixMut<'_, Self>,
            ) -> Result<(), NotConverged> {
                let (divided, scale) = scaled!($type, matrix);
                let matrix = if divided.is_empty() { matrix } else { Matrix { elements: &divided[..], ..matrix } };
                let is_thin = u.columns == values.len() && v_transposed.rows == values.len();
                let matrix = matrix.view();
                let svd = if is_thin { Svd::new_thin(matrix) } else { Svd::new(matrix) }.map_err(|_| NotConverged)?;
                u.view().copy_from(svd.U());
                v_transposed.view().copy_from(svd.V().transpose());
                values.iter_mut().zip(svd.S().column_vector().iter()).for_each(|(to, value)| *to = *value * scale);
                Ok(())
            }

            fn singular_values(matrix: Matrix<'_, Self>, values: &mut [Self]) -> Result<(), NotConverged> {
                let (divided, scale) = scaled!($type, matrix);
                let matrix = if divided.is_empty() { matrix } else { Matrix { elements: &divided[..], ..matrix } };
                let found = matrix.view().singular_values().map_err(|_| NotConverged)?;
                values.iter_mut().zip(found).for_each(|(to, value)| *to = value * scale);
                Ok(())
            }

            fn eigh(
                matrix: Matrix<'_, Self>,
                values: &mut [Self],
                vectors: MatrixMut<'_, Self>,
            ) -> Result<(), NotConverged> {
                let (divided, scale) = scaled!($type, matrix);
                let matrix = if divided.is_empty() { matrix } else { Matrix { elements: &divided[..], ..matrix } };
                let found = SelfAdjointEigen::new(matrix.view(), Side::Lower).map_err(|_| NotConverged)?;
                vectors.view().copy_from(found.U());
                values.iter_mut().zip(found.S().column_vector().iter()).for_each(|(to, value)| *to = *value * scale);
                Ok(())
            }

            fn eigenvalues(matrix: Matrix<'_, Self>, values: &mut [Self]) -> Result<(), NotConverged> {
                let (divided, scale) = scaled!($type, matrix);
                let matrix = if divided.is_empty() { matrix } else { Matrix { elements: &divided[..], ..matrix } };
                let found = matrix.view().self_adjoint_eigenvalues(Side::Lower).map_err(|_| NotConverged)?;
                values.iter_mut().zip(found).for_each(|(to, value)| *to = value * scale);
                Ok(())
            }
        }
    };
}

real!(f32);
real!(f64);

/// Returns whether a permutation is made of an odd number of exchanges.
fn is_odd(permutation: &[usize]) -> bool {
    let mut seen = vec![false; permutation.len()];
    let mut exchanges = 0;
    for start in 0..permutation.len() {
        let mut at = start;
        while !seen[at] {
            seen[at] = true;
            at = permutation[at];
            exchanges += usize::from(at != start);
        }
    }
    exchanges % 2 == 1
}
