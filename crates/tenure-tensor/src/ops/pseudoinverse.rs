//! Pseudoinverses and ranks, by singular values or eigenvalues that are not near zero.

use super::entered;
use super::linalg::{matrices, parts, square};
use crate::autograd::{Context, attach, no_grad};
use crate::operation::operations;
use crate::{DType, Result, Tensor};

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes pseudoinverses, without the singular values of at most `rcond` times the largest:
        /// [`linalg_pinv`](Self::linalg_pinv) by its older name.
        ///
        /// # Errors
        /// The errors of [`linalg_pinv`](Self::linalg_pinv).
        pinverse(input: Tensor, rcond: Float = 1e-15) -> Tensor;
    }
    Function for all {
        /// Computes the pseudoinverses of Moore and Penrose, without the singular values of at most `atol`, or of at
        /// most `rtol` times the largest. `atol` and `rtol` have a number for each matrix. Default: `atol` is 0; `rtol`
        /// is 0 if `atol` is more, else the precision of the dtype times the larger number of rows and columns. If
        /// `hermitian`, the matrices are symmetric, and the lower triangles are read. PyTorch's `linalg.pinv`. Matrices
        /// of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// Fewer than two dimensions; neither `float32` nor `float64`; an element is not finite.
        linalg_pinv(
            input: Tensor, atol: Option<Tensor> = None, rtol: Option<Tensor> = None, hermitian: Bool = false
        ) -> Tensor;

        /// Counts the singular values that are more than `atol`, and more than `rtol` times the largest, given as for
        /// [`linalg_pinv`](Self::linalg_pinv). PyTorch's `linalg.matrix_rank`. Matrices of a CUDA device are computed on
        /// the host.
        ///
        /// # Errors
        /// The errors of [`linalg_pinv`](Self::linalg_pinv).
        linalg_matrix_rank(
            input: Tensor, atol: Option<Tensor> = None, rtol: Option<Tensor> = None, hermitian: Bool = false
        ) -> Tensor;
    }
}

fn pinverse(input: &Tensor, rcond: f64) -> Result<Tensor> {
    let rtol = Tensor::full(&[], rcond, DType::F64, input.device())?;
    Tensor::linalg_pinv(input, None, Some(&rtol), false)
}

fn linalg_pinv(input: &Tensor, atol: Option<&Tensor>, rtol: Option<&Tensor>, hermitian: bool) -> Result<Tensor> {
    const OP: &str = "linalg.pinv";
    let _op = entered("linalg_pinv");
    let input = if hermitian { square(OP, input)? } else { matrices(OP, input)? };
    if input.numel() == 0 {
        return input.mt()?.copy();
    }
    let out = no_grad(|| -> Result<Tensor> {
        let (left, values, right) = if hermitian {
            let (values, vectors) = Tensor::linalg_eigh(&input, "L")?;
            (vectors.clone(), values, vectors.mt()?)
        } else {
            Tensor::linalg_svd(&input, false)?
        };
        let counts = counting(&values.abs()?, &input, atol, rtol)?;
        let inverses = counts.where_(&counts.where_(&values, 1.0)?.reciprocal()?, 0.0)?;
        right.mt()?.mul(&inverses.unsqueeze(-2)?)?.matmul(&left.mt()?)
    })?;
    attach(out.clone(), "linalg_pinv", &[&input], |saver| {
        let matrix = saver.save(&input)?;
        let inverse = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let grad = gradient(&context.unpack(matrix)?, &context.unpack(inverse)?, &context.grad(0)?)?;
            Ok([Some(grad)].into_iter().collect())
        })
    })
}

/// Computes the gradient of a matrix A from that of its pseudoinverse P. PyTorch's `pinv_backward`.
fn gradient(a: &Tensor, p: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let (_, rows, columns) = parts(a);
    let turned = p.mt()?;
    let turned_grad = grad.mt()?;
    if rows <= columns {
        let k = turned_grad.matmul(p)?;
        let k_turned = k.matmul(&turned)?;
        let outside = turned_grad.sub(&k.matmul(a)?)?;
        let first = k_turned.sub(&p.matmul(&k)?.mt()?)?.sub(&a.matmul(p)?.matmul(&k_turned)?)?;
        return first.add(&turned.matmul(&p.matmul(&outside)?)?);
    }
    let k = p.matmul(&turned_grad)?;
    let turned_k = turned.matmul(&k)?;
    let outside = turned_grad.sub(&a.matmul(&k)?)?;
    let first = turned_k.sub(&k.matmul(p)?.mt()?)?.sub(&turned_k.matmul(p)?.matmul(a)?)?;
    first.add(&outside.matmul(p)?.matmul(&turned)?)
}

fn linalg_matrix_rank(input: &Tensor, atol: Option<&Tensor>, rtol: Option<&Tensor>, hermitian: bool) -> Result<Tensor> {
    const OP: &str = "linalg.matrix_rank";
    let _op = entered("linalg_matrix_rank");
    let input = if hermitian { square(OP, input)? } else { matrices(OP, input)? };
    no_grad(|| {
        if input.numel() == 0 {
            return Tensor::zeros(&parts(&input).0, DType::I64, input.device());
        }
        let values =
            if hermitian { Tensor::linalg_eigvalsh(&input, "L")?.abs()? } else { Tensor::linalg_svdvals(&input)? };
        counting(&values, &input, atol, rtol)?.sum(&[-1], false)
    })
}

/// Tells which singular values of the matrices are not near zero.
fn counting(values: &Tensor, matrices: &Tensor, atol: Option<&Tensor>, rtol: Option<&Tensor>) -> Result<Tensor> {
    let (_, rows, columns) = parts(matrices);
    let epsilon = if values.dtype() == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
    let usual = epsilon * rows.max(columns) as f64;
    let of_values = |tensor: &Tensor| tensor.to_device(values.device())?.to_dtype(values.dtype());
    let zero = Tensor::zeros(&[], values.dtype(), values.device())?;
    let atol_given = atol.map(of_values).transpose()?;
    let atol = atol_given.clone().unwrap_or(zero);
    let rtol = match (rtol, &atol_given) {
        (Some(rtol), _) => of_values(rtol)?,
        (None, Some(atol)) => atol.gt(0.0)?.where_(&atol.zeros_like()?, usual)?,
        (None, None) => Tensor::full(&[], usual, values.dtype(), values.device())?,
    };
    let largest = values.amax(&[-1], true)?;
    let limit = rtol.unsqueeze(-1)?.mul(&largest)?.maximum(&atol.unsqueeze(-1)?)?;
    values.gt(&limit)
}
