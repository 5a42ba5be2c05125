//! Determinants and their logarithms.

use super::entered;
use super::join::cat;
use super::linalg::{identities, on_host, parts, room, square, to_device_of};
use super::solve::solve_unchecked;
use crate::autograd::{Context, attach, attach_all, no_grad};
use crate::cpu;
use crate::operation::operations;
use crate::{Device, Result, Tensor};

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the determinants of square matrices. PyTorch's `linalg.det`. Matrices of a CUDA device are computed
        /// on the host.
        ///
        /// # Errors
        /// No square matrices; neither `float32` nor `float64`.
        det(input: Tensor) -> Tensor;

        /// Computes the signs of determinants, and the logarithms of their absolute values, which do not overflow. The
        /// determinant of a singular matrix has sign 0 and logarithm -inf. PyTorch's `linalg.slogdet`. Matrices of a
        /// CUDA device are computed on the host.
        ///
        /// # Errors
        /// The errors of [`det`](Self::det).
        slogdet(input: Tensor) -> (Tensor, Tensor);

        /// Computes the logarithms of determinants: NaN for a negative determinant.
        ///
        /// # Errors
        /// The errors of [`det`](Self::det).
        logdet(input: Tensor) -> Tensor;
    }
}

fn det(input: &Tensor) -> Result<Tensor> {
    let _op = entered("det");
    let input = square("linalg.det", input)?;
    let out = no_grad(|| {
        let [pivots, sign] = pivots(&input)?;
        to_device_of(&input, pivots.prod(&[-1], false)?.mul(&sign)?)
    })?;
    attach(out.clone(), "det", &[&input], |saver| {
        let matrix = saver.save(&input)?;
        let saved = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let matrix = context.unpack(matrix)?;
            if matrix.numel() == 0 {
                // As in PyTorch.
                return Ok([None].into_iter().collect());
            }
            let det = context.unpack(saved)?;
            let is_singular = no_grad(|| det.eq(0.0)?.any(&[], false)?.to_device(Device::CPU)?.item::<bool>())?;
            let grad = context.grad(0)?;
            let cofactors =
                if is_singular { cofactors(&matrix, &grad)? } else { turned_inverse(&matrix, &grad.mul(&det)?)? };
            Ok([Some(cofactors)].into_iter().collect())
        })
    })
}

/// Computes the pivots of matrices on the host, and the signs by which their products are the determinants.
fn pivots(input: &Tensor) -> Result<[Tensor; 2]> {
    let (batch, n, _) = parts(input);
    let diagonal = room(&batch, &[n], input.dtype())?;
    let sign = Tensor::ones(&batch, input.dtype(), Device::CPU)?;
    if input.numel() > 0 {
        cpu::linalg::pivots(&diagonal, &sign, &on_host(input)?)?;
    }
    Ok([diagonal, sign])
}

/// Computes A⁻ᵀ, multiplied with a number for each matrix. It is not finite for a singular matrix.
fn turned_inverse(matrix: &Tensor, factor: &Tensor) -> Result<Tensor> {
    let (batch, n, _) = parts(matrix);
    let inverse = solve_unchecked(&matrix.mt()?, &identities(&batch, n, matrix)?)?;
    inverse.mul(&factor.unsqueeze(-1)?.unsqueeze(-1)?)
}

/// Computes the cofactors of matrices that may be singular, multiplied with a number for each matrix.
fn cofactors(matrix: &Tensor, factor: &Tensor) -> Result<Tensor> {
    let (u, s, vh) = Tensor::linalg_svd(matrix, true)?;
    let sign = u.det()?.mul(&vh.det()?)?.mul(factor)?;
    // The products of all singular values but one.
    let n = s.size(-1)?;
    let one = s.narrow(-1, 0, 1)?.ones_like()?;
    let before = cat(&[&one, &s.narrow(-1, 0, n - 1)?.cumprod(-1)?], -1)?;
    let after = cat(&[&s.narrow(-1, 1, n - 1)?.flip(&[-1])?.cumprod(-1)?.flip(&[-1])?, &one], -1)?;
    let others = before.mul(&after)?.mul(&sign.unsqueeze(-1)?)?;
    u.mul(&others.unsqueeze(-2)?)?.matmul(&vh)
}

fn slogdet(input: &Tensor) -> Result<(Tensor, Tensor)> {
    let _op = entered("slogdet");
    let input = square("linalg.slogdet", input)?;
    let (sign, logarithm) = no_grad(|| -> Result<_> {
        let [pivots, sign] = pivots(&input)?;
        let sign = pivots.sign()?.prod(&[-1], false)?.mul(&sign)?;
        let logarithm = pivots.abs()?.log()?.sum(&[-1], false)?;
        Ok((to_device_of(&input, sign)?, to_device_of(&input, logarithm)?))
    })?;
    attach_all(&[&sign, &logarithm], "slogdet", &[&input], |saver| {
        let matrix = saver.save(&input)?;
        Ok(move |context: &Context<'_>| {
            let grad = match context.grad_if_any(1) {
                Some(grad) => Some(turned_inverse(&context.unpack(matrix)?, grad)?),
                None => context.zeros(0)?,
            };
            Ok([grad].into_iter().collect())
        })
    })?;
    Ok((sign, logarithm))
}

fn logdet(input: &Tensor) -> Result<Tensor> {
    let _op = entered("logdet");
    let input = square("logdet", input)?;
    let (sign, logarithm) = input.slogdet()?;
    sign.lt(0.0)?.where_(f64::NAN, &logarithm)
}
