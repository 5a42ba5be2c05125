//! Writes to the places that index tensors name.

use std::iter::repeat_n;

use super::index::check_indices;
use super::{Lower, Lowered, Refusal, one};
use crate::graph::{int, text};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.base_name() {
        "scatter" => call.scatter("none"),
        "scatter_add" => call.scatter("add"),
        "scatter_reduce" => {
            if !call.flag("include_self")? {
                return Err("include_self must be true".into());
            }
            match call.text("reduce") {
                Some("sum") => call.scatter("add"),
                Some("prod") => call.scatter("mul"),
                Some("amax") => call.scatter("max"),
                Some("amin") => call.scatter("min"),
                _ => Err("reduce must be sum, prod, amax or amin".into()),
            }
        }
        "index_add" => call.scatter_entries("source", "add"),
        "index_copy" => call.scatter_entries("source", "none"),
        "index_fill" => call.scatter_entries("value", "none"),
        "index_put" => call.index_put(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn scatter(&mut self, reduction: &str) -> Lowered {
        let (input, index) = self.pair("input", "index")?;
        let dim = self.dim("dim", input.rank())? as i64;
        let mut source = self.operand("src", input.dtype)?;
        match self.optional("src")? {
            Some(given) if given.sizes != index.sizes => {
                return Err("src must have the sizes of index: select that part of it first".into());
            }
            Some(_) => {}
            None => source = self.expand(&source, &[], &index.sizes)?,
        }
        self.scattered(&input.name, &index.name, &source, dim, reduction)
    }

    fn scattered(&mut self, input: &str, index: &str, source: &str, dim: i64, reduction: &str) -> Lowered {
        let attributes = vec![int("axis", dim), text("reduction", reduction)];
        one(self.op("ScatterElements", &[input, index, source], attributes))
    }

    /// Lowers writes of whole entries of a dimension.
    fn scatter_entries(&mut self, source: &str, reduction: &str) -> Lowered {
        let (input, index) = self.pair("input", "index")?;
        let dim = self.dim("dim", input.rank())?;
        let mut sizes = input.sizes.clone();
        sizes[dim] = index.sizes.first().copied().unwrap_or(Size::fixed(1));
        let given = self.optional(source)?;
        let values = self.operand(source, input.dtype)?;
        let values = match given {
            Some(given) => self.expand(&values, &given.sizes, &sizes)?,
            None => self.expand(&values, &[], &sizes)?,
        };
        let mut column = vec![Size::fixed(1); input.rank()];
        column[dim] = sizes[dim];
        let places = self.reshape(&index.name, &index.sizes, &column)?;
        let places = self.expand(&places, &column, &sizes)?;
        self.scattered(&input.name, &places, &values, dim as i64, reduction)
    }

    fn index_put(&mut self) -> Lowered {
        let (input, values) = self.pair("input", "values")?;
        let indices = self.tensors("indices")?;
        check_indices(&indices)?;
        let mut sizes: Vec<Size> = Vec::new();
        for index in &indices {
            sizes = broadcast(&sizes, &index.sizes);
        }
        let places = self.joined_indices(&indices, &sizes)?;
        sizes.extend(&input.sizes[indices.len()..]);
        let name = self.graph().cast(&values.name, values.dtype, input.dtype);
        let values = self.expand(&name, &values.sizes, &sizes)?;
        let reduction = if self.flag("accumulate")? { "add" } else { "none" };
        one(self.op("ScatterND", &[&input.name, &places, &values], vec![text("reduction", reduction)]))
    }
}

/// Returns the sizes that two tensors broadcast to.
fn broadcast(one: &[Size], other: &[Size]) -> Vec<Size> {
    let rank = one.len().max(other.len());
    let [one, other] =
        [one, other].map(|sizes| repeat_n(Size::fixed(1), rank - sizes.len()).chain(sizes.iter().copied()));
    one.zip(other).map(|(one, other)| if one == Size::fixed(1) { other } else { one }).collect()
}
