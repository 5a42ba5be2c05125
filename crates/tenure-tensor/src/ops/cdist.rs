//! Distances between all pairs of vectors of two sets.

use super::entered;
use super::matmul::check_operands;
use super::pointwise::{broadcast, wide};
use super::reduce::floating;
use super::view::signed;
use crate::autocast::raise;
use crate::autograd::{Context, attach, no_grad};
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

/// The number of vectors of a set from which Euclidean distances are computed with a matrix product, as in PyTorch.
const MANY: usize = 26;

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the `p`-norm distances of every vector of this tensor, of sizes `(..., n, length)`, to every vector
        /// of `x2`, of sizes `(..., m, length)`: a matrix of sizes `(..., n, m)`. It takes memory for n · m vectors,
        /// except that Euclidean distances of more than 25 vectors are computed with a matrix product, which is less
        /// exact for vectors that are near each other.
        ///
        /// # Errors
        /// A negative `p`, fewer than two dimensions, vectors of different lengths, no floats, different dtypes or
        /// devices.
        cdist(input: Tensor, x2: Tensor, p: Float = 2.0) -> Tensor;
    }
}

fn cdist(input: &Tensor, other: &Tensor, p: f64) -> Result<Tensor> {
    const OP: &str = "cdist";
    let _op = entered(OP);
    let left = raise(input)?;
    let right = raise(other)?;
    check_operands(OP, &[&left, &right])?;
    floating(OP, &left)?;
    if p.is_nan() || p < 0.0 {
        return Err(TensorError::argument(OP, format!("p must not be negative, got {p}")));
    }
    let ([.., n, length], [.., m, other_length]) = (left.sizes(), right.sizes()) else {
        let reason =
            format!("at least two dimensions are needed, got sizes {:?} and {:?}", left.sizes(), right.sizes());
        return Err(TensorError::shape(OP, reason));
    };
    if length != other_length {
        let reason = format!("vectors of one length are needed, got sizes {:?} and {:?}", left.sizes(), right.sizes());
        return Err(TensorError::shape(OP, reason));
    }
    let batch = broadcast(OP, &left.sizes()[..left.rank() - 2], &right.sizes()[..right.rank() - 2])?;
    let x = wide(&left)?.expand(&signed(&[&batch[..], &[*n, *length]].concat()))?;
    let y = wide(&right)?.expand(&signed(&[&batch[..], &[*m, *length]].concat()))?;
    let distances = match p {
        _ if *length == 0 => differences(&x, &y)?.sum(&[-1], false)?,
        2.0 if *n >= MANY || *m >= MANY => euclidean(&x, &y)?,
        _ => pairwise(&x, &y, p)?,
    };
    distances.to_dtype(left.dtype())
}

/// Returns the differences of all pairs, as a last dimension.
fn differences(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)
}

/// Computes Euclidean distances from dot products: |x - y|² = |x|² - 2·x·y + |y|².
fn euclidean(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let out = no_grad(|| {
        let squares = x.square()?.sum(&[-1], true)?.add(&y.square()?.sum(&[-1], true)?.mt()?)?;
        squares.add_scaled(&x.matmul(&y.mt()?)?, -2)?.clamp_min(0.0)?.sqrt()
    })?;
    attach(out.clone(), "cdist", &[x, y], |saver| {
        let saved = [saver.save(x)?, saver.save(y)?];
        let distances = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let x = context.unpack(saved[0])?;
            let y = context.unpack(saved[1])?;
            let ratio = over_distances(&context.grad(0)?, &context.unpack(distances)?)?;
            let to_x = context.give(0, || x.mul(&ratio.sum(&[-1], true)?)?.sub(&ratio.matmul(&y)?))?;
            let to_y = context.give(1, || {
                let turned = ratio.mt()?;
                y.mul(&turned.sum(&[-1], true)?)?.sub(&turned.matmul(&x)?)
            })?;
            Ok([to_x, to_y].into_iter().collect())
        })
    })
}

/// Computes distances pair by pair. The gradient computes the differences again.
fn pairwise(x: &Tensor, y: &Tensor, p: f64) -> Result<Tensor> {
    let out = no_grad(|| differences(x, y)?.norm(p, &[-1], false))?;
    attach(out.clone(), "cdist", &[x, y], |saver| {
        let saved = [saver.save(x)?, saver.save(y)?];
        let distances = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let between = differences(&context.unpack(saved[0])?, &context.unpack(saved[1])?)?;
            let grad = context.grad(0)?.unsqueeze(-1)?;
            let slope = slope(&between, &context.unpack(distances)?.unsqueeze(-1)?, &grad, p)?;
            let to_x = context.give(0, || slope.sum(&[-2], false))?;
            let to_y = context.give(1, || slope.sum(&[-3], false)?.neg())?;
            Ok([to_x, to_y].into_iter().collect())
        })
    })
}

/// Computes the gradients of differences. As in PyTorch, an absolute difference that is the maximum norm gets the whole
/// gradient, even if there are several.
fn slope(between: &Tensor, distances: &Tensor, grad: &Tensor, p: f64) -> Result<Tensor> {
    match p {
        0.0 => between.mul(grad)?.mul(0.0),
        1.0 => between.sign()?.mul(grad),
        2.0 => between.mul(&over_distances(grad, distances)?),
        f64::INFINITY => {
            let is_it = between.abs()?.eq(distances)?;
            is_it.where_(&between.sign()?.mul(grad)?, 0.0)
        }
        _ => {
            let scale = over_distances(grad, &distances.pow(p - 1.0)?)?;
            let is_zero = between.eq(0.0)?;
            // The power has no slope at 0, where the gradient is 0.
            let size = is_zero.where_(1.0, &between.abs()?)?;
            is_zero.where_(0.0, &between.sign()?.mul(&size.pow(p - 1.0)?)?.mul(&scale)?)
        }
    }
}

/// Divides a gradient by distances. Where a distance is 0, the result is 0.
fn over_distances(grad: &Tensor, distances: &Tensor) -> Result<Tensor> {
    let is_zero = distances.eq(0.0)?;
    is_zero.where_(0.0, &grad.div(&is_zero.where_(1.0, distances)?)?)
}
