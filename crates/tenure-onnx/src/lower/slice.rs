//! Parts of tensors.

use super::{Lower, Lowered, Refusal, one, wrapped};
use crate::graph::int;
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "slice" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let start = call.size("start")?;
            let end = call.size("end")?;
            let step = call.int("step")?;
            one(call.part(&input.name, dim, start, end, step)?)
        }
        "narrow" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let start = call.size("start")?;
            let end = start + call.size("length")?;
            one(call.part(&input.name, dim, start, end, 1)?)
        }
        "select" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let index = call.size("index")?;
            one(call.entry(&input.name, dim, index)?)
        }
        "split" | "split_sizes" | "chunk" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let mut start = Size::fixed(0);
            let mut parts = Vec::new();
            for part in 0..call.first.results.len() {
                let end = start + call.result_sizes(part)[dim];
                parts.push(Some(call.part(&input.name, dim, start, end, 1)?));
                start = end;
            }
            Ok(parts)
        }
        "unbind" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let count = call.first.results.len() as i64;
            (0..count).map(|index| call.entry(&input.name, dim, Size::fixed(index)).map(Some)).collect()
        }
        "flip" => {
            let input = call.input()?;
            let dims: Vec<i64> = call.ints("dims")?.into_iter().map(|dim| wrapped(dim, input.rank()) as i64).collect();
            let count = dims.len();
            let starts = call.graph().ints(&vec![-1; count]);
            let ends = call.graph().ints(&vec![i64::MIN; count]);
            let axes = call.graph().ints(&dims);
            let steps = call.graph().ints(&vec![-1; count]);
            one(call.op("Slice", &[&input.name, &starts, &ends, &axes, &steps], vec![]))
        }
        "roll" => call.roll(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns the elements of a dimension from `start` up to but without `end`.
    fn part(&mut self, name: &str, dim: usize, start: Size, end: Size, step: i64) -> Result<String, Refusal> {
        let start = self.graph().size(start)?;
        let end = self.graph().size(end)?;
        let axes = self.graph().ints(&[dim as i64]);
        let step = self.graph().ints(&[step]);
        Ok(self.op("Slice", &[name, &start, &end, &axes, &step], vec![]))
    }

    /// Returns one entry of a dimension, without the dimension.
    fn entry(&mut self, name: &str, dim: usize, index: Size) -> Result<String, Refusal> {
        let dim = dim as i64;
        if let Some(index) = index.known() {
            let index = self.graph().int(index);
            return Ok(self.op("Gather", &[name, &index], vec![int("axis", dim)]));
        }
        let index = self.graph().size(index)?;
        let entry = self.op("Gather", &[name, &index], vec![int("axis", dim)]);
        let axes = self.graph().ints(&[dim]);
        Ok(self.op("Squeeze", &[&entry, &axes], vec![]))
    }

    fn roll(&mut self) -> Lowered {
        let input = self.input()?;
        let shifts = self.ints("shifts")?;
        let dims = self.ints("dims")?;
        if dims.is_empty() {
            return Err("dims are needed: flatten the tensor first".into());
        }
        let mut name = input.name;
        for (shift, dim) in shifts.into_iter().zip(dims) {
            let dim = wrapped(dim, input.sizes.len());
            let size = input.sizes[dim];
            let size = self.graph().size(size)?;
            let left = self.graph().ints(&[-shift]);
            let split = self.op("Mod", &[&left, &size], vec![]);
            let [axes, first, last] = [dim as i64, 0, i64::MAX].map(|number| self.graph().ints(&[number]));
            let back = self.op("Slice", &[&name, &split, &last, &axes], vec![]);
            let front = self.op("Slice", &[&name, &first, &split, &axes], vec![]);
            name = self.op("Concat", &[&back, &front], vec![int("axis", dim as i64)]);
        }
        one(name)
    }
}
