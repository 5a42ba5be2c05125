//! Attention, as graphs for which the library has a kernel.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind, cudnnDataType_t,
    cudnnPointwiseMode_t as Pointwise, cudnnReduceTensorOp_t as Reduction,
};
use tenure_core::DType;

use super::descriptor::Descriptor;
use super::graph::{self, EnginePlan, Engines, PlanTarget, Tensor, TensorPlace, data_type};
use crate::ErrorKind;

/// Attention with queries `(batch, heads, queries, width)`, keys `(batch, kv_heads, keys, width)`, and values with a
/// width of their own. Several heads of queries share one head of keys and values. Widths are dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DnnAttention {
    /// Whether the gradients are computed.
    pub is_backward: bool,
    /// Whether the gradients of queries are added up in the order in which their parts finish: their bits then differ
    /// from run to run. Otherwise the workspace has two bytes for each pair of a query and a key.
    pub is_in_any_order: bool,
    /// The dtype of all tensors except the sums: `f16` or `bf16`.
    pub dtype: DType,
    /// The number of batches.
    pub batch: usize,
    /// The number of heads of queries.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub kv_heads: usize,
    /// The number of queries.
    pub queries: usize,
    /// The number of keys.
    pub keys: usize,
    /// The number of elements of a query.
    pub width: usize,
    /// The number of elements of a value.
    pub value_width: usize,
    /// The factor of the products of queries and keys, as the bits of an `f32`.
    pub scale: u32,
    /// Whether query `i` sees only keys 0 to `i`.
    pub is_causal: bool,
    /// Strides of queries, keys, values, the result, its gradient, and the gradients of queries, keys and values: from
    /// batch to batch, head to head and row to row, in elements. Strides of gradients are zero if there are none.
    pub strides: [[usize; 3]; 8],
    /// A power of two that divides all addresses, in bytes, at most 16.
    pub alignment: usize,
}

/// The limit on a workspace, in bytes: one GiB for weights, and room for what comes with them.
const MOST_WORKSPACE: usize = 1280 << 20;

/// Ids of the tensors: from `FIRST` on, those that have strides, in their order; `SUMS`, the logarithms of sums;
/// `INNER` and `TO_QUERIES`, which only the library needs; above `BETWEEN`, those that are not in memory.
pub(super) const FIRST: i64 = 1;
pub(super) const SUMS: i64 = 9;
const INNER: i64 = 10;
const TO_QUERIES: i64 = 11;
const BETWEEN: i64 = 100;

/// A graph, and the values of its host tensors by their ids.
struct AttentionGraph {
    operations: Vec<Descriptor>,
    constants: Vec<(i64, Box<f32>)>,
    alignment: usize,
    last: i64,
}

/// A tensor of a graph.
struct Node {
    descriptor: Descriptor,
    sizes: [i64; 4],
    strides: [i64; 4],
}

impl DnnAttention {
    pub(super) fn plan(&self, target: &PlanTarget) -> Result<EnginePlan, ErrorKind> {
        let graph = self.graph()?;
        let engines = if self.is_in_any_order { Engines::All } else { Engines::Repeatable };
        let mut plan = graph::plans(target, &graph.operations, engines, MOST_WORKSPACE, 1)?.swap_remove(0);
        plan.constants = graph.constants;
        let rows = self.batch * self.heads * self.queries * size_of::<f32>();
        if self.is_backward {
            plan.place(INNER, rows);
        }
        if self.is_backward && self.is_in_any_order {
            plan.place(TO_QUERIES, rows * self.width);
        }
        Ok(plan)
    }

    fn graph(&self) -> Result<AttentionGraph, ErrorKind> {
        let mut graph =
            AttentionGraph { operations: Vec::new(), constants: Vec::new(), alignment: self.alignment, last: BETWEEN };
        if self.is_backward { self.backward(&mut graph) } else { self.forward(&mut graph) }?;
        Ok(graph)
    }

    fn forward(&self, graph: &mut AttentionGraph) -> Result<(), ErrorKind> {
        let [q, keys, v, out] = [self.given(0)?, self.transposed(1)?, self.given(2)?, self.given(3)?];
        let sums = graph.tensor(SUMS, self.rows(), contiguous(self.rows()), DType::F32, TensorPlace::Device)?;
        let scores = self.scores(graph, &q, &keys)?;
        let scores = self.hidden(graph, scores)?;
        let largest = graph.between(self.rows(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, &scores, &largest)?;
        let shifted = graph.binary(Pointwise::CUDNN_POINTWISE_SUB, &scores, &largest, self.square(), DType::F32)?;
        let weights = graph.unary(Pointwise::CUDNN_POINTWISE_EXP, &shifted)?;
        let total = graph.between(self.rows(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &weights, &total)?;
        let logarithm = graph.unary(Pointwise::CUDNN_POINTWISE_LOG, &total)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_ADD, &[&largest, &logarithm], &sums, DType::F32, None)?;
        let shares = graph.binary(Pointwise::CUDNN_POINTWISE_DIV, &weights, &total, self.square(), self.dtype)?;
        graph.multiply(&shares, &v, &out)
    }

    fn backward(&self, graph: &mut AttentionGraph) -> Result<(), ErrorKind> {
        let [q, keys, values] = [self.given(0)?, self.transposed(1)?, self.transposed(2)?];
        let [out, grad, to_q, to_k, to_v] =
            [self.given(3)?, self.given(4)?, self.given(5)?, self.given(6)?, self.given(7)?];
        let sums = graph.tensor(SUMS, self.rows(), contiguous(self.rows()), DType::F32, TensorPlace::Device)?;

        // For each query, the sum of the products of the result and its gradient.
        let products = graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &grad, &out, grad.sizes, DType::F32)?;
        let summed = graph.between(self.rows(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &products, &summed)?;
        let inner = graph.tensor(INNER, self.rows(), contiguous(self.rows()), DType::F32, TensorPlace::Device)?;
        let one = graph.host(1.0)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_MUL, &[&summed, &one], &inner, DType::F32, None)?;

        let scores = self.scores(graph, &q, &keys)?;
        let shifted = graph.binary(Pointwise::CUDNN_POINTWISE_SUB, &scores, &sums, self.square(), DType::F32)?;
        let shifted = self.hidden(graph, shifted)?;
        let weights = graph.unary(Pointwise::CUDNN_POINTWISE_EXP, &shifted)?;
        let turned = self.turned(graph, &weights)?;
        self.sum_of_heads(graph, &turned, &grad, &to_v, self.value_width)?;

        let to_weights = graph.between(self.square(), DType::F32)?;
        graph.multiply(&grad, &values, &to_weights)?;
        let centred = graph.binary(Pointwise::CUDNN_POINTWISE_SUB, &to_weights, &inner, self.square(), DType::F32)?;
        let to_scores = graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &centred, &weights, self.square(), DType::F32)?;
        let scale = graph.host(f32::from_bits(self.scale))?;
        let to_scores = graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &to_scores, &scale, self.square(), DType::F32)?;
        let turned = self.turned(graph, &to_scores)?;
        self.sum_of_heads(graph, &turned, &q, &to_k, self.width)?;

        let [b, h, w, l] = keys.sizes;
        let [batch, head, near, far] = keys.strides;
        let id = graph.next();
        let rows = graph.tensor(id, [b, h, l, w], [batch, head, far, near], self.dtype, TensorPlace::Between)?;
        graph.reshape(&keys, &rows)?;
        if !self.is_in_any_order {
            return graph.multiply(&to_scores, &rows, &to_q);
        }
        // Storing these sums in memory tells the library to add in any order; it sets them to zero itself.
        let sizes = to_q.sizes;
        let sums = graph.tensor(TO_QUERIES, sizes, contiguous(sizes), DType::F32, TensorPlace::Device)?;
        graph.multiply(&to_scores, &rows, &sums)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_IDENTITY, &[&sums], &to_q, DType::F32, None)
    }

    fn scores(&self, graph: &mut AttentionGraph, q: &Node, keys: &Node) -> Result<Node, ErrorKind> {
        let products = graph.between(self.square(), DType::F32)?;
        graph.multiply(q, keys, &products)?;
        let scale = graph.host(f32::from_bits(self.scale))?;
        graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &products, &scale, self.square(), DType::F32)
    }

    /// Sets the scores of keys that a query does not see to minus infinity.
    fn hidden(&self, graph: &mut AttentionGraph, scores: Node) -> Result<Node, ErrorKind> {
        if !self.is_causal {
            return Ok(scores);
        }
        let mut index = |axis: i64| -> Result<Node, ErrorKind> {
            let index = graph.between(self.square(), DType::I32)?;
            graph.pointwise(Pointwise::CUDNN_POINTWISE_GEN_INDEX, &[&scores], &index, DType::F32, Some(axis))?;
            Ok(index)
        };
        let row = index(2)?;
        let column = index(3)?;
        let is_seen = graph.between(self.square(), DType::Bool)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_CMP_GE, &[&row, &column], &is_seen, DType::Bool, None)?;
        let hidden = graph.host(f32::NEG_INFINITY)?;
        let shown = graph.between(self.square(), DType::F32)?;
        let operands = [&scores, &hidden, &is_seen];
        graph.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, &operands, &shown, DType::F32, None)?;
        Ok(shown)
    }

    /// Returns the transpose of all weights.
    fn turned(&self, graph: &mut AttentionGraph, weights: &Node) -> Result<Node, ErrorKind> {
        let [b, h, q, k] = self.square();
        let id = graph.next();
        let turned = graph.tensor(id, [b, h, k, q], [h * q * k, q * k, 1, k], self.dtype, TensorPlace::Between)?;
        graph.reshape(weights, &turned)?;
        Ok(turned)
    }

    /// Multiplies, and adds up the products of heads that share keys.
    fn sum_of_heads(
        &self,
        graph: &mut AttentionGraph,
        weights: &Node,
        rows: &Node,
        to: &Node,
        width: usize,
    ) -> Result<(), ErrorKind> {
        if self.heads == self.kv_heads {
            return graph.multiply(weights, rows, to);
        }
        let sizes = [self.batch, self.heads, self.keys, width].map(|size| size as i64);
        let all = graph.between(sizes, self.dtype)?;
        graph.multiply(weights, rows, &all)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &all, to)
    }

    /// Returns one of the tensors that have strides.
    fn given(&self, index: usize) -> Result<Node, ErrorKind> {
        let (heads, length, width) = match index {
            0 | 5 => (self.heads, self.queries, self.width),
            1 | 6 => (self.kv_heads, self.keys, self.width),
            2 | 7 => (self.kv_heads, self.keys, self.value_width),
            _ => (self.heads, self.queries, self.value_width),
        };
        let sizes = [self.batch, heads, length, width].map(|size| size as i64);
        let [batch, head, row] = self.strides[index].map(|stride| stride as i64);
        node(FIRST + index as i64, sizes, [batch, head, row, 1], self.dtype, TensorPlace::Device, self.alignment)
    }

    /// Returns one of the tensors that have strides, with rows and columns exchanged.
    fn transposed(&self, index: usize) -> Result<Node, ErrorKind> {
        let Node { sizes: [b, h, l, w], strides: [batch, head, row, column], .. } = self.given(index)?;
        let sizes = [b, h, w, l];
        let strides = [batch, head, column, row];
        node(FIRST + index as i64, sizes, strides, self.dtype, TensorPlace::Device, self.alignment)
    }

    fn square(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, self.keys].map(|size| size as i64)
    }

    fn rows(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, 1].map(|size| size as i64)
    }
}

fn contiguous([_, b, c, d]: [i64; 4]) -> [i64; 4] {
    [b * c * d, c * d, d, 1]
}

fn node(
    id: i64,
    sizes: [i64; 4],
    strides: [i64; 4],
    dtype: DType,
    place: TensorPlace,
    alignment: usize,
) -> Result<Node, ErrorKind> {
    let tensor = Tensor { id, sizes: &sizes, strides: &strides, dtype, alignment, place };
    Ok(Node { descriptor: tensor.describe()?, sizes, strides })
}

impl AttentionGraph {
    fn next(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    fn tensor(
        &mut self,
        id: i64,
        sizes: [i64; 4],
        strides: [i64; 4],
        dtype: DType,
        place: TensorPlace,
    ) -> Result<Node, ErrorKind> {
        node(id, sizes, strides, dtype, place, self.alignment)
    }

    fn between(&mut self, sizes: [i64; 4], dtype: DType) -> Result<Node, ErrorKind> {
        let id = self.next();
        self.tensor(id, sizes, contiguous(sizes), dtype, TensorPlace::Between)
    }

    fn host(&mut self, value: f32) -> Result<Node, ErrorKind> {
        let id = self.next();
        self.constants.push((id, Box::new(value)));
        self.tensor(id, [1; 4], [1; 4], DType::F32, TensorPlace::Host)
    }

    fn unary(&mut self, mode: Pointwise, x: &Node) -> Result<Node, ErrorKind> {
        let y = self.between(x.sizes, DType::F32)?;
        self.pointwise(mode, &[x], &y, DType::F32, None)?;
        Ok(y)
    }

    fn binary(
        &mut self,
        mode: Pointwise,
        a: &Node,
        b: &Node,
        sizes: [i64; 4],
        dtype: DType,
    ) -> Result<Node, ErrorKind> {
        let y = self.between(sizes, dtype)?;
        self.pointwise(mode, &[a, b], &y, DType::F32, None)?;
        Ok(y)
    }

    fn pointwise(
        &mut self,
        mode: Pointwise,
        inputs: &[&Node],
        y: &Node,
        compute: DType,
        axis: Option<i64>,
    ) -> Result<(), ErrorKind> {
        let mut description = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?
            .set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[data_type(compute)?])?;
        if let Some(axis) = axis {
            description = description.set(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let description = description.finish()?;
        let mut operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&description])?
            .refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&y.descriptor])?;
        let names = [
            Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        for (name, input) in names.into_iter().zip(inputs) {
            operation = operation.refer(name, &[&input.descriptor])?;
        }
        self.operations.push(operation.finish()?);
        Ok(())
    }

    fn multiply(&mut self, a: &Node, b: &Node, c: &Node) -> Result<(), ErrorKind> {
        let description = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, &[cudnnDataType_t::CUDNN_DATA_FLOAT])?
            .finish()?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&description])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[&a.descriptor])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[&b.descriptor])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[&c.descriptor])?;
        self.operations.push(operation.finish()?);
        Ok(())
    }

    fn reduce(&mut self, mode: Reduction, x: &Node, y: &Node) -> Result<(), ErrorKind> {
        let description = Descriptor::new(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[cudnnDataType_t::CUDNN_DATA_FLOAT])?
            .set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[mode])?
            .finish()?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&description])?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[&x.descriptor])?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[&y.descriptor])?;
        self.operations.push(operation.finish()?);
        Ok(())
    }

    fn reshape(&mut self, x: &Node, y: &Node) -> Result<(), ErrorKind> {
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[&x.descriptor])?
            .refer(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[&y.descriptor])?;
        self.operations.push(operation.finish()?);
        Ok(())
    }
}
