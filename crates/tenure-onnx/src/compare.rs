//! Comparison of two traces of one function.

use std::collections::HashMap;

use tenure_tensor::{Scalar, Tensor};

use crate::trace::{Call, Origin, Recorded, Slot, Trace};
use crate::{Error, Result};

/// The tensors of the second trace, by those of the first.
pub(crate) type Pairs = HashMap<Slot, Slot>;

/// Finds the tensors that two traces of a function with other sizes of its dynamic axes have in common. Operations
/// that an operation is composed of may differ, as kernels are chosen by sizes: their tensors have no partner then.
///
/// # Errors
/// The function calls other operations.
pub(crate) fn pairs(first: &Trace, second: &Trace, inputs: usize) -> Result<Pairs> {
    let mut comparison = Comparison { first, second, pairs: (0..inputs).map(|slot| (slot, slot)).collect() };
    for (one, other) in first.calls.iter().zip(&second.calls) {
        let (name, at) = (one.operation.name, &one.at);
        if one.operation.own_name != other.operation.own_name {
            return Err(differs(&format!("{name}{at} becomes {}{}", other.operation.name, other.at)));
        }
        if !comparison.same_call(one, other) {
            return Err(differs(&format!("{name}{at} has other arguments or results")));
        }
    }
    let counts = [first.calls.len(), second.calls.len()];
    if counts[0] != counts[1] {
        let longer = if counts[0] > counts[1] { &first.calls[counts[1]] } else { &second.calls[counts[0]] };
        return Err(differs(&format!("{}{} is called in one of them only", longer.operation.name, longer.at)));
    }
    if !comparison.same_slots(&first.outputs, &second.outputs) {
        return Err(differs("it returns other tensors"));
    }
    Ok(comparison.pairs)
}

fn differs(reason: &str) -> Error {
    Error::Function(format!(
        "the function calls other operations with other sizes of its dynamic axes: {reason}. Let no condition or loop \
         depend on these sizes, or leave the axes out"
    ))
}

/// Returns whether two tensors that were there before are one, or have the same elements.
fn is_equal(one: &Tensor, other: &Tensor) -> bool {
    if one.sizes() != other.sizes() || one.dtype() != other.dtype() {
        return false;
    }
    let is_one = one.storage().generation() == other.storage().generation() && one.layout() == other.layout();
    is_one || matches!((one.to_bytes(), other.to_bytes()), (Ok(one), Ok(other)) if one == other)
}

struct Comparison<'a> {
    first: &'a Trace,
    second: &'a Trace,
    pairs: Pairs,
}

impl Comparison<'_> {
    fn same_call(&mut self, one: &Call, other: &Call) -> bool {
        if one.operation.own_name != other.operation.own_name {
            return false;
        }
        let same_arguments = one.arguments.iter().zip(&other.arguments).all(|(one, other)| self.are_alike(one, other));
        if !same_arguments {
            return false;
        }
        for (one, other) in one.parts.iter().zip(&other.parts) {
            if !self.same_call(one, other) {
                break;
            }
        }
        self.same_slots(&one.results, &other.results)
    }

    fn same_slots(&mut self, one: &[Slot], other: &[Slot]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| self.same_slot(*one, *other))
    }

    fn same_slot(&mut self, one: Slot, other: Slot) -> bool {
        if let Some(known) = self.pairs.get(&one) {
            return *known == other;
        }
        let first = &self.first.slots[one];
        let second = &self.second.slots[other];
        let same_origin = match (&first.origin, &second.origin) {
            (Origin::Existing(one), Origin::Existing(other)) => is_equal(one, other),
            // Whether a kernel wrote to a tensor may depend on the elements that it had.
            (Origin::Call | Origin::Unknown(_), Origin::Call | Origin::Unknown(_)) => true,
            _ => false,
        };
        let is_same = same_origin && first.dtype == second.dtype && first.sizes.len() == second.sizes.len();
        if is_same {
            self.pairs.insert(one, other);
        }
        is_same
    }

    /// Returns whether two arguments are the same, except for numbers that sizes may have given.
    fn are_alike(&mut self, one: &Recorded, other: &Recorded) -> bool {
        match (one, other) {
            (Recorded::Tensor(one), Recorded::Tensor(other)) => self.same_slot(*one, *other),
            (Recorded::Tensors(one), Recorded::Tensors(other)) => self.same_slots(one, other),
            // A number that is computed of a size is refused where it is used.
            (Recorded::Scalar(Scalar::Float(_)), Recorded::Scalar(Scalar::Float(_))) => true,
            (Recorded::Scalar(Scalar::Int(_)), Recorded::Scalar(Scalar::Int(_))) => true,
            (Recorded::Ints(one), Recorded::Ints(other)) => one.len() == other.len(),
            (one, other) => one == other,
        }
    }
}
