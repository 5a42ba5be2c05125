//! Factorizations into triangular and orthogonal matrices: Cholesky's and QR.

use super::entered;
use super::join::cat;
use super::linalg::{check, identities, matrices, on_host, parts, room, square, to_device_of};
use crate::autograd::{Context, attach, attach_all};
use crate::cpu;
use crate::error::AutogradError;
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Function for all {
        /// Computes the lower triangular L of symmetric positive definite matrices A = L·Lᵀ, of which it reads the lower
        /// triangles; or the upper triangular U of A = Uᵀ·U, by the upper triangles, if `upper`. PyTorch's
        /// `linalg.cholesky`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// No square matrices; neither `float32` nor `float64`; a matrix that is not positive definite.
        linalg_cholesky(input: Tensor, upper: Bool = false) -> Tensor;

        /// Computes orthogonal Q and upper triangular R with A = Q·R. With `mode` "reduced", Q has as many columns as
        /// the smaller number of A's rows and columns; with "complete" it is square; with "r" it is empty. PyTorch's
        /// `linalg.qr`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// Fewer than two dimensions; neither `float32` nor `float64`; another mode. There is no gradient with mode "r",
        /// nor with "complete" if A has more rows than columns.
        linalg_qr(input: Tensor, mode: Text = "reduced") -> (Tensor, Tensor);
    }
}

fn linalg_cholesky(input: &Tensor, upper: bool) -> Result<Tensor> {
    const OP: &str = "linalg.cholesky";
    let _op = entered("linalg_cholesky");
    let input = square(OP, input)?;
    if upper {
        return Tensor::linalg_cholesky(&input.mt()?, false)?.mt();
    }
    let (batch, n, _) = parts(&input);
    let out = room(&batch, &[n, n], input.dtype())?;
    if input.numel() > 0 {
        let failed = cpu::linalg::cholesky(&out, &on_host(&input)?)?;
        check(OP, &input, failed, |minor| {
            format!(
                "The factorization could not be completed because the input is not positive-definite (the leading \
                 minor of order {} is not positive-definite).",
                minor.order
            )
        })?;
    }
    let out = to_device_of(&input, out)?;
    attach(out.clone(), "linalg_cholesky", &[&input], |saver| {
        let factor = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let factor = context.unpack(factor)?;
            let product = factor.mt()?.matmul(&context.grad(0)?)?.tril(0)?;
            let symmetric = product.add(&product.tril(-1)?.mt()?)?.mul(0.5)?;
            let half = Tensor::linalg_solve_triangular(&factor.mt()?, &symmetric, true, true, false)?;
            let grad = Tensor::linalg_solve_triangular(&factor, &half, false, false, false)?;
            Ok([Some(grad)].into_iter().collect())
        })
    })
}

fn linalg_qr(input: &Tensor, mode: &str) -> Result<(Tensor, Tensor)> {
    const OP: &str = "linalg.qr";
    let _op = entered("linalg_qr");
    if !["reduced", "complete", "r"].contains(&mode) {
        let reason =
            format!("received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'");
        return Err(TensorError::argument(OP, reason));
    }
    let input = matrices(OP, input)?;
    let (batch, rows, columns) = parts(&input);
    let inner = if mode == "complete" { rows } else { rows.min(columns) };
    let r = room(&batch, &[inner, columns], input.dtype())?;
    let q = match mode {
        "r" => Tensor::empty(&[0], input.dtype(), input.device())?,
        _ if input.numel() == 0 => identities(&batch, rows, &input)?.narrow(-1, 0, inner)?.contiguous()?,
        _ => room(&batch, &[rows, inner], input.dtype())?,
    };
    if input.numel() > 0 {
        cpu::linalg::qr((mode != "r").then_some(&q), &r, &on_host(&input)?)?;
    }
    let q = to_device_of(&input, q)?;
    let r = to_device_of(&input, r)?;
    let refused = match mode {
        "r" => Some(
            "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use linalg.qr(A, \
             mode='reduced') if you are going to differentiate through linalg.qr.",
        ),
        "complete" if rows > columns => {
            Some("The QR decomposition is not differentiable when mode='complete' and nrows > ncols.")
        }
        _ => None,
    };
    attach_all(&[&q, &r], "linalg_qr", &[&input], |saver| {
        let saved = [saver.save_output(&q, 0)?, saver.save_output(&r, 1)?];
        Ok(move |context: &Context<'_>| {
            if let Some(reason) = refused {
                return Err(AutogradError::Other { node: "linalg_qr".to_owned(), reason: reason.to_owned() }.into());
            }
            let q = context.unpack(saved[0])?;
            let r = context.unpack(saved[1])?;
            let grad = qr_gradient([&q, &r], [&context.grad(0)?, &context.grad(1)?])?;
            Ok([Some(grad)].into_iter().collect())
        })
    })?;
    Ok((q, r))
}

/// Computes the gradient of A = Q·R from those of Q and R.
fn qr_gradient([q, r]: [&Tensor; 2], [to_q, to_r]: [&Tensor; 2]) -> Result<Tensor> {
    let (_, rows, columns) = parts(r);
    if rows >= columns {
        // Q·sym(triu(gR·Rᵀ - Qᵀ·gQ)) + gQ, divided by Rᵀ on the right.
        let difference = to_r.matmul(&r.mt()?)?.sub(&q.mt()?.matmul(to_q)?)?.triu(0)?;
        let symmetric = difference.add(&difference.triu(1)?.mt()?)?;
        let product = q.matmul(&symmetric)?.add(to_q)?;
        return Tensor::linalg_solve_triangular(&r.mt()?, &product, false, false, false);
    }
    // A = (X, Y) with a square X = Q·U, and R = (U, V) with V = Qᵀ·Y.
    let others = columns - rows;
    let to_u = to_r.narrow(-1, 0, rows)?;
    let to_v = to_r.narrow(-1, rows, others)?;
    let u = r.narrow(-1, 0, rows)?;
    let v = r.narrow(-1, rows, others)?;
    let y = q.matmul(&v)?;
    let to_x = qr_gradient([q, &u], [&to_q.add(&y.matmul(&to_v.mt()?)?)?, &to_u])?;
    cat(&[&to_x, &q.matmul(&to_v)?], -1)
}
