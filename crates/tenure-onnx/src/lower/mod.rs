//! Operations as nodes of ONNX: the calls of a trace become a graph.

mod activation;
mod attention;
mod cast;
mod compare;
mod conv;
mod create;
mod elementwise;
mod index;
mod matmul;
mod norm;
mod pad;
mod pool;
mod reduce;
mod scatter;
mod shape;
mod slice;
mod sort;

use std::collections::HashMap;

use tenure_tensor::{DType, Scalar, Tensor};

use crate::compare::Pairs;
use crate::graph::{Graph, GraphValue};
use crate::proto::AttributeProto;
use crate::size::Size;
use crate::trace::{Call, Origin, Recorded, Slot, SlotInfo, Trace};
use crate::{Error, Result};

/// The reason why a tensor has no value in the graph.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// It comes from an operation that was not exported.
    Call { operation: &'static str, at: String, reason: String },
    /// It does not come from an operation.
    Tensor(String),
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Call { operation, at, reason } => Self::Operation { operation, at, reason },
            Missing::Tensor(reason) => Self::Value(reason),
        }
    }
}

/// The reason why a call has no nodes.
pub(crate) enum Refusal {
    /// There is no mapping.
    Unmapped,
    /// There is one, but not for these arguments.
    Reason(String),
    /// An argument could not be exported itself.
    Argument(Missing),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Reason(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Self::Reason(reason.to_owned())
    }
}

/// The names of a call's results; `None` for one that cannot be exported.
pub(crate) type Lowered = Result<Vec<Option<String>>, Refusal>;

/// Traces of the same function with the same operations; the second one with other sizes of the dynamic axes.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: Graph,
    pub(crate) first: &'a Trace,
    pub(crate) second: &'a Trace,
    /// The tensors that both traces have.
    pub(crate) pairs: &'a Pairs,
    pub(crate) opset: i64,
    /// The names of tensors that were there before, by the tensors' storages and offsets.
    pub(crate) names: &'a dyn Fn(&Tensor) -> Option<String>,
    /// The values of the slots, or the reasons why they have none.
    values: HashMap<Slot, Result<GraphValue, Missing>>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        first: &'a Trace,
        second: &'a Trace,
        pairs: &'a Pairs,
        opset: i64,
        names: &'a dyn Fn(&Tensor) -> Option<String>,
    ) -> Self {
        Self { graph: Graph::default(), first, second, pairs, opset, names, values: HashMap::new() }
    }

    /// Makes a slot a value of the graph.
    pub(crate) fn set(&mut self, slot: Slot, name: String) -> GraphValue {
        let value = GraphValue { name, dtype: self.first.slots[slot].dtype, sizes: self.sizes(slot) };
        self.graph.learn(&value);
        self.values.insert(slot, Ok(value.clone()));
        value
    }

    /// Returns a tensor in both traces.
    fn infos(&self, slot: Slot) -> [&'a SlotInfo; 2] {
        // A tensor without a partner is not exported: only its operation's name is looked at.
        let other = self.pairs.get(&slot).map(|other| &self.second.slots[*other]);
        let info = &self.first.slots[slot];
        [info, other.unwrap_or(info)]
    }

    fn sizes(&self, slot: Slot) -> Vec<Size> {
        let [first, second] = self.infos(slot);
        let sizes = first.sizes.iter().zip(&second.sizes);
        sizes.map(|(first, second)| Size { first: *first as i64, second: *second as i64 }).collect()
    }

    /// Returns the value of a slot.
    pub(crate) fn value(&mut self, slot: Slot) -> Result<GraphValue, Missing> {
        if let Some(value) = self.values.get(&slot) {
            return value.clone();
        }
        let [first, second] = self.infos(slot).map(|info| &info.origin);
        let reason = match (first, second) {
            (Origin::Existing(tensor), _) => {
                let name = (self.names)(tensor).unwrap_or_else(|| "tensor".to_owned());
                let name = self.graph.initializer(&name, tensor);
                return Ok(self.set(slot, name));
            }
            (Origin::Unknown(reason), _) | (_, Origin::Unknown(reason)) => reason.clone(),
            _ => "a tensor comes from an operation that was not exported".to_owned(),
        };
        let missing = Missing::Tensor(reason);
        self.values.insert(slot, Err(missing.clone()));
        Err(missing)
    }

    fn is_unknown(&self, slot: Slot) -> bool {
        self.infos(slot).iter().any(|info| matches!(info.origin, Origin::Unknown(_)))
    }

    /// Adds the nodes of calls.
    pub(crate) fn add_calls(&mut self, first: &[Call], second: &[Call]) {
        for (first, second) in first.iter().zip(second) {
            let partners: Option<Vec<Slot>> =
                first.results.iter().map(|result| self.pairs.get(result).copied()).collect();
            if partners.as_ref() == Some(&second.results) {
                self.add_call(first, second);
            }
        }
    }

    fn add_call(&mut self, first: &Call, second: &Call) {
        let missing = |reason| Missing::Call { operation: first.operation.name, at: first.at.clone(), reason };
        let refusal = match (Lower { all: self, first, second }).lower() {
            Ok(names) => {
                for (slot, name) in first.results.iter().zip(names) {
                    match name {
                        // The operation that this one is a part of has changed it.
                        _ if self.is_unknown(*slot) => {}
                        Some(name) => drop(self.set(*slot, name)),
                        None => {
                            let reason = "this result of it has no counterpart in ONNX".to_owned();
                            self.values.insert(*slot, Err(missing(reason)));
                        }
                    }
                }
                return;
            }
            Err(refusal) => refusal,
        };
        self.add_calls(&first.parts, &second.parts);
        let missing = match refusal {
            Refusal::Unmapped => {
                missing("there is no mapping for it: use other operations, or compute it outside".to_owned())
            }
            Refusal::Reason(reason) => missing(reason),
            Refusal::Argument(missing) => missing,
        };
        for slot in &first.results {
            let [part, other] = self.infos(*slot).map(|info| info.part);
            let part = part.filter(|part| self.pairs.get(part).copied() == other);
            let made = part.and_then(|part| self.values.get(&part)?.clone().ok());
            self.values.insert(*slot, made.ok_or_else(|| missing.clone()));
        }
    }
}

/// Adds the nodes of a call. Each has operations of one kind.
type Mapping = fn(&mut Lower<'_, '_>) -> Lowered;

const MAPPINGS: [Mapping; 17] = [
    elementwise::lower,
    compare::lower,
    activation::lower,
    cast::lower,
    shape::lower,
    slice::lower,
    matmul::lower,
    conv::lower,
    pool::lower,
    norm::lower,
    attention::lower,
    reduce::lower,
    index::lower,
    scatter::lower,
    sort::lower,
    pad::lower,
    create::lower,
];

/// One call that becomes nodes.
pub(crate) struct Lower<'a, 'b> {
    all: &'b mut Lowering<'a>,
    first: &'b Call,
    second: &'b Call,
}

impl Lower<'_, '_> {
    fn lower(&mut self) -> Lowered {
        for mapping in MAPPINGS {
            match mapping(self) {
                Err(Refusal::Unmapped) => {}
                lowered => return lowered,
            }
        }
        Err(Refusal::Unmapped)
    }

    /// Returns the operation's own name.
    fn operation(&self) -> &'static str {
        self.first.operation.own_name
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.first.operation.parameters.iter().position(|parameter| parameter.name == name)
    }

    /// Returns an argument in both traces.
    fn argument(&self, name: &str) -> Option<[&Recorded; 2]> {
        let index = self.index(name)?;
        Some([&self.first.arguments[index], &self.second.arguments[index]])
    }

    fn value(&mut self, slot: Slot) -> Result<GraphValue, Refusal> {
        self.all.value(slot).map_err(Refusal::Argument)
    }

    /// Returns the tensor that is given for a parameter.
    fn tensor(&mut self, name: &str) -> Result<GraphValue, Refusal> {
        self.optional(name)?.ok_or_else(|| format!("{name} must be a tensor").into())
    }

    /// Returns the tensor that is given for a parameter, if one is.
    fn optional(&mut self, name: &str) -> Result<Option<GraphValue>, Refusal> {
        match self.argument(name) {
            Some([Recorded::Tensor(slot), _]) => {
                let slot = *slot;
                self.value(slot).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the operation's first tensor.
    fn input(&mut self) -> Result<GraphValue, Refusal> {
        match self.first.arguments.first() {
            Some(Recorded::Tensor(slot)) => {
                let slot = *slot;
                self.value(slot)
            }
            _ => Err(Refusal::Unmapped),
        }
    }

    /// Returns the tensors that are given for a parameter.
    fn tensors(&mut self, name: &str) -> Result<Vec<GraphValue>, Refusal> {
        match self.argument(name) {
            Some([Recorded::Tensors(slots), _]) => {
                let slots = slots.clone();
                slots.into_iter().map(|slot| self.value(slot)).collect()
            }
            _ => Err(format!("{name} must be a list of tensors").into()),
        }
    }

    /// Returns a number that may depend on dynamic axes.
    fn size(&self, name: &str) -> Result<Size, Refusal> {
        match self.argument(name) {
            Some([Recorded::Scalar(first), Recorded::Scalar(second)]) => {
                Ok(Size { first: first.to_i64(), second: second.to_i64() })
            }
            _ => Err(format!("{name} must be a number").into()),
        }
    }

    /// Returns numbers that may depend on dynamic axes.
    fn sizes(&self, name: &str) -> Result<Vec<Size>, Refusal> {
        match self.argument(name) {
            Some([Recorded::Ints(first), Recorded::Ints(second)]) if first.len() == second.len() => {
                Ok(first.iter().zip(second).map(|(first, second)| Size { first: *first, second: *second }).collect())
            }
            _ => Err(format!("{name} must be a list of numbers").into()),
        }
    }

    /// Returns a number that is the same for all sizes.
    fn int(&self, name: &str) -> Result<i64, Refusal> {
        self.fixed(name, self.size(name)?)
    }

    /// Returns numbers that are the same for all sizes.
    fn ints(&self, name: &str) -> Result<Vec<i64>, Refusal> {
        self.sizes(name)?.into_iter().map(|size| self.fixed(name, size)).collect()
    }

    fn fixed(&self, name: &str, size: Size) -> Result<i64, Refusal> {
        size.known().ok_or_else(|| format!("{name} is {size}: it must not depend on dynamic axes").into())
    }

    /// Returns a number that is the same for all sizes, if one is given.
    fn scalar(&self, name: &str) -> Result<Option<Scalar>, Refusal> {
        match self.argument(name) {
            Some([Recorded::Scalar(first), Recorded::Scalar(second)]) => {
                if first == second {
                    return Ok(Some(*first));
                }
                Err(format!("{name} is {first}, or {second} with other sizes: it must not depend on dynamic axes")
                    .into())
            }
            _ => Ok(None),
        }
    }

    fn float(&self, name: &str) -> Result<f64, Refusal> {
        match self.scalar(name)? {
            Some(number) => Ok(number.to_f64()),
            None => Err(format!("{name} must be a number").into()),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.scalar(name)?.is_some_and(Scalar::to_bool))
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.argument(name) {
            Some([Recorded::Text(text), _]) => Some(text),
            _ => None,
        }
    }

    fn is_none(&self, name: &str) -> bool {
        matches!(self.argument(name), None | Some([Recorded::None, _]))
    }

    /// Returns the dimension that the argument `name` means for `rank` dimensions.
    fn dim(&self, name: &str, rank: usize) -> Result<usize, Refusal> {
        let dim = self.int(name)?;
        Ok(wrapped(dim, rank))
    }

    /// Returns the dtype of a result.
    fn dtype(&self, result: usize) -> DType {
        self.all.first.slots[self.first.results[result]].dtype
    }

    /// Returns the sizes of a result.
    fn result_sizes(&self, result: usize) -> Vec<Size> {
        self.all.sizes(self.first.results[result])
    }

    fn op(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        self.all.graph.op(operator, inputs, attributes)
    }

    fn graph(&mut self) -> &mut Graph {
        &mut self.all.graph
    }

    /// Returns an operand, a tensor or a number, in a dtype.
    fn operand(&mut self, name: &str, dtype: DType) -> Result<String, Refusal> {
        if let Some(tensor) = self.optional(name)? {
            return Ok(self.graph().cast(&tensor.name, tensor.dtype, dtype));
        }
        match self.argument(name) {
            Some([Recorded::Scalar(first), Recorded::Scalar(second)]) if first == second => {
                let number = *first;
                Ok(self.graph().number(number, dtype))
            }
            // A size of a tensor, as a number to compute with.
            Some([Recorded::Scalar(Scalar::Int(first)), Recorded::Scalar(Scalar::Int(second))]) => {
                let size = Size { first: *first, second: *second };
                let list = self.graph().size(size)?;
                let none = self.graph().ints(&[]);
                let number = self.op("Reshape", &[&list, &none], vec![]);
                Ok(self.graph().cast(&number, DType::I64, dtype))
            }
            Some([Recorded::Scalar(_), Recorded::Scalar(_)]) => self.scalar(name).and(Err(Refusal::Unmapped)),
            _ => Err(format!("{name} must be a tensor or a number").into()),
        }
    }

    /// Returns a value with other sizes of as many elements.
    fn reshape(&mut self, name: &str, from: &[Size], to: &[Size]) -> Result<String, Refusal> {
        if from == to {
            return Ok(name.to_owned());
        }
        let mut sizes: Vec<Option<i64>> = to.iter().map(|size| size.known()).collect();
        let is_empty = to.iter().any(|size| size.first == 0);
        if sizes.iter().filter(|size| size.is_none()).count() > 1 || is_empty {
            for (index, size) in sizes.iter_mut().enumerate() {
                if from.get(index) == Some(&to[index]) && size.is_none() {
                    *size = Some(0);
                }
            }
        }
        let open: Vec<usize> = (0..sizes.len()).filter(|index| sizes[*index].is_none()).collect();
        let shape = match open[..] {
            [] => None,
            [one] if !is_empty => {
                sizes[one] = Some(-1);
                None
            }
            _ => Some(self.graph().sizes(to)?),
        };
        let shape = match shape {
            Some(shape) => shape,
            None => {
                let sizes: Vec<i64> = sizes.into_iter().flatten().collect();
                self.graph().ints(&sizes)
            }
        };
        Ok(self.op("Reshape", &[name, &shape], vec![]))
    }

    /// Returns a value broadcast to sizes.
    fn expand(&mut self, name: &str, from: &[Size], to: &[Size]) -> Result<String, Refusal> {
        if from == to {
            return Ok(name.to_owned());
        }
        let offset = to.len() - from.len();
        // A size of 1 keeps a dimension as it is.
        let sizes: Vec<Size> = to
            .iter()
            .enumerate()
            .map(|(dim, size)| if dim >= offset && from[dim - offset] == *size { Size::fixed(1) } else { *size })
            .collect();
        let sizes = self.graph().sizes(&sizes)?;
        Ok(self.op("Expand", &[name, &sizes], vec![]))
    }
}

/// Returns the dimension that `dim` means for `rank` dimensions.
pub(crate) fn wrapped(dim: i64, rank: usize) -> usize {
    (if dim < 0 { dim + rank.max(1) as i64 } else { dim }) as usize
}

/// Returns the one result of a call.
pub(crate) fn one(name: String) -> Lowered {
    Ok(vec![Some(name)])
}
