//! Linear algebra composed of other operations: contractions, diagonals, triangles and cross products.

use super::entered;
use super::matmul::check_operands;
use super::pointwise::{broadcast, promoted, wide};
use super::view::signed;
use crate::autocast::{lower, widest};
use crate::autograd::{Context, attach, recipe};
use crate::cpu::index::Triangle;
use crate::operation::operations;
use crate::tensor::dimension;
use crate::{Kernel, Result, Tensor, TensorError, cpu, cuda};

static TRIANGLE: Kernel<Triangle> = Kernel::new("triangle", &[cpu::index::TRIANGLE, cuda::index::TRIANGLE]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Sums products over the last `dims` dimensions of this tensor and the first `dims` dimensions of `other`.
        ///
        /// # Errors
        /// Fewer dimensions, sizes that differ, different dtypes or devices.
        tensordot(input: Tensor, other: Tensor, dims: Size = 2) -> Tensor;

        /// Sums products over the dimensions `dims_self` of this tensor and `dims_other` of `other`, pair by pair. The
        /// result has the other dimensions of this tensor, then those of `other`. Of a pair, a size may be 1: the other
        /// dimension is then summed.
        ///
        /// # Errors
        /// Lists of different lengths, a dimension that does not exist or is given twice, sizes that differ, different
        /// dtypes or devices.
        #[name(tensordot)]
        tensordot_over(input: Tensor, other: Tensor, dims_self: Ints, dims_other: Ints) -> Tensor;

        /// Returns the matrix with this vector on its diagonal, or a copy of the diagonal of this matrix: `diagonal`
        /// above the main one, or below it if it is negative.
        ///
        /// # Errors
        /// Neither a vector nor a matrix.
        diag(input: Tensor, diagonal: Int = 0) -> Tensor;

        /// Returns matrices, in the dimensions `dim1` and `dim2`, with the last dimension of this tensor on their
        /// diagonals, and zeros elsewhere: `offset` above the main diagonal, or below it if it is negative.
        ///
        /// # Errors
        /// No dimensions; `dim1` or `dim2` does not exist in the result, or they are the same.
        diag_embed(input: Tensor, offset: Int = 0, dim1: Int = -2, dim2: Int = -1) -> Tensor;

        /// Returns the matrices of the last two dimensions with zeros above a diagonal: `diagonal` above the main one,
        /// or below it if it is negative.
        ///
        /// # Errors
        /// Fewer than two dimensions.
        tril(input: Tensor, diagonal: Int = 0) -> Tensor;

        /// Returns the matrices of the last two dimensions with zeros below a diagonal, given as for
        /// [`tril`](Self::tril).
        ///
        /// # Errors
        /// Fewer than two dimensions.
        triu(input: Tensor, diagonal: Int = 0) -> Tensor;

        /// Computes the sum of the diagonal of a matrix.
        ///
        /// # Errors
        /// No matrix.
        trace(input: Tensor) -> Tensor;

        /// Computes the cross products of vectors of three elements along a dimension, with broadcasting in the others.
        /// PyTorch's `linalg.cross`.
        ///
        /// # Errors
        /// Different numbers of dimensions, a size along `dim` that is not 3, other sizes that do not broadcast.
        cross(input: Tensor, other: Tensor, dim: Int = -1) -> Tensor;
    }
}

fn tensordot(input: &Tensor, other: &Tensor, dims: usize) -> Result<Tensor> {
    let Some(first) = input.rank().checked_sub(dims).filter(|_| dims <= other.rank()) else {
        let reason =
            format!("{dims} dimensions are more than those of sizes {:?} or {:?}", input.sizes(), other.sizes());
        return Err(TensorError::shape("tensordot", reason));
    };
    let last: Vec<isize> = (first..input.rank()).map(|dim| dim as isize).collect();
    let begin: Vec<isize> = (0..dims as isize).collect();
    input.tensordot_over(other, &last, &begin)
}

fn tensordot_over(input: &Tensor, other: &Tensor, dims: &[isize], other_dims: &[isize]) -> Result<Tensor> {
    const OP: &str = "tensordot";
    let _op = entered(OP);
    let mut left = lower(input)?;
    let mut right = lower(other)?;
    check_operands(OP, &[&left, &right])?;
    if dims.len() != other_dims.len() {
        return Err(TensorError::shape(OP, format!("dimensions {dims:?} and {other_dims:?} do not pair up")));
    }
    let left_dims = distinct(OP, &left, dims)?;
    let right_dims = distinct(OP, &right, other_dims)?;
    for (a, b) in left_dims.iter().zip(&right_dims) {
        match (left.sizes()[*a], right.sizes()[*b]) {
            (size, other) if size == other => {}
            (1, _) => right = right.sum(&[*b as isize], true)?,
            (_, 1) => left = left.sum(&[*a as isize], true)?,
            (size, other) => {
                let reason = format!(
                    "dimension {a} of sizes {:?} has {size} elements, but dimension {b} of sizes {:?} has {other}",
                    left.sizes(),
                    right.sizes()
                );
                return Err(TensorError::shape(OP, reason));
            }
        }
    }
    let rows: Vec<usize> = (0..left.rank()).filter(|dim| !left_dims.contains(dim)).collect();
    let columns: Vec<usize> = (0..right.rank()).filter(|dim| !right_dims.contains(dim)).collect();
    let row_sizes = sizes_of(&left, &rows);
    let column_sizes = sizes_of(&right, &columns);
    let inner = numel(&sizes_of(&left, &left_dims));
    let a = left.permute(&signed(&[rows, left_dims].concat()))?.reshape(&[numel(&row_sizes), inner])?;
    let b = right.permute(&signed(&[right_dims, columns].concat()))?.reshape(&[inner, numel(&column_sizes)])?;
    a.matmul(&b)?.reshape(&signed(&[row_sizes, column_sizes].concat()))
}

fn sizes_of(tensor: &Tensor, dims: &[usize]) -> Vec<usize> {
    dims.iter().map(|dim| tensor.sizes()[*dim]).collect()
}

fn numel(sizes: &[usize]) -> isize {
    sizes.iter().product::<usize>() as isize
}

/// Returns dimensions that exist, after checking that none is given twice.
fn distinct(op: &'static str, tensor: &Tensor, dims: &[isize]) -> Result<Vec<usize>> {
    let places = dims.iter().map(|dim| tensor.existing_dim(op, *dim)).collect::<Result<Vec<_>>>()?;
    match (1..places.len()).find(|at| places[..*at].contains(&places[*at])) {
        None => Ok(places),
        Some(at) => Err(TensorError::shape(op, format!("dimension {} is twice in {dims:?}", places[at]))),
    }
}

fn diag(input: &Tensor, diagonal: isize) -> Result<Tensor> {
    let _op = entered("diag");
    match input.rank() {
        1 => input.diag_embed(diagonal, -2, -1),
        2 => input.diagonal(diagonal, 0, 1)?.copy(),
        _ => {
            let reason = format!("a vector or a matrix is needed, got sizes {:?}", input.sizes());
            Err(TensorError::shape("diag", reason))
        }
    }
}

fn diag_embed(input: &Tensor, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor> {
    const OP: &str = "diag_embed";
    let _op = entered(OP);
    let Some((length, others)) = input.sizes().split_last() else {
        return Err(TensorError::shape(OP, "a dimension is needed, got a tensor without"));
    };
    let row = dimension(OP, dim1, input.rank() + 1)?;
    let column = dimension(OP, dim2, input.rank() + 1)?;
    if row == column {
        return Err(TensorError::shape(OP, format!("two dimensions are needed, got {dim1} and {dim2}")));
    }
    let side = length.saturating_add(offset.unsigned_abs());
    let mut sizes = others.to_vec();
    sizes.insert(row.min(column), side);
    sizes.insert(row.max(column), side);
    let out = Tensor::zeros(&sizes, input.dtype(), input.device())?;
    out.diagonal(offset, dim1, dim2)?.copy_raw(input)?;
    recipe::note(&out, OP, [input], [], || move |[x], []| x.diag_embed(offset, dim1, dim2));
    attach(out, OP, &[input], |_| {
        Ok(move |context: &Context<'_>| {
            Ok([Some(context.grad(0)?.diagonal(offset, dim1, dim2)?)].into_iter().collect())
        })
    })
}

fn trace(input: &Tensor) -> Result<Tensor> {
    let _op = entered("trace");
    if input.rank() != 2 {
        return Err(TensorError::shape("trace", format!("a matrix is needed, got sizes {:?}", input.sizes())));
    }
    input.diagonal(0, 0, 1)?.sum(&[], false)
}

fn cross(input: &Tensor, other: &Tensor, dim: isize) -> Result<Tensor> {
    const OP: &str = "cross";
    let _op = entered(OP);
    let [left, right] = widest([input, other])?;
    let place = left.existing_dim(OP, dim)?;
    if left.rank() != right.rank() || [&left, &right].iter().any(|tensor| tensor.sizes().get(place) != Some(&3)) {
        let reason = format!(
            "as many dimensions are needed, of which dimension {place} has 3 elements, got sizes {:?} and {:?}",
            left.sizes(),
            right.sizes()
        );
        return Err(TensorError::shape(OP, reason));
    }
    broadcast(OP, left.sizes(), right.sizes())?;
    let dtype = promoted(&[(&left).into(), (&right).into()])?;
    let left = wide(&left)?;
    let right = wide(&right)?;
    // Element i of the product is of the elements i + 1 and i + 2 of the vectors.
    let next = |tensor: &Tensor, by: isize| tensor.roll(&[-by], &[place as isize]);
    let ahead = next(&left, 1)?.mul(&next(&right, 2)?)?;
    let behind = next(&left, 2)?.mul(&next(&right, 1)?)?;
    ahead.sub(&behind)?.to_dtype(dtype)
}

fn tril(input: &Tensor, diagonal: isize) -> Result<Tensor> {
    input.triangle("tril", diagonal, true)
}

fn triu(input: &Tensor, diagonal: isize) -> Result<Tensor> {
    input.triangle("triu", diagonal, false)
}

impl Tensor {
    fn triangle(&self, op: &'static str, diagonal: isize, is_lower: bool) -> Result<Self> {
        if self.rank() < 2 {
            let reason = format!("at least two dimensions are needed, got sizes {:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        let dense = self.contiguous()?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        TRIANGLE.find(self.device().kind(), self.dtype())?(&out, &dense, diagonal, is_lower)?;
        attach(out, op, &[&dense], |_| {
            Ok(move |context: &Context<'_>| {
                Ok([Some(context.grad(0)?.triangle(op, diagonal, is_lower)?)].into_iter().collect())
            })
        })
    }
}
