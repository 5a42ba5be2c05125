//! Single writes in place compared with PyTorch.

use tenure_tensor::{Result, Tensor};

use crate::harness::Case;

/// Applies `change` to a tensor that is no leaf and is used afterwards.
fn case(x: &[Tensor], change: impl Fn(&Tensor) -> Result<()>) -> Result<Vec<Tensor>> {
    let written = x[0].mul(2)?;
    change(&written)?;
    Ok(vec![written.mul(&x[0])?])
}

pub(crate) const CASES: &[Case] = &[
    ("add_", |x| case(x, |a| a.add_(&x[1]))),
    ("sub_", |x| case(x, |a| a.sub_(&x[1]))),
    ("mul_", |x| case(x, |a| a.mul_(&x[1]))),
    ("div_", |x| case(x, |a| a.div_(&x[1]))),
    ("add_scaled_", |x| case(x, |a| a.add_scaled_(&x[1], -0.5))),
    ("addcmul_", |x| case(x, |a| a.addcmul_(&x[1], &x[2], 0.5))),
    ("addcdiv_", |x| case(x, |a| a.addcdiv_(&x[1], &x[2], 0.5))),
    ("lerp_", |x| case(x, |a| a.lerp_(&x[1], &x[2]))),
    ("fill_", |x| case(x, |a| a.fill_(1.5))),
    ("zero_", |x| case(x, |a| a.zero_())),
    ("copy_", |x| case(x, |a| a.copy_(&x[1]))),
    ("masked_fill_", |x| case(x, |a| a.masked_fill_(&x[1], 3))),
    ("clamp_", |x| case(x, |a| a.clamp_(-0.75, 1.5))),
    ("sqrt_", |x| case(x, Tensor::sqrt_)),
    ("rsqrt_", |x| case(x, Tensor::rsqrt_)),
    ("reciprocal_", |x| case(x, Tensor::reciprocal_)),
    ("exp_", |x| case(x, Tensor::exp_)),
    ("log_", |x| case(x, Tensor::log_)),
    ("tanh_", |x| case(x, Tensor::tanh_)),
    ("sigmoid_", |x| case(x, Tensor::sigmoid_)),
    ("relu_", |x| case(x, Tensor::relu_)),
    ("silu_", |x| case(x, Tensor::silu_)),
    ("scatter_", |x| case(x, |a| a.scatter_(-1, &x[1], 2.5))),
    ("scatter_add_", |x| case(x, |a| a.scatter_add_(0, &x[1], &x[2]))),
    ("scatter_one", |x| case(x, |a| a.scatter_(0, &x[1], 2.5))),
    ("scatter_add_one", |x| case(x, |a| a.scatter_add_(0, &x[1], &x[2]))),
    ("index_add_", |x| case(x, |a| a.index_add_(0, &x[1], &x[2]))),
    ("index_put_", |x| case(x, |a| a.index_put_(&x[1], &x[2], true))),
];
