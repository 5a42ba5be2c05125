//! Scaled dot-product attention.

use tenure_core::Overlap;

use super::entered;
use super::matmul::check_operands;
use super::pointwise::{self, wide};
use super::random::{blocks, check_probability};
use super::view::signed;
use crate::autocast::lower;
use crate::autograd::{Context, attach_all, is_grad_enabled, recipe};
use crate::cpu::attention::{Attend, AttendBackward};
use crate::element::computed;
use crate::geometry::{Dropping, Weighting};
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::random::default_generator;
use crate::{DType, Kernel, Result, Tensor, TensorError, cpu, cuda};

static ATTEND: Kernel<Attend> =
    Kernel::new("attention", &[cpu::attention::ATTEND, cpu::attention::ATTEND_HALVES, cuda::attention::ATTEND]);
static BACKWARD: Kernel<AttendBackward> = Kernel::new(
    "attention_backward",
    &[cpu::attention::BACKWARD, cpu::attention::BACKWARD_HALVES, cuda::attention::BACKWARD],
);

/// The options of attention: which keys a query attends to, and with what weight.
#[derive(Clone, Copy, Default)]
pub struct Attention<'a> {
    /// A mask that is broadcast to `(..., queries, keys)`: `bool`, true where a query attends to a key, or a number
    /// that is added to the score.
    pub mask: Option<&'a Tensor>,
    /// Whether query `i` attends to keys 0 to `i` only. A mask applies besides, while PyTorch takes only one of the
    /// two.
    pub is_causal: bool,
    /// The factor on the products of queries and keys. If `None`, it is one over the square root of the width.
    pub scale: Option<f64>,
    /// The probability that a weight is dropped. The numbers are drawn from the [default generator](default_generator),
    /// like those of [`dropout`](Tensor::dropout) of a tensor of all weights, `(..., heads, queries, keys)`.
    pub dropout: f64,
}

operations! {
    static OPERATIONS;
    Function for front_ends {
        /// Computes, for each query, the mean of the values weighted by its attention to their keys:
        /// [`Tensor::attention`]. If `enable_gqa`, neighbouring heads of queries share one of keys and values.
        ///
        /// # Errors
        /// Sizes that do not match, different dtypes or devices, a mask of another dtype, a dropout that is no
        /// probability; several heads of keys, but fewer than of queries, without `enable_gqa`.
        scaled_dot_product_attention(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Option<Tensor> = None, dropout_p: Float = 0.0,
            is_causal: Bool = false, scale: Option<Float> = None, enable_gqa: Bool = false
        ) -> Tensor = |query: &Tensor, key: &Tensor, value: &Tensor, mask, dropout, is_causal, scale, groups: bool| {
            if !groups {
                check_heads(query, key)?;
            }
            query.attention(key, value, &Attention { mask, is_causal, scale, dropout })
        };
    }
}

/// Checks that no heads of queries share keys, unless there is one head of keys, which is broadcast.
fn check_heads(query: &Tensor, key: &Tensor) -> Result<()> {
    let [queries, keys] = [query, key].map(|tensor| tensor.rank().checked_sub(3).map_or(1, |dim| tensor.sizes()[dim]));
    if keys == 1 || keys == queries {
        return Ok(());
    }
    let reason = format!("{queries} heads of queries share {keys} heads of keys only with enable_gqa=True");
    Err(TensorError::shape("scaled_dot_product_attention", reason))
}

impl Tensor {
    /// Computes the means of values, weighted by the softmax of the products of these queries with keys. The sizes are
    /// `(..., heads, queries, width)`, `(..., heads, keys, width)` and `(..., heads, keys, value width)`. Queries may
    /// have a multiple of the heads of keys and values: neighbouring heads of queries then share them. A query that
    /// attends to no key has a mean of zeros. PyTorch's `scaled_dot_product_attention`.
    ///
    /// # Errors
    /// Sizes that do not match, different dtypes or devices, a mask of another dtype, a dropout that is no probability.
    pub fn attention(&self, keys: &Self, values: &Self, how: &Attention<'_>) -> Result<Self> {
        let Attention { mask, is_causal, scale, dropout } = how;
        let shares = true;
        observed(
            "scaled_dot_product_attention",
            || arguments![self, keys, values, mask, dropout, is_causal, scale, shares],
            || self.lowered_attention(keys, values, how),
        )
    }

    fn lowered_attention(&self, keys: &Self, values: &Self, how: &Attention<'_>) -> Result<Self> {
        let _op = entered("attention");
        let mask = how.mask.map(lower).transpose()?;
        let how = Attention { mask: mask.as_ref(), ..*how };
        lower(self)?.attended(&lower(keys)?, &lower(values)?, &how)
    }

    fn attended(&self, keys: &Self, values: &Self, how: &Attention<'_>) -> Result<Self> {
        const OP: &str = "attention";
        check_operands(OP, &[self, keys, values])?;
        check_probability(OP, how.dropout)?;
        let rank = self.rank();
        let fits = rank >= 2
            && [keys.rank(), values.rank()] == [rank; 2]
            && keys.sizes()[..rank - 1] == values.sizes()[..rank - 1]
            && keys.sizes()[rank - 1] == self.sizes()[rank - 1]
            && (rank < 3
                || self.sizes()[..rank - 3] == keys.sizes()[..rank - 3]
                    && self.sizes()[rank - 3].is_multiple_of(keys.sizes()[rank - 3]));
        if !fits {
            let reason = format!(
                "queries (..., heads, n, width), keys (..., heads, m, width) and values (..., heads, m, value width) of \
                 the same sizes, or a multiple of heads of queries, are needed, got {:?}, {:?} and {:?}",
                self.sizes(),
                keys.sizes(),
                values.sizes()
            );
            return Err(TensorError::shape(OP, reason));
        }
        let four = |tensor: &Self| -> Result<Self> {
            let sizes = tensor.sizes();
            let heads = if rank > 2 { sizes[rank - 3] } else { 1 };
            let batch: usize = sizes[..rank.saturating_sub(3)].iter().product();
            rows_dense(tensor.reshape(&signed(&[batch, heads, sizes[rank - 2], sizes[rank - 1]]))?)
        };
        let q = four(self)?;
        let k = four(keys)?;
        let v = four(values)?;
        let scores = [q.sizes()[0], q.sizes()[1], q.sizes()[2], k.sizes()[2]];
        let mask = how.mask.map(|mask| four_of_mask(mask, self, keys, scores)).transpose()?;
        let width = self.sizes()[rank - 1];
        let scale = how.scale.unwrap_or_else(|| 1.0 / (width.max(1) as f64).sqrt());
        let count = scores.iter().product();
        let weighting = Weighting {
            scale,
            is_causal: how.is_causal,
            dropout: (how.dropout > 0.0).then(|| Dropping {
                probability: how.dropout,
                state: default_generator(q.device()).reserve(blocks(count)),
            }),
        };
        let needs_weights = is_grad_enabled() && mask.as_ref().is_some_and(Self::requires_grad);
        let out = if needs_weights {
            let (_, sums) = attend(&q, &k, &v, mask.as_ref(), Weighting { dropout: None, ..weighting })?;
            let weights = weights(&wide(&q)?, &wide(&k)?, &sums, mask.as_ref(), weighting)?;
            let out = dropped(&weights, weighting)?.matmul(&wide(&v)?)?.to_dtype(q.dtype())?;
            out.reshape(&signed(&[&q.sizes()[..3], &v.sizes()[3..]].concat()))?
        } else {
            fused(&q, &k, &v, mask.as_ref(), weighting)?
        };
        out.reshape(&signed(&[&self.sizes()[..rank - 1], &values.sizes()[rank - 1..]].concat()))
    }
}

/// Expands a mask to four dimensions.
fn four_of_mask(mask: &Tensor, queries: &Tensor, keys: &Tensor, scores: [usize; 4]) -> Result<Tensor> {
    const OP: &str = "attention";
    if mask.dtype() != DType::Bool && mask.dtype() != queries.dtype() {
        let expected = format!("a mask of bool or {} is needed: convert it with to_dtype()", queries.dtype());
        return Err(TensorError::DType { op: OP, found: mask.dtype(), expected });
    }
    if mask.device() != queries.device() {
        return Err(TensorError::Device { op: OP, left: queries.device(), right: mask.device() });
    }
    let rank = queries.rank();
    let mut sizes = queries.sizes().to_vec();
    sizes[rank - 1] = keys.sizes()[rank - 2];
    if pointwise::broadcast(OP, mask.sizes(), &sizes)?[..] != sizes[..] {
        let reason = format!("a mask of sizes {:?} cannot be expanded to {sizes:?}", mask.sizes());
        return Err(TensorError::shape(OP, reason));
    }
    mask.expand(&signed(&sizes))?.reshape(&signed(&scores))
}

/// Returns a tensor of four dimensions whose last dimension is dense, as the kernels need it.
fn rows_dense(tensor: Tensor) -> Result<Tensor> {
    if tensor.strides()[3] == 1 || tensor.sizes()[3] <= 1 { Ok(tensor) } else { tensor.contiguous() }
}

/// Computes attention without holding all weights at once.
fn fused(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, weighting: Weighting) -> Result<Tensor> {
    let (out, sums) = attend(q, k, v, mask, weighting)?;
    recipe::note(&out, "attention", [q, k, v], [mask], || {
        move |[q, k, v], [mask]| Ok(attend(q, k, v, mask, weighting)?.0)
    });
    attach_all(&[&out], "attention", &[q, k, v], |saver| {
        let inputs = [saver.save(q)?, saver.save(k)?, saver.save(v)?];
        let out = saver.save_output(&out, 0)?;
        let sums = saver.save(&sums)?;
        let mask = mask.map(|mask| saver.save(mask)).transpose()?;
        Ok(move |context: &Context<'_>| {
            let q = context.unpack(inputs[0])?;
            let k = context.unpack(inputs[1])?;
            let v = context.unpack(inputs[2])?;
            let sums = context.unpack(sums)?;
            let mask = mask.map(|mask| context.unpack(mask)).transpose()?;
            let grad = context.grad(0)?;
            if is_grad_enabled() {
                return backward_of_weights(&grad, [&q, &k, &v], &sums, mask.as_ref(), weighting);
            }
            // The library does not take rows that share memory.
            let grad = if grad.layout().overlap() == Overlap::No { rows_dense(grad)? } else { grad.contiguous()? };
            let out = context.unpack(out)?;
            // Each gradient has its input's order in memory: heads mostly lie within rows.
            let grads = [&q, &k, &v].map(|input| pointwise::output(input.sizes(), input.dtype(), &[input]));
            let grads = grads.into_iter().collect::<Result<Vec<_>>>()?;
            let kernel = BACKWARD.find(q.device().kind(), q.dtype())?;
            let inputs = [&q, &k, &v, &grad, &out, &sums];
            kernel([&grads[0], &grads[1], &grads[2]], inputs, mask.as_ref(), weighting)?;
            Ok(grads.into_iter().map(Some).collect())
        })
    })?;
    Ok(out)
}

/// Returns the means, in the queries' order in memory, and the logarithms of the sums of weights.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, weighting: Weighting) -> Result<(Tensor, Tensor)> {
    let sizes = [q.sizes()[0], q.sizes()[1], q.sizes()[2], v.sizes()[3]];
    let out = pointwise::output(&sizes, q.dtype(), &[q])?;
    let sums = Tensor::empty(&sizes[..3], computed(q.dtype()), q.device())?;
    ATTEND.find(q.device().kind(), q.dtype())?([&out, &sums], [q, k, v], mask, weighting)?;
    Ok((out, sums))
}

/// Computes the gradients with operations that have gradients themselves.
fn backward_of_weights(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    sums: &Tensor,
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<crate::autograd::Grads> {
    let q = &wide(q)?;
    let k = &wide(k)?;
    let v = &wide(v)?;
    let weights = weights(q, k, sums, mask, weighting)?;
    let grad = shared(&wide(grad)?, k)?;
    let to_values = dropped(&weights, weighting)?.transpose(-2, -1)?.matmul(&grad)?;
    let to_weights = dropped(&grad.matmul(&v.transpose(-2, -1)?)?, weighting)?;
    let inner = to_weights.mul(&weights)?.sum(&[-1], true)?;
    let to_scores = to_weights.sub(&inner)?.mul(&weights)?.mul(weighting.scale)?;
    let to_queries = to_scores.matmul(k)?.reshape(&signed(q.sizes()))?;
    let to_keys = to_scores.transpose(-2, -1)?.matmul(&shared(q, k)?)?;
    Ok([Some(to_queries), Some(to_keys), Some(to_values)].into_iter().collect())
}

/// Computes all weights, `(batch, heads of keys, queries of all that share them, keys)`. `sums` only keep them in
/// range.
fn weights(q: &Tensor, k: &Tensor, sums: &Tensor, mask: Option<&Tensor>, weighting: Weighting) -> Result<Tensor> {
    let mut scores = shared(q, k)?.matmul(&k.transpose(-2, -1)?)?.mul(weighting.scale)?;
    let mut masks = Vec::new();
    if let Some(mask) = mask {
        let mask = shared(mask, k)?;
        if mask.dtype() == DType::Bool { masks.push(mask) } else { scores = scores.add(&mask)? }
    }
    if weighting.is_causal {
        let sizes = [q.sizes()[0], q.sizes()[1], q.sizes()[2], k.sizes()[2]];
        let lower = Tensor::ones(&sizes[2..], DType::Bool, q.device())?.tril(0)?;
        masks.push(shared(&lower.expand(&signed(&sizes))?, k)?);
    }
    let is_empty = sums.eq(f64::NEG_INFINITY)?;
    let shift = shared(&is_empty.where_(0.0, sums)?.unsqueeze(-1)?, k)?.to_dtype(q.dtype())?;
    // Masked before `exp`: a masked score may be so large that its weight would be infinite, and its gradient NaN.
    for mask in masks {
        scores = mask.where_(&scores, f64::NEG_INFINITY)?;
    }
    let weights = scores.sub(&shift)?.exp()?;
    let total = weights.sum(&[-1], true)?;
    let is_empty = total.eq(0.0)?;
    weights.div(&is_empty.where_(1.0, &total)?)
}

/// Applies dropout to all weights, or to their gradients.
fn dropped(weights: &Tensor, weighting: Weighting) -> Result<Tensor> {
    let Some(Dropping { probability, state }) = weighting.dropout else { return Ok(weights.clone()) };
    weights.dropped(probability, state)
}

/// Joins the queries of heads that share keys, one after the other: `(batch, heads of keys, queries, ...)`.
fn shared(tensor: &Tensor, k: &Tensor) -> Result<Tensor> {
    let sizes = tensor.sizes();
    let batch = sizes[0];
    let heads = k.sizes()[1];
    tensor.reshape(&signed(&[batch, heads, sizes[1] * sizes[2] / heads.max(1), sizes[3]]))
}
