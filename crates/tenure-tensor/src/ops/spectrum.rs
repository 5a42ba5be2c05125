//! Singular values and vectors, and eigenvalues and eigenvectors of symmetric matrices.

use super::entered;
use super::linalg::{check, identities, matrices, on_host, parts, room, square, to_device_of};
use crate::autograd::{Context, attach_all, is_grad_enabled};
use crate::cpu;
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Function for all {
        /// Computes the singular value decomposition A = U·diag(S)·Vᵀ, with singular values in descending order, and
        /// returns U, S and Vᵀ. U and V are square if `full_matrices`, else they have as many columns as there are
        /// singular values. The signs of the vectors, and the vectors of equal singular values, are arbitrary: only
        /// gradients of functions that do not depend on them are defined, and only if the singular values differ.
        /// PyTorch's `linalg.svd`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// Fewer than two dimensions; neither `float32` nor `float64`; an element is not finite.
        linalg_svd(input: Tensor, full_matrices: Bool = true) -> (Tensor, Tensor, Tensor);

        /// Computes singular values in descending order. PyTorch's `linalg.svdvals`. Matrices of a CUDA device are
        /// computed on the host.
        ///
        /// # Errors
        /// The errors of [`linalg_svd`](Self::linalg_svd).
        linalg_svdvals(input: Tensor) -> Tensor;

        /// Computes eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices, of which it
        /// reads the lower triangles, or the upper ones if `uplo` is "U". The signs of the vectors, and the vectors of
        /// equal eigenvalues, are arbitrary: only gradients of functions that do not depend on them are defined, and
        /// only if the eigenvalues differ. PyTorch's `linalg.eigh`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// No square matrices; neither `float32` nor `float64`; another `uplo`.
        linalg_eigh(input: Tensor, uplo: Text = "L") -> (Tensor, Tensor);

        /// Computes the eigenvalues of symmetric matrices in ascending order. PyTorch's `linalg.eigvalsh`. Matrices of a
        /// CUDA device are computed on the host.
        ///
        /// # Errors
        /// The errors of [`linalg_eigh`](Self::linalg_eigh).
        linalg_eigvalsh(input: Tensor, uplo: Text = "L") -> Tensor;
    }
}

const NOT_FINITE: &str = "The algorithm failed to converge because the input matrix contained non-finite values.";

fn linalg_svd(input: &Tensor, full_matrices: bool) -> Result<(Tensor, Tensor, Tensor)> {
    const OP: &str = "linalg.svd";
    let _op = entered("linalg_svd");
    let input = matrices(OP, input)?;
    let (batch, rows, columns) = parts(&input);
    let count = rows.min(columns);
    let [left, right] = if full_matrices { [rows, columns] } else { [count; 2] };
    let [u, values, vh] = if input.numel() == 0 {
        let u = identities(&batch, rows, &input)?.narrow(-1, 0, left)?.contiguous()?;
        let vh = identities(&batch, columns, &input)?.narrow(-2, 0, right)?.contiguous()?;
        [u, room(&batch, &[count], input.dtype())?, vh]
    } else {
        let u = room(&batch, &[rows, left], input.dtype())?;
        let values = room(&batch, &[count], input.dtype())?;
        let vh = room(&batch, &[right, columns], input.dtype())?;
        let failed = cpu::linalg::svd([&u, &values, &vh], &on_host(&input)?)?;
        check(OP, &input, failed, |_| NOT_FINITE.to_owned())?;
        [u, values, vh]
    };
    let u = to_device_of(&input, u)?;
    let values = to_device_of(&input, values)?;
    let vh = to_device_of(&input, vh)?;
    attach_all(&[&u, &values, &vh], "linalg_svd", &[&input], |saver| {
        let saved = [saver.save_output(&u, 0)?, saver.save_output(&values, 1)?, saver.save_output(&vh, 2)?];
        Ok(move |context: &Context<'_>| {
            // Vectors beyond the singular values have no gradient, as in PyTorch.
            let u = context.unpack(saved[0])?.narrow(-1, 0, count)?;
            let vh = context.unpack(saved[2])?.narrow(-2, 0, count)?;
            let to_u = context.grad_if_any(0).map(|grad| grad.narrow(-1, 0, count)).transpose()?;
            let to_vh = context.grad_if_any(2).map(|grad| grad.narrow(-2, 0, count)).transpose()?;
            let grad = svd_gradient(
                [&u, &context.unpack(saved[1])?, &vh],
                [to_u.as_ref(), context.grad_if_any(1), to_vh.as_ref()],
            )?;
            Ok([Some(grad)].into_iter().collect())
        })
    })?;
    Ok((u, values, vh))
}

/// Computes the gradient of A = U·diag(S)·Vᵀ from those of its factors. PyTorch's `svd_backward`.
fn svd_gradient([u, s, vh]: [&Tensor; 3], [to_u, to_s, to_vh]: [Option<&Tensor>; 3]) -> Result<Tensor> {
    let (_, rows, count) = parts(u);
    let (_, _, columns) = parts(vh);
    let row = s.unsqueeze(-2)?;
    let column = s.unsqueeze(-1)?;
    let mut middle = match to_s {
        Some(grad) => grad.diag_embed(0, -2, -1)?,
        None => s.zeros_like()?.diag_embed(0, -2, -1)?,
    };
    let ones = Tensor::ones(&[count], s.dtype(), s.device())?.diag_embed(0, -2, -1)?;
    let gaps = row.square()?.sub(&column.square()?)?.add(&ones)?;
    let skew = |product: Tensor| product.sub(&product.mt()?)?.div(&gaps);
    if let Some(grad) = to_u {
        middle = middle.add(&skew(u.mt()?.matmul(grad)?)?.mul(&row)?)?;
    }
    if let Some(grad) = to_vh {
        middle = middle.add(&skew(vh.matmul(&grad.mt()?)?)?.mul(&column)?)?;
    }
    let mut total = u.matmul(&middle)?.matmul(vh)?;
    if let Some(grad) = to_u.filter(|_| rows > count) {
        let outside = grad.sub(&u.matmul(&u.mt()?.matmul(grad)?)?)?;
        total = total.add(&outside.div(&row)?.matmul(vh)?)?;
    }
    if let Some(grad) = to_vh.filter(|_| columns > count) {
        let outside = grad.sub(&grad.matmul(&vh.mt()?)?.matmul(vh)?)?;
        total = total.add(&u.div(&row)?.matmul(&outside)?)?;
    }
    Ok(total)
}

fn linalg_svdvals(input: &Tensor) -> Result<Tensor> {
    const OP: &str = "linalg.svd";
    let _op = entered("linalg_svdvals");
    let input = matrices(OP, input)?;
    if is_grad_enabled() && input.requires_grad() {
        return Ok(Tensor::linalg_svd(&input, false)?.1);
    }
    let (batch, rows, columns) = parts(&input);
    let values = room(&batch, &[rows.min(columns)], input.dtype())?;
    if input.numel() > 0 {
        let failed = cpu::linalg::singular_values(&values, &on_host(&input)?)?;
        check(OP, &input, failed, |_| NOT_FINITE.to_owned())?;
    }
    to_device_of(&input, values)
}

fn linalg_eigh(input: &Tensor, uplo: &str) -> Result<(Tensor, Tensor)> {
    const OP: &str = "linalg.eigh";
    let _op = entered("linalg_eigh");
    let input = square(OP, input)?;
    let (batch, n, _) = parts(&input);
    let values = room(&batch, &[n], input.dtype())?;
    let vectors = room(&batch, &[n, n], input.dtype())?;
    if input.numel() > 0 {
        let failed = cpu::linalg::eigh(&values, &vectors, &lower(OP, &input, uplo)?)?;
        fill_if(failed.is_some(), &[&values, &vectors], &input)?;
    }
    let values = to_device_of(&input, values)?;
    let vectors = to_device_of(&input, vectors)?;
    attach_all(&[&values, &vectors], "linalg_eigh", &[&input], |saver| {
        let saved = [saver.save_output(&values, 0)?, saver.save_output(&vectors, 1)?];
        Ok(move |context: &Context<'_>| {
            let values = context.unpack(saved[0])?;
            let vectors = context.unpack(saved[1])?;
            let mut middle = context.grad(0)?.diag_embed(0, -2, -1)?;
            if let Some(grad) = context.grad_if_any(1) {
                let ones = values.ones_like()?.diag_embed(0, -2, -1)?;
                let gaps = values.unsqueeze(-2)?.sub(&values.unsqueeze(-1)?)?.add(&ones)?;
                // The part that is not symmetric changes no eigenvector of a symmetric matrix, so that the gradient is
                // symmetric, as in PyTorch.
                let turned = vectors.mt()?.matmul(grad)?;
                let turned = turned.sub(&turned.mt()?)?.mul(0.5)?.div(&gaps)?;
                middle = middle.add(&turned)?;
            }
            Ok([Some(vectors.matmul(&middle)?.matmul(&vectors.mt()?)?)].into_iter().collect())
        })
    })?;
    Ok((values, vectors))
}

fn linalg_eigvalsh(input: &Tensor, uplo: &str) -> Result<Tensor> {
    const OP: &str = "linalg.eigh";
    let _op = entered("linalg_eigvalsh");
    let input = square(OP, input)?;
    if is_grad_enabled() && input.requires_grad() {
        return Ok(Tensor::linalg_eigh(&input, uplo)?.0);
    }
    let (batch, n, _) = parts(&input);
    let values = room(&batch, &[n], input.dtype())?;
    if input.numel() > 0 {
        let failed = cpu::linalg::eigenvalues(&values, &lower(OP, &input, uplo)?)?;
        fill_if(failed.is_some(), &[&values], &input)?;
    }
    to_device_of(&input, values)
}

/// Returns matrices on the host with the triangle `uplo` below their diagonals.
fn lower(op: &'static str, input: &Tensor, uplo: &str) -> Result<Tensor> {
    match uplo {
        "L" | "l" => on_host(input),
        "U" | "u" => on_host(&input.mt()?),
        _ => {
            let reason = format!("Expected UPLO argument to be 'L' or 'U', but got {uplo}");
            Err(TensorError::argument(op, reason))
        }
    }
}

/// Makes results NaN where their matrix has elements that are not finite, if there are any.
fn fill_if(has_failed: bool, results: &[&Tensor], input: &Tensor) -> Result<()> {
    if !has_failed {
        return Ok(());
    }
    let is_wrong = on_host(input)?.isfinite()?.logical_not()?.any(&[-2, -1], false)?;
    for result in results {
        let mut sizes = super::view::signed(is_wrong.sizes());
        sizes.resize(result.rank(), 1);
        result.copy_raw(&result.masked_fill(&is_wrong.reshape(&sizes)?, f64::NAN)?)?;
    }
    Ok(())
}
