//! Arithmetic and functions of each element.

use tenure_tensor::{DType, Scalar};

use super::{Lower, Lowered, Refusal, one};
use crate::graph::int;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    let name = call.base_name();
    match name {
        "abs" | "neg" | "sign" | "floor" | "ceil" | "round" | "exp" | "log" | "sqrt" | "reciprocal" | "sin" | "cos"
        | "tan" | "asin" | "acos" | "atan" | "sinh" | "cosh" | "tanh" | "asinh" | "acosh" | "atanh" | "erf"
        | "sigmoid" | "relu" | "selu" | "softsign" => call.unary(&capitalized(name)),
        "add" | "sub" | "mul" | "div" | "pow" => call.arithmetic(&capitalized(name)),
        "maximum" | "max_with" => call.arithmetic("Max"),
        "minimum" | "min_with" => call.arithmetic("Min"),
        "square" => call.composed(|call, x, _| call.op("Mul", &[x, x], vec![])),
        "rsqrt" => call.composed(|call, x, _| {
            let root = call.op("Sqrt", &[x], vec![]);
            call.op("Reciprocal", &[&root], vec![])
        }),
        "exp2" => call.composed(|call, x, dtype| {
            let two = call.graph().number(2, dtype);
            call.op("Pow", &[&two, x], vec![])
        }),
        "expm1" => call.composed(Lower::expm1),
        "log1p" => call.composed(Lower::log1p),
        "log2" => call.composed(|call, x, dtype| call.logarithm(x, std::f64::consts::LN_2, dtype)),
        "log10" => call.composed(|call, x, dtype| call.logarithm(x, std::f64::consts::LN_10, dtype)),
        "erfc" => call.composed(Lower::erfc),
        "trunc" => call.composed(|call, x, _| call.truncated(x)),
        "frac" => call.composed(|call, x, _| {
            let whole = call.truncated(x);
            call.op("Sub", &[x, &whole], vec![])
        }),
        "add_scaled" | "sub_scaled" => call.scaled(if name == "add_scaled" { "Add" } else { "Sub" }),
        "addcmul" => call.fused("Mul"),
        "addcdiv" => call.fused("Div"),
        "lerp" => call.lerp(),
        "div_floor" => call.rounded_quotient("floor"),
        "div_trunc" => call.rounded_quotient("trunc"),
        "div_rounded" => match call.text("rounding_mode").map(str::to_owned) {
            Some(mode) => call.rounded_quotient(&mode),
            None => {
                let dtype = call.dtype(0);
                call.binary("Div", dtype)
            }
        },
        "remainder" => call.remainder(),
        "fmod" => {
            let dtype = computed_in(call.dtype(0));
            let (x, y) = call.operands("input", "other", dtype)?;
            let rest = call.op("Mod", &[&x, &y], vec![int("fmod", 1)]);
            call.finish(&rest, dtype)
        }
        "hypot" => {
            let dtype = call.dtype(0);
            let (x, y) = call.operands("input", "other", dtype)?;
            let squares = [&x, &y].map(|x| call.op("Mul", &[x, x], vec![]));
            let sum = call.op("Add", &[&squares[0], &squares[1]], vec![]);
            one(call.op("Sqrt", &[&sum], vec![]))
        }
        "nan_to_num" => call.nan_to_num(),
        "copysign" => {
            let dtype = call.dtype(0);
            let (x, sign) = call.operands("input", "other", dtype)?;
            let zero = call.constant(0, dtype);
            let size = call.op("Abs", &[&x], vec![]);
            let negative = call.op("Neg", &[&size], vec![]);
            let is_negative = call.op("Less", &[&sign, &zero], vec![]);
            one(call.op("Where", &[&is_negative, &negative, &size], vec![]))
        }
        "positive" => one(call.input()?.name),
        "masked_fill" => {
            let dtype = call.dtype(0);
            let input = call.operand("input", dtype)?;
            let mask = call.tensor("mask")?;
            let value = call.operand("value", dtype)?;
            one(call.op("Where", &[&mask.name, &value, &input], vec![]))
        }
        "where_" => {
            let dtype = call.dtype(0);
            let condition = call.tensor("condition")?;
            let condition = call.graph().cast(&condition.name, condition.dtype, DType::Bool);
            let (input, other) = call.operands("input", "other", dtype)?;
            one(call.op("Where", &[&condition, &input, &other], vec![]))
        }
        "clamp" => call.clamp(Some("min"), Some("max")),
        "clamp_min" | "clamp_from" => call.clamp(Some("min"), None),
        "clamp_max" | "clamp_to" => call.clamp(None, Some("max")),
        _ => Err(Refusal::Unmapped),
    }
}

/// Returns a name with a capital letter, as ONNX writes it.
fn capitalized(name: &str) -> String {
    name[..1].to_uppercase() + &name[1..]
}

/// Returns the dtype that ONNX Runtime computes a dtype's arithmetic in.
fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::U16 => DType::I32,
        dtype => dtype,
    }
}

impl Lower<'_, '_> {
    /// Returns the operation's name without the mark of operations in place.
    pub(super) fn base_name(&self) -> &'static str {
        match self.operation() {
            name @ ("where_" | "copy_" | "fill_" | "zero_") => name,
            name => name.trim_end_matches('_'),
        }
    }

    /// Ends a computation in `dtype`: converts it to that of the result.
    pub(super) fn finish(&mut self, name: &str, dtype: DType) -> Lowered {
        let wanted = self.dtype(0);
        one(self.graph().cast(name, dtype, wanted))
    }

    fn unary(&mut self, operator: &str) -> Lowered {
        self.composed(|call, x, dtype| match operator {
            "Floor" | "Ceil" | "Round" if !dtype.is_floating() => x.to_owned(),
            _ => call.op(operator, &[x], vec![]),
        })
    }

    /// Lowers a function of one tensor that is composed of operators.
    pub(super) fn composed(&mut self, compute: impl FnOnce(&mut Self, &str, DType) -> String) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let input = self.input()?;
        let x = self.graph().cast(&input.name, input.dtype, dtype);
        let result = compute(self, &x, dtype);
        self.finish(&result, dtype)
    }

    fn binary(&mut self, operator: &str, dtype: DType) -> Lowered {
        let (x, y) = self.operands("input", self.other(), dtype)?;
        let result = self.op(operator, &[&x, &y], vec![]);
        self.finish(&result, dtype)
    }

    /// Lowers a function of two elements.
    fn arithmetic(&mut self, operator: &str) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        self.binary(operator, dtype)
    }

    fn other(&self) -> &'static str {
        self.first.operation.parameters[1].name
    }

    fn logarithm(&mut self, x: &str, of_base: f64, dtype: DType) -> String {
        let base = self.graph().number(of_base, dtype);
        let log = self.op("Log", &[x], vec![]);
        self.op("Div", &[&log, &base], vec![])
    }

    fn truncated(&mut self, x: &str) -> String {
        let size = self.op("Abs", &[x], vec![]);
        let whole = self.op("Floor", &[&size], vec![]);
        let sign = self.op("Sign", &[x], vec![]);
        self.op("Mul", &[&whole, &sign], vec![])
    }

    /// Lowers the sum of a tensor and a multiple of another.
    fn scaled(&mut self, operator: &str) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let (x, y) = self.operands("input", "other", dtype)?;
        let alpha = self.operand("alpha", dtype)?;
        let product = self.op("Mul", &[&y, &alpha], vec![]);
        let result = self.op(operator, &[&x, &product], vec![]);
        self.finish(&result, dtype)
    }

    fn fused(&mut self, operator: &str) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let (x, one) = self.operands("input", "tensor1", dtype)?;
        let (other, value) = self.operands("tensor2", "value", dtype)?;
        let scaled = self.op("Mul", &[&one, &value], vec![]);
        let term = self.op(operator, &[&scaled, &other], vec![]);
        let sum = self.op("Add", &[&x, &term], vec![]);
        self.finish(&sum, dtype)
    }

    fn lerp(&mut self) -> Lowered {
        let dtype = self.dtype(0);
        let (x, end) = self.operands("input", "end", dtype)?;
        let weight = self.operand("weight", dtype)?;
        let way = self.op("Sub", &[&end, &x], vec![]);
        let step = self.op("Mul", &[&way, &weight], vec![]);
        one(self.op("Add", &[&x, &step], vec![]))
    }

    fn rounded_quotient(&mut self, mode: &str) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let (x, y) = self.operands("input", "other", dtype)?;
        let result = match (mode, dtype.is_floating()) {
            ("floor", true) => {
                let quotient = self.op("Div", &[&x, &y], vec![]);
                self.op("Floor", &[&quotient], vec![])
            }
            ("floor", false) => {
                let rest = self.op("Mod", &[&x, &y], vec![]);
                let multiple = self.op("Sub", &[&x, &rest], vec![]);
                self.op("Div", &[&multiple, &y], vec![])
            }
            (_, true) => {
                let quotient = self.op("Div", &[&x, &y], vec![]);
                self.truncated(&quotient)
            }
            (_, false) => self.op("Div", &[&x, &y], vec![]),
        };
        self.finish(&result, dtype)
    }

    fn remainder(&mut self) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let (x, y) = self.operands("input", "other", dtype)?;
        let result = if dtype.is_floating() {
            let quotient = self.op("Div", &[&x, &y], vec![]);
            let whole = self.op("Floor", &[&quotient], vec![]);
            let multiple = self.op("Mul", &[&whole, &y], vec![]);
            self.op("Sub", &[&x, &multiple], vec![])
        } else {
            self.op("Mod", &[&x, &y], vec![])
        };
        self.finish(&result, dtype)
    }

    fn nan_to_num(&mut self) -> Lowered {
        let input = self.input()?;
        let dtype = input.dtype;
        let [lowest, largest] = match dtype {
            DType::F32 => [f64::from(f32::MIN), f64::from(f32::MAX)],
            DType::F64 => [f64::MIN, f64::MAX],
            _ => return Err(Refusal::Unmapped),
        };
        let mut x = input.name;
        for (name, default, found) in
            [("nan", 0.0, None), ("posinf", largest, Some(f64::INFINITY)), ("neginf", lowest, Some(f64::NEG_INFINITY))]
        {
            let value = self.scalar(name)?.map_or(default, Scalar::to_f64);
            let value = self.constant(value, dtype);
            let is_found = match found {
                None => self.op("IsNaN", &[&x], vec![]),
                Some(found) => {
                    let found = self.constant(found, dtype);
                    self.op("Equal", &[&x, &found], vec![])
                }
            };
            x = self.op("Where", &[&is_found, &value, &x], vec![]);
        }
        one(x)
    }

    fn clamp(&mut self, min: Option<&str>, max: Option<&str>) -> Lowered {
        let dtype = computed_in(self.dtype(0));
        let mut x = self.operand("input", dtype)?;
        for (bound, operator) in [(min, "Max"), (max, "Min")] {
            if let Some(bound) = bound {
                let bound = self.operand(bound, dtype)?;
                x = self.op(operator, &[&x, &bound], vec![]);
            }
        }
        self.finish(&x, dtype)
    }

    /// Returns a number of the program as a constant.
    pub(super) fn constant(&mut self, number: impl Into<Scalar>, dtype: DType) -> String {
        self.graph().number(number, dtype)
    }
}
