//! Decompositions and solvers of matrices, compared with PyTorch.

use tenure_tensor::{DType, Result, Tensor};

use crate::harness::Case;

fn eye(x: &Tensor) -> Result<Tensor> {
    Tensor::eye(3, 3, x.dtype(), x.device())
}

fn regular(x: &Tensor) -> Result<Tensor> {
    x.add(&eye(x)?.mul(5)?)
}

fn symmetric(x: &Tensor) -> Result<Tensor> {
    x.add(&x.mt()?)
}

fn positive(x: &Tensor) -> Result<Tensor> {
    x.matmul(&x.mt()?)?.add(&eye(x)?)
}

fn both((first, second): (Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![first, second])
}

fn shown_svd(x: &Tensor, full_matrices: bool) -> Result<Vec<Tensor>> {
    let (u, s, vh) = Tensor::linalg_svd(x, full_matrices)?;
    let count = s.size(-1)?;
    Ok(vec![u.narrow(-1, 0, count)?.abs()?, s, vh.narrow(-2, 0, count)?.abs()?])
}

fn shown_eigh(x: &Tensor, uplo: &str) -> Result<Vec<Tensor>> {
    let (values, vectors) = Tensor::linalg_eigh(&symmetric(x)?, uplo)?;
    Ok(vec![values, vectors.abs()?])
}

fn solved(x: &[Tensor], left: bool) -> Result<Vec<Tensor>> {
    Ok(vec![Tensor::linalg_solve(&regular(&x[0])?, &x[1], left)?])
}

fn solved_triangle(a: &Tensor, b: &Tensor, upper: bool, left: bool, unit: bool) -> Result<Vec<Tensor>> {
    Ok(vec![Tensor::linalg_solve_triangular(a, b, upper, left, unit)?])
}

fn limit(value: f64) -> Result<Tensor> {
    Tensor::scalar(value, DType::F64)
}

pub(crate) const CASES: &[Case] = &[
    ("cholesky", |x| Ok(vec![Tensor::linalg_cholesky(&positive(&x[0])?, false)?])),
    ("cholesky_upper", |x| Ok(vec![Tensor::linalg_cholesky(&positive(&x[0])?, true)?])),
    ("qr", |x| both(Tensor::linalg_qr(&regular(&x[0])?, "reduced")?)),
    ("qr_tall", |x| both(Tensor::linalg_qr(&x[0], "reduced")?)),
    ("qr_wide", |x| both(Tensor::linalg_qr(&x[0], "reduced")?)),
    ("qr_complete", |x| both(Tensor::linalg_qr(&x[0], "complete")?)),
    ("qr_complete_tall", |x| both(Tensor::linalg_qr(&x[0], "complete")?)),
    ("qr_r", |x| Ok(vec![Tensor::linalg_qr(&x[0], "r")?.1])),
    ("svd", |x| shown_svd(&x[0], false)),
    ("svd_tall", |x| shown_svd(&x[0], false)),
    ("svd_wide", |x| shown_svd(&x[0], true)),
    ("svdvals", |x| Ok(vec![Tensor::linalg_svdvals(&x[0])?])),
    ("svdvals_only", |x| Ok(vec![Tensor::linalg_svdvals(&x[0])?])),
    ("eigh", |x| shown_eigh(&x[0], "L")),
    ("eigh_upper", |x| shown_eigh(&x[0], "U")),
    ("eigh_of_lower", |x| Ok(vec![Tensor::linalg_eigh(&x[0], "L")?.0])),
    ("eigh_of_upper", |x| Ok(vec![Tensor::linalg_eigh(&x[0], "U")?.0])),
    ("eigvalsh", |x| Ok(vec![Tensor::linalg_eigvalsh(&symmetric(&x[0])?, "L")?])),
    ("eigvalsh_of_upper", |x| Ok(vec![Tensor::linalg_eigvalsh(&x[0], "U")?])),
    ("solve", |x| solved(x, true)),
    ("solve_vector", |x| solved(x, true)),
    ("solve_vectors", |x| solved(x, true)),
    ("solve_broadcast", |x| solved(x, true)),
    ("solve_right", |x| solved(x, false)),
    ("solve_triangular", |x| solved_triangle(&regular(&x[0])?, &x[1], true, true, false)),
    ("solve_triangular_lower", |x| solved_triangle(&regular(&x[0])?, &x[1], false, true, false)),
    ("solve_triangular_unit", |x| solved_triangle(&x[0], &x[1], true, true, true)),
    ("solve_triangular_right", |x| solved_triangle(&regular(&x[0])?, &x[1], false, false, false)),
    ("solve_triangular_unit_right", |x| solved_triangle(&x[0], &x[1], false, false, true)),
    ("inv", |x| Ok(vec![Tensor::linalg_inv(&regular(&x[0])?)?])),
    ("inverse", |x| Ok(vec![regular(&x[0])?.inverse()?])),
    ("det", |x| Ok(vec![x[0].det()?])),
    ("det_of_none", |x| Ok(vec![x[0].det()?])),
    ("det_of_number", |x| Ok(vec![x[0].det()?])),
    ("slogdet", |x| both(x[0].slogdet()?)),
    ("slogdet_singular", |x| both(x[0].slogdet()?)),
    ("logdet", |x| Ok(vec![positive(&x[0])?.logdet()?])),
    ("logdet_negative", |x| Ok(vec![x[0].logdet()?])),
    ("pinv", |x| Ok(vec![Tensor::linalg_pinv(&x[0], None, None, false)?])),
    ("pinv_wide", |x| Ok(vec![Tensor::linalg_pinv(&x[0], None, None, false)?])),
    ("pinv_limited", |x| Ok(vec![Tensor::linalg_pinv(&x[0], None, Some(&limit(0.4)?), false)?])),
    ("pinv_symmetric", |x| Ok(vec![Tensor::linalg_pinv(&symmetric(&regular(&x[0])?)?, None, None, true)?])),
    ("pinverse", |x| Ok(vec![x[0].pinverse(1e-3)?])),
    ("matrix_rank", |x| Ok(vec![Tensor::linalg_matrix_rank(&x[0], None, None, false)?])),
    ("matrix_rank_limited", |x| Ok(vec![Tensor::linalg_matrix_rank(&x[0], Some(&limit(0.6)?), None, false)?])),
    ("matrix_rank_symmetric", |x| Ok(vec![Tensor::linalg_matrix_rank(&x[0], None, None, true)?])),
    ("matrix_power", |x| Ok(vec![x[0].matrix_power(3)?])),
    ("matrix_power_one", |x| Ok(vec![x[0].matrix_power(1)?])),
    ("matrix_power_none", |x| Ok(vec![x[0].matrix_power(0)?])),
    ("matrix_power_inverse", |x| Ok(vec![regular(&x[0])?.matrix_power(-2)?])),
    ("matrix_power_integers", |x| Ok(vec![x[0].matrix_power(5)?])),
    ("matrix_exp", |x| Ok(vec![x[0].matrix_exp()?])),
    ("matrix_exp_small", |x| Ok(vec![x[0].matrix_exp()?])),
];
