//! Inputs with other sizes of dynamic axes, for a second trace.

use std::collections::HashMap;

use tenure_tensor::Tensor;

use crate::size::Size;
use crate::{DynamicAxis, Error, Result};

/// The sizes of the dynamic axes, by name.
pub(crate) type Symbols = HashMap<String, Size>;

/// The inputs of both traces, and the sizes of their dynamic axes.
pub(crate) struct Examples {
    pub(crate) first: Vec<Tensor>,
    pub(crate) second: Vec<Tensor>,
    pub(crate) symbols: Symbols,
}

/// Returns inputs with two sizes of each dynamic axis. Elements are repeated, so that they stay valid.
pub(crate) fn examples(inputs: &[&Tensor], names: &[String], axes: &[DynamicAxis]) -> Result<Examples> {
    let mut found: Vec<(usize, usize, &str)> = Vec::new();
    for axis in axes {
        let Some(input) = names.iter().position(|name| *name == axis.tensor) else { continue };
        let rank = inputs[input].rank() as isize;
        let dim = if axis.axis < 0 { axis.axis + rank } else { axis.axis };
        if !(0..rank).contains(&dim) {
            let (axis, name) = (axis.axis, &axis.tensor);
            return Err(Error::Function(format!("{name} has {rank} dimensions, but the dynamic axis {axis} is named")));
        }
        found.push((input, dim as usize, &axis.name));
    }
    let mut symbols = Symbols::new();
    for (input, dim, name) in &found {
        let given = inputs[*input].sizes()[*dim];
        if given == 0 {
            return Err(Error::Function(format!("the axis {name} must have elements")));
        }
        // An axis of size 1 would be broadcast.
        let first = given.max(2) as i64;
        match symbols.get(*name) {
            None => {
                let size = varied(first, &symbols);
                symbols.insert((*name).to_owned(), size);
            }
            Some(size) if size.first != first => {
                let other = size.first;
                let reason = format!("the axis {name} has the sizes {first} and {other}: give other axes other names");
                return Err(Error::Function(reason));
            }
            Some(_) => {}
        }
    }
    let sized = |pick: fn(Size) -> i64| -> Result<Vec<Tensor>> {
        // Copies, so that an input is no tensor that the function has otherwise, nor another input.
        let mut tensors = inputs.iter().map(|input| input.copy()).collect::<Result<Vec<Tensor>, _>>()?;
        for (input, dim, name) in &found {
            let count = pick(symbols[*name]);
            let size = tensors[*input].sizes()[*dim] as i64;
            if count != size {
                let indices: Vec<i64> = (0..count).map(|index| index % size).collect();
                let indices = Tensor::from_slice(&indices, &[indices.len()])?.to_device(tensors[*input].device())?;
                tensors[*input] = tensors[*input].index_select(*dim as isize, &indices)?;
            }
        }
        Ok(tensors)
    };
    let first = sized(|size| size.first)?;
    let second = sized(|size| size.second)?;
    Ok(Examples { first, second, symbols })
}

/// Returns a size with another one for the second trace, which no other axis's sizes give by a sum or a multiple.
fn varied(first: i64, others: &Symbols) -> Size {
    /// Sizes from this one on become smaller, since many functions have a largest size.
    const LARGE: i64 = 12;
    let is_clear = |size: &Size| {
        others.values().all(|other| {
            let is_multiple = |one: Size, other: Size| one.divided(other).is_some_and(|rest| !rest.is_dynamic());
            !is_multiple(*size, *other) && !is_multiple(*other, *size) && size.minus(*other).is_dynamic()
        })
    };
    let steps = 1..=others.len() as i64 * 4 + 1;
    let sizes = steps.map(|step| Size { first, second: if first >= LARGE { first - step } else { first + step } });
    let plain = Size { first, second: first + 1 };
    sizes.filter(|size| size.second > 1).find(is_clear).unwrap_or(plain)
}
