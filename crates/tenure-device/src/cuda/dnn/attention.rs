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
const MAX_WORKSPACE: usize = 1280 << 20;

/// Ids of the tensors. `FIRST` is the first of the tensors in [`DnnAttention::strides`], in their order. `SUMS` are the
/// logarithms of the sums of each query's weights. `PRODUCT_SUMS` and `QUERY_GRADIENT_SUMS` are intermediate results in
/// the workspace. Ids above `FIRST_VIRTUAL` belong to virtual tensors and constants.
pub(super) const FIRST: i64 = 1;
pub(super) const SUMS: i64 = 9;
const PRODUCT_SUMS: i64 = 10;
const QUERY_GRADIENT_SUMS: i64 = 11;
const FIRST_VIRTUAL: i64 = 100;

/// A graph, and the values of its host tensors by their ids.
struct AttentionGraph {
    operations: Vec<Descriptor>,
    constants: Vec<(i64, Box<f32>)>,
    alignment: usize,
    /// The last id given to a virtual tensor or constant.
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
        let mut plan = graph::plans(target, &graph.operations, engines, MAX_WORKSPACE, 1)?.swap_remove(0);
        plan.constants = graph.constants;
        let rows = self.batch * self.heads * self.queries * size_of::<f32>();
        if self.is_backward {
            plan.place_in_workspace(PRODUCT_SUMS, rows);
        }
        if self.is_backward && self.is_in_any_order {
            plan.place_in_workspace(QUERY_GRADIENT_SUMS, rows * self.width);
        }
        Ok(plan)
    }

    fn graph(&self) -> Result<AttentionGraph, ErrorKind> {
        let mut graph = AttentionGraph {
            operations: Vec::new(),
            constants: Vec::new(),
            alignment: self.alignment,
            last: FIRST_VIRTUAL,
        };
        if self.is_backward { self.backward(&mut graph) } else { self.forward(&mut graph) }?;
        Ok(graph)
    }

    /// Adds the computation of the result and `SUMS`.
    fn forward(&self, graph: &mut AttentionGraph) -> Result<(), ErrorKind> {
        let [q, keys, v, out] =
            [self.strided_tensor(0)?, self.transposed(1)?, self.strided_tensor(2)?, self.strided_tensor(3)?];
        let sums =
            graph.tensor(SUMS, self.row_sizes(), contiguous(self.row_sizes()), DType::F32, TensorPlace::Device)?;
        let scores = self.scores(graph, &q, &keys)?;
        let scores = self.mask(graph, scores)?;
        let largest = graph.virtual_tensor(self.row_sizes(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, &scores, &largest)?;
        let shifted =
            graph.binary(Pointwise::CUDNN_POINTWISE_SUB, &scores, &largest, self.score_sizes(), DType::F32)?;
        let weights = graph.unary(Pointwise::CUDNN_POINTWISE_EXP, &shifted)?;
        let total = graph.virtual_tensor(self.row_sizes(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &weights, &total)?;
        let logarithm = graph.unary(Pointwise::CUDNN_POINTWISE_LOG, &total)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_ADD, &[&largest, &logarithm], &sums, DType::F32, None)?;
        let shares = graph.binary(Pointwise::CUDNN_POINTWISE_DIV, &weights, &total, self.score_sizes(), self.dtype)?;
        graph.multiply(&shares, &v, &out)
    }

    /// Adds the computation of the gradients.
    fn backward(&self, graph: &mut AttentionGraph) -> Result<(), ErrorKind> {
        let q = self.strided_tensor(0)?;
        let keys = self.transposed(1)?;
        let values = self.transposed(2)?;
        let out = self.strided_tensor(3)?;
        let grad = self.strided_tensor(4)?;
        let grad_q = self.strided_tensor(5)?;
        let grad_k = self.strided_tensor(6)?;
        let grad_v = self.strided_tensor(7)?;
        let sums =
            graph.tensor(SUMS, self.row_sizes(), contiguous(self.row_sizes()), DType::F32, TensorPlace::Device)?;

        // For each query, the sum of the products of the result and its gradient.
        let products = graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &grad, &out, grad.sizes, DType::F32)?;
        let summed = graph.virtual_tensor(self.row_sizes(), DType::F32)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &products, &summed)?;
        let product_sums = graph.tensor(
            PRODUCT_SUMS,
            self.row_sizes(),
            contiguous(self.row_sizes()),
            DType::F32,
            TensorPlace::Device,
        )?;
        let one = graph.constant(1.0)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_MUL, &[&summed, &one], &product_sums, DType::F32, None)?;

        let scores = self.scores(graph, &q, &keys)?;
        let shifted = graph.binary(Pointwise::CUDNN_POINTWISE_SUB, &scores, &sums, self.score_sizes(), DType::F32)?;
        let shifted = self.mask(graph, shifted)?;
        let weights = graph.unary(Pointwise::CUDNN_POINTWISE_EXP, &shifted)?;
        let transposed = self.transpose(graph, &weights)?;
        self.multiply_and_sum_heads(graph, &transposed, &grad, &grad_v, self.value_width)?;

        let grad_weights = graph.virtual_tensor(self.score_sizes(), DType::F32)?;
        graph.multiply(&grad, &values, &grad_weights)?;
        let centred = graph.binary(
            Pointwise::CUDNN_POINTWISE_SUB,
            &grad_weights,
            &product_sums,
            self.score_sizes(),
            DType::F32,
        )?;
        let grad_scores =
            graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &centred, &weights, self.score_sizes(), DType::F32)?;
        let scale = graph.constant(f32::from_bits(self.scale))?;
        let grad_scores =
            graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &grad_scores, &scale, self.score_sizes(), DType::F32)?;
        let transposed = self.transpose(graph, &grad_scores)?;
        self.multiply_and_sum_heads(graph, &transposed, &q, &grad_k, self.width)?;

        let [b, h, w, l] = keys.sizes;
        let [batch, head, near, far] = keys.strides;
        let id = graph.next_id();
        let rows = graph.tensor(id, [b, h, l, w], [batch, head, far, near], self.dtype, TensorPlace::Virtual)?;
        graph.reshape(&keys, &rows)?;
        if !self.is_in_any_order {
            return graph.multiply(&grad_scores, &rows, &grad_q);
        }
        // Storing these sums in memory tells the library to add in any order; it sets them to zero itself.
        let sizes = grad_q.sizes;
        let sums = graph.tensor(QUERY_GRADIENT_SUMS, sizes, contiguous(sizes), DType::F32, TensorPlace::Device)?;
        graph.multiply(&grad_scores, &rows, &sums)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_IDENTITY, &[&sums], &grad_q, DType::F32, None)
    }

    /// Adds the scaled products of queries and keys.
    fn scores(&self, graph: &mut AttentionGraph, q: &Node, keys: &Node) -> Result<Node, ErrorKind> {
        let products = graph.virtual_tensor(self.score_sizes(), DType::F32)?;
        graph.multiply(q, keys, &products)?;
        let scale = graph.constant(f32::from_bits(self.scale))?;
        graph.binary(Pointwise::CUDNN_POINTWISE_MUL, &products, &scale, self.score_sizes(), DType::F32)
    }

    /// Sets the scores of keys that a query does not see to minus infinity.
    fn mask(&self, graph: &mut AttentionGraph, scores: Node) -> Result<Node, ErrorKind> {
        if !self.is_causal {
            return Ok(scores);
        }
        let mut index = |axis: i64| -> Result<Node, ErrorKind> {
            let index = graph.virtual_tensor(self.score_sizes(), DType::I32)?;
            graph.pointwise(Pointwise::CUDNN_POINTWISE_GEN_INDEX, &[&scores], &index, DType::F32, Some(axis))?;
            Ok(index)
        };
        let row = index(2)?;
        let column = index(3)?;
        let is_seen = graph.virtual_tensor(self.score_sizes(), DType::Bool)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_CMP_GE, &[&row, &column], &is_seen, DType::Bool, None)?;
        let hidden = graph.constant(f32::NEG_INFINITY)?;
        let shown = graph.virtual_tensor(self.score_sizes(), DType::F32)?;
        let operands = [&scores, &hidden, &is_seen];
        graph.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, &operands, &shown, DType::F32, None)?;
        Ok(shown)
    }

    /// Returns the transpose of all weights.
    fn transpose(&self, graph: &mut AttentionGraph, weights: &Node) -> Result<Node, ErrorKind> {
        let [b, h, q, k] = self.score_sizes();
        let id = graph.next_id();
        let transposed = graph.tensor(id, [b, h, k, q], [h * q * k, q * k, 1, k], self.dtype, TensorPlace::Virtual)?;
        graph.reshape(weights, &transposed)?;
        Ok(transposed)
    }

    /// Multiplies `weights` and `rows`, and adds up the products of heads that share keys.
    fn multiply_and_sum_heads(
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
        let all = graph.virtual_tensor(sizes, self.dtype)?;
        graph.multiply(weights, rows, &all)?;
        graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, &all, to)
    }

    /// Describes the tensor with the index `index` in [`strides`](Self::strides).
    fn strided_tensor(&self, index: usize) -> Result<Node, ErrorKind> {
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

    /// Describes the transpose of a [`strided_tensor`](Self::strided_tensor).
    fn transposed(&self, index: usize) -> Result<Node, ErrorKind> {
        let Node { sizes: [b, h, l, w], strides: [batch, head, row, column], .. } = self.strided_tensor(index)?;
        let sizes = [b, h, w, l];
        let strides = [batch, head, column, row];
        node(FIRST + index as i64, sizes, strides, self.dtype, TensorPlace::Device, self.alignment)
    }

    /// Returns the sizes of a tensor with one number for each query and key.
    fn score_sizes(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, self.keys].map(|size| size as i64)
    }

    /// Returns the sizes of a tensor with one number for each query.
    fn row_sizes(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, 1].map(|size| size as i64)
    }
}

/// Returns the strides of a dense tensor.
fn contiguous([_, b, c, d]: [i64; 4]) -> [i64; 4] {
    [b * c * d, c * d, d, 1]
}

/// Describes a tensor.
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
    /// Returns an unused id.
    fn next_id(&mut self) -> i64 {
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

    /// Adds a virtual tensor.
    fn virtual_tensor(&mut self, sizes: [i64; 4], dtype: DType) -> Result<Node, ErrorKind> {
        let id = self.next_id();
        self.tensor(id, sizes, contiguous(sizes), dtype, TensorPlace::Virtual)
    }

    /// Adds a tensor of one element on the host.
    fn constant(&mut self, value: f32) -> Result<Node, ErrorKind> {
        let id = self.next_id();
        self.constants.push((id, Box::new(value)));
        self.tensor(id, [1; 4], [1; 4], DType::F32, TensorPlace::Host)
    }

    fn unary(&mut self, mode: Pointwise, x: &Node) -> Result<Node, ErrorKind> {
        let y = self.virtual_tensor(x.sizes, DType::F32)?;
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
        let y = self.virtual_tensor(sizes, dtype)?;
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
