//! Views with other sizes or another order of dimensions, joins and repetitions.

use super::{Lower, Lowered, Refusal, one, wrapped};
use crate::graph::{GraphValue, int, ints};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "view" | "view_as" | "reshape" | "flatten" | "unflatten" | "squeeze" | "squeeze_dims" | "squeeze_all" => {
            let input = call.input()?;
            call.check_squeezed(&input)?;
            let sizes = call.result_sizes(0);
            one(call.reshape(&input.name, &input.sizes, &sizes)?)
        }
        "unsqueeze" => {
            let input = call.input()?;
            let dim = call.dim("dim", input.rank() + 1)? as i64;
            let axes = call.graph().ints(&[dim]);
            one(call.op("Unsqueeze", &[&input.name, &axes], vec![]))
        }
        "expand" | "expand_as" => {
            let input = call.input()?;
            let sizes = call.result_sizes(0);
            one(call.expand(&input.name, &input.sizes, &sizes)?)
        }
        "transpose" => {
            let rank = call.input()?.rank();
            let dims = [call.dim("dim0", rank)?, call.dim("dim1", rank)?];
            call.swap(dims)
        }
        "t" => match call.input()?.rank() {
            2 => call.swap([0, 1]),
            _ => one(call.input()?.name),
        },
        "mt" => {
            let rank = call.input()?.rank();
            call.swap([rank - 2, rank - 1])
        }
        "permute" => {
            let rank = call.input()?.rank();
            let order = call.ints("dims")?.into_iter().map(|dim| wrapped(dim, rank)).collect::<Vec<_>>();
            call.permute(&order)
        }
        "movedim" => {
            let rank = call.input()?.rank();
            let from = call.ints("source")?;
            let to = call.ints("destination")?;
            let moved: Vec<(usize, usize)> =
                from.iter().zip(&to).map(|(from, to)| (wrapped(*from, rank), wrapped(*to, rank))).collect();
            let mut others = (0..rank).filter(|dim| !moved.iter().any(|(from, _)| from == dim));
            let order: Option<Vec<usize>> = (0..rank)
                .map(|place| moved.iter().find(|(_, to)| *to == place).map(|(from, _)| *from).or_else(|| others.next()))
                .collect();
            call.permute(&order.ok_or(Refusal::Unmapped)?)
        }
        "cat" => {
            let dtype = call.dtype(0);
            let rank = call.result_sizes(0).len();
            let dim = call.dim("dim", rank)? as i64;
            let mut parts = Vec::new();
            for part in call.tensors("tensors")? {
                // A list of no elements goes with anything.
                if part.rank() == rank {
                    parts.push(call.graph().cast(&part.name, part.dtype, dtype));
                }
            }
            call.concat(&parts, dim)
        }
        "stack" => {
            let dtype = call.dtype(0);
            let dim = call.dim("dim", call.result_sizes(0).len())? as i64;
            let axes = call.graph().ints(&[dim]);
            let mut parts = Vec::new();
            for part in call.tensors("tensors")? {
                let part = call.graph().cast(&part.name, part.dtype, dtype);
                parts.push(call.op("Unsqueeze", &[&part, &axes], vec![]));
            }
            call.concat(&parts, dim)
        }
        "repeat" | "tile" => {
            let input = call.input()?;
            let name = if call.operation() == "tile" { "dims" } else { "repeats" };
            let mut repeats = call.sizes(name)?;
            while repeats.len() < input.rank() {
                repeats.insert(0, Size::fixed(1));
            }
            let added = repeats.len() - input.rank();
            let sizes: Vec<Size> =
                std::iter::repeat_n(Size::fixed(1), added).chain(input.sizes.iter().copied()).collect();
            let x = call.reshape(&input.name, &input.sizes, &sizes)?;
            let repeats = call.graph().sizes(&repeats)?;
            one(call.op("Tile", &[&x, &repeats], vec![]))
        }
        "tril" | "triu" => {
            let input = call.input()?;
            let upper = i64::from(call.operation() == "triu");
            let diagonal = call.int("diagonal")?;
            let diagonal = call.graph().int(diagonal);
            one(call.op("Trilu", &[&input.name, &diagonal], vec![int("upper", upper)]))
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Refuses to leave out dimensions of a dynamic size: they would be left out where the size is 1 only.
    fn check_squeezed(&self, input: &GraphValue) -> Result<(), Refusal> {
        let rank = input.rank();
        let dims: Vec<usize> = match self.operation() {
            "squeeze" => vec![self.dim("dim", rank)?],
            "squeeze_dims" => self.ints("dims")?.into_iter().map(|dim| wrapped(dim, rank)).collect(),
            "squeeze_all" => (0..rank).collect(),
            _ => return Ok(()),
        };
        match dims.iter().find(|dim| input.sizes.get(**dim).is_some_and(|size| size.is_dynamic())) {
            Some(dim) => {
                let reason = format!("the size of dimension {dim} is dynamic, and may be 1: name other dimensions");
                Err(reason.into())
            }
            None => Ok(()),
        }
    }

    fn concat(&mut self, parts: &[String], dim: i64) -> Lowered {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        one(self.op("Concat", &parts, vec![int("axis", dim)]))
    }

    fn swap(&mut self, [one, other]: [usize; 2]) -> Lowered {
        let mut order: Vec<usize> = (0..self.input()?.rank()).collect();
        if !order.is_empty() {
            order.swap(one, other);
        }
        self.permute(&order)
    }

    fn permute(&mut self, order: &[usize]) -> Lowered {
        let input = self.input()?;
        one(self.transposed(&input.name, order))
    }

    /// Returns a value with its dimensions in another order.
    pub(super) fn transposed(&mut self, name: &str, order: &[usize]) -> String {
        let order: Vec<i64> = order.iter().map(|dim| *dim as i64).collect();
        if order.iter().enumerate().all(|(place, dim)| place as i64 == *dim) {
            return name.to_owned();
        }
        self.op("Transpose", &[name], vec![ints("perm", &order)])
    }

    /// Returns a value with its last two dimensions exchanged.
    pub(super) fn matrix_transposed(&mut self, name: &str, rank: usize) -> String {
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.transposed(name, &order)
    }
}
