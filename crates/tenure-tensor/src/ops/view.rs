//! Views: other layouts of the same storage. No value is copied, and a write to one shows in the others.

use smallvec::SmallVec;
use tenure_core::{Layout, LayoutError, Overlap, Reshape};

use crate::autograd::{Context, attach, no_grad};
use crate::operation::operations;
use crate::tensor::dimension;
use crate::{Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns a view of the same elements, in the same order, with other sizes. One size may be -1: it is computed
        /// from the others.
        ///
        /// # Errors
        /// Sizes of another number of elements, or that would need a copy: see [`reshape`](Self::reshape).
        view(input: Tensor, size: Ints) -> Tensor;

        /// Returns a view of the same elements with the sizes of another tensor.
        ///
        /// # Errors
        /// The errors of [`view`](Self::view).
        view_as(input: Tensor, other: Tensor) -> Tensor;

        /// Returns a [`view`](Self::view) with the sizes `shape`, or a copy if no view can have them.
        ///
        /// # Errors
        /// Sizes of another number of elements.
        reshape(input: Tensor, shape: Ints) -> Tensor;

        /// Joins the dimensions `start_dim` to `end_dim`, both included, into one; copies if it has to.
        ///
        /// # Errors
        /// A dimension does not exist; `end_dim` is before `start_dim`.
        flatten(input: Tensor, start_dim: Int = 0, end_dim: Int = -1) -> Tensor;

        /// Splits one dimension into several. One of `sizes` may be -1: it is computed from the others.
        ///
        /// # Errors
        /// The dimension does not exist; the sizes hold another number of elements.
        unflatten(input: Tensor, dim: Int, sizes: Ints) -> Tensor;

        /// Repeats dimensions of size 1, and new ones in front, without a copy; -1 keeps a size. PyTorch's `expand` and
        /// `broadcast_to`.
        ///
        /// # Errors
        /// A size is neither 1 nor the same; -1 for a new dimension.
        expand(input: Tensor, size: Ints) -> Tensor;

        /// Repeats dimensions without a copy to the sizes of another tensor, as [`expand`](Self::expand) does.
        ///
        /// # Errors
        /// The errors of [`expand`](Self::expand).
        expand_as(input: Tensor, other: Tensor) -> Tensor;

        /// Returns a view with two dimensions exchanged.
        ///
        /// # Errors
        /// A dimension does not exist.
        transpose(input: Tensor, dim0: Int, dim1: Int) -> Tensor;

        /// Exchanges the rows and columns of a matrix; a vector or single element stays as it is.
        ///
        /// # Errors
        /// More than two dimensions.
        t(input: Tensor) -> Tensor;

        /// Exchanges the last two dimensions: transposes matrices in any number of dimensions. PyTorch's `mT`.
        ///
        /// # Errors
        /// Fewer than two dimensions.
        #[name(mT)]
        mt(input: Tensor) -> Tensor;

        /// Returns a view with the dimensions in the order `dims`. Dimension `i` of the view is dimension `dims[i]` of
        /// this tensor.
        ///
        /// # Errors
        /// `dims` does not have every dimension once.
        permute(input: Tensor, dims: Ints) -> Tensor;

        /// Moves the dimensions `source` to the positions `destination`; the others keep their order.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice; the numbers of dimensions and places differ.
        movedim(input: Tensor, source: Ints, destination: Ints) -> Tensor;

        /// Removes a dimension, if its size is 1.
        ///
        /// # Errors
        /// The dimension does not exist.
        squeeze(input: Tensor, dim: Int) -> Tensor;

        /// Removes the given dimensions whose size is 1.
        ///
        /// # Errors
        /// A dimension does not exist.
        #[name(squeeze)]
        squeeze_dims(input: Tensor, dim: Ints) -> Tensor;

        /// Removes all dimensions of size 1.
        ///
        /// # Errors
        /// No error is known.
        #[name(squeeze)]
        squeeze_all(input: Tensor) -> Tensor;

        /// Adds a dimension of size 1 at the position `dim`.
        ///
        /// # Errors
        /// The place is more than one past the last dimension.
        unsqueeze(input: Tensor, dim: Int) -> Tensor;

        /// Selects one index of a dimension, and removes the dimension. Negative indices count from the end.
        ///
        /// # Errors
        /// The dimension does not exist, or the index is out of range.
        select(input: Tensor, dim: Int, index: Int) -> Tensor;

        /// Selects every `step`-th element of a dimension, from `start` up to but without `end`. As in Python, both may
        /// be negative, and are limited to the dimension.
        ///
        /// # Errors
        /// The dimension does not exist; the step is 0.
        slice(input: Tensor, dim: Int, start: Int, end: Int, step: Size = 1) -> Tensor;

        /// Selects the `length` elements of a dimension from `start` on.
        ///
        /// # Errors
        /// The dimension does not exist; elements are out of range.
        narrow(input: Tensor, dim: Int, start: Size, length: Size) -> Tensor;

        /// Returns windows of `size` elements of a dimension, each `step` after the one before. The dimension counts
        /// the windows, and a new last dimension has the elements of each.
        ///
        /// # Errors
        /// The dimension does not exist, or is shorter than a window; the step is 0.
        unfold(input: Tensor, dimension: Int, size: Size, step: Size) -> Tensor;

        /// Returns the elements of the diagonal of two dimensions, as a new last dimension: `offset` above the main
        /// diagonal, or below it if it is negative.
        ///
        /// # Errors
        /// The dimensions do not exist, or are the same.
        diagonal(input: Tensor, offset: Int = 0, dim1: Int = 0, dim2: Int = 1) -> Tensor;

        /// Returns a view of the storage with any sizes, strides and offset, all in elements; `storage_offset` counts
        /// from the storage's beginning.
        ///
        /// # Errors
        /// Elements lie outside the storage.
        as_strided(input: Tensor, size: Sizes, stride: Sizes, storage_offset: Size = 0) -> Tensor;
    }
}

fn view(input: &Tensor, sizes: &[isize]) -> Result<Tensor> {
    let sizes = input.resolve("view", sizes)?;
    let layout = input.layout().view(&sizes).map_err(of("view"))?;
    input.viewed("view", layout, |grad, from| grad.reshape(&signed(from)))
}

fn view_as(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    input.view(&signed(other.sizes()))
}

fn reshape(input: &Tensor, sizes: &[isize]) -> Result<Tensor> {
    let resolved = input.resolve("reshape", sizes)?;
    match input.layout().reshape(&resolved).map_err(of("reshape"))? {
        Reshape::View(_) => input.view(sizes),
        Reshape::Copy(_) => input.contiguous()?.view(sizes),
    }
}

fn flatten(input: &Tensor, start: isize, end: isize) -> Result<Tensor> {
    let first = input.dim("flatten", start)?;
    let last = input.dim("flatten", end)?;
    if first > last {
        return Err(TensorError::shape("flatten", format!("dimension {start} comes after dimension {end}")));
    }
    if input.rank() == 0 {
        return input.reshape(&[1]);
    }
    let mut sizes = signed(input.sizes());
    let flat = input.sizes()[first..=last].iter().product::<usize>() as isize;
    sizes.splice(first..=last, [flat]);
    input.reshape(&sizes)
}

fn unflatten(input: &Tensor, dim: isize, sizes: &[isize]) -> Result<Tensor> {
    let dim = input.existing_dim("unflatten", dim)?;
    let parts = resolve("unflatten", sizes, &input.sizes()[dim..=dim])?;
    let mut all = signed(input.sizes());
    all.splice(dim..=dim, signed(&parts));
    input.view(&all)
}

fn expand(input: &Tensor, sizes: &[isize]) -> Result<Tensor> {
    let added = sizes.len().saturating_sub(input.rank());
    let mut expanded = Vec::with_capacity(sizes.len());
    for (dim, size) in sizes.iter().enumerate() {
        expanded.push(match (usize::try_from(*size), dim.checked_sub(added)) {
            (Ok(size), _) => size,
            (Err(_), Some(own)) if *size == -1 && own < input.rank() => input.sizes()[own],
            _ => {
                let reason = format!(
                    "sizes {sizes:?} do not say what dimension {dim} is: -1 keeps a size of {:?}, and new \
                     dimensions have none",
                    input.sizes()
                );
                return Err(TensorError::shape("expand", reason));
            }
        });
    }
    let layout = input.layout().expand(&expanded).map_err(of("expand"))?;
    input.viewed("expand", layout, |grad, from| grad.sum_to(from))
}

fn expand_as(input: &Tensor, other: &Tensor) -> Result<Tensor> {
    input.expand(&signed(other.sizes()))
}

fn transpose(input: &Tensor, a: isize, b: isize) -> Result<Tensor> {
    let from = input.dim("transpose", a)?;
    let to = input.dim("transpose", b)?;
    if input.rank() == 0 {
        return input.view(&[]);
    }
    input.viewed("transpose", input.layout().transpose(from, to)?, move |grad, _| grad.transpose(a, b))
}

fn t(input: &Tensor) -> Result<Tensor> {
    match input.rank() {
        0 | 1 => input.view_as(input),
        2 => input.transpose(0, 1),
        _ => {
            let reason = format!("at most two dimensions are needed, got sizes {:?}: see mt()", input.sizes());
            Err(TensorError::shape("t", reason))
        }
    }
}

fn mt(input: &Tensor) -> Result<Tensor> {
    input.transpose(-2, -1)
}

fn permute(input: &Tensor, dims: &[isize]) -> Result<Tensor> {
    let order = dims.iter().map(|dim| input.existing_dim("permute", *dim)).collect::<Result<Vec<usize>>>()?;
    let layout = input.layout().permute(&order).map_err(of("permute"))?;
    input.viewed("permute", layout, move |grad, _| {
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| back[*from] = to as isize);
        grad.permute(&back)
    })
}

fn movedim(input: &Tensor, from: &[isize], to: &[isize]) -> Result<Tensor> {
    let [sources, places] = [from, to].map(|dims| {
        dims.iter().map(|dim| input.existing_dim("movedim", *dim)).collect::<Result<SmallVec<[usize; 5]>>>()
    });
    let sources = sources?;
    let places = places?;
    let mut moves: SmallVec<[(usize, usize); 5]> = places.into_iter().zip(sources.iter().copied()).collect();
    moves.sort_unstable();
    let mut order: Vec<isize> = (0..input.rank() as isize).collect();
    order.retain(|dim| !sources.contains(&(*dim as usize)));
    let is_once = moves.windows(2).all(|pair| pair[0].0 != pair[1].0) && order.len() + moves.len() == input.rank();
    if from.len() != to.len() || !is_once {
        let reason = format!("{from:?} to {to:?} does not say one place for each of some dimensions");
        return Err(TensorError::shape("movedim", reason));
    }
    moves.into_iter().for_each(|(place, source)| order.insert(place, source as isize));
    input.permute(&order)
}

fn squeeze(input: &Tensor, dim: isize) -> Result<Tensor> {
    input.squeeze_dims(&[dim])
}

fn squeeze_dims(input: &Tensor, dims: &[isize]) -> Result<Tensor> {
    let dims = input.distinct_dims("squeeze", dims)?;
    let mut layout = input.layout().clone();
    for dim in (0..input.rank()).rev().filter(|dim| dims.contains(dim)) {
        layout = layout.squeeze(dim)?;
    }
    input.viewed("squeeze", layout, |grad, from| grad.reshape(&signed(from)))
}

fn squeeze_all(input: &Tensor) -> Result<Tensor> {
    input.viewed("squeeze", input.layout().squeeze_all(), |grad, from| grad.reshape(&signed(from)))
}

fn unsqueeze(input: &Tensor, dim: isize) -> Result<Tensor> {
    let place = dimension("unsqueeze", dim, input.rank() + 1)?;
    input.viewed("unsqueeze", input.layout().unsqueeze(place)?, |grad, from| grad.reshape(&signed(from)))
}

fn select(input: &Tensor, dim: isize, index: isize) -> Result<Tensor> {
    input.selected("select", dim, index)
}

fn slice(input: &Tensor, dim: isize, start: isize, end: isize, step: usize) -> Result<Tensor> {
    input.sliced("slice", dim, start, end, step)
}

fn narrow(input: &Tensor, dim: isize, start: usize, length: usize) -> Result<Tensor> {
    let place = input.existing_dim("narrow", dim)?;
    let layout = input.layout().narrow(place, start, length).map_err(of("narrow"))?;
    input.viewed("narrow", layout, move |grad, from| grad.embed(from, move |zeros| zeros.narrow(dim, start, length)))
}

fn unfold(input: &Tensor, dim: isize, size: usize, step: usize) -> Result<Tensor> {
    let place = input.existing_dim("unfold", dim)?;
    let length = input.sizes()[place];
    if size > length || step == 0 {
        let reason = format!("windows of {size} at steps of {step} do not fit dimension {dim} of size {length}");
        return Err(TensorError::shape("unfold", reason));
    }
    let mut sizes = input.sizes().to_vec();
    let mut strides = input.strides().to_vec();
    sizes[place] = (length - size) / step + 1;
    sizes.push(size);
    strides.push(strides[place]);
    strides[place] = strides[place].saturating_mul(step);
    let layout = Layout::strided(&sizes, &strides, input.layout().offset()).map_err(of("unfold"))?;
    input.viewed("unfold", layout, move |grad, from| grad.embed(from, move |zeros| zeros.unfold(dim, size, step)))
}

fn diagonal(input: &Tensor, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor> {
    let row = input.existing_dim("diagonal", dim1)?;
    let column = input.existing_dim("diagonal", dim2)?;
    if row == column {
        return Err(TensorError::shape("diagonal", format!("two dimensions are needed, got {dim1} and {dim2}")));
    }
    let (down, right) = if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset.unsigned_abs()) };
    let mut sizes = input.sizes().to_vec();
    let mut strides = input.strides().to_vec();
    let length = sizes[row].saturating_sub(down).min(sizes[column].saturating_sub(right));
    // Without elements, the start may lie outside the storage.
    let start = if length == 0 { 0 } else { down * strides[row] + right * strides[column] };
    let stride = strides[row] + strides[column];
    for dim in [row.max(column), row.min(column)] {
        sizes.remove(dim);
        strides.remove(dim);
    }
    sizes.push(length);
    strides.push(stride);
    let layout = Layout::strided(&sizes, &strides, input.layout().offset() + start).map_err(of("diagonal"))?;
    input
        .viewed("diagonal", layout, move |grad, from| grad.embed(from, move |zeros| zeros.diagonal(offset, dim1, dim2)))
}

fn as_strided(input: &Tensor, sizes: &[usize], strides: &[usize], offset: usize) -> Result<Tensor> {
    let bytes = input.storage().bytes();
    let layout = Layout::as_strided(sizes, strides, offset, input.dtype(), bytes).map_err(of("as_strided"))?;
    let from = input.layout().clone();
    let to = layout.clone();
    input.viewed("as_strided", layout, move |grad, _| {
        // The part of the storage that either layout covers, with the gradient at the elements that were read.
        let read = to.extent();
        let own = from.extent();
        let start = read.start.min(own.start);
        let end = read.end.max(own.end);
        let sizes = to.sizes().to_vec();
        let strides = to.strides().to_vec();
        let offset = to.offset() - start;
        let storage = grad.embed(&[end - start], move |zeros| zeros.as_strided(&sizes, &strides, offset))?;
        let grad = storage.as_strided(from.sizes(), from.strides(), from.offset() - start)?;
        if from.overlap() == Overlap::No {
            return Ok(grad);
        }
        // Elements that share a place get equal parts of its gradient.
        let ones = Tensor::ones(from.sizes(), grad.dtype(), grad.device())?;
        let layout = Layout::strided(from.sizes(), from.strides(), from.offset() - start)?;
        let counts = Tensor::zeros(&[end - start], grad.dtype(), grad.device())?;
        counts.alias(layout.clone()).accumulate(&ones)?;
        grad.div(&counts.alias(layout))
    })
}

impl Tensor {
    /// Does [`select`](Self::select) for the operation `op`.
    pub(super) fn selected(&self, op: &'static str, dim: isize, index: isize) -> Result<Self> {
        let place = self.existing_dim(op, dim)?;
        let size = self.sizes()[place];
        let wrapped = if index < 0 { index + size as isize } else { index };
        if !(0..size as isize).contains(&wrapped) {
            return Err(TensorError::Index { op, index: index as i64, dim: place, size });
        }
        let layout = self.layout().select(place, wrapped as usize)?;
        self.viewed("select", layout, move |grad, from| grad.embed(from, move |zeros| zeros.select(dim, index)))
    }

    /// Returns the numbers of dimensions, of which none may be given twice.
    pub(super) fn distinct_dims(&self, op: &'static str, dims: &[isize]) -> Result<SmallVec<[usize; 5]>> {
        let mut found = SmallVec::new();
        for dim in dims {
            let place = self.dim(op, *dim)?;
            if found.contains(&place) {
                return Err(TensorError::argument(op, format!("dimension {dim} is in {dims:?} twice")));
            }
            found.push(place);
        }
        Ok(found)
    }

    /// Does [`slice`](Self::slice) for the operation `op`.
    pub(super) fn sliced(&self, op: &'static str, dim: isize, start: isize, end: isize, step: usize) -> Result<Self> {
        let place = self.existing_dim(op, dim)?;
        let size = self.sizes()[place] as isize;
        let layout = self.layout().slice(place, cut(start, size), cut(end, size), step).map_err(of(op))?;
        self.viewed("slice", layout, move |grad, from| {
            grad.embed(from, move |zeros| zeros.slice(dim, start, end, step))
        })
    }

    /// Returns a view; `back` computes the gradient for these sizes from that of the view.
    pub(crate) fn viewed(
        &self,
        op: &'static str,
        layout: Layout,
        back: impl Fn(&Self, &[usize]) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let from = self.layout().clone();
        let view = attach(self.alias(layout), op, &[self], |_| {
            Ok(move |context: &Context<'_>| Ok([Some(back(&context.grad(0)?, from.sizes())?)].into_iter().collect()))
        })?;
        view.set_view_of(self);
        Ok(view)
    }

    /// Returns zeros of these sizes, with this tensor in the part that `view` selects: the gradient of a view. Elements
    /// that `view` has twice are added up.
    fn embed(&self, sizes: &[usize], view: impl Fn(&Self) -> Result<Self> + Send + Sync + 'static) -> Result<Self> {
        let zeros = Self::zeros(sizes, self.dtype(), self.device())?;
        no_grad(|| view(&zeros))?.accumulate(self)?;
        attach(zeros, "embed", &[self], |_| {
            Ok(move |context: &Context<'_>| Ok([Some(view(&context.grad(0)?)?)].into_iter().collect()))
        })
    }

    /// Adds to every element, also where several share a place.
    fn accumulate(&self, source: &Self) -> Result<()> {
        let long = (0..self.rank()).filter(|dim| self.sizes()[*dim] > 1).min_by_key(|dim| self.sizes()[*dim]);
        let Some(dim) = long.filter(|_| self.layout().overlap() != Overlap::No) else {
            return self.add_raw(source);
        };
        for index in 0..self.sizes()[dim] {
            let part = self.alias(self.layout().select(dim, index)?);
            part.accumulate(&source.alias(source.layout().select(dim, index)?))?;
        }
        Ok(())
    }

    /// Returns sizes with -1 replaced.
    fn resolve(&self, op: &'static str, sizes: &[isize]) -> Result<Vec<usize>> {
        resolve(op, sizes, self.sizes())
    }
}

/// Returns sizes with -1 replaced by the rest of `from`.
fn resolve(op: &'static str, sizes: &[isize], from: &[usize]) -> Result<Vec<usize>> {
    let unknown = sizes.iter().filter(|size| **size < 0).count();
    if unknown > 1 || sizes.iter().any(|size| *size < -1) {
        let reason = format!("sizes {sizes:?} may have one -1 and no other negative number");
        return Err(TensorError::shape(op, reason));
    }
    let numel: usize = from.iter().product();
    let known =
        sizes.iter().filter(|size| **size >= 0).try_fold(1, |known: usize, size| known.checked_mul(*size as usize));
    let rest = known.filter(|known| *known > 0 && numel.is_multiple_of(*known)).map(|known| numel / known);
    if unknown == 1 && known == Some(0) && numel == 0 {
        let reason = format!("the -1 of sizes {sizes:?} may be any size, as another is 0: say which");
        return Err(TensorError::shape(op, reason));
    }
    if (unknown == 1 && rest.is_none()) || (unknown == 0 && known != Some(numel)) {
        let reason = format!("sizes {sizes:?} do not hold the {numel} elements of sizes {from:?}");
        return Err(TensorError::shape(op, reason));
    }
    Ok(sizes.iter().map(|size| usize::try_from(*size).ok().or(rest).unwrap_or(0)).collect())
}

/// Returns sizes in the form that [`Tensor::view`] takes.
pub(crate) fn signed(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|size| *size as isize).collect()
}

/// Names the operation in a layout's error.
fn of(op: &'static str) -> impl Fn(LayoutError) -> TensorError {
    move |error| TensorError::shape(op, error.to_string())
}

/// Returns an index from 0 to `size`; a negative one counts from the end.
fn cut(index: isize, size: isize) -> usize {
    (if index < 0 { index.saturating_add(size) } else { index }).clamp(0, size) as usize
}
