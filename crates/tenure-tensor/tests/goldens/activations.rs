//! Activations compared with PyTorch.

use crate::harness::Case;

pub(crate) const CASES: &[Case] = &[
    ("relu", |x| Ok(vec![x[0].relu()?])),
    ("relu6", |x| Ok(vec![x[0].relu6()?])),
    ("selu", |x| Ok(vec![x[0].selu()?])),
    ("gelu", |x| Ok(vec![x[0].gelu()?])),
    ("gelu_tanh", |x| Ok(vec![x[0].gelu_tanh()?])),
    ("silu", |x| Ok(vec![x[0].silu()?])),
    ("mish", |x| Ok(vec![x[0].mish()?])),
    ("logsigmoid", |x| Ok(vec![x[0].logsigmoid()?])),
    ("hardsigmoid", |x| Ok(vec![x[0].hardsigmoid()?])),
    ("hardswish", |x| Ok(vec![x[0].hardswish()?])),
    ("softsign", |x| Ok(vec![x[0].softsign()?])),
    ("leaky_relu", |x| Ok(vec![x[0].leaky_relu(0.1)?])),
    ("threshold", |x| Ok(vec![x[0].threshold(2.5, -2.0)?])),
    ("hardtanh", |x| Ok(vec![x[0].hardtanh(-1.5, 2.5)?])),
    ("elu", |x| Ok(vec![x[0].elu(0.7)?])),
    ("celu", |x| Ok(vec![x[0].celu(1.3)?])),
    ("swiglu", |x| Ok(vec![x[0].swiglu(&x[1])?])),
    ("softplus", |x| Ok(vec![x[0].softplus(1.5, 8.0)?])),
];
