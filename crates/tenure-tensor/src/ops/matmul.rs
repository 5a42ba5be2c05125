//! Products of matrices and vectors.

use super::entered;
use super::pointwise::broadcast;
use super::view::signed;
use crate::autocast::{lower, widest};
use crate::autograd::{Context, attach, no_grad, recipe};
use crate::cpu::gemm::Product;
use crate::operation::operations;
use crate::{Kernel, Layout, Result, Scalar, Tensor, TensorError, cpu, cuda};

static PRODUCT: Kernel<Product> =
    Kernel::new("matmul", &[cpu::gemm::PRODUCT, cpu::gemm::PRODUCT_OF_HALVES, cuda::matmul::PRODUCT]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Multiplies two matrices, or batches of them, whose leading dimensions are broadcast. A vector counts as a
        /// row on the left and as a column on the right, and its dimension is not in the result.
        ///
        /// # Errors
        /// Inner sizes that differ, batches that do not broadcast, no dimension, different dtypes or devices.
        matmul(input: Tensor, other: Tensor) -> Tensor;

        /// Multiplies each matrix of a batch with the matching one of another batch; both have three dimensions.
        ///
        /// # Errors
        /// Sizes that do not match; different dtypes or devices.
        bmm(input: Tensor, mat2: Tensor) -> Tensor;

        /// Multiplies a matrix with a vector.
        ///
        /// # Errors
        /// Sizes that do not match; different dtypes or devices.
        mv(input: Tensor, vec: Tensor) -> Tensor;

        /// Computes the dot product of two vectors.
        ///
        /// # Errors
        /// Sizes that do not match; different dtypes or devices.
        dot(input: Tensor, other: Tensor) -> Tensor;

        /// Computes the products of every element of one vector with every element of another.
        ///
        /// # Errors
        /// One is not a vector; different devices.
        outer(input: Tensor, vec2: Tensor) -> Tensor;

        /// Computes `beta` times this tensor, broadcast, plus `alpha` times the matrix product of `mat1` and `mat2`. If
        /// `beta` is 0, this tensor is not read.
        ///
        /// # Errors
        /// Factors that are not matrices, sizes that do not match, different dtypes or devices.
        addmm(input: Tensor, mat1: Tensor, mat2: Tensor, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1)) -> Tensor;

        /// Computes [`addmm`](Self::addmm) for batches of matrices, of three dimensions.
        ///
        /// # Errors
        /// Factors that are not batches, sizes that do not match, different dtypes or devices.
        baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1)) -> Tensor;

        /// Multiplies the last dimension with the transpose of `weight`, a matrix of sizes `(out, in)`, and adds
        /// `bias`. PyTorch's `F.linear`.
        ///
        /// # Errors
        /// Sizes that do not match, different dtypes or devices.
        linear(input: Tensor, weight: Tensor, bias: Option<Tensor> = None) -> Tensor;
    }
}

fn matmul(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    let left = &lower(input)?;
    let right = &lower(other)?;
    check_operands("matmul", &[left, right])?;
    left.multiplied("matmul", right)
}

fn bmm(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    let left = &lower(input)?;
    let right = &lower(other)?;
    check_operands("bmm", &[left, right])?;
    if left.rank() != 3 || right.rank() != 3 || left.sizes()[0] != right.sizes()[0] {
        let reason = format!(
            "two batches of as many matrices are needed, (b, m, k) and (b, k, n), got sizes {:?} and {:?}: \
             matmul() broadcasts batches",
            left.sizes(),
            right.sizes()
        );
        return Err(TensorError::shape("bmm", reason));
    }
    product("bmm", left, right)
}

fn mv(input: &Tensor, vector: &Tensor) -> Result<Tensor> {
    if (input.rank(), vector.rank()) != (2, 1) {
        let reason = format!(
            "a matrix and a vector are needed, got sizes {:?} and {:?}: matmul() takes any",
            input.sizes(),
            vector.sizes()
        );
        return Err(TensorError::shape("mv", reason));
    }
    let matrix = &lower(input)?;
    let vector = &lower(vector)?;
    check_operands("mv", &[matrix, vector])?;
    matrix.multiplied("mv", vector)
}

fn dot(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    if (input.rank(), other.rank()) != (1, 1) {
        let reason = format!(
            "two vectors are needed, got sizes {:?} and {:?}: matmul() takes any",
            input.sizes(),
            other.sizes()
        );
        return Err(TensorError::shape("dot", reason));
    }
    let [left, right] = &widest([input, other])?;
    check_operands("dot", &[left, right])?;
    left.multiplied("dot", right)
}

fn outer(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    if (input.rank(), other.rank()) != (1, 1) {
        let reason = format!("two vectors are needed, got sizes {:?} and {:?}", input.sizes(), other.sizes());
        return Err(TensorError::shape("outer", reason));
    }
    input.view(&[input.numel() as isize, 1])?.mul(other)
}

fn addmm(input: &Tensor, a: &Tensor, b: &Tensor, beta: Scalar, alpha: Scalar) -> Result<Tensor> {
    input.add_product("addmm", 2, [a, b], beta, alpha)
}

fn baddbmm(input: &Tensor, a: &Tensor, b: &Tensor, beta: Scalar, alpha: Scalar) -> Result<Tensor> {
    input.add_product("baddbmm", 3, [a, b], beta, alpha)
}

fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let bias = bias.map(lower).transpose()?;
    lower(input)?.transformed(&lower(weight)?, bias.as_ref())
}

impl Tensor {
    fn multiplied(&self, op: &'static str, other: &Self) -> Result<Self> {
        check_inner(op, self, other)?;
        match (self.rank(), other.rank()) {
            (0, _) | (_, 0) => {
                let reason = format!(
                    "both must have dimensions, got sizes {:?} and {:?}: use mul() for a product with a number",
                    self.sizes(),
                    other.sizes()
                );
                Err(TensorError::shape(op, reason))
            }
            (1, rank) => {
                let row = self.view(&[1, self.numel() as isize])?;
                let other = if rank == 1 { &other.view(&[other.numel() as isize, 1])? } else { other };
                let out = product(op, &row, other)?;
                let dims = if rank == 1 { 2 } else { 1 };
                let mut sizes = signed(out.sizes());
                sizes.drain(out.rank() - 2..out.rank() - 2 + dims);
                out.view(&sizes)
            }
            (rank, 1) => {
                let out = self.multiplied(op, &other.view(&[other.numel() as isize, 1])?)?;
                out.view(&signed(&out.sizes()[..rank - 1]))
            }
            // All rows are multiplied with the matrix in one product.
            (3.., 2) if self.numel() > 0 => product_of_rows(op, self, other),
            _ => product(op, self, other),
        }
    }

    fn add_product(
        &self,
        op: &'static str,
        rank: usize,
        [a, b]: [&Self; 2],
        beta: Scalar,
        alpha: Scalar,
    ) -> Result<Self> {
        let base = &lower(self)?;
        let a = &lower(a)?;
        let b = &lower(b)?;
        check_operands(op, &[base, a, b])?;
        if a.rank() != rank || b.rank() != rank {
            let reason =
                format!("factors of {rank} dimensions are needed, got sizes {:?} and {:?}", a.sizes(), b.sizes());
            return Err(TensorError::shape(op, reason));
        }
        let out = multiply(op, Some(base), a, b, alpha, beta)?;
        recipe::note(&out, op, [base, a, b], [], || {
            move |[base, a, b], []| multiply(op, Some(base), a, b, alpha, beta)
        });
        attach(out, op, &[base, a, b], |saver| {
            let left = saver.save_if(saver.needs(2), a)?;
            let right = saver.save_if(saver.needs(1), b)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let scaled = grad.mul(alpha)?;
                let to_left = context.give(1, || scaled.matmul(&context.unpack(right)?.transpose(-2, -1)?))?;
                let to_right = context.give(2, || context.unpack(left)?.transpose(-2, -1)?.matmul(&scaled))?;
                Ok([context.give(0, || grad.mul(beta))?, to_left, to_right].into_iter().collect())
            })
        })
    }

    fn transformed(&self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        check_operands("linear", &[self, weight])?;
        let (Some((&inner, leading)), &[outputs, inputs]) = (self.sizes().split_last(), weight.sizes()) else {
            let reason = format!(
                "an input of sizes (..., in) and a weight of sizes (out, in) are needed, got {:?} and {:?}",
                self.sizes(),
                weight.sizes()
            );
            return Err(TensorError::shape("linear", reason));
        };
        if inner != inputs {
            let reason = format!(
                "an input of sizes {:?} has {inner} features, but a weight of sizes {:?} takes {inputs}",
                self.sizes(),
                weight.sizes()
            );
            return Err(TensorError::shape("linear", reason));
        }
        let Some(bias) = bias else { return self.matmul(&weight.transpose(0, 1)?) };
        check_operands("linear", &[self, bias])?;
        if bias.sizes() != [outputs] {
            let reason = format!("a bias of sizes {:?} was given for {outputs} outputs", bias.sizes());
            return Err(TensorError::shape("linear", reason));
        }
        let input = no_grad(|| rows_of(self))?;
        let leading = leading.to_vec();
        let out = multiply("linear", Some(bias), &input, &weight.detach().transpose(0, 1)?, 1.into(), 1.into())?;
        // Detached, so that it is no view: it may be written to in part.
        let out = with_leading(&out, &leading)?.detach();
        recipe::note(&out, "linear", [self, weight, bias], [], || {
            move |[x, weight, bias], []| x.transformed(weight, Some(bias))
        });
        attach(out, "linear", &[self, weight, bias], |saver| {
            let left = saver.save_if(saver.needs(1), self)?;
            let right = saver.save_if(saver.needs(0), weight)?;
            let by_columns = is_by_columns(weight);
            Ok(move |context: &Context<'_>| {
                let grad = rows_of(&context.grad(0)?)?;
                let to_input = context.give(0, || to_rows(context, &grad, &context.unpack(right)?, &leading))?;
                let to_weight = context.give(1, || {
                    product_in_order(&grad.transpose(0, 1)?, &rows_of(&context.unpack(left)?)?, by_columns)
                })?;
                Ok([to_input, to_weight, Some(grad)].into_iter().collect())
            })
        })
    }
}

/// Multiplies all rows of `a` with one matrix.
fn product_of_rows(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let leading: Vec<usize> = a.sizes()[..a.rank() - 1].to_vec();
    check_inner(op, a, b)?;
    let out = multiply(op, None, &no_grad(|| rows_of(a))?, &b.detach(), 1.into(), 0.into())?;
    let out = with_leading(&out, &leading)?.detach();
    recipe::note(&out, op, [a, b], [], || move |[a, b], []| product_of_rows(op, a, b));
    attach(out, op, &[a, b], |saver| {
        let left = saver.save_if(saver.needs(1), a)?;
        let right = saver.save_if(saver.needs(0), b)?;
        let by_columns = is_by_columns(b);
        Ok(move |context: &Context<'_>| {
            let grad = rows_of(&context.grad(0)?)?;
            let to_left =
                context.give(0, || to_rows(context, &grad, &context.unpack(right)?.transpose(0, 1)?, &leading))?;
            let to_right = context
                .give(1, || product_in_order(&rows_of(&context.unpack(left)?)?.transpose(0, 1)?, &grad, by_columns))?;
            Ok([to_left, to_right].into_iter().collect())
        })
    })
}

/// Computes the gradient of input 0, whose rows have these leading sizes: a product, plus the gradients that the input
/// has got so far.
fn to_rows(context: &Context<'_>, grad: &Tensor, matrix: &Tensor, leading: &[usize]) -> Result<Tensor> {
    let product = match context.take_sum(0) {
        None => grad.matmul(matrix)?,
        Some(sum) => multiply("matmul", Some(&rows_of(&sum)?), grad, matrix, 1.into(), 1.into())?,
    };
    with_leading(&product, leading)
}

/// Reshapes rows to these leading sizes.
fn with_leading(rows: &Tensor, leading: &[usize]) -> Result<Tensor> {
    let sizes: Vec<usize> = leading.iter().chain(&rows.sizes()[1..]).copied().collect();
    rows.view(&signed(&sizes))
}

/// Returns all rows as one matrix.
fn rows_of(tensor: &Tensor) -> Result<Tensor> {
    let (columns, leading) = tensor.sizes().split_last().unwrap_or((&1, &[]));
    tensor.reshape(&[leading.iter().product::<usize>() as isize, *columns as isize])
}

/// Multiplies batches that are broadcast.
pub(super) fn product(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = multiply(op, None, a, b, 1.into(), 0.into())?;
    recipe::note(&out, op, [a, b], [], || move |[a, b], []| product(op, a, b));
    attach(out, op, &[a, b], |saver| {
        let left = saver.save_if(saver.needs(1), a)?;
        let right = saver.save_if(saver.needs(0), b)?;
        let by_columns = [a, b].map(is_by_columns);
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let to_left = context
                .give(0, || product_in_order(&grad, &context.unpack(right)?.transpose(-2, -1)?, by_columns[0]))?;
            let to_right = context
                .give(1, || product_in_order(&context.unpack(left)?.transpose(-2, -1)?, &grad, by_columns[1]))?;
            Ok([to_left, to_right].into_iter().collect())
        })
    })
}

/// Returns whether a matrix on a device lies in memory column by column, as a transposed weight does.
fn is_by_columns(matrix: &Tensor) -> bool {
    let [.., row, column] = *matrix.strides() else { return false };
    !matrix.device().is_cpu() && row == 1 && column != 1
}

/// Computes a product column by column or row by row in memory, so that a gradient has the memory order of its input.
fn product_in_order(a: &Tensor, b: &Tensor, by_columns: bool) -> Result<Tensor> {
    match by_columns {
        true => b.transpose(-2, -1)?.matmul(&a.transpose(-2, -1)?)?.transpose(-2, -1),
        false => a.matmul(b),
    }
}

/// Allocates the result of a product. On a device, long rows that would be misaligned are padded, since matrix units
/// access misaligned rows at a fraction of their speed: a vocabulary is rarely a multiple of eight.
fn room(sizes: &[usize], like: &Tensor) -> Result<Tensor> {
    const LINE: usize = 128;
    const ALIGNED: usize = 16;
    let width = like.dtype().size();
    let [.., rows, columns] = *sizes else { return Tensor::empty(sizes, like.dtype(), like.device()) };
    if like.device().is_cpu() || (columns * width).is_multiple_of(ALIGNED) || rows < 64 || columns * width < 2048 {
        return Tensor::empty(sizes, like.dtype(), like.device());
    }
    let mut padded = sizes.to_vec();
    padded[sizes.len() - 1] = columns.next_multiple_of(LINE / width);
    let strides = Layout::contiguous(&padded)?;
    Tensor::empty_strided(Layout::strided(sizes, strides.strides(), 0)?, like.dtype(), like.device())
}

/// Computes `beta * base + alpha * a * b`, without a gradient.
fn multiply(
    op: &'static str,
    base: Option<&Tensor>,
    a: &Tensor,
    b: &Tensor,
    alpha: Scalar,
    beta: Scalar,
) -> Result<Tensor> {
    let _op = entered(op);
    check_inner(op, a, b)?;
    let ((rows, inner), (_, columns)) = (matrix(a), matrix(b));
    let batch = broadcast(op, &a.sizes()[..a.rank() - 2], &b.sizes()[..b.rank() - 2])?;
    let sized = |rows, columns| batch.iter().copied().chain([rows, columns]).collect::<Vec<usize>>();
    let out = room(&sized(rows, columns), a)?;
    let a = a.alias(a.layout().expand(&sized(rows, inner))?);
    let b = b.alias(b.layout().expand(&sized(inner, columns))?);
    let base = base.filter(|_| beta.to_bool()).map(|base| (base, beta));
    PRODUCT.find(out.device().kind(), out.dtype())?(&out, [&a, &b], base, alpha)?;
    Ok(out)
}

/// Checks that the dimensions that a product sums over have the same size, if both have one.
fn check_inner(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    let (left, right) = match (a.sizes(), b.sizes()) {
        (&[.., left], &[right] | &[.., right, _]) => (left, right),
        _ => return Ok(()),
    };
    if left == right {
        return Ok(());
    }
    let columns = if a.rank() == 1 { "elements" } else { "columns" };
    let rows = if b.rank() == 1 { "elements" } else { "rows" };
    let reason = format!(
        "sizes {:?} and {:?} cannot be multiplied: {left} {columns} on the left and {right} {rows} on the right must be \
         as many",
        a.sizes(),
        b.sizes()
    );
    Err(TensorError::shape(op, reason))
}

/// Returns the numbers of rows and columns.
fn matrix(tensor: &Tensor) -> (usize, usize) {
    let sizes = tensor.sizes();
    (sizes[sizes.len() - 2], sizes[sizes.len() - 1])
}

/// Checks that all tensors have one dtype and are on one device.
pub(super) fn check_operands(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let first = tensors[0];
    for other in &tensors[1..] {
        if other.device() != first.device() {
            return Err(TensorError::Device { op, left: first.device(), right: other.device() });
        }
        if other.dtype() != first.dtype() {
            let expected = format!("{} as of the first operand is needed: convert one with to_dtype()", first.dtype());
            return Err(TensorError::DType { op, found: other.dtype(), expected });
        }
    }
    Ok(())
}
