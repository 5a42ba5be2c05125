//! Comparisons and logic.

use tenure_tensor::DType;

use super::{Lower, Lowered, Refusal, one};
use crate::trace::Recorded;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "eq" => call.compare("Equal"),
        "ne" => {
            let equal = call.compared("Equal")?;
            one(call.op("Not", &[&equal], vec![]))
        }
        "lt" => call.compare("Less"),
        "le" => call.compare("LessOrEqual"),
        "gt" => call.compare("Greater"),
        "ge" => call.compare("GreaterOrEqual"),
        "logical_and" => call.logic("And"),
        "logical_or" => call.logic("Or"),
        "logical_xor" => call.logic("Xor"),
        "logical_not" => {
            let input = call.input()?;
            let input = call.graph().cast(&input.name, input.dtype, DType::Bool);
            one(call.op("Not", &[&input], vec![]))
        }
        "bitwise_and" => call.bits("And", "BitwiseAnd"),
        "bitwise_or" => call.bits("Or", "BitwiseOr"),
        "bitwise_xor" => call.bits("Xor", "BitwiseXor"),
        "bitwise_not" => {
            let input = call.input()?;
            let operator = if input.dtype == DType::Bool { "Not" } else { "BitwiseNot" };
            one(call.op(operator, &[&input.name], vec![]))
        }
        "isnan" => call.property("IsNaN"),
        "isinf" => call.property("IsInf"),
        "isfinite" => {
            let input = call.input()?;
            if !input.dtype.is_floating() {
                return Err(Refusal::Unmapped);
            }
            let nan = call.op("IsNaN", &[&input.name], vec![]);
            let infinite = call.op("IsInf", &[&input.name], vec![]);
            let either = call.op("Or", &[&nan, &infinite], vec![]);
            one(call.op("Not", &[&either], vec![]))
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns the dtype that two operands are compared in.
    fn common_dtype(&mut self) -> Result<DType, Refusal> {
        let input = self.input()?;
        if let Some(other) = self.optional("other")? {
            let (wide, narrow) = match (input.rank(), other.rank()) {
                (0, rank) if rank > 0 => (other.dtype, input.dtype),
                (rank, 0) if rank > 0 => (input.dtype, other.dtype),
                _ => return Ok(raised(input.dtype.promote(other.dtype).map_err(|_| Refusal::Unmapped)?)),
            };
            // A number without dimensions changes the dtype only if it is of another kind.
            return Ok(raised(if narrow.is_floating() && !wide.is_floating() { narrow } else { wide }));
        }
        Ok(raised(match self.argument("other") {
            Some(Recorded::Scalar(number)) if number.dtype().is_floating() && !input.dtype.is_floating() => DType::F32,
            _ => input.dtype,
        }))
    }

    fn compared(&mut self, operator: &str) -> Result<String, Refusal> {
        let dtype = self.common_dtype()?;
        let (x, y) = self.operands("input", "other", dtype)?;
        Ok(self.op(operator, &[&x, &y], vec![]))
    }

    fn compare(&mut self, operator: &str) -> Lowered {
        one(self.compared(operator)?)
    }

    fn logic(&mut self, operator: &str) -> Lowered {
        let (x, y) = self.operands("input", "other", DType::Bool)?;
        one(self.op(operator, &[&x, &y], vec![]))
    }

    fn bits(&mut self, of_bools: &str, of_integers: &str) -> Lowered {
        let dtype = self.dtype(0);
        let (x, y) = self.operands("input", "other", dtype)?;
        let operator = if dtype == DType::Bool { of_bools } else { of_integers };
        one(self.op(operator, &[&x, &y], vec![]))
    }

    fn property(&mut self, operator: &str) -> Lowered {
        let input = self.input()?;
        if !input.dtype.is_floating() {
            return Err(Refusal::Unmapped);
        }
        one(self.op(operator, &[&input.name], vec![]))
    }
}

/// Returns a dtype that operators compare.
fn raised(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 => DType::I32,
        dtype => dtype,
    }
}
