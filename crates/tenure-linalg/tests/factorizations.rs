//! Factors of random matrices: their product is the matrix, and they are orthogonal or triangular.

use tenure_linalg::{Matrix, MatrixMut, NotConverged, NotPositiveDefinite, Real, Triangle};

/// Sizes on both sides of the blocks that the library computes with.
const SIZES: [(usize, usize); 7] = [(1, 1), (2, 3), (5, 5), (17, 4), (3, 33), (40, 40), (70, 33)];

/// Returns numbers from -1 to 1.
fn numbers(count: usize) -> Vec<f64> {
    (1..=count).map(|at| (at as f64 * 0.618_034 + (at * at) as f64 * 0.414_214).fract() * 2.0 - 1.0).collect()
}

fn product(a: &[f64], b: &[f64], inner: usize) -> Vec<f64> {
    let (rows, columns) = (a.len() / inner, b.len() / inner);
    let element = |i: usize, j: usize| (0..inner).map(|k| a[i * inner + k] * b[k * columns + j]).sum();
    (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
}

fn transposed(matrix: &[f64], columns: usize) -> Vec<f64> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|at| matrix[at % rows * columns + at / rows]).collect()
}

fn diagonal(values: &[f64]) -> Vec<f64> {
    let n = values.len();
    (0..n * n).map(|at| if at / n == at % n { values[at / n] } else { 0.0 }).collect()
}

/// Returns a symmetric positive definite matrix.
fn positive(n: usize) -> Vec<f64> {
    let a = numbers(n * n);
    product(&a, &transposed(&a, n), n).iter().zip(diagonal(&vec![1.0; n])).map(|(a, b)| a + b).collect()
}

#[track_caller]
fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error < 1e-11, "{error}");
}

#[track_caller]
fn orthogonal(columns_of: &[f64], columns: usize) {
    let rows = columns_of.len() / columns;
    near(&product(&transposed(columns_of, columns), columns_of, rows), &diagonal(&vec![1.0; columns]));
}

#[test]
fn the_product_of_q_and_r_is_the_matrix() {
    for (rows, columns) in SIZES {
        let a = numbers(rows * columns);
        for inner in [rows, rows.min(columns)] {
            let mut q = vec![9.0; rows * inner];
            let mut r = vec![9.0; inner * columns];
            let target = MatrixMut::new(&mut q, rows, inner);
            f64::qr(Matrix::new(&a, rows, columns), Some(target), MatrixMut::new(&mut r, inner, columns));
            near(&product(&q, &r, inner), &a);
            orthogonal(&q, inner);
            assert!((0..r.len()).all(|at| at / columns <= at % columns || r[at] == 0.0));
        }
    }
}

#[test]
fn the_product_of_singular_vectors_and_values_is_the_matrix() {
    for (rows, columns) in SIZES {
        let a = numbers(rows * columns);
        let count = rows.min(columns);
        for [left, right] in [[rows, columns], [count, count]] {
            let mut u = vec![0.0; rows * left];
            let mut s = vec![0.0; count];
            let mut vh = vec![0.0; right * columns];
            let [to_u, to_vh] =
                [(&mut u, rows, left), (&mut vh, right, columns)].map(|(m, r, c)| MatrixMut::new(m, r, c));
            f64::svd(Matrix::new(&a, rows, columns), to_u, &mut s, to_vh).unwrap();
            orthogonal(&u, left);
            orthogonal(&transposed(&vh, columns), right);
            let thin: Vec<f64> = u.chunks(left).flat_map(|row| row[..count].to_vec()).collect();
            near(&product(&product(&thin, &diagonal(&s), count), &vh[..count * columns], count), &a);
            assert!(s.is_sorted_by(|a, b| a >= b) && s[count - 1] >= 0.0);
            let mut alone = vec![0.0; count];
            f64::singular_values(Matrix::new(&a, rows, columns), &mut alone).unwrap();
            near(&alone, &s);
        }
    }
}

#[test]
fn factors_of_symmetric_matrices_read_the_lower_triangle() {
    for n in [1, 2, 7, 40, 70] {
        let a = positive(n);
        let half: Vec<f64> = a.iter().enumerate().map(|(at, x)| if at % n > at / n { 9.0 } else { *x }).collect();
        let mut lower = vec![9.0; n * n];
        f64::cholesky(Matrix::new(&half, n, n), MatrixMut::new(&mut lower, n, n)).unwrap();
        near(&product(&lower, &transposed(&lower, n), n), &a);
        let mut values = vec![0.0; n];
        let mut vectors = vec![0.0; n * n];
        f64::eigh(Matrix::new(&half, n, n), &mut values, MatrixMut::new(&mut vectors, n, n)).unwrap();
        orthogonal(&vectors, n);
        near(&product(&product(&vectors, &diagonal(&values), n), &transposed(&vectors, n), n), &a);
        let mut alone = vec![0.0; n];
        f64::eigenvalues(Matrix::new(&half, n, n), &mut alone).unwrap();
        near(&alone, &values);
        assert!(values.is_sorted());
    }
}

#[test]
fn solutions_times_the_matrix_are_the_right_sides() {
    for n in [1, 2, 7, 40, 70] {
        let a = positive(n);
        let b = numbers(n * 3);
        let mut x = b.clone();
        assert_eq!(f64::solve(Matrix::new(&a, n, n), &mut x, 3), None);
        near(&product(&a, &x, n), &b);
        for (is_upper, is_unit) in [(false, false), (false, true), (true, false), (true, true)] {
            let keeps = |row: usize, column: usize| if is_upper { row < column } else { row > column };
            let triangle: Vec<f64> = (0..n * n)
                .map(|at| match (at / n, at % n) {
                    (row, column) if row == column => {
                        if is_unit {
                            1.0
                        } else {
                            a[at]
                        }
                    }
                    (row, column) if keeps(row, column) => a[at] / n as f64,
                    _ => 0.0,
                })
                .collect();
            let mut x = b.clone();
            f64::solve_triangular(Matrix::new(&triangle, n, n), Triangle { is_upper, is_unit }, &mut x, 3);
            near(&product(&triangle, &x, n), &b);
        }
    }
}

#[test]
fn pivots_and_the_sign_give_the_determinant() {
    let mut pivots = [0.0; 3];
    let cyclic = [0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    assert!(!f64::pivots(Matrix::new(&cyclic, 3, 3), &mut pivots));
    assert_eq!(pivots.iter().product::<f64>(), 24.0);
    let exchanged = [0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0];
    assert!(f64::pivots(Matrix::new(&exchanged, 3, 3), &mut pivots));
    assert_eq!(pivots.iter().product::<f64>(), 24.0);
}

#[test]
fn a_pivot_that_is_zero_leaves_the_others_as_they_are() {
    let mut pivots = [9.0; 3];
    assert!(!f64::pivots(Matrix::new(&[0.0; 9], 3, 3), &mut pivots));
    assert_eq!(pivots, [0.0; 3]);
    f64::pivots(Matrix::new(&[0.0, 1.0, 2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0], 3, 3), &mut pivots);
    assert!(pivots.iter().all(|pivot| pivot.is_finite()) && pivots.iter().product::<f64>() == 0.0, "{pivots:?}");
}

#[test]
fn single_precision_is_computed_too() {
    let mut x = [8.0_f32, 7.0];
    assert_eq!(f32::solve(Matrix::new(&[4.0, 2.0, 2.0, 3.0], 2, 2), &mut x, 1), None);
    assert_eq!(x, [1.25, 1.5]);
}

#[test]
fn matrices_without_a_result_are_told() {
    let mut x = [1.0, 1.0];
    assert_eq!(f64::solve(Matrix::new(&[1.0, 2.0, 2.0, 4.0], 2, 2), &mut x, 1), Some(1));
    let mut lower = [0.0; 4];
    let found = f64::cholesky(Matrix::new(&[1.0, 2.0, 2.0, 4.0 - 1e-9], 2, 2), MatrixMut::new(&mut lower, 2, 2));
    assert_eq!(found, Err(NotPositiveDefinite { order: 2 }));
    let mut values = [0.0; 2];
    let odd = [1.0, f64::NAN, f64::INFINITY, 1.0];
    assert_eq!(f64::singular_values(Matrix::new(&odd, 2, 2), &mut values), Err(NotConverged));
    assert_eq!(f64::eigenvalues(Matrix::new(&odd, 2, 2), &mut values), Err(NotConverged));
}

#[test]
fn huge_and_tiny_elements_neither_overflow_nor_vanish() {
    for scale in [1e300, 1e-300] {
        let a: Vec<f64> = numbers(12).iter().map(|x| x * scale).collect();
        let mut expected = [0.0; 3];
        let mut found = [0.0; 3];
        f64::singular_values(Matrix::new(&numbers(12), 4, 3), &mut expected).unwrap();
        f64::singular_values(Matrix::new(&a, 4, 3), &mut found).unwrap();
        near(&found.map(|value| value / scale), &expected);
        let symmetric: Vec<f64> = positive(3).iter().map(|x| x * scale).collect();
        f64::eigenvalues(Matrix::new(&positive(3), 3, 3), &mut expected).unwrap();
        f64::eigenvalues(Matrix::new(&symmetric, 3, 3), &mut found).unwrap();
        near(&found.map(|value| value / scale), &expected);
    }
}
