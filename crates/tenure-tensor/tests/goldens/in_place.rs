//! Writes in place compared with PyTorch.

use tenure_tensor::{Result, Tensor, autograd};

use crate::harness::Case;

/// Several writes, through views and to the same memory.
pub(crate) const IN_PLACE: &[Case] = &[
    ("arithmetic", arithmetic),
    ("arithmetic_column", arithmetic),
    ("itself", itself),
    ("fused", fused),
    ("functions", functions),
    ("filled", filled),
    ("rows", rows),
    ("view_of_result", view_of_result),
    ("base_after_view", base_after_view),
    ("view_after_base", view_after_base),
    ("view_after_other_view", view_after_other_view),
    ("view_of_view", view_of_view),
    ("detached", detached),
    ("parts", parts),
    ("swapped", swapped),
];

fn arithmetic(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let a = x[0].mul(2)?;
    let b = x[0].mul(2)?;
    let c = x[0].mul(2)?;
    let d = x[0].mul(2)?;
    a.add_(&x[1])?;
    b.sub_(&x[1])?;
    c.mul_(&x[1])?;
    d.div_(&x[1])?;
    Ok(vec![a.mul(&x[0])?, b.mul(&x[0])?, c.mul(&x[0])?, d.mul(&x[0])?])
}

fn itself(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let a = x[0].mul(2)?;
    a.mul_(&a)?;
    a.add_(&a)?;
    Ok(vec![a])
}

fn fused(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let p = x[0].mul(2)?;
    let q = x[0].mul(2)?;
    let r = x[0].mul(2)?;
    let s = x[0].mul(2)?;
    p.add_scaled_(&x[1], -3)?;
    q.addcmul_(&x[1], &x[2], 0.5)?;
    r.addcdiv_(&x[1], &x[2], 0.5)?;
    s.lerp_(&x[1], &x[2])?;
    s.lerp_(&x[0], 0.25)?;
    Ok(vec![p.mul(&x[0])?, q.mul(&x[0])?, r.mul(&x[0])?, s.mul(&x[0])?])
}

fn functions(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let tensors = (0..8).map(|_| x[0].mul(2)).collect::<Result<Vec<_>>>()?;
    for (index, function) in [Tensor::exp_, Tensor::relu_, Tensor::sigmoid_, Tensor::tanh_].into_iter().enumerate() {
        function(&tensors[index].narrow(0, 1, 2)?)?;
    }
    tensors[4].add_(5)?;
    tensors[4].sqrt_()?;
    tensors[5].clamp_(-0.75, 1.5)?;
    tensors[6].masked_fill_(&x[0].gt(0)?, 3)?;
    tensors[7].silu_()?;
    tensors.iter().map(|tensor| tensor.mul(&x[0])).collect()
}

fn filled(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let a = x[0].mul(2)?;
    a.select(0, 1)?.zero_()?;
    a.select(1, 2)?.fill_(3)?;
    Ok(vec![a.mul(&x[0])?])
}

fn rows(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let table = Tensor::zeros(&[3, 4], x[0].dtype(), x[0].device())?;
    table.select(0, 1)?.copy_(&x[1].mul(2)?)?;
    table.select(0, 2)?.copy_(&x[0].select(0, 0)?)?;
    Ok(vec![table.mul(&x[0])?, table.select(0, 1)?.mul(&x[1])?])
}

fn view_of_result(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let y = x[0].mul(2)?.view(&[4, 3])?;
    y.mul_(2.5)?;
    y.transpose(0, 1)?.mul_(3)?;
    Ok(vec![y.mul(&y)?])
}

fn base_after_view(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let base = x[0].mul(2)?;
    let view = base.view(&[-1])?;
    view.mul_(&x[1])?;
    Ok(vec![base.mul(&x[0])?, view.mul(2)?])
}

fn view_after_base(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let base = x[0].mul(2)?;
    let first = base.select(0, 0)?;
    let other = base.narrow(1, 1, 2)?;
    base.mul_(&x[1])?;
    Ok(vec![first.mul(3)?, other.mul(&other)?])
}

fn view_after_other_view(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let base = x[0].mul(2)?;
    let first = base.select(0, 0)?;
    let column = base.select(1, 1)?;
    let repeated = base.narrow(1, 0, 1)?.expand(&[3, 4])?;
    first.mul_(&x[1])?;
    column.add_(1)?;
    Ok(vec![first.mul(2)?, column.mul(&column)?, repeated.mul(&x[0])?, base])
}

fn view_of_view(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let base = x[0].mul(2)?;
    let part = base.narrow(0, 1, 2)?.transpose(0, 1)?.narrow(0, 1, 2)?;
    part.mul_(&x[1])?;
    part.select(0, 0)?.add_(&x[1])?;
    Ok(vec![base.mul(&x[0])?, part.mul(2)?])
}

fn detached(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let a = x[0].mul(2)?;
    let b = a.mul(3)?;
    a.detach().fill_(5)?;
    Ok(vec![a.mul(1)?, b])
}

fn parts(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let base = x[0].mul(2)?;
    let [left, right] = &base.chunk(2, 1)?[..] else { return Ok(vec![]) };
    let middle = base.narrow(1, 1, 2)?;
    autograd::no_grad(|| left.mul_(1))?;
    middle.mul_(&x[1])?;
    Ok(vec![left.mul(2)?, right.mul(right)?, base])
}

fn swapped(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let a = x[0].mul(2)?;
    let b = x[1].mul(3)?;
    a.select(0, 0)?.copy_(&b)?;
    b.mul_(&a.select(0, 1)?.copy()?)?;
    a.select(0, 2)?.copy_(&b)?;
    Ok(vec![a.mul(&x[0])?, b])
}

/// Applies `change` to a tensor that is no leaf and is used afterwards.
fn case(x: &[Tensor], change: impl Fn(&Tensor) -> Result<()>) -> Result<Vec<Tensor>> {
    let written = x[0].mul(2)?;
    change(&written)?;
    Ok(vec![written.mul(&x[0])?])
}

/// Single writes.
pub(crate) const WRITTEN: &[Case] = &[
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
