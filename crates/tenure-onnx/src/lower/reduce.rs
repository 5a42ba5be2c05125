//! Sums and other values over dimensions.

use tenure_tensor::{DType, Scalar};

use super::{Lower, Lowered, Refusal, one, wrapped};
use crate::graph::int;
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "sum" | "sum_as" => call.reduction("ReduceSum"),
        "mean" | "mean_as" => call.reduction("ReduceMean"),
        "prod" | "prod_as" => call.reduction("ReduceProd"),
        "amax" | "max_all" => call.reduction("ReduceMax"),
        "amin" | "min_all" => call.reduction("ReduceMin"),
        "logsumexp" => call.reduction("ReduceLogSumExp"),
        "any" => call.truth("ReduceMax"),
        "all" => call.truth("ReduceMin"),
        "count_nonzero" => {
            let input = call.input()?;
            let is_nonzero = call.graph().cast(&input.name, input.dtype, DType::Bool);
            let ones = call.graph().cast(&is_nonzero, DType::Bool, DType::I64);
            let dims = call.dims(input.rank())?;
            let count = call.reduce("ReduceSum", &ones, &dims, call.flag("keepdim")?);
            one(count)
        }
        "max" => call.extreme("ReduceMax", "ArgMax"),
        "min" => call.extreme("ReduceMin", "ArgMin"),
        "argmax" => call.index_of("ArgMax"),
        "argmin" => call.index_of("ArgMin"),
        "var" | "var_unbiased" | "var_unbiased_over" => {
            let [variance, _] = call.variance()?;
            one(variance)
        }
        "std" | "std_unbiased" | "std_unbiased_over" => {
            let [variance, _] = call.variance()?;
            one(call.op("Sqrt", &[&variance], vec![]))
        }
        "var_mean" | "var_mean_unbiased" | "var_mean_unbiased_over" => {
            Ok(call.variance()?.into_iter().map(Some).collect())
        }
        "norm" => call.norm(),
        "cumsum" | "cumsum_as" => {
            let rank = call.input()?.rank();
            let dim = call.dim("dim", rank)? as i64;
            call.composed(|call, x, _| {
                let axis = call.graph().int(dim);
                call.op("CumSum", &[x, &axis], vec![])
            })
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns the dimensions that are reduced: all if none is given.
    fn dims(&self, rank: usize) -> Result<Vec<i64>, Refusal> {
        let dims = if self.index("dim").is_some() { self.ints("dim")? } else { Vec::new() };
        Ok(match dims.is_empty() {
            true => (0..rank as i64).collect(),
            false => dims.into_iter().map(|dim| wrapped(dim, rank) as i64).collect(),
        })
    }

    fn reduce(&mut self, operator: &str, name: &str, dims: &[i64], keeps: bool) -> String {
        let axes = self.graph().ints(dims);
        let attributes = vec![int("keepdims", i64::from(keeps)), int("noop_with_empty_axes", 1)];
        self.op(operator, &[name, &axes], attributes)
    }

    fn reduction(&mut self, operator: &str) -> Lowered {
        let rank = self.input()?.rank();
        let dims = self.dims(rank)?;
        let keeps = self.flag("keepdim")?;
        self.composed(|call, x, _| call.reduce(operator, x, &dims, keeps))
    }

    fn truth(&mut self, operator: &str) -> Lowered {
        let input = self.input()?;
        let dims = self.dims(input.rank())?;
        let keeps = self.flag("keepdim")?;
        let truth = self.graph().cast(&input.name, input.dtype, DType::Bool);
        let numbers = self.graph().cast(&truth, DType::Bool, DType::I32);
        let result = self.reduce(operator, &numbers, &dims, keeps);
        self.finish(&result, DType::I32)
    }

    /// Lowers the largest or smallest element along a dimension, and its index.
    fn extreme(&mut self, value: &str, index: &str) -> Lowered {
        let input = self.input()?;
        let dim = self.dim("dim", input.rank())? as i64;
        let keeps = self.flag("keepdim")?;
        let values = self.reduce(value, &input.name, &[dim], keeps);
        let attributes = vec![int("axis", dim), int("keepdims", i64::from(keeps))];
        let indices = self.op(index, &[&input.name], attributes);
        Ok(vec![Some(values), Some(indices)])
    }

    fn index_of(&mut self, operator: &str) -> Lowered {
        let input = self.input()?;
        if !self.is_none("dim") {
            let dim = self.dim("dim", input.rank())? as i64;
            let keeps = i64::from(self.flag("keepdim")?);
            return one(self.op(operator, &[&input.name], vec![int("axis", dim), int("keepdims", keeps)]));
        }
        let flat = self.graph().ints(&[-1]);
        let flat = self.op("Reshape", &[&input.name, &flat], vec![]);
        let index = self.op(operator, &[&flat], vec![int("axis", 0), int("keepdims", 0)]);
        let sizes = self.result_sizes(0);
        one(self.reshape(&index, &[], &sizes)?)
    }

    /// Returns the variance and the mean.
    fn variance(&mut self) -> Result<[String; 2], Refusal> {
        let input = self.input()?;
        let dtype = input.dtype;
        let dims = self.dims(input.rank())?;
        let correction = match self.index("unbiased") {
            Some(_) => f64::from(u8::from(self.flag("unbiased")?)),
            None => self.float("correction")?,
        };
        let keeps = self.flag("keepdim")?;
        let mean = self.reduce("ReduceMean", &input.name, &dims, true);
        let distance = self.op("Sub", &[&input.name, &mean], vec![]);
        let square = self.op("Mul", &[&distance, &distance], vec![]);
        let sum = self.reduce("ReduceSum", &square, &dims, keeps);
        let count = dims.iter().fold(Size::fixed(1), |count, dim| count * input.sizes[*dim as usize]);
        let count = match count.known() {
            Some(count) => self.constant(count as f64 - correction, dtype),
            None => {
                let count = self.graph().size(count)?;
                let count = self.only_number(&count);
                let count = self.graph().cast(&count, DType::I64, dtype);
                let correction = self.constant(correction, dtype);
                self.op("Sub", &[&count, &correction], vec![])
            }
        };
        let variance = self.op("Div", &[&sum, &count], vec![]);
        let mean = if keeps { mean } else { self.reduce("ReduceMean", &input.name, &dims, false) };
        Ok([variance, mean])
    }

    fn norm(&mut self) -> Lowered {
        let input = self.input()?;
        let dims = self.dims(input.rank())?;
        let keeps = self.flag("keepdim")?;
        let p = self.float("p")?;
        let size = self.op("Abs", &[&input.name], vec![]);
        if p == 0.0 {
            return Err("p must not be 0: count the elements with ne(0)".into());
        }
        one(if p == 1.0 || p == 2.0 {
            self.reduce(if p == 1.0 { "ReduceL1" } else { "ReduceL2" }, &input.name, &dims, keeps)
        } else if p.is_infinite() {
            self.reduce(if p > 0.0 { "ReduceMax" } else { "ReduceMin" }, &size, &dims, keeps)
        } else {
            let power = self.constant(Scalar::Float(p), input.dtype);
            let root = self.constant(Scalar::Float(p.recip()), input.dtype);
            let powers = self.op("Pow", &[&size, &power], vec![]);
            let sum = self.reduce("ReduceSum", &powers, &dims, keeps);
            self.op("Pow", &[&sum, &root], vec![])
        })
    }
}
