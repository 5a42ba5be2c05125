//! Elements in order.

use tenure_tensor::DType;

use super::{Lower, Lowered, Refusal};
use crate::graph::int;
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "sort" | "argsort" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let is_largest = call.flag("descending")?;
            let count = input.sizes.get(dim).copied().unwrap_or(Size::fixed(1));
            let [values, indices] = call.top(dim, count, is_largest)?;
            if call.operation() == "sort" { Ok(vec![Some(values), Some(indices)]) } else { Ok(vec![Some(indices)]) }
        }
        "topk" => {
            let rank = call.input()?.rank();
            let dim = call.dim("dim", rank)?;
            let count = call.size("k")?;
            let is_largest = call.flag("largest")?;
            Ok(call.top(dim, count, is_largest)?.into_iter().map(Some).collect())
        }
        "kthvalue" => {
            let place = call.int("k")?;
            call.ranked(place)
        }
        "median" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank())?;
            let size = input.sizes.get(dim).copied().unwrap_or(Size::fixed(1));
            // The lower one of an even number.
            let place = (call.fixed("the size", size)? + 1) / 2;
            call.ranked(place)
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns the first elements in order, and their indices.
    fn top(&mut self, dim: usize, count: Size, is_largest: bool) -> Result<[String; 2], Refusal> {
        let input = self.input()?;
        if input.rank() == 0 {
            return Err("a tensor without dimensions has no order".into());
        }
        let dtype = match input.dtype {
            DType::Bool | DType::U8 | DType::I8 | DType::I16 => DType::I32,
            dtype => dtype,
        };
        let x = self.graph().cast(&input.name, input.dtype, dtype);
        let count = self.graph().size(count)?;
        let attributes = vec![int("axis", dim as i64), int("largest", i64::from(is_largest)), int("sorted", 1)];
        let mut results = self.all.graph.ops("TopK", &[&x, &count], 2, attributes);
        let indices = results.pop().unwrap_or_default();
        let values = results.pop().unwrap_or_default();
        Ok([self.graph().cast(&values, dtype, input.dtype), indices])
    }

    /// Lowers the element of a place in ascending order, counted from 1, and its index.
    fn ranked(&mut self, place: i64) -> Lowered {
        let rank = self.input()?.rank();
        let dim = self.dim("dim", rank)?;
        let keeps = self.flag("keepdim")?;
        let sorted = self.top(dim, Size::fixed(place), false)?;
        Ok(sorted.iter().map(|sorted| Some(self.entry_of(sorted, dim, place - 1, keeps))).collect())
    }

    fn entry_of(&mut self, name: &str, dim: usize, index: i64, keeps: bool) -> String {
        let index = if keeps { self.graph().ints(&[index]) } else { self.graph().int(index) };
        self.op("Gather", &[name, &index], vec![int("axis", dim as i64)])
    }
}
