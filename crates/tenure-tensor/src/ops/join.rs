//! Concatenation and repetition of tensors.

use smallvec::SmallVec;

use super::entered;
use super::pointwise;
use super::view::signed;
use crate::autograd::{Context, attach, recipe};
use crate::cpu::join::Join;
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::tensor::create::dense_like;
use crate::{Kernel, Result, Tensor, TensorError, Value, cpu, cuda};

static JOIN: Kernel<Join> = Kernel::new("cat", &[cpu::join::JOIN, cuda::join::JOIN]);

/// Concatenates tensors along a dimension, in the dtype that they promote to. Their other sizes must be the same;
/// tensors of sizes `[0]` are left out.
///
/// # Errors
/// No tensors; sizes that differ in another dimension; a dimension that does not exist; different devices.
pub fn cat(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
    observed("cat", || arguments![tensors, dim], || joined(tensors, dim))
}

fn joined(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
    let _op = entered("cat");
    let Some(any) = tensors.first() else {
        return Err(TensorError::argument("cat", "at least one tensor is needed, got none"));
    };
    let first = tensors.iter().find(|tensor| tensor.sizes() != [0]).unwrap_or(any);
    let place = first.existing_dim("cat", dim)?;
    let mut sizes = first.sizes().to_vec();
    sizes[place] = 0;
    let mut starts: SmallVec<[Option<usize>; 4]> = SmallVec::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.sizes() == [0] {
            starts.push(None);
            continue;
        }
        let others =
            |tensor: &Tensor| (0..tensor.rank()).filter(|dim| *dim != place).map(|dim| tensor.sizes()[dim]).collect();
        let (left, right): (Vec<usize>, Vec<usize>) = (others(first), others(tensor));
        if first.rank() != tensor.rank() || left != right {
            let expected = first.sizes();
            let found = tensor.sizes();
            let reason = format!(
                "tensor {index} of sizes {found:?} does not continue sizes {expected:?}: they may differ in dimension \
                 {place} only"
            );
            return Err(TensorError::shape("cat", reason));
        }
        starts.push(Some(sizes[place]));
        sizes[place] += tensor.sizes()[place];
    }
    let dtype = pointwise::promoted(&tensors.iter().map(|tensor| Value::Tensor(tensor)).collect::<Vec<_>>())?;
    let layout = dense_like(&sizes, Some(first.layout()))?;
    pointwise::check_devices("cat", tensors)?;
    let out = Tensor::empty_strided(layout, dtype, first.device())?;
    let parts: SmallVec<[&Tensor; 8]> =
        tensors.iter().zip(&starts).filter(|(_, start)| start.is_some()).map(|(tensor, _)| *tensor).collect();
    JOIN.find(out.device().kind(), dtype)?(&out, place, &parts)?;
    recipe::note_list(&out, "cat", tensors, || move |tensors| cat(tensors, dim));
    attach(out, "cat", tensors, |_| {
        let parts: SmallVec<[(Option<usize>, usize); 4]> =
            tensors.iter().zip(starts).map(|(tensor, start)| (start, tensor.sizes()[place])).collect();
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            parts
                .iter()
                .enumerate()
                .map(|(input, (start, length))| match start {
                    Some(start) => context.give(input, || grad.narrow(dim, *start, *length)),
                    None => context.zeros(input),
                })
                .collect()
        })
    })
}

/// Stacks tensors of the same sizes along a new dimension.
///
/// # Errors
/// No tensors; different sizes or devices; a place that is more than one past the last dimension.
pub fn stack(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
    observed("stack", || arguments![tensors, dim], || stacked(tensors, dim))
}

fn stacked(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(TensorError::argument("stack", "at least one tensor is needed, got none"));
    };
    if let Some((index, other)) = tensors.iter().enumerate().find(|(_, other)| other.sizes() != first.sizes()) {
        let reason = format!("tensor {index} has sizes {:?}, and tensor 0 {:?}", other.sizes(), first.sizes());
        return Err(TensorError::shape("stack", reason));
    }
    let parts = tensors.iter().map(|tensor| tensor.unsqueeze(dim)).collect::<Result<Vec<Tensor>>>()?;
    cat(&parts.iter().collect::<Vec<_>>(), dim)
}

/// Expands vectors to a grid: each tensor is repeated, without a copy, along the dimensions of all the others.
/// PyTorch's `meshgrid(…, indexing="ij")`.
///
/// # Errors
/// A tensor has more than one dimension.
pub fn meshgrid(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    if let Some(wrong) = tensors.iter().find(|tensor| tensor.rank() > 1) {
        let reason = format!("tensors of at most one dimension are needed, got sizes {:?}", wrong.sizes());
        return Err(TensorError::shape("meshgrid", reason));
    }
    let sizes: Vec<isize> = tensors.iter().map(|tensor| tensor.numel() as isize).collect();
    tensors
        .iter()
        .enumerate()
        .map(|(dim, tensor)| {
            let mut own = vec![1; sizes.len()];
            own[dim] = sizes[dim];
            tensor.view(&own)?.expand(&sizes)
        })
        .collect()
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Repeats the whole tensor along each dimension. If there are more `repeats` than dimensions, the first are
        /// for new dimensions in front.
        ///
        /// # Errors
        /// Fewer repeats than dimensions; no memory.
        repeat(input: Tensor, repeats: Sizes) -> Tensor;

        /// Repeats the whole tensor as [`repeat`](Self::repeat) does; missing repeats are 1.
        ///
        /// # Errors
        /// No memory.
        tile(input: Tensor, dims: Sizes) -> Tensor;

        /// Repeats each entry of a dimension `repeats` times, next to each other.
        ///
        /// # Errors
        /// The dimension does not exist; no memory.
        repeat_interleave(input: Tensor, repeats: Size, dim: Int) -> Tensor;

        /// Moves elements along the dimensions `dims` by `shifts`; elements moved past the end come in at the
        /// beginning. Without dimensions, the tensor is rolled as a vector.
        ///
        /// # Errors
        /// A dimension does not exist; there is not one shift for each dimension.
        roll(input: Tensor, shifts: Ints, dims: Ints = &[]) -> Tensor;
    }
    Function for front_ends {
        /// Concatenates tensors along a dimension, in the dtype that they promote to: [`cat`].
        ///
        /// # Errors
        /// No tensors; sizes that differ in another dimension; a dimension that does not exist; different devices.
        cat(tensors: Tensors, dim: Int = 0) -> Tensor = cat;

        /// Concatenates tensors of equal sizes along a new dimension: [`stack`].
        ///
        /// # Errors
        /// The errors of [`cat`].
        stack(tensors: Tensors, dim: Int = 0) -> Tensor = stack;

        /// Returns the coordinates of the points of a grid, one tensor for each of its dimensions: [`meshgrid`]. The
        /// dimensions are in the order of the tensors if `indexing` is `ij`; the first two are exchanged if it is `xy`.
        ///
        /// # Errors
        /// A tensor of more than one dimension; another `indexing`.
        meshgrid(tensors: Tensors, indexing: Text = "ij") -> Vec<Tensor> = |tensors: &[&Tensor], indexing| {
            match indexing {
                "ij" => meshgrid(tensors),
                "xy" => meshgrid(tensors)?.iter().map(first_two_exchanged).collect(),
                _ => {
                    let reason = format!("indexing must be \"ij\" or \"xy\", got {indexing:?}");
                    Err(TensorError::argument("meshgrid", reason))
                }
            }
        };
    }
}

fn first_two_exchanged(grid: &Tensor) -> Result<Tensor> {
    if grid.rank() < 2 { Ok(grid.clone()) } else { grid.transpose(0, 1) }
}

fn repeat(input: &Tensor, repeats: &[usize]) -> Result<Tensor> {
    let Some(added) = repeats.len().checked_sub(input.rank()) else {
        let reason = format!("repeats {repeats:?} are fewer than the dimensions of sizes {:?}", input.sizes());
        return Err(TensorError::shape("repeat", reason));
    };
    let (mut apart, mut repeated, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeats) in repeats.iter().enumerate() {
        let size = dim.checked_sub(added).map_or(1, |own| input.sizes()[own]);
        let (repeats, whole) = times("repeat", *repeats, size)?;
        apart.extend([1, size as isize]);
        repeated.extend([repeats, size as isize]);
        together.push(whole);
    }
    input.reshape(&apart)?.expand(&repeated)?.reshape(&together)?.apart_from(input)
}

fn tile(input: &Tensor, repeats: &[usize]) -> Result<Tensor> {
    let missing = input.rank().saturating_sub(repeats.len());
    let repeats: Vec<usize> = std::iter::repeat_n(1, missing).chain(repeats.iter().copied()).collect();
    input.repeat(&repeats)
}

fn repeat_interleave(input: &Tensor, repeats: usize, dim: isize) -> Result<Tensor> {
    let place = input.existing_dim("repeat_interleave", dim)?;
    let (repeats, whole) = times("repeat_interleave", repeats, input.sizes()[place])?;
    let mut repeated = signed(input.sizes());
    repeated.insert(place + 1, repeats);
    let mut together = signed(input.sizes());
    together[place] = whole;
    input.unsqueeze(place as isize + 1)?.expand(&repeated)?.reshape(&together)?.apart_from(input)
}

fn roll(input: &Tensor, shifts: &[isize], dims: &[isize]) -> Result<Tensor> {
    if let ([_], []) = (shifts, dims) {
        return input.reshape(&[-1])?.roll(shifts, &[0])?.reshape(&signed(input.sizes()));
    }
    if shifts.len() != dims.len() {
        return Err(TensorError::shape("roll", format!("shifts {shifts:?} are not one for each of {dims:?}")));
    }
    let mut rolled = input.clone();
    for (shift, dim) in shifts.iter().zip(dims) {
        let length = input.sizes()[input.existing_dim("roll", *dim)?];
        if length > 0 {
            let start = shift.rem_euclid(length as isize) as usize;
            let last = rolled.narrow(*dim, length - start, start)?;
            let first = rolled.narrow(*dim, 0, length - start)?;
            rolled = cat(&[&last, &first], *dim)?;
        }
    }
    Ok(rolled)
}

impl Tensor {
    /// Returns a copy if this is a view of `other`, else the tensor itself.
    fn apart_from(self, other: &Self) -> Result<Self> {
        if self.storage().is_alias_of(other.storage()) { self.copy() } else { Ok(self) }
    }
}

/// Returns the number of repeats, and the size that they give to a dimension, as signed sizes.
fn times(op: &'static str, repeats: usize, size: usize) -> Result<(isize, isize)> {
    let whole = repeats.checked_mul(size).and_then(|whole| isize::try_from(whole).ok());
    isize::try_from(repeats).ok().zip(whole).ok_or_else(|| {
        TensorError::shape(op, format!("{repeats} times a dimension of size {size} is larger than any memory"))
    })
}
