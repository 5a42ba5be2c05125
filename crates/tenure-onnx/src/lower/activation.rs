//! Activations.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use tenure_tensor::{DType, Scalar};

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{float, int};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.base_name() {
        "leaky_relu" => {
            let slope = call.float("negative_slope")?;
            call.composed(|call, x, _| call.op("LeakyRelu", &[x], vec![float("alpha", slope)]))
        }
        "elu" | "celu" => {
            let alpha = call.float("alpha")?;
            let operator = if call.base_name() == "elu" { "Elu" } else { "Celu" };
            call.composed(|call, x, _| call.op(operator, &[x], vec![float("alpha", alpha)]))
        }
        "mish" => call.composed(|call, x, _| {
            let soft = call.op("Softplus", &[x], vec![]);
            let gate = call.op("Tanh", &[&soft], vec![]);
            call.op("Mul", &[x, &gate], vec![])
        }),
        "silu" => call.composed(Lower::silu),
        "swiglu" => {
            let dtype = call.dtype(0);
            let other = call.operand("other", dtype)?;
            call.composed(|call, x, dtype| {
                let gate = call.silu(x, dtype);
                call.op("Mul", &[&gate, &other], vec![])
            })
        }
        "gelu" => call.composed(Lower::gelu),
        "gelu_tanh" => call.composed(Lower::gelu_tanh),
        "gelu_by" => match call.text("approximate") {
            Some("tanh") => call.composed(Lower::gelu_tanh),
            _ => call.composed(Lower::gelu),
        },
        "relu6" => call.composed(|call, x, dtype| call.clipped(x, 0.0, 6.0, dtype)),
        "hardtanh" => {
            let (min, max) = call.floats("min_val", "max_val")?;
            call.composed(|call, x, dtype| call.clipped(x, min, max, dtype))
        }
        "hardsigmoid" => call.composed(Lower::hard_sigmoid),
        "hardswish" => call.composed(|call, x, dtype| {
            let gate = call.hard_sigmoid(x, dtype);
            call.op("Mul", &[x, &gate], vec![])
        }),
        "logsigmoid" => call.composed(|call, x, _| {
            let negative = call.op("Neg", &[x], vec![]);
            let soft = call.op("Softplus", &[&negative], vec![]);
            call.op("Neg", &[&soft], vec![])
        }),
        "softplus" => {
            let (beta, threshold) = call.floats("beta", "threshold")?;
            call.composed(|call, x, dtype| {
                let beta = call.constant(beta, dtype);
                let threshold = call.constant(threshold, dtype);
                let scaled = call.op("Mul", &[x, &beta], vec![]);
                let soft = call.op("Softplus", &[&scaled], vec![]);
                let soft = call.op("Div", &[&soft, &beta], vec![]);
                let is_linear = call.op("Greater", &[&scaled, &threshold], vec![]);
                call.op("Where", &[&is_linear, x, &soft], vec![])
            })
        }
        "threshold" => {
            let (threshold, value) = call.floats("threshold", "value")?;
            call.composed(|call, x, dtype| {
                let threshold = call.constant(threshold, dtype);
                let value = call.constant(value, dtype);
                // No comparison with a NaN is true, and it stays.
                let is_below = call.op("LessOrEqual", &[x, &threshold], vec![]);
                call.op("Where", &[&is_below, &value, x], vec![])
            })
        }
        "prelu" => {
            let (input, weight) = call.pair("input", "weight")?;
            // One weight for each channel: the second dimension.
            let mut weight_name = weight.name;
            if weight.sizes.len() == 1 && input.rank() > 2 && weight.sizes[0] != Size::fixed(1) {
                let axes: Vec<i64> = (1..input.rank() as i64 - 1).collect();
                let axes = call.graph().ints(&axes);
                weight_name = call.op("Unsqueeze", &[&weight_name, &axes], vec![]);
            }
            one(call.op("PRelu", &[&input.name, &weight_name], vec![]))
        }
        "softmax" | "log_softmax" | "softmax_as" | "log_softmax_as" => {
            let rank = call.input()?.rank();
            let dim = call.dim("dim", rank)? as i64;
            let operator = if call.operation().starts_with("log") { "LogSoftmax" } else { "Softmax" };
            call.composed(|call, x, _| call.op(operator, &[x], vec![int("axis", dim)]))
        }
        "dropout" => {
            if call.flag("train")? && call.float("p")? > 0.0 {
                return Err("dropout draws random numbers: call eval() on the module first".into());
            }
            one(call.input()?.name)
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    pub(super) fn silu(&mut self, x: &str, _: DType) -> String {
        let gate = self.op("Sigmoid", &[x], vec![]);
        self.op("Mul", &[x, &gate], vec![])
    }

    /// Returns two numbers of the program.
    fn floats(&self, one: &str, other: &str) -> Result<(f64, f64), Refusal> {
        Ok((self.float(one)?, self.float(other)?))
    }

    /// Multiplies with a number.
    fn times(&mut self, x: &str, factor: f64, dtype: DType) -> String {
        let factor = self.constant(factor, dtype);
        self.op("Mul", &[x, &factor], vec![])
    }

    /// Computes x · (1 + `gate`) / 2.
    fn half_gated(&mut self, x: &str, gate: &str, dtype: DType) -> String {
        let one = self.constant(1, dtype);
        let gate = self.op("Add", &[gate, &one], vec![]);
        let half = self.times(x, 0.5, dtype);
        self.op("Mul", &[&half, &gate], vec![])
    }

    fn gelu(&mut self, x: &str, dtype: DType) -> String {
        let scaled = self.times(x, FRAC_1_SQRT_2, dtype);
        let gate = self.op("Erf", &[&scaled], vec![]);
        self.half_gated(x, &gate, dtype)
    }

    fn gelu_tanh(&mut self, x: &str, dtype: DType) -> String {
        let square = self.op("Mul", &[x, x], vec![]);
        let cube = self.op("Mul", &[&square, x], vec![]);
        let small = self.times(&cube, 0.044_715, dtype);
        let sum = self.op("Add", &[x, &small], vec![]);
        let scaled = self.times(&sum, (2.0 / PI).sqrt(), dtype);
        let gate = self.op("Tanh", &[&scaled], vec![]);
        self.half_gated(x, &gate, dtype)
    }

    fn clipped(&mut self, x: &str, min: f64, max: f64, dtype: DType) -> String {
        let min = self.constant(Scalar::Float(min), dtype);
        let max = self.constant(Scalar::Float(max), dtype);
        self.op("Clip", &[x, &min, &max], vec![])
    }

    fn hard_sigmoid(&mut self, x: &str, dtype: DType) -> String {
        let three = self.constant(3, dtype);
        let shifted = self.op("Add", &[x, &three], vec![]);
        let clipped = self.clipped(&shifted, 0.0, 6.0, dtype);
        self.times(&clipped, 1.0 / 6.0, dtype)
    }
}
