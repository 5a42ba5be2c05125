//! Operations as nodes of ONNX: the calls of a trace become a graph.

mod activation;
mod attention;
mod compare;
mod conv;
mod create;
mod elementwise;
mod index;
mod matmul;
mod norm;
mod pool;
mod precise;
mod reduce;
mod resize;
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

/// Traces of the same function with the same operations: the first one with the given sizes of the dynamic axes.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: Graph,
    pub(crate) first: &'a Trace,
    /// The traces with other sizes, and the first one's tensors in each.
    pub(crate) others: &'a [(Trace, Pairs)],
    pub(crate) opset: i64,
    /// The names of tensors that were there before, by the tensors' storages.
    pub(crate) names: &'a [(String, Tensor)],
    /// The values of the slots, or the reasons why they have none.
    values: HashMap<Slot, Result<GraphValue, Missing>>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        first: &'a Trace,
        others: &'a [(Trace, Pairs)],
        opset: i64,
        names: &'a [(String, Tensor)],
    ) -> Self {
        Self { graph: Graph::default(), first, others, opset, names, values: HashMap::new() }
    }

    /// Makes a slot a value of the graph.
    pub(crate) fn set(&mut self, slot: Slot, name: String) -> GraphValue {
        let value = GraphValue { name, dtype: self.first.slots[slot].dtype, sizes: self.sizes(slot) };
        self.graph.learn(&value);
        self.values.insert(slot, Ok(value.clone()));
        value
    }

    /// Returns a tensor in each trace.
    fn infos(&self, slot: Slot) -> impl Iterator<Item = &'a SlotInfo> {
        let info = &self.first.slots[slot];
        // A tensor without a partner is not exported: only its operation's name is looked at.
        let other =
            move |(trace, pairs): &'a (Trace, Pairs)| pairs.get(&slot).map_or(info, |other| &trace.slots[*other]);
        std::iter::once(info).chain(self.others.iter().map(other))
    }

    fn sizes(&self, slot: Slot) -> Vec<Size> {
        let infos: Vec<&SlotInfo> = self.infos(slot).collect();
        (0..infos[0].sizes.len()).map(|dim| Size::of(&infos, |info| info.sizes[dim] as i64)).collect()
    }

    /// Returns the value of a slot.
    pub(crate) fn value(&mut self, slot: Slot) -> Result<GraphValue, Missing> {
        if let Some(value) = self.values.get(&slot) {
            return value.clone();
        }
        if let Origin::Existing(tensor) = &self.first.slots[slot].origin {
            let generation = tensor.storage().generation();
            let named = self.names.iter().find(|(_, other)| other.storage().generation() == generation);
            let name = self.graph.initializer(named.map_or("tensor", |(name, _)| name), tensor);
            return Ok(self.set(slot, name));
        }
        let reason = self.unknown(slot).unwrap_or("a tensor comes from an operation that was not exported").to_owned();
        let missing = Missing::Tensor(reason);
        self.values.insert(slot, Err(missing.clone()));
        Err(missing)
    }

    /// Returns the reason why a tensor cannot be exported, if a trace has one.
    fn unknown(&self, slot: Slot) -> Option<&'a str> {
        self.infos(slot).find_map(|info| match &info.origin {
            Origin::Unknown(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Adds the nodes of the calls of each trace.
    pub(crate) fn add_calls(&mut self, calls: &[&[Call]]) {
        let count = calls.iter().map(|calls| calls.len()).min().unwrap_or(0);
        for index in 0..count {
            let call: Vec<&Call> = calls.iter().map(|calls| &calls[index]).collect();
            let are_partners = call[1..].iter().zip(self.others).all(|(other, (_, pairs))| {
                let partners = call[0].results.iter().map(|result| pairs.get(result));
                partners.eq(other.results.iter().map(Some))
            });
            if are_partners {
                self.add_call(&call);
            }
        }
    }

    fn add_call(&mut self, calls: &[&Call]) {
        let first = calls[0];
        let missing = |reason| Missing::Call { operation: first.operation.name, at: first.at.clone(), reason };
        let lowered = (Lower { all: self, first, calls }).lower();
        let lowered = match self.graph.take_lacking() {
            Some((operator, dtype)) => {
                let reason =
                    format!("ONNX Runtime has no {operator} of {dtype}: convert the tensors to float32 before");
                Err(reason.into())
            }
            None => lowered,
        };
        let refusal = match lowered {
            Ok(names) => {
                for (slot, name) in first.results.iter().zip(names) {
                    match name {
                        // The operation that this one is a part of has changed it.
                        _ if self.unknown(*slot).is_some() => {}
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
        let parts: Vec<&[Call]> = calls.iter().map(|call| &call.parts[..]).collect();
        self.add_calls(&parts);
        let missing = match refusal {
            Refusal::Unmapped => missing("it has no mapping: use other operations, or compute it outside".to_owned()),
            Refusal::Reason(reason) => missing(reason),
            Refusal::Argument(missing) => missing,
        };
        for slot in &first.results {
            let mut parts = self.infos(*slot).map(|info| info.part);
            let part = parts.next().flatten().filter(|part| {
                let partners = self.others.iter().map(|(_, pairs)| pairs.get(part).copied());
                partners.eq(parts)
            });
            let made = part.and_then(|part| self.values.get(&part)?.clone().ok());
            self.values.insert(*slot, made.ok_or_else(|| missing.clone()));
        }
    }
}

/// Adds the nodes of a call. Each has operations of one kind.
type Mapping = fn(&mut Lower<'_, '_>) -> Lowered;

const MAPPINGS: [Mapping; 16] = [
    elementwise::lower,
    compare::lower,
    activation::lower,
    shape::lower,
    slice::lower,
    matmul::lower,
    conv::lower,
    pool::lower,
    resize::lower,
    norm::lower,
    attention::lower,
    reduce::lower,
    index::lower,
    scatter::lower,
    sort::lower,
    create::lower,
];

/// One call that becomes nodes, in each trace.
pub(crate) struct Lower<'a, 'b> {
    all: &'b mut Lowering<'a>,
    first: &'b Call,
    calls: &'b [&'b Call],
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

    /// Returns an argument in the first trace.
    fn argument(&self, name: &str) -> Option<&Recorded> {
        self.index(name).map(|index| &self.first.arguments[index])
    }

    /// Returns an argument that is a number, in each trace.
    fn numbers(&self, name: &str) -> Option<Vec<Scalar>> {
        let index = self.index(name)?;
        let arguments = self.calls.iter().map(|call| &call.arguments[index]);
        arguments
            .map(|argument| match argument {
                Recorded::Scalar(number) => Some(*number),
                _ => None,
            })
            .collect()
    }

    /// Returns an argument that is an integer, which may depend on dynamic axes.
    fn integer(&self, name: &str) -> Option<Size> {
        let numbers = self.numbers(name)?;
        let are_integers = numbers.iter().all(|number| matches!(number, Scalar::Int(_)));
        are_integers.then(|| Size::of(&numbers, |number| number.to_i64()))
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
            Some(&Recorded::Tensor(slot)) => self.value(slot).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the operation's first tensor.
    fn input(&mut self) -> Result<GraphValue, Refusal> {
        match self.first.arguments.first() {
            Some(&Recorded::Tensor(slot)) => self.value(slot),
            _ => Err(Refusal::Unmapped),
        }
    }

    /// Returns the tensors that are given for two parameters.
    fn pair(&mut self, one: &str, other: &str) -> Result<(GraphValue, GraphValue), Refusal> {
        Ok((self.tensor(one)?, self.tensor(other)?))
    }

    /// Returns the tensors that are given for a parameter.
    fn tensors(&mut self, name: &str) -> Result<Vec<GraphValue>, Refusal> {
        match self.argument(name) {
            Some(Recorded::Tensors(slots)) => {
                let slots = slots.clone();
                slots.into_iter().map(|slot| self.value(slot)).collect()
            }
            _ => Err(format!("{name} must be a list of tensors").into()),
        }
    }

    /// Returns a number that may depend on dynamic axes.
    fn size(&self, name: &str) -> Result<Size, Refusal> {
        let numbers = self.numbers(name).ok_or_else(|| format!("{name} must be a number"))?;
        Ok(Size::of(&numbers, |number| number.to_i64()))
    }

    /// Returns numbers that may depend on dynamic axes.
    fn sizes(&self, name: &str) -> Result<Vec<Size>, Refusal> {
        let index = self.index(name);
        let lists = self.calls.iter().map(|call| match index.map(|index| &call.arguments[index]) {
            Some(Recorded::Ints(numbers)) => Some(numbers),
            _ => None,
        });
        match lists.collect::<Option<Vec<_>>>() {
            Some(lists) if lists.iter().all(|list| list.len() == lists[0].len()) => {
                Ok((0..lists[0].len()).map(|place| Size::of(&lists, |list| list[place])).collect())
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
        let Some(numbers) = self.numbers(name) else { return Ok(None) };
        let first = numbers[0];
        match numbers.iter().find(|number| **number != first) {
            None => Ok(Some(first)),
            Some(other) => {
                let reason =
                    format!("{name} is {first}, or {other} with other sizes: it must not depend on dynamic axes");
                Err(reason.into())
            }
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
            Some(Recorded::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn is_none(&self, name: &str) -> bool {
        matches!(self.argument(name), None | Some(Recorded::None))
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
        // A size of a tensor, as a number to compute with.
        if let Some(size) = self.integer(name).filter(|size| size.is_dynamic()) {
            let list = self.graph().size(size)?;
            let number = self.only_number(&list);
            return Ok(self.graph().cast(&number, DType::I64, dtype));
        }
        let number = self.scalar(name)?.ok_or_else(|| format!("{name} must be a tensor or a number"))?;
        Ok(self.graph().number(number, dtype))
    }

    /// Returns two operands in a dtype.
    fn operands(&mut self, one: &str, other: &str, dtype: DType) -> Result<(String, String), Refusal> {
        Ok((self.operand(one, dtype)?, self.operand(other, dtype)?))
    }

    /// Returns the one element of a list, without dimensions.
    fn only_number(&mut self, list: &str) -> String {
        let none = self.graph().ints(&[]);
        self.op("Reshape", &[list, &none], vec![])
    }

    /// Returns a value with other sizes of as many elements.
    fn reshape(&mut self, name: &str, from: &[Size], to: &[Size]) -> Result<String, Refusal> {
        if from == to {
            return Ok(name.to_owned());
        }
        let mut sizes: Vec<Option<i64>> = to.iter().map(|size| size.known()).collect();
        let is_empty = to.iter().any(|size| size.0.contains(&0));
        if sizes.iter().filter(|size| size.is_none()).count() > 1 || is_empty {
            for (index, size) in sizes.iter_mut().enumerate() {
                if from.get(index) == Some(&to[index]) && size.is_none() {
                    *size = Some(0);
                }
            }
        }
        let open: Vec<usize> = (0..sizes.len()).filter(|index| sizes[*index].is_none()).collect();
        if let ([one], false) = (&open[..], is_empty) {
            sizes[*one] = Some(-1);
        }
        let shape = match sizes.into_iter().collect::<Option<Vec<i64>>>() {
            Some(sizes) => self.graph().ints(&sizes),
            None => self.graph().sizes(to)?,
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
