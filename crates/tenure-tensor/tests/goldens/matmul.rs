//! Matrix products compared with PyTorch.

use tenure_tensor::{Result, Tensor, einsum};

use crate::harness::Case;

fn equation(text: &str, operands: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![einsum(text, &operands.iter().collect::<Vec<_>>())?])
}

pub(crate) const CASES: &[Case] = &[
    ("matmul", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_vectors", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_row", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_column", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_fold", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_broadcast", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_left", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("matmul_integers", |x| Ok(vec![x[0].matmul(&x[1])?])),
    ("bmm", |x| Ok(vec![x[0].bmm(&x[1])?])),
    ("mv", |x| Ok(vec![x[0].mv(&x[1])?])),
    ("dot", |x| Ok(vec![x[0].dot(&x[1])?])),
    ("outer", |x| Ok(vec![x[0].outer(&x[1])?])),
    ("addmm", |x| Ok(vec![x[0].addmm(&x[1], &x[2], 0.5, -2)?])),
    ("addmm_without", |x| Ok(vec![x[0].addmm(&x[1], &x[2], 0, 1)?])),
    ("baddbmm", |x| Ok(vec![x[0].baddbmm(&x[1], &x[2], 1, 3)?])),
    ("linear", |x| Ok(vec![x[0].linear(&x[1], Some(&x[2]))?])),
    ("linear_one", |x| Ok(vec![x[0].linear(&x[1], Some(&x[2]))?])),
    ("linear_without_bias", |x| Ok(vec![x[0].linear(&x[1], None)?])),
    ("einsum_matmul", |x| equation("ij,jk->ik", x)),
    ("einsum_batches", |x| equation("bij,bkj->bik", x)),
    ("einsum_trace", |x| equation("ii", x)),
    ("einsum_diagonal", |x| equation("iij -> ji", x)),
    ("einsum_transpose", |x| equation("ij->ji", x)),
    ("einsum_implicit", |x| equation("ba,ca", x)),
    ("einsum_numbers", |x| equation(",->", x)),
    ("einsum_outer", |x| equation("i,j->ij", x)),
    ("einsum_ellipsis", |x| equation("...ij,...jk->...ik", x)),
    ("einsum_ellipsis_dropped", |x| equation("i...->...", x)),
    ("einsum_three", |x| equation("ij,jk,kl->il", x)),
    ("einsum_bilinear", |x| equation("bn,anm,bm->ba", x)),
    ("einsum_one", |x| equation("ij,jk->k", x)),
];
