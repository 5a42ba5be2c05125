//! Export of functions and networks as [ONNX](https://onnx.ai) models.
//!
//! [`export`] runs a function once, and writes down the operations that it calls on tensors. Parameters and other
//! tensors that were there before become initializers. Operations of [`tenure_tensor::ops`] become nodes of ONNX's own
//! operators. If axes are dynamic, the function runs again with several other sizes of these, so that sizes are
//! computed in the graph where the function computes with them. A size that no formula gives in all runs is refused.
//!
//! ```
//! use tenure_onnx::{DynamicAxis, ExportOptions, export};
//! use tenure_tensor::{DType, Device, Tensor};
//!
//! let weight = Tensor::ones(&[4, 3], DType::F32, Device::CPU)?;
//! let x = Tensor::ones(&[2, 3], DType::F32, Device::CPU)?;
//! let options = ExportOptions {
//!     input_names: vec!["x".into()],
//!     dynamic_axes: vec![DynamicAxis::new("x", 0, "batch")],
//!     ..ExportOptions::default()
//! };
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.onnx");
//! export(&path, &[&x], &options, |inputs| Ok(vec![inputs[0].linear(&weight, None)?.relu()?]))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod axes;
mod compare;
mod encode;
mod error;
mod formula;
mod graph;
mod lower;
pub mod proto;
mod size;
mod support;
mod trace;

use std::path::Path;
use std::sync::Arc;

use tenure_nn::networks::Network;
use tenure_tensor::{Tensor, TensorError, autograd};

pub use axes::DynamicAxis;
pub use error::{Error, Result};

use crate::axes::{Axes, Symbols};
use crate::compare::Pairs;
use crate::lower::Lowering;
use crate::proto::{
    DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::size::{Size, TRACES};
use crate::trace::{Call, Trace};

/// The versions of ONNX's operators that an export can be written in, and the versions of the format.
const OPSETS: [(i64, i64); 6] = [(18, 8), (19, 9), (20, 9), (21, 10), (22, 10), (23, 11)];

/// Options of an export.
#[derive(Clone)]
pub struct ExportOptions {
    /// The names of the inputs; `input_0` and so on for those without.
    pub input_names: Vec<String>,
    /// The names of the outputs; `output_0` and so on for those without.
    pub output_names: Vec<String>,
    /// The axes of inputs whose size varies, and names for those of outputs.
    pub dynamic_axes: Vec<DynamicAxis>,
    /// The version of ONNX's operators, from 18 to 23.
    pub opset: i64,
    /// The names of tensors that the function uses, such as a module's parameters.
    pub names: Vec<(String, Tensor)>,
    /// Tensors of more bytes in all are written to a second file.
    pub most_bytes_in_model: usize,
    /// Returns the place of the program's code that runs, for errors.
    pub locate: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            input_names: Vec::new(),
            output_names: Vec::new(),
            dynamic_axes: Vec::new(),
            opset: 18,
            names: Vec::new(),
            most_bytes_in_model: encode::LARGEST_MESSAGE_BYTES,
            locate: None,
        }
    }
}

/// Writes a function of tensors as an ONNX model. The function is run with `inputs` on this thread, and with inputs of
/// several other sizes if axes are dynamic. It must call operations on tensors only: elements that it reads would be constants
/// of the graph, and so would tensors that it makes of Rust's values.
///
/// # Errors
/// An operation cannot be exported; the function fails, reads elements, or makes tensors of values; it calls other
/// operations with other sizes; a file cannot be written.
pub fn export(
    path: impl AsRef<Path>,
    inputs: &[&Tensor],
    options: &ExportOptions,
    mut function: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>, TensorError>,
) -> Result<()> {
    let axes = axes(inputs, options)?;
    let mut run = |inputs: &[Tensor]| trace::trace(inputs, options.locate.clone(), &mut function);
    let first = run(&axes.given()?)?;
    let (others, symbols) = match axes.is_empty() {
        true => (Vec::new(), Symbols::new()),
        false => axes.vary(first.growth(), &mut |inputs| run(&inputs))?,
    };
    write_traces(path.as_ref(), first, others, &symbols, options)
}

/// Writes a network as an ONNX model, whose initializers have the names of the network's parameters. The network is run
/// before it is traced, so that tensors that it caches are initializers too.
///
/// # Errors
/// The errors of [`export`].
pub fn export_network(
    path: impl AsRef<Path>,
    network: &dyn Network,
    inputs: &[&Tensor],
    options: &ExportOptions,
) -> Result<()> {
    let mut options = options.clone();
    options.names.extend(network.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor.clone())));
    let axes = axes(inputs, &options)?;
    let run = |inputs: &[Tensor]| autograd::no_grad(|| network.forward(inputs));
    let trace = |inputs: &[Tensor]| trace::trace(inputs, options.locate.clone(), &mut |inputs| network.forward(inputs));
    run(&axes.given()?)?;
    let mut symbols = Symbols::new();
    if !axes.is_empty() {
        let growth = trace(&axes.given()?)?.growth();
        (_, symbols) = axes.vary(growth, &mut |inputs| Ok(run(&inputs)?))?;
    }
    let first = trace(&axes.given()?)?;
    let count = if axes.is_empty() { 0 } else { TRACES - 1 };
    let others = (0..count).map(|other| trace(&axes.other(&symbols, other)?)).collect::<Result<_>>()?;
    write_traces(path.as_ref(), first, others, &symbols, &options)
}

/// Finds the dynamic axes of inputs, and checks the options.
fn axes(inputs: &[&Tensor], options: &ExportOptions) -> Result<Axes> {
    ir_version(options)?;
    let names = names(&options.input_names, inputs.len(), "input")?;
    Axes::new(inputs, &names, &options.dynamic_axes)
}

/// Returns the version of the format for the operators' version.
fn ir_version(options: &ExportOptions) -> Result<i64> {
    match OPSETS.iter().find(|(opset, _)| *opset == options.opset) {
        Some((_, ir_version)) => Ok(*ir_version),
        None => Err(Error::Function(format!("opset must be from 18 to 23, got {}", options.opset))),
    }
}

/// Writes the model of a function's traces: with the given sizes of the dynamic axes, and with others.
fn write_traces(
    path: &Path,
    first: Trace,
    others: Vec<Trace>,
    symbols: &Symbols,
    options: &ExportOptions,
) -> Result<()> {
    let inputs = first.inputs();
    let input_names = names(&options.input_names, inputs, "input")?;
    let output_names = names(&options.output_names, first.outputs.len(), "output")?;
    for axis in &options.dynamic_axes {
        if !input_names.contains(&axis.tensor) && !output_names.contains(&axis.tensor) {
            return Err(Error::Function(format!(
                "dynamic axes are given for {:?}: no input or output has this name",
                axis.tensor
            )));
        }
    }
    if let Some(name) = input_names.iter().find(|name| output_names.contains(name)) {
        return Err(Error::Function(format!("an input and an output have the name {name:?}: give one another name")));
    }
    let others = others
        .into_iter()
        .map(|other| compare::pairs(&first, &other, inputs).map(|pairs| (other, pairs)))
        .collect::<Result<Vec<_>>>()?;
    let (graph, tensors) = graph(&first, &others, symbols, [&input_names, &output_names], options)?;
    let model = ModelProto {
        ir_version: ir_version(options)?,
        producer_name: "tenure".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: options.opset }],
    };
    encode::write(path, model, &tensors, options.most_bytes_in_model)
}

fn graph(
    first: &Trace,
    others: &[(Trace, Pairs)],
    symbols: &Symbols,
    [input_names, output_names]: [&[String]; 2],
    options: &ExportOptions,
) -> Result<(GraphProto, Vec<(String, Tensor)>)> {
    let mut lowering = Lowering::new(first, others, options.opset, &options.names);
    for name in input_names.iter().chain(output_names) {
        lowering.graph.name(name);
    }
    lowering.graph.axes = symbols.iter().map(|(name, _)| name.clone()).collect();
    let mut input = Vec::new();
    // The inputs are the first tensors of a trace.
    for (slot, name) in input_names.iter().enumerate() {
        let value = lowering.set(slot, name.clone());
        input.push(info(name, value.dtype, &value.sizes, symbols, options));
    }
    let calls: Vec<&[Call]> =
        std::iter::once(first).chain(others.iter().map(|(other, _)| other)).map(|trace| &trace.calls[..]).collect();
    lowering.add_calls(&calls);
    let mut output = Vec::new();
    for (slot, name) in first.outputs.iter().zip(output_names) {
        let value = lowering.value(*slot)?;
        check_axes(name, &value.sizes, symbols, options)?;
        output.push(info(name, value.dtype, &value.sizes, symbols, options));
        // The same tensor may be an output twice, or an input too.
        lowering.graph.nodes.push(identity(&value.name, name));
    }
    lowering.graph.prune(output_names);
    let built = lowering.graph;
    let graph =
        GraphProto { node: built.nodes, name: "tenure".to_owned(), initializer: built.constants, input, output };
    Ok((graph, built.tensors))
}

/// Returns a node that gives a value another name.
fn identity(from: &str, to: &str) -> NodeProto {
    NodeProto {
        input: vec![from.to_owned()],
        output: vec![to.to_owned()],
        name: to.to_owned(),
        op_type: "Identity".to_owned(),
        attribute: Vec::new(),
    }
}

/// Returns the names of so many tensors.
fn names(given: &[String], count: usize, kind: &str) -> Result<Vec<String>> {
    if given.len() > count {
        return Err(Error::Function(format!("{} names are given for {count} {kind}s", given.len())));
    }
    let names: Vec<String> =
        (0..count).map(|index| given.get(index).cloned().unwrap_or_else(|| format!("{kind}_{index}"))).collect();
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(Error::Function(format!("the name of {kind} {index} is empty: a value needs a name")));
        }
        if names[..index].contains(name) {
            return Err(Error::Function(format!("two {kind}s have the name {name:?}")));
        }
    }
    Ok(names)
}

/// Checks the dynamic axes that an output is given.
fn check_axes(name: &str, sizes: &[Size], symbols: &Symbols, options: &ExportOptions) -> Result<()> {
    let rank = sizes.len() as isize;
    for given in options.dynamic_axes.iter().filter(|given| given.tensor == name) {
        let axis = given.axis;
        let dim = if axis < 0 { axis + rank } else { axis };
        let reason = match usize::try_from(dim).ok().and_then(|dim| sizes.get(dim)) {
            None => format!("{name} has {rank} dimensions, but the dynamic axis {axis} is named"),
            Some(size) => match (size.known(), symbols.iter().find(|(symbol, _)| *symbol == given.name)) {
                (Some(size), _) => {
                    format!("the axis {axis} of {name} has the size {size} for all sizes of the inputs: leave it out")
                }
                (None, Some((symbol, named))) if named != size => {
                    format!("the axis {axis} of {name} has another size than the axis {symbol}: give it another name")
                }
                _ => continue,
            },
        };
        return Err(Error::Function(reason));
    }
    Ok(())
}

/// Returns the description of an input or output.
fn info(
    name: &str,
    dtype: tenure_tensor::DType,
    sizes: &[Size],
    symbols: &Symbols,
    options: &ExportOptions,
) -> ValueInfoProto {
    let rank = sizes.len() as isize;
    let mut shape = TensorShapeProto::default();
    for (dim, size) in sizes.iter().enumerate() {
        let value = match size.known() {
            Some(size) => DimensionValue::Size(size),
            None => {
                let symbol = symbols.iter().find(|(_, symbol)| symbol == size).map(|(name, _)| name);
                let mut axes = options.dynamic_axes.iter().filter(|axis| axis.tensor == name);
                let given = axes.find(|axis| (axis.axis + rank) % rank.max(1) == dim as isize).map(|axis| &axis.name);
                DimensionValue::Name(symbol.or(given).cloned().unwrap_or_else(|| format!("{name}_dim_{dim}")))
            }
        };
        shape.dim.push(DimensionProto { value: Some(value) });
    }
    let tensor_type = TensorTypeProto { elem_type: encode::data_type(dtype), shape: Some(shape) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}
