//! New tensors, conversions and copies.

use tenure_tensor::{DType, Scalar};

use super::{Lower, Lowered, Refusal, one};
use crate::graph::one_number;
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "zeros" | "zeros_like" | "zeros_like_as" | "zero_" => call.filled(Scalar::Int(0)),
        "empty" | "empty_like" | "empty_like_as" => {
            Err("its elements have no values: use zeros, or make tensors of the program's values before the export"
                .into())
        }
        "ones" | "ones_like" | "ones_like_as" => call.filled(Scalar::Int(1)),
        "full" | "full_like" | "full_like_as" | "fill_" => {
            let parameters = call.first.operation.parameters;
            let name =
                if parameters.iter().any(|parameter| parameter.name == "value") { "value" } else { "fill_value" };
            match call.scalar(name)? {
                Some(number) => call.filled(number),
                None => Err(format!("{name} must be a number").into()),
            }
        }
        "to_dtype" => {
            let dtype = call.dtype(0);
            one(call.operand("input", dtype)?)
        }
        "to_device" | "contiguous" | "copy" | "contiguous_in_format" | "copy_in_format" => one(call.input()?.name),
        "copy_" => {
            let dtype = call.dtype(0);
            let source = call.tensor("src")?;
            let name = call.graph().cast(&source.name, source.dtype, dtype);
            let sizes = call.result_sizes(0);
            one(call.expand(&name, &source.sizes, &sizes)?)
        }
        "rand" | "randn" | "rand_like" | "randn_like" | "randint" | "randint_to" | "randperm" | "bernoulli"
        | "bernoulli_of" | "normal_" | "uniform_" | "bernoulli_" => {
            Err("it draws random numbers: draw them before, and give them as an input".into())
        }
        name if !call.first.constants.is_empty() && call.is_the_same() => {
            let tensor = call.first.constants[0].clone();
            one(call.graph().initializer(name, &tensor))
        }
        name if name.starts_with("arange") => call.arange(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns whether all traces call it with the same arguments.
    fn is_the_same(&self) -> bool {
        self.calls.iter().all(|call| call.arguments == self.first.arguments)
    }

    fn filled(&mut self, number: Scalar) -> Lowered {
        let dtype = self.dtype(0);
        let sizes = self.result_sizes(0);
        let sizes = self.graph().sizes(&sizes)?;
        // ONNX has no constants of 16 bits in all versions.
        let made = if dtype == DType::BF16 { DType::F32 } else { dtype };
        let filled = self.op("ConstantOfShape", &[&sizes], vec![one_number("value", number, made)]);
        one(self.graph().cast(&filled, made, dtype))
    }

    /// Lowers a range whose end depends on dynamic axes.
    fn arange(&mut self) -> Lowered {
        let mut numbers = Vec::new();
        for (name, default) in [("start", 0), ("end", 0), ("step", 1)] {
            let number = match self.index(name) {
                Some(_) => self
                    .integer(name)
                    .ok_or_else(|| format!("{name} is not an integer, and depends on dynamic axes"))?,
                None => Size::fixed(default),
            };
            let list = self.graph().size(number)?;
            numbers.push(self.only_number(&list));
        }
        let range = self.op("Range", &[&numbers[0], &numbers[1], &numbers[2]], vec![]);
        self.finish(&range, DType::I64)
    }
}
