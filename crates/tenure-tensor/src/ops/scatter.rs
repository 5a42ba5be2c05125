//! Writes and additions by index. If an index occurs twice, the last value is written; additions are done in the order
//! of the index.

use smallvec::SmallVec;

use super::arithmetic::check_factor;
use super::view::signed;
use crate::autocast::widest;
use crate::autograd::{Context, Grads, Saver, attach, attach_in_place};
use crate::cpu::scatter::{self as kernels, Put, Scatter};
use crate::operation::operations;
use crate::{Kernel, Result, Scalar, Tensor, TensorError, Value, cuda};

static SCATTER: Kernel<Scatter> = Kernel::new("scatter", &[kernels::SCATTER, cuda::scatter::SCATTER]);
static SCATTER_ADD: Kernel<Scatter> = Kernel::new("scatter_add", &[kernels::SCATTER_ADD, cuda::scatter::SCATTER_ADD]);
static PUT: Kernel<Put> = Kernel::new("index_put", &[kernels::PUT, cuda::scatter::PUT]);
static PUT_ADD: Kernel<Put> = Kernel::new("index_add", &[kernels::PUT_ADD, cuda::scatter::PUT_ADD]);

type Dims = SmallVec<[usize; 5]>;

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns a copy with the elements of `src`, or a number, written along `dim` at the positions in `index`. In
        /// two dimensions and along the last, `out[i][index[i][j]] = src[i][j]`. `src` may be larger than `index`.
        ///
        /// # Errors
        /// The numbers of dimensions differ; the index is larger than this tensor in another dimension, or than the
        /// source; an index is out of range, or no integer; the source has another dtype.
        scatter(input: Tensor, dim: Int, index: Tensor, src: Value) -> Tensor;

        /// Returns a copy with the elements of `src` added, at the positions where [`scatter`](Self::scatter) writes
        /// them.
        ///
        /// # Errors
        /// The errors of [`scatter`](Self::scatter); `bool`.
        scatter_add(input: Tensor, dim: Int, index: Tensor, src: Tensor) -> Tensor;

        /// Does [`scatter`](Self::scatter) in place.
        ///
        /// # Errors
        /// The errors of [`scatter`](Self::scatter), and of every write in place.
        scatter_(input: Tensor, dim: Int, index: Tensor, src: Value) -> ();

        /// Does [`scatter_add`](Self::scatter_add) in place.
        ///
        /// # Errors
        /// The errors of [`scatter_add`](Self::scatter_add), and of every write in place.
        scatter_add_(input: Tensor, dim: Int, index: Tensor, src: Tensor) -> ();

        /// Returns a copy with the entries of a dimension at the indices `index` replaced by those of `source`.
        ///
        /// # Errors
        /// Sizes of `source` that differ from this tensor's, except that it has one entry for each index in the
        /// dimension; indices that have more than one dimension, are out of range, or are no integers; a source of
        /// another dtype.
        index_copy(input: Tensor, dim: Int, index: Tensor, source: Tensor) -> Tensor;

        /// Returns a copy with the entries of `source` added to the entries of a dimension at the indices `index`.
        ///
        /// # Errors
        /// The errors of [`index_copy`](Self::index_copy); `bool`.
        index_add(input: Tensor, dim: Int, index: Tensor, source: Tensor) -> Tensor;

        /// Does [`index_add`](Self::index_add) in place.
        ///
        /// # Errors
        /// The errors of [`index_add`](Self::index_add), and of every write in place.
        index_add_(input: Tensor, dim: Int, index: Tensor, source: Tensor) -> ();

        /// Returns a copy with the entries of a dimension at the indices `index` set to a number.
        ///
        /// # Errors
        /// The indices have more than one dimension, are out of range, or are no integers.
        index_fill(input: Tensor, dim: Int, index: Tensor, value: Scalar) -> Tensor;
    }
    Method for front_ends {
        /// Adds `alpha` times the source as [`index_add`](Tensor::index_add) does.
        ///
        /// # Errors
        /// The errors of [`index_add`](Tensor::index_add); a factor with a fraction for integers.
        #[name(index_add)]
        index_add_scaled(input: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Scalar) -> Tensor =
            |input: &Tensor, dim, index, source, alpha| input.index_add(dim, index, &scaled(source, alpha)?);

        /// Adds `alpha` times the source in place as [`index_add_`](Tensor::index_add_) does.
        ///
        /// # Errors
        /// The errors of [`index_add_`](Tensor::index_add_); a factor with a fraction for integers.
        #[name(index_add_)]
        index_add_scaled_(input: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Scalar) -> () =
            |input: &Tensor, dim, index, source, alpha| input.index_add_(dim, index, &scaled(source, alpha)?);
    }
}

fn scaled(source: &Tensor, factor: Scalar) -> Result<Tensor> {
    check_factor("index_add", factor, source.dtype())?;
    source.mul(factor)
}

fn scatter(input: &Tensor, dim: isize, index: &Tensor, source: Value<'_>) -> Result<Tensor> {
    let (index, source) = input.scatter_operands("scatter", index, source)?;
    input.copied_apart()?.scattered_onto(input, "scatter", dim, &index, &source, false)
}

fn scatter_add(input: &Tensor, dim: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let [this, source] = widest([input, source])?;
    let (index, source) = this.scatter_operands("scatter_add", index, (&source).into())?;
    this.copied_apart()?.scattered_onto(&this, "scatter_add", dim, &index, &source, true)
}

fn scatter_(input: &Tensor, dim: isize, index: &Tensor, source: Value<'_>) -> Result<()> {
    let (index, source) = input.scatter_operands("scatter_", index, source)?;
    attach_in_place(
        input,
        "scatter_",
        &[input, &source],
        || input.scatter_raw("scatter_", dim, &index, &source, false),
        |saver| scatter_formula(saver, dim, &index, false),
    )
}

fn scatter_add_(input: &Tensor, dim: isize, index: &Tensor, source: &Tensor) -> Result<()> {
    let (index, source) = input.scatter_operands("scatter_add_", index, source.into())?;
    attach_in_place(
        input,
        "scatter_add_",
        &[input, &source],
        || input.scatter_raw("scatter_add_", dim, &index, &source, true),
        |saver| scatter_formula(saver, dim, &index, true),
    )
}

fn index_copy(input: &Tensor, dim: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let [this, source] = widest([input, source])?;
    let (place, index) = this.row_operands("index_copy", dim, index, Some(&source))?;
    this.copied_apart()?.put_onto(&this, "index_copy", &[place], place, &index, &source, false)
}

fn index_add(input: &Tensor, dim: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let (place, index) = input.row_operands("index_add", dim, index, Some(source))?;
    input.copied_apart()?.put_onto(input, "index_add", &[place], place, &index, source, true)
}

fn index_add_(input: &Tensor, dim: isize, index: &Tensor, source: &Tensor) -> Result<()> {
    let (place, index) = input.row_operands("index_add_", dim, index, Some(source))?;
    input.put_("index_add_", &[place], place, &index, source, true)
}

fn index_fill(input: &Tensor, dim: isize, index: &Tensor, value: Scalar) -> Result<Tensor> {
    let (place, index) = input.row_operands("index_fill", dim, index, None)?;
    value.check_fits("index_fill", input.dtype())?;
    let value = Tensor::full(&[], value, input.dtype(), input.device())?;
    input.copied_apart()?.put_onto(input, "index_fill", &[place], place, &index, &value, false)
}

impl Tensor {
    /// Does [`scatter`](Self::scatter), or the addition if `adds`, onto this fresh tensor itself.
    pub(crate) fn scattered(
        self,
        op: &'static str,
        dim: isize,
        index: &Self,
        source: &Self,
        adds: bool,
    ) -> Result<Self> {
        let before = self.clone();
        self.scattered_onto(&before, op, dim, index, source, adds)
    }

    /// Does the same as [`scattered`](Self::scattered) onto this copy of `before`, which gets the gradient.
    fn scattered_onto(
        self,
        before: &Self,
        op: &'static str,
        dim: isize,
        index: &Self,
        source: &Self,
        adds: bool,
    ) -> Result<Self> {
        self.scatter_raw(op, dim, index, source, adds)?;
        attach(self, op, &[before, source], |saver| scatter_formula(saver, dim, index, adds))
    }

    fn scatter_raw(&self, op: &'static str, dim: isize, index: &Self, source: &Self, adds: bool) -> Result<()> {
        if self.rank() == 0 {
            let [line, index, source] = [self, index, source].map(|tensor| tensor.detach().reshape(&[-1]));
            return line?.scatter_raw(op, dim, &index?, &source?, adds);
        }
        let place = self.index_dim(op, dim, index)?;
        let kernel = if adds { &SCATTER_ADD } else { &SCATTER };
        kernel.find(self.device().kind(), self.dtype())?(op, self, index, source, place)
    }

    /// Writes or adds `values`, which broadcast, to `positions` of the dimensions `dims` of this fresh tensor: the
    /// elements that [`picked`](Self::picked) would read.
    pub(crate) fn put(
        self,
        op: &'static str,
        dims: &[usize],
        at: usize,
        positions: &Self,
        values: &Self,
        adds: bool,
    ) -> Result<Self> {
        let before = self.clone();
        self.put_onto(&before, op, dims, at, positions, values, adds)
    }

    /// Does the same as [`put`](Self::put) onto this copy of `before`, which gets the gradient.
    #[expect(clippy::too_many_arguments, reason = "those of `put`")]
    pub(crate) fn put_onto(
        self,
        before: &Self,
        op: &'static str,
        dims: &[usize],
        at: usize,
        positions: &Self,
        values: &Self,
        adds: bool,
    ) -> Result<Self> {
        self.put_raw(op, dims, at, positions, values, adds)?;
        attach(self, op, &[before, values], |saver| put_formula(saver, dims, at, positions, adds))
    }

    /// Does the same as [`put`](Self::put) in place.
    pub(crate) fn put_(
        &self,
        op: &'static str,
        dims: &[usize],
        at: usize,
        positions: &Self,
        values: &Self,
        adds: bool,
    ) -> Result<()> {
        attach_in_place(
            self,
            op,
            &[self, values],
            || self.put_raw(op, dims, at, positions, values, adds),
            |saver| put_formula(saver, dims, at, positions, adds),
        )
    }

    fn put_raw(
        &self,
        op: &'static str,
        dims: &[usize],
        at: usize,
        positions: &Self,
        values: &Self,
        adds: bool,
    ) -> Result<()> {
        let others = || (0..self.rank()).filter(|dim| !dims.contains(dim)).map(|dim| self.sizes()[dim]);
        let mut sizes: Dims = others().collect();
        sizes.insert_from_slice(at, positions.sizes());
        let values = values.detach().expand(&signed(&sizes))?;
        let moved: Vec<isize> = (at..at + positions.rank()).map(|dim| dim as isize).collect();
        let first: Vec<isize> = (0..positions.rank() as isize).collect();
        let rows: Vec<isize> = std::iter::once(positions.numel()).chain(others()).map(|size| size as isize).collect();
        let rows = values.movedim(&moved, &first)?.reshape(&rows)?;
        let positions = positions.contiguous()?;
        let kernel = if adds { &PUT_ADD } else { &PUT };
        kernel.find(self.device().kind(), self.dtype())?(op, self, &positions, &rows, dims)
    }

    /// Returns the index as `int64`, and the part of the source that it covers.
    pub(super) fn scatter_operands(&self, op: &'static str, index: &Self, source: Value<'_>) -> Result<(Self, Self)> {
        let index = index.as_index(op)?;
        let source = match source {
            Value::Number(number) => {
                number.check_fits(op, self.dtype())?;
                Self::full(&[], number, self.dtype(), self.device())?.expand(&signed(index.sizes()))?
            }
            Value::Tensor(source) => {
                self.check_same_dtype(op, source)?;
                let mut part = source.clone();
                if source.rank() != index.rank()
                    || index.sizes().iter().zip(source.sizes()).any(|(own, size)| own > size)
                {
                    let index = index.sizes();
                    let source = source.sizes();
                    let reason =
                        format!("an index of sizes {index:?} needs a source at least as large, got {source:?}");
                    return Err(TensorError::shape(op, reason));
                }
                for (dim, size) in index.sizes().iter().enumerate().filter(|(dim, size)| source.sizes()[*dim] > **size)
                {
                    part = part.narrow(dim as isize, 0, *size)?;
                }
                part
            }
        };
        Ok((index, source))
    }

    /// Returns the dimension and the row indices, after checking that the source has a row for each.
    fn row_operands(&self, op: &'static str, dim: isize, index: &Self, source: Option<&Self>) -> Result<(usize, Self)> {
        let place = self.existing_dim(op, dim)?;
        let index = index.as_vector(op)?;
        if let Some(source) = source {
            self.check_same_dtype(op, source)?;
            let mut expected = self.sizes().to_vec();
            expected[place] = index.numel();
            if source.sizes() != expected {
                let reason = format!(
                    "{} indices along dimension {place} of sizes {:?} need a source of sizes {expected:?}, got {:?}",
                    index.numel(),
                    self.sizes(),
                    source.sizes()
                );
                return Err(TensorError::shape(op, reason));
            }
        }
        Ok((place, index))
    }

    fn check_same_dtype(&self, op: &'static str, source: &Self) -> Result<()> {
        if source.dtype() == self.dtype() {
            return Ok(());
        }
        let expected = format!("the target is {}: convert with to_dtype() first", self.dtype());
        Err(TensorError::DType { op, found: source.dtype(), expected })
    }

    /// Returns a copy that is detached from the graph.
    pub(crate) fn copied_apart(&self) -> Result<Self> {
        self.detach().copy()
    }
}

/// Returns the formula for the gradients of the tensor before the write, and of the source.
fn scatter_formula(
    saver: &mut Saver,
    dim: isize,
    index: &Tensor,
    adds: bool,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + Send + Sync + use<>> {
    let index = saver.save_if(saver.needs(1) || !adds, index)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let to_before = context.give(0, || match adds {
            true => Ok(grad.clone()),
            false => grad.scatter(dim, &context.unpack(index)?, 0),
        })?;
        let to_source = context.give(1, || grad.gather(dim, &context.unpack(index)?))?;
        Ok([to_before, to_source].into_iter().collect())
    })
}

/// Returns the formula for the gradients of [`Tensor::put`].
fn put_formula(
    saver: &mut Saver,
    dims: &[usize],
    at: usize,
    positions: &Tensor,
    adds: bool,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + Send + Sync + use<>> {
    let positions = saver.save_if(saver.needs(1) || !adds, positions)?;
    let dims = Dims::from_slice(dims);
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let to_before = context.give(0, || {
            if adds {
                return Ok(grad.clone());
            }
            let zero = Tensor::zeros(&[], grad.dtype(), grad.device())?;
            grad.copied_apart()?.put_onto(&grad, "index_fill", &dims, at, &context.unpack(positions)?, &zero, false)
        })?;
        let to_values = context.give(1, || grad.picked("index_select", &dims, at, &context.unpack(positions)?))?;
        Ok([to_before, to_values].into_iter().collect())
    })
}
