//! Creation of tensors compared with PyTorch.

use tenure_tensor::{DType, Tensor};

use crate::harness::{Case, device};

pub(crate) const CASES: &[Case] = &[
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
        let eye = |rows, columns, dtype| Tensor::eye(rows, columns, dtype, device());
        Ok(vec![eye(3, 3, DType::F32)?, eye(2, 4, DType::I32)?, eye(3, 1, DType::Bool)?, eye(0, 0, DType::F32)?])
    }),
    ("zeros_like", |x| Ok(vec![x[0].zeros_like()?])),
    ("ones_like", |x| Ok(vec![x[0].ones_like()?])),
    ("full_like", |x| Ok(vec![x[0].full_like(1.25)?])),
];
