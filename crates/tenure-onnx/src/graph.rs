//! A graph under construction: nodes, constants, and the sizes that it knows.

use std::collections::{HashMap, HashSet};

use tenure_tensor::{DType, Scalar, Tensor};

use crate::encode;
use crate::formula::Formula;
use crate::proto::{AttributeProto, NodeProto, TensorProto, attribute_type};
use crate::size::Size;
use crate::support::{self, Support};

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphValue {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<Size>,
}

impl GraphValue {
    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }
}

/// A graph under construction.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<NodeProto>,
    /// Constants of the graph itself.
    pub(crate) constants: Vec<TensorProto>,
    /// Tensors that were there before, by name.
    pub(crate) tensors: Vec<(String, Tensor)>,
    /// The names of constants, by type, sizes and bytes.
    interned: HashMap<(i32, Vec<i64>, Vec<u8>), String>,
    /// The names that are taken.
    names: HashSet<String>,
    counts: HashMap<String, usize>,
    /// The dtypes of values, where they are known.
    dtypes: HashMap<String, DType>,
    /// An operator that lacks the dtype of a value, and the dtype.
    lacking: Option<(String, DType)>,
    /// The dimensions that have a dynamic size.
    known_sizes: Vec<(Size, String, usize)>,
    /// The values that hold dynamic sizes, each a list of one number.
    size_values: HashMap<Size, String>,
    /// The names of the dynamic axes. The first known sizes are theirs.
    pub(crate) axes: Vec<String>,
}

impl Graph {
    /// Takes a name; another one if it is taken.
    pub(crate) fn name(&mut self, wanted: &str) -> String {
        if self.names.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        loop {
            let count = self.counts.entry(wanted.to_owned()).or_insert(0);
            *count += 1;
            let name = format!("{wanted}_{count}");
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Adds a node with one output, and returns that.
    pub(crate) fn op(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        self.ops(operator, inputs, 1, attributes).swap_remove(0)
    }

    /// Adds a node with several outputs.
    pub(crate) fn ops(
        &mut self,
        operator: &str,
        inputs: &[&str],
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<String> {
        let mut names: Vec<String> = inputs.iter().map(|&input| input.to_owned()).collect();
        let given: Vec<Option<DType>> = inputs.iter().map(|input| self.dtypes.get(*input).copied()).collect();
        if let Some(place) = support::indices(operator)
            && let Some(dtype) = given[place].filter(|dtype| *dtype != DType::I64)
        {
            names[place] = self.cast(inputs[place], dtype, DType::I64);
        }
        let mut converted = None;
        for (place, dtype) in given.iter().enumerate() {
            let Some(dtype) = *dtype else { continue };
            match support::support(operator, dtype) {
                Support::Own => {}
                Support::InF32 => {
                    names[place] = self.cast(inputs[place], dtype, DType::F32);
                    converted = Some(dtype);
                }
                Support::Lacking => self.lacking = Some((operator.to_owned(), dtype)),
            }
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut results = self.node(operator, &names, outputs, attributes);
        for (place, result) in results.iter_mut().enumerate() {
            if let Some(dtype) = support::output_dtype(operator, place, &given) {
                if converted == Some(dtype) {
                    *result = self.cast(result, DType::F32, dtype);
                }
                self.dtypes.insert(result.clone(), dtype);
            }
        }
        results
    }

    /// Returns an operator that lacks the dtype of a value, since this function was called last.
    pub(crate) fn take_lacking(&mut self) -> Option<(String, DType)> {
        self.lacking.take()
    }

    fn node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<String> {
        let output: Vec<String> = (0..outputs).map(|_| self.name(&operator.to_lowercase())).collect();
        // Inputs that are left out at the end have no name at all.
        let count = inputs.iter().rposition(|input| !input.is_empty()).map_or(0, |last| last + 1);
        self.nodes.push(NodeProto {
            input: inputs[..count].iter().map(|&input| input.to_owned()).collect(),
            output: output.clone(),
            name: output[0].clone(),
            op_type: operator.to_owned(),
            attribute: attributes,
        });
        output
    }

    /// Returns a constant of these bytes.
    fn constant(&mut self, dtype: DType, dims: &[i64], bytes: Vec<u8>) -> String {
        let data_type = encode::data_type(dtype);
        let key = (data_type, dims.to_vec(), bytes);
        if let Some(name) = self.interned.get(&key) {
            return name.clone();
        }
        let name = self.name("constant");
        self.constants.push(TensorProto {
            dims: dims.to_vec(),
            data_type,
            name: name.clone(),
            raw_data: Some(key.2.clone()),
            ..TensorProto::default()
        });
        self.interned.insert(key, name.clone());
        self.dtypes.insert(name.clone(), dtype);
        name
    }

    /// Returns a list of integers.
    pub(crate) fn ints(&mut self, numbers: &[i64]) -> String {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.constant(DType::I64, &[numbers.len() as i64], bytes)
    }

    /// Returns a list of numbers.
    pub(crate) fn floats(&mut self, numbers: &[f32]) -> String {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.constant(DType::F32, &[numbers.len() as i64], bytes)
    }

    /// Returns an integer without dimensions.
    pub(crate) fn int(&mut self, number: i64) -> String {
        self.constant(DType::I64, &[], number.to_le_bytes().to_vec())
    }

    /// Returns a number without dimensions.
    pub(crate) fn number(&mut self, number: impl Into<Scalar>, dtype: DType) -> String {
        self.constant(dtype, &[], encode::number(number.into(), dtype))
    }

    /// Returns a list of `count` equal numbers.
    pub(crate) fn filled(&mut self, number: impl Into<Scalar>, count: i64, dtype: DType) -> String {
        let bytes = encode::number(number.into(), dtype).repeat(count as usize);
        self.constant(dtype, &[count], bytes)
    }

    /// Returns a tensor that was there before, as an initializer.
    pub(crate) fn initializer(&mut self, name: &str, tensor: &Tensor) -> String {
        let name = self.name(name);
        self.tensors.push((name.clone(), tensor.clone()));
        name
    }

    /// Converts a value.
    pub(crate) fn cast(&mut self, name: &str, from: DType, to: DType) -> String {
        if from == to {
            return name.to_owned();
        }
        let name = self.op("Cast", &[name], vec![int("to", i64::from(encode::data_type(to)))]);
        self.dtypes.insert(name.clone(), to);
        name
    }

    /// Remembers the dtype of a value, and where dynamic sizes can be found.
    pub(crate) fn learn(&mut self, value: &GraphValue) {
        self.dtypes.insert(value.name.clone(), value.dtype);
        for (dim, size) in value.sizes.iter().enumerate() {
            if size.is_dynamic() && !self.known_sizes.iter().any(|(known, ..)| known == size) {
                self.known_sizes.push((*size, value.name.clone(), dim));
            }
        }
    }

    /// Returns a list of the one number `size`.
    ///
    /// # Errors
    /// The number depends on dynamic axes in a way that is not understood.
    pub(crate) fn size(&mut self, size: Size) -> Result<String, String> {
        if let Some(number) = size.known() {
            return Ok(self.ints(&[number]));
        }
        if let Some(name) = self.size_values.get(&size) {
            return Ok(name.clone());
        }
        let known: Vec<Size> = self.known_sizes.iter().map(|(known, ..)| *known).collect();
        let axes = self.axes.join(", ");
        let Some(formula) = Formula::find(&size, &known, self.axes.len()) else {
            return Err(format!(
                "the number {size} depends on the dynamic axes ({axes}), but it is neither a size of a tensor, nor the \
                 sum, the multiple or the product of such, nor one divided by a number of at most 64 and rounded \
                 down, nor its minimum or maximum with a number: write the function with sizes of tensors, or -1"
            ));
        };
        if formula.evaluate(&known) != size {
            return Err(format!(
                "the number {size} depends on the dynamic axes ({axes}) by no single formula: the one that the other \
                 sizes have gives another number for the last ones. Let no condition depend on these sizes, or leave \
                 the axes out"
            ));
        }
        let name = self.computed(&formula, &known);
        self.size_values.insert(size, name.clone());
        Ok(name)
    }

    /// Returns what a formula of known sizes gives, as a list of one number.
    fn computed(&mut self, formula: &Formula, known: &[Size]) -> String {
        let size = formula.evaluate(known);
        if let Some(name) = self.size_values.get(&size) {
            return name.clone();
        }
        let name = match formula {
            Formula::Fixed(number) => return self.ints(&[*number]),
            Formula::Known(index) => {
                let (_, name, dim) = self.known_sizes[*index].clone();
                let dim = dim as i64;
                self.op("Shape", &[&name], vec![int("start", dim), int("end", dim + 1)])
            }
            Formula::Of(operator, of) => {
                let [one, other] = of.each_ref().map(|formula| self.computed(formula, known));
                self.op(operator.name(), &[&one, &other], vec![])
            }
        };
        self.size_values.insert(size, name.clone());
        name
    }

    /// Returns a list of sizes.
    ///
    /// # Errors
    /// The errors of [`size`](Self::size).
    pub(crate) fn sizes(&mut self, sizes: &[Size]) -> Result<String, String> {
        let known: Option<Vec<i64>> = sizes.iter().map(|size| size.known()).collect();
        if let Some(known) = known {
            return Ok(self.ints(&known));
        }
        let parts = sizes.iter().map(|size| self.size(*size)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.op("Concat", &parts, vec![int("axis", 0)]))
    }

    /// Removes nodes and constants that no output needs.
    pub(crate) fn prune(&mut self, outputs: &[String]) {
        let mut needed: HashSet<String> = outputs.iter().cloned().collect();
        let mut kept: Vec<NodeProto> = Vec::new();
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.output.iter().any(|output| needed.contains(output)) {
                needed.extend(node.input.iter().cloned());
                kept.push(node);
            }
        }
        kept.reverse();
        self.nodes = kept;
        self.constants.retain(|constant| needed.contains(&constant.name));
        self.tensors.retain(|(name, _)| needed.contains(name));
    }
}

fn attribute(name: &str, r#type: i32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type, ..AttributeProto::default() }
}

/// Returns an attribute that is an integer.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, attribute_type::INT) }
}

/// Returns an attribute that is a list of integers.
pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, attribute_type::INTS) }
}

/// Returns an attribute that is a number.
pub(crate) fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto { f: Some(value as f32), ..attribute(name, attribute_type::FLOAT) }
}

/// Returns an attribute that is a text.
pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, attribute_type::STRING) }
}

/// Returns an attribute that is a tensor of one number.
pub(crate) fn one_number(name: &str, number: Scalar, dtype: DType) -> AttributeProto {
    let tensor = TensorProto {
        dims: vec![1],
        data_type: encode::data_type(dtype),
        raw_data: Some(encode::number(number, dtype)),
        ..TensorProto::default()
    };
    AttributeProto { t: Some(tensor), ..attribute(name, attribute_type::TENSOR) }
}
