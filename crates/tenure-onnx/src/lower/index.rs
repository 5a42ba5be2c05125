//! Selections by index tensors.

use tenure_tensor::DType;

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{GraphValue, int};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "embedding" | "embedding_padded" => {
            let (table, indices) = call.pair("input", "indices")?;
            one(call.op("Gather", &[&table.name, &indices.name], vec![int("axis", 0)]))
        }
        "index_select" => {
            let (input, index) = call.pair("input", "index")?;
            let dim = call.dim("dim", input.rank())? as i64;
            one(call.op("Gather", &[&input.name, &index.name], vec![int("axis", dim)]))
        }
        "gather" => {
            let (input, index) = call.pair("input", "index")?;
            let dim = call.dim("dim", input.rank())? as i64;
            one(call.op("GatherElements", &[&input.name, &index.name], vec![int("axis", dim)]))
        }
        "take" => {
            let (input, index) = call.pair("input", "index")?;
            let flat = call.graph().ints(&[-1]);
            let flat = call.op("Reshape", &[&input.name, &flat], vec![]);
            one(call.op("Gather", &[&flat, &index.name], vec![int("axis", 0)]))
        }
        "one_hot" => {
            let input = call.input()?;
            let classes = call.int("num_classes")?;
            let depth = call.graph().int(classes);
            let values = call.graph().ints(&[0, 1]);
            one(call.op("OneHot", &[&input.name, &depth, &values], vec![int("axis", -1)]))
        }
        "index" => call.index_by_tensors(),
        "nonzero" | "nonzero_in_form" | "where_nonzero" | "masked_select" | "unique" => {
            Err("the sizes of its result depend on elements: use where() and masks".into())
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn index_by_tensors(&mut self) -> Lowered {
        let input = self.input()?;
        let dim = self.dim("dim", input.rank())?;
        let indices = self.tensors("indices")?;
        check_indices(&indices)?;
        if let [index] = &indices[..] {
            return one(self.op("Gather", &[&input.name, &index.name], vec![int("axis", dim as i64)]));
        }
        // The dimensions that are indexed come first.
        let indexed = dim..dim + indices.len();
        let order: Vec<usize> =
            indexed.clone().chain((0..input.rank()).filter(|other| !indexed.contains(other))).collect();
        let front = self.transposed(&input.name, &order);
        let result = self.result_sizes(0);
        let added = result.len() - (input.rank() - indices.len());
        let places = self.joined_indices(&indices, &result[dim..dim + added])?;
        let selected = self.op("GatherND", &[&front, &places], vec![]);
        // The dimensions of the indices go where the indexed ones were.
        let order: Vec<usize> = (added..added + dim).chain(0..added).chain(added + dim..result.len()).collect();
        one(self.transposed(&selected, &order))
    }

    /// Returns indices, broadcast to sizes, as vectors of a last dimension.
    pub(super) fn joined_indices(&mut self, indices: &[GraphValue], sizes: &[Size]) -> Result<String, Refusal> {
        let axes = self.graph().ints(&[sizes.len() as i64]);
        let mut parts = Vec::new();
        for index in indices {
            let name = self.graph().cast(&index.name, index.dtype, DType::I64);
            let name = self.expand(&name, &index.sizes, sizes)?;
            parts.push(self.op("Unsqueeze", &[&name, &axes], vec![]));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.op("Concat", &parts, vec![int("axis", sizes.len() as i64)]))
    }
}

/// Checks that indices are numbers.
pub(super) fn check_indices(indices: &[GraphValue]) -> Result<(), Refusal> {
    match indices.iter().any(|index| matches!(index.dtype, DType::Bool | DType::U8)) {
        true => Err("the sizes of what a mask selects depend on elements: use where() or masked_fill()".into()),
        false => Ok(()),
    }
}
