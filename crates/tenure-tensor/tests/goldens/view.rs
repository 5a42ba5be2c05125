//! Views compared with PyTorch.

use tenure_tensor::{DType, Device, MemoryFormat, Result, Tensor};

use crate::harness::Case;

fn zeros(sizes: &[usize]) -> Result<Tensor> {
    Tensor::zeros(sizes, DType::F32, Device::CPU)
}

pub(crate) const CASES: &[Case] = &[
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
