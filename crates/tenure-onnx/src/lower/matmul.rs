//! Products of matrices.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{GraphValue, float, int, text};
use tenure_tensor::{DType, Scalar};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "matmul" | "mv" | "dot" | "bmm" => {
            let other = call.first.operation.parameters[1].name;
            let (x, y) = call.pair("input", other)?;
            call.check_dtypes(&[&x, &y])?;
            one(call.op("MatMul", &[&x.name, &y.name], vec![]))
        }
        "outer" => {
            let (x, y) = call.pair("input", "vec2")?;
            let [first, last] = [1, 0].map(|axis| call.graph().ints(&[axis]));
            let column = call.op("Unsqueeze", &[&x.name, &first], vec![]);
            let row = call.op("Unsqueeze", &[&y.name, &last], vec![]);
            one(call.op("Mul", &[&column, &row], vec![]))
        }
        "linear" => call.linear(),
        "addmm" => call.added_product("mat1", "mat2"),
        "baddbmm" => call.added_product("batch1", "batch2"),
        "einsum" => {
            let equation = call.text("equation").unwrap_or_default().replace(' ', "");
            let operands = call.tensors("operands")?;
            call.check_dtypes(&operands.iter().collect::<Vec<_>>())?;
            let names: Vec<&str> = operands.iter().map(|operand| operand.name.as_str()).collect();
            one(call.op("Einsum", &names, vec![text("equation", &equation)]))
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn linear(&mut self) -> Lowered {
        let (input, weight) = self.pair("input", "weight")?;
        let bias = self.optional("bias")?;
        self.check_dtypes(&[&input, &weight])?;
        if input.rank() == 2 && weight.rank() == 2 {
            let bias = bias.map(|bias| bias.name).unwrap_or_default();
            return one(self.op("Gemm", &[&input.name, &weight.name, &bias], vec![int("transB", 1)]));
        }
        let weight = if weight.rank() == 2 { self.matrix_transposed(&weight.name, 2) } else { weight.name };
        let product = self.op("MatMul", &[&input.name, &weight], vec![]);
        match bias {
            Some(GraphValue { name, .. }) => one(self.op("Add", &[&product, &name], vec![])),
            None => one(product),
        }
    }

    /// Refuses an operation that converts its tensors itself.
    pub(super) fn check_dtypes(&self, tensors: &[&GraphValue]) -> Result<(), Refusal> {
        let dtype = self.dtype(0);
        match tensors.iter().any(|tensor| tensor.dtype != dtype) {
            true => Err("it computes in another dtype: export without autocast".into()),
            false => Ok(()),
        }
    }

    fn added_product(&mut self, left: &str, right: &str) -> Lowered {
        let input = self.tensor("input")?;
        let (left, right) = self.pair(left, right)?;
        self.check_dtypes(&[&input, &left, &right])?;
        let beta = self.scalar("beta")?.map_or(1.0, Scalar::to_f64);
        let alpha = self.scalar("alpha")?.map_or(1.0, Scalar::to_f64);
        if left.rank() == 2 && input.dtype.is_floating() {
            let attributes = vec![float("alpha", alpha), float("beta", beta)];
            return one(self.op("Gemm", &[&left.name, &right.name, &input.name], attributes));
        }
        let dtype = self.dtype(0);
        let product = self.op("MatMul", &[&left.name, &right.name], vec![]);
        let product = self.multiple(&product, alpha, dtype);
        let input = self.multiple(&input.name, beta, dtype);
        one(self.op("Add", &[&input, &product], vec![]))
    }

    /// Multiplies a value with a number.
    pub(super) fn multiple(&mut self, name: &str, factor: f64, dtype: DType) -> String {
        if factor == 1.0 {
            return name.to_owned();
        }
        let factor = self.constant(factor, dtype);
        self.op("Mul", &[name, &factor], vec![])
    }
}
