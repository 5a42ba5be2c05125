//! Tensors from nothing, or like another, beside PyTorch's.

use tenure_tensor::{DType, Device, Tensor};

use crate::harness::Case;

const CPU: Device = Device::CPU;

pub(crate) const CASES: &[Case] = &[
    ("zeros", |_| {
        let whole = [Tensor::zeros(&[2, 3], DType::F32, CPU)?, Tensor::zeros(&[0], DType::I32, CPU)?];
        Ok([&whole[..], &[Tensor::zeros(&[], DType::F16, CPU)?]].concat())
    }),
    ("ones", |_| {
        let whole = [Tensor::ones(&[2, 3], DType::F64, CPU)?, Tensor::ones(&[0], DType::Bool, CPU)?];
        Ok([&whole[..], &[Tensor::ones(&[], DType::I32, CPU)?]].concat())
    }),
    ("full", |_| {
        let whole = [Tensor::full(&[2, 3], 0.1, DType::F32, CPU)?, Tensor::full(&[0], 7, DType::U8, CPU)?];
        Ok([&whole[..], &[Tensor::full(&[], 0.1, DType::F16, CPU)?]].concat())
    }),
    ("arange", |_| {
        let down = Tensor::arange(7, -2, -3, DType::I32, CPU)?;
        let steps = Tensor::arange(0.1, 1.0, 0.15, DType::F32, CPU)?;
        Ok(vec![Tensor::arange(0, 5, 1, DType::I64, CPU)?, down, steps, Tensor::arange(0, 0, 1, DType::I64, CPU)?])
    }),
    ("linspace", |_| {
        let few = [Tensor::linspace(2.0, 9.0, 1, DType::F64, CPU)?, Tensor::linspace(0.0, 1.0, 0, DType::F16, CPU)?];
        Ok([&[Tensor::linspace(-1.0, 0.3, 7, DType::F32, CPU)?][..], &few].concat())
    }),
    ("logspace", |_| {
        let tens = Tensor::logspace(-1.0, 0.5, 5, 10.0, DType::F64, CPU)?;
        Ok(vec![Tensor::logspace(0.0, 3.0, 4, 2.0, DType::F32, CPU)?, tens])
    }),
    ("eye", |_| {
        let eye = |rows, columns, dtype| Tensor::eye(rows, columns, dtype, CPU);
        Ok(vec![eye(3, 3, DType::F32)?, eye(2, 4, DType::I32)?, eye(3, 1, DType::Bool)?, eye(0, 0, DType::F32)?])
    }),
    ("zeros_like", |x| Ok(vec![x[0].zeros_like()?])),
    ("ones_like", |x| Ok(vec![x[0].ones_like()?])),
    ("full_like", |x| Ok(vec![x[0].full_like(1.25)?])),
];
