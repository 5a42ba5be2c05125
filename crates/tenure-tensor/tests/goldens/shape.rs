//! Creation, views, concatenation and repetition compared with PyTorch.

use tenure_tensor::ops::{cat, meshgrid, stack};
use tenure_tensor::{DType, Device, MemoryFormat, Result, Tensor};

use crate::harness::{Case, device};

pub(crate) const CREATE: &[Case] = &[
    ("zeros", |_| {
        let whole = [Tensor::zeros(&[2, 3], DType::F32, device())?, Tensor::zeros(&[0], DType::I32, device())?];
        Ok([&whole[..], &[Tensor::zeros(&[], DType::F16, device())?]].concat())
    }),
    ("ones", |_| {
        let whole = [Tensor::ones(&[2, 3], DType::F64, device())?, Tensor::ones(&[0], DType::Bool, device())?];
        Ok([&whole[..], &[Tensor::ones(&[], DType::I32, device())?]].concat())
    }),
    ("full", |_| {
        let whole = [Tensor::full(&[2, 3], 0.1, DType::F32, device())?, Tensor::full(&[0], 7, DType::U8, device())?];
        Ok([&whole[..], &[Tensor::full(&[], 0.1, DType::F16, device())?]].concat())
    }),
    ("arange", |_| {
        let down = Tensor::arange(7, -2, -3, DType::I32, device())?;
        let steps = Tensor::arange(0.1, 1.0, 0.15, DType::F32, device())?;
        Ok(vec![
            Tensor::arange(0, 5, 1, DType::I64, device())?,
            down,
            steps,
            Tensor::arange(0, 0, 1, DType::I64, device())?,
        ])
    }),
    ("linspace", |_| {
        let few = [
            Tensor::linspace(2.0, 9.0, 1, DType::F64, device())?,
            Tensor::linspace(0.0, 1.0, 0, DType::F16, device())?,
        ];
        Ok([&[Tensor::linspace(-1.0, 0.3, 7, DType::F32, device())?][..], &few].concat())
    }),
    ("logspace", |_| {
        let tens = Tensor::logspace(-1.0, 0.5, 5, 10.0, DType::F64, device())?;
        Ok(vec![Tensor::logspace(0.0, 3.0, 4, 2.0, DType::F32, device())?, tens])
    }),
    ("eye", |_| {
        let sizes = [(3, 3, DType::F32), (2, 4, DType::I32), (3, 1, DType::Bool), (0, 0, DType::F32)];
        sizes.into_iter().map(|(rows, columns, dtype)| Tensor::eye(rows, columns, dtype, device())).collect()
    }),
    ("zeros_like", |x| Ok(vec![x[0].zeros_like()?])),
    ("ones_like", |x| Ok(vec![x[0].ones_like()?])),
    ("full_like", |x| Ok(vec![x[0].full_like(1.25)?])),
];

fn zeros(sizes: &[usize]) -> Result<Tensor> {
    Tensor::zeros(sizes, DType::F32, Device::CPU)
}

pub(crate) const VIEW: &[Case] = &[
    ("reshape", |x| Ok(vec![x[0].reshape(&[4, -1])?])),
    ("reshape_scalar", |x| Ok(vec![x[0].reshape(&[1, 1])?])),
    ("view", |x| Ok(vec![x[0].contiguous()?.view(&[6, 2, 2])?])),
    ("view_flat", |x| Ok(vec![x[0].contiguous()?.view(&[x[0].numel() as isize])?])),
    ("reshape_flat", |x| Ok(vec![x[0].reshape(&[x[0].numel() as isize])?])),
    ("view_as", |x| Ok(vec![x[0].contiguous()?.view_as(&zeros(x[0].sizes())?)?])),
    ("contiguous", |x| Ok(vec![x[0].contiguous()?])),
    ("channels_last", |x| Ok(vec![x[0].contiguous_in(MemoryFormat::ChannelsLast2d)?])),
    ("copy", |x| Ok(vec![x[0].copy()?])),
    ("flatten", |x| Ok(vec![x[0].flatten(1, 2)?])),
    ("flatten_all", |x| Ok(vec![x[0].flatten(0, -1)?])),
    ("unflatten", |x| Ok(vec![x[0].unflatten(-1, &[2, -1])?])),
    ("expand", |x| Ok(vec![x[0].expand(&[2, -1, 5])?])),
    ("expand_scalar", |x| Ok(vec![x[0].expand(&[&[2], &vec![-1; x[0].rank()][..]].concat())?])),
    ("expand_as", |x| Ok(vec![x[0].expand_as(&zeros(&[&[2], x[0].sizes()].concat())?)?])),
    ("transpose", |x| Ok(vec![x[0].transpose(0, -1)?])),
    ("t", |x| Ok(vec![x[0].t()?])),
    ("mt", |x| Ok(vec![x[0].mt()?])),
    ("permute", |x| Ok(vec![x[0].permute(&[2, 0, -2])?])),
    ("permute_back", |x| Ok(vec![x[0].permute(&(0..x[0].rank() as isize).rev().collect::<Vec<_>>())?])),
    ("movedim", |x| Ok(vec![x[0].movedim(&[0, 1], &[-1, 0])?])),
    ("squeeze_first", |x| Ok(vec![x[0].squeeze_dims(&[0])?])),
    ("squeeze", |x| Ok(vec![x[0].squeeze(if x[0].rank() > 1 { 1 } else { 0 })?])),
    ("squeeze_dims", |x| Ok(vec![x[0].squeeze_dims(&[0, 1, -1])?])),
    ("squeeze_all", |x| Ok(vec![x[0].squeeze_all()?])),
    ("unsqueeze", |x| Ok(vec![x[0].unsqueeze(-1)?])),
    ("select", |x| Ok(vec![x[0].select(1, -2)?])),
    ("slice", |x| Ok(vec![x[0].slice(2, -3, 9, 2)?])),
    ("slice_empty", |x| Ok(vec![x[0].slice(1, 2, 1, 1)?])),
    ("narrow", |x| Ok(vec![x[0].narrow(1, 1, 2)?])),
    ("unfold", |x| Ok(vec![x[0].unfold(2, 3, 1)?])),
    ("unfold_steps", |x| Ok(vec![x[0].unfold(1, 2, 1)?.unfold(2, 2, 2)?])),
    ("unfold_last", |x| Ok(vec![x[0].unfold(-1, 1, 1)?])),
    ("diagonal", |x| Ok(vec![x[0].diagonal(0, 0, 1)?])),
    ("diagonal_above", |x| Ok(vec![x[0].diagonal(1, -1, 0)?])),
    ("diagonal_below", |x| Ok(vec![x[0].diagonal(-2, 1, 2)?])),
    ("diagonal_outside", |x| Ok(vec![x[0].diagonal(5, 1, 2)?])),
    ("as_strided", |x| Ok(vec![x[0].as_strided(&[2, 3], &[4, 2], 1)?])),
    ("as_strided_overlapping", |x| Ok(vec![x[0].as_strided(&[2, 2], &[1, 1], 0)?])),
    ("as_strided_of_views", |x| Ok(vec![x[0].as_strided(&[2, 2], &[1, 1], 0)?])),
    ("split", |x| x[0].split(2, 1)),
    ("split_sizes", |x| x[0].split_sizes(&[1, 0, 3], -1)),
    ("chunk", |x| x[0].chunk(3, 2)),
    ("unbind", |x| x[0].unbind(1)),
    ("one_of_unbind", |x| Ok(vec![x[0].unbind(1)?.remove(1)])),
    ("integers", |x| Ok(vec![x[0].mt()?.select(1, 0)?])),
];

fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

pub(crate) const JOIN: &[Case] = &[
    ("cat", |x| Ok(vec![cat(&refs(x), 1)?])),
    ("cat_none", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_promoted", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_integers", |x| Ok(vec![cat(&refs(x), 0)?])),
    ("cat_twice", |x| Ok(vec![cat(&[&x[0], &x[0]], 0)?])),
    ("stack", |x| Ok(vec![stack(&refs(x), -1)?])),
    ("meshgrid", |x| meshgrid(&refs(x))),
    ("repeat", |x| Ok(vec![x[0].repeat(&[2, 1, 3])?])),
    ("repeat_once", |x| Ok(vec![x[0].repeat(&[1, 1])?])),
    ("repeat_none", |x| Ok(vec![x[0].repeat(&[0, 2])?])),
    ("tile", |x| Ok(vec![x[0].tile(&[2])?])),
    ("repeat_interleave", |x| Ok(vec![x[0].repeat_interleave(3, 0)?])),
    ("roll", |x| Ok(vec![x[0].roll(&[1, -4], &[0, 1])?])),
    ("roll_one", |x| Ok(vec![x[0].roll(&[2], &[-1])?])),
    ("flip_last", |x| Ok(vec![x[0].flip(&[-1])?])),
    ("flip", |x| Ok(vec![x[0].flip(&[0, -1])?])),
    ("tril", |x| Ok(vec![x[0].tril(-1)?])),
    ("triu", |x| Ok(vec![x[0].triu(1)?])),
    ("triu_integers", |x| Ok(vec![x[0].triu(0)?])),
];
