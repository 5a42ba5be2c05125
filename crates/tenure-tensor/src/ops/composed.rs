//! Elementwise functions composed of others.

use super::entered;
use super::pointwise::{self, promoted, wide};
use super::reduce::floating;
use crate::autocast::lower;
use crate::autograd::{Context, attach, no_grad};
use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError, Value};

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes x where x is positive, else `weight`·x: `weight` is one number, or one for each channel, which is
        /// the second dimension.
        ///
        /// # Errors
        /// A weight of another size or of more than one dimension; no floats; different dtypes.
        prelu(input: Tensor, weight: Tensor) -> Tensor;

        /// Computes the logarithm of the sum of the exponentials of two tensors, broadcast and promoted.
        ///
        /// # Errors
        /// Sizes that do not broadcast; no floats.
        logaddexp(input: Tensor, other: Tensor) -> Tensor;

        /// Computes the length of the hypotenuse of two legs, broadcast and promoted: the root of the sum of squares,
        /// which do not overflow.
        ///
        /// # Errors
        /// Sizes that do not broadcast; no floats.
        hypot(input: Tensor, other: Tensor) -> Tensor;

        /// Computes the magnitude of this tensor with the sign of `other`, broadcast and promoted. NaN counts as
        /// positive.
        ///
        /// # Errors
        /// Sizes that do not broadcast.
        copysign(input: Tensor, other: Value) -> Tensor;

        /// Tells where an element is negative, -0.0 included. NaN counts as positive.
        ///
        /// # Errors
        /// No memory.
        signbit(input: Tensor) -> Tensor;

        /// Returns the tensor itself: Python's unary `+`.
        ///
        /// # Errors
        /// `bool`.
        positive(input: Tensor) -> Tensor;

        /// Computes log(x / (1 - x)), the inverse of [`sigmoid`](Self::sigmoid). x is limited to the range from `eps` to
        /// 1 - `eps` if that is given.
        ///
        /// # Errors
        /// No memory.
        logit(input: Tensor, eps: Option<Float> = None) -> Tensor;
    }
}

fn prelu(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OP: &str = "prelu";
    let _op = entered(OP);
    let input = lower(input)?;
    let weight = lower(weight)?;
    floating(OP, &input)?;
    super::matmul::check_operands(OP, &[&input, &weight])?;
    let channels = input.sizes().get(1).copied().unwrap_or(1);
    if weight.rank() > 1 || ![1, channels].contains(&weight.numel()) {
        let reason = format!(
            "a weight of one number or of one for each of {channels} channels is needed, got sizes {:?}",
            weight.sizes()
        );
        return Err(TensorError::shape(OP, reason));
    }
    let mut sizes = vec![1; input.rank()];
    if let Some(channel) = sizes.get_mut(1) {
        *channel = weight.numel() as isize;
    }
    let weight = weight.reshape(&sizes)?;
    // The limit keeps an infinite x from giving the weight a gradient of NaN.
    input.gt(0.0)?.where_(&input, &input.clamp_max(0.0)?.mul(&weight)?)
}

fn logaddexp(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    const OP: &str = "logaddexp";
    let _op = entered(OP);
    let (dtype, [a, b]) = floats(OP, input, other)?;
    let out = no_grad(|| {
        // Equal infinities have no difference.
        let distance = a.eq(&b)?.where_(0.0, &a.sub(&b)?.abs()?)?;
        a.maximum(&b)?.add(&distance.neg()?.exp()?.log1p()?)
    })?;
    let out = attach(out, OP, &[&a, &b], |saver| {
        let saved = [saver.save(&a)?, saver.save(&b)?];
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let share = context.unpack(saved[0])?.sub(&context.unpack(saved[1])?)?;
            let to_a = context.give(0, || grad.mul(&share.sigmoid()?))?;
            let to_b = context.give(1, || grad.mul(&share.neg()?.sigmoid()?))?;
            Ok([to_a, to_b].into_iter().collect())
        })
    })?;
    out.to_dtype(dtype)
}

fn hypot(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    const OP: &str = "hypot";
    let _op = entered(OP);
    let (dtype, [a, b]) = floats(OP, input, other)?;
    let out = no_grad(|| {
        let long = a.abs()?.maximum(&b.abs()?)?;
        let short = a.abs()?.minimum(&b.abs()?)?;
        // Equal legs may both be 0 or infinite.
        let ratio = short.eq(&long)?.where_(1.0, &short.div(&long)?)?;
        long.mul(&ratio.square()?.add(1.0)?.sqrt()?)
    })?;
    let out = attach(out.clone(), OP, &[&a, &b], |saver| {
        let saved = [saver.save(&a)?, saver.save(&b)?];
        let length = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let length = context.unpack(length)?;
            let to_a = context.give(0, || grad.mul(&context.unpack(saved[0])?.div(&length)?))?;
            let to_b = context.give(1, || grad.mul(&context.unpack(saved[1])?.div(&length)?))?;
            Ok([to_a, to_b].into_iter().collect())
        })
    })?;
    out.to_dtype(dtype)
}

/// Returns the dtype of the result, and the operands in the dtype that they are computed in.
fn floats(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(DType, [Tensor; 2])> {
    let dtype = promoted(&[a.into(), b.into()])?;
    let a = wide(&a.to_dtype(dtype)?)?;
    floating(op, &a)?;
    Ok((dtype, [a, wide(&b.to_dtype(dtype)?)?]))
}

fn copysign(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    const OP: &str = "copysign";
    let _op = entered(OP);
    let dtype = pointwise::floating(promoted(&[input.into(), other])?);
    let signs = pointwise::tensor(OP, other, dtype)?;
    let is_negative = signs.signbit()?;
    let size = input.to_dtype(dtype)?.abs()?;
    let signed = is_negative.where_(&size.neg()?, &size)?;
    let Value::Tensor(other) = other else { return Ok(signed) };
    // As in PyTorch, the tensor of signs has a gradient of zeros.
    attach(signed.detach(), OP, &[&signed, other], |_| {
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let to_signs = context.give(1, || grad.zeros_like())?;
            Ok([Some(grad), to_signs].into_iter().collect())
        })
    })
}

fn signbit(input: &Tensor) -> Result<Tensor> {
    let _op = entered("signbit");
    let bits = match input.dtype() {
        DType::F16 | DType::BF16 => DType::I16,
        DType::F32 => DType::I32,
        DType::F64 => DType::I64,
        dtype => dtype,
    };
    input.detach().view_dtype(bits)?.lt(0)
}

fn positive(input: &Tensor) -> Result<Tensor> {
    if input.dtype() == DType::Bool {
        let expected = "a number is needed: convert first with to_dtype(DType::U8)".to_owned();
        return Err(TensorError::DType { op: "positive", found: DType::Bool, expected });
    }
    Ok(input.clone())
}

fn logit(input: &Tensor, eps: Option<f64>) -> Result<Tensor> {
    const OP: &str = "logit";
    let _op = entered(OP);
    let dtype = pointwise::floating(input.dtype());
    let given = wide(&input.to_dtype(dtype)?)?;
    let x = match eps {
        Some(eps) => given.clamp(eps, 1.0 - eps)?,
        None => given,
    };
    let out = no_grad(|| x.div(&x.neg()?.add(1.0)?)?.log())?;
    let out = attach(out, OP, &[&x], |saver| {
        let saved = saver.save(&x)?;
        Ok(move |context: &Context<'_>| {
            let x = context.unpack(saved)?;
            let slope = context.grad(0)?.div(&x.mul(&x.neg()?.add(1.0)?)?)?;
            let is_outside = x.lt(0.0)?.bitwise_or(&x.gt(1.0)?)?;
            Ok([Some(is_outside.where_(f64::NAN, &slope)?)].into_iter().collect())
        })
    })?;
    out.to_dtype(dtype)
}
