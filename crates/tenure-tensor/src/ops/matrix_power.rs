//! Powers and exponentials of square matrices.

use super::entered;
use super::linalg::{check_square, identities, parts, square};
use crate::autograd::no_grad;
use crate::operation::operations;
use crate::{Device, Result, Tensor};

operations! {
    static OPERATIONS;
    Method for all {
        /// Multiplies square matrices with themselves, `n` times in all; their inverses if `n` is negative. The power 0
        /// is the identity matrix. PyTorch's `linalg.matrix_power`.
        ///
        /// # Errors
        /// No square matrices; the errors of [`linalg_inv`](Self::linalg_inv) if `n` is negative.
        matrix_power(input: Tensor, n: Int) -> Tensor;

        /// Computes the exponentials of square matrices, by scaling, a Taylor polynomial and squaring. PyTorch's
        /// `linalg.matrix_exp`.
        ///
        /// # Errors
        /// No square matrices; neither `float32` nor `float64`.
        matrix_exp(input: Tensor) -> Tensor;
    }
}

fn matrix_power(input: &Tensor, n: isize) -> Result<Tensor> {
    let _op = entered("matrix_power");
    check_square("linalg.matrix_power", input)?;
    let (batch, side, _) = parts(input);
    let mut power = if n < 0 { Tensor::linalg_inv(input)? } else { input.clone() };
    let mut result: Option<Tensor> = None;
    let mut left = n.unsigned_abs();
    while left > 0 {
        if left % 2 == 1 {
            result = Some(match result {
                Some(so_far) => so_far.matmul(&power)?,
                None => power.clone(),
            });
        }
        left /= 2;
        if left > 0 {
            power = power.matmul(&power)?;
        }
    }
    match result {
        Some(result) if n == 1 => result.copy(),
        Some(result) => Ok(result),
        None => identities(&batch, side, input),
    }
}

fn matrix_exp(input: &Tensor) -> Result<Tensor> {
    let _op = entered("matrix_exp");
    let input = square("linalg.matrix_exp", input)?;
    if input.numel() == 0 {
        return input.copy();
    }
    let norm = no_grad(|| -> Result<f64> {
        Ok(input.abs()?.sum(&[-2], false)?.max_all()?.to_device(Device::CPU)?.item_scalar()?.to_f64())
    })?;
    // Halved so often that the polynomial is exact to the last bits.
    let halvings = if norm.is_finite() && norm > 0.5 { (2.0 * norm).log2().ceil() as i32 } else { 0 };
    let mut power = polynomial(&input.mul(0.5_f64.powi(halvings))?)?;
    for _ in 0..halvings {
        power = power.matmul(&power)?;
    }
    Ok(power)
}

/// Computes Taylor's polynomial of degree 15 of the exponential, in groups of four powers.
fn polynomial(x: &Tensor) -> Result<Tensor> {
    let (batch, n, _) = parts(x);
    let square = x.matmul(x)?;
    let powers = [identities(&batch, n, x)?, x.clone(), square.clone(), square.matmul(x)?];
    let fourth = square.matmul(&square)?;
    // The coefficients are 1 / i!.
    let mut coefficients = [1.0; 16];
    for i in 1..16 {
        coefficients[i] = coefficients[i - 1] / i as f64;
    }
    let mut result = powers[0].zeros_like()?;
    for group in coefficients.chunks(4).rev() {
        result = fourth.matmul(&result)?;
        for (power, coefficient) in powers.iter().zip(group) {
            result = result.add_scaled(power, *coefficient)?;
        }
    }
    Ok(result)
}
