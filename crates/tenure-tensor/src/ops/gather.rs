//! Selection of elements by index tensors.

use smallvec::SmallVec;

use super::entered;
use super::view::signed;
use crate::autograd::{Context, attach, no_grad, recipe};
use crate::cpu;
use crate::cpu::gather::Gather;
use crate::cpu::join::Flip;
use crate::operation::operations;
use crate::{DType, Elementwise, Kernel, Layout, Result, Tensor, TensorError, cuda};

static FLIP: Kernel<Flip> = Kernel::new("flip", &[cpu::join::FLIP, cuda::join::FLIP]);
static GATHER: Kernel<Gather> = Kernel::new("gather", &[cpu::gather::GATHER, cuda::gather::GATHER]);

type Dims = SmallVec<[usize; 5]>;

operations! {
    static OPERATIONS;
    Method for all {
        /// Selects elements along `dim` by their index. In two dimensions and along the last, `out[i][j] =
        /// self[i][index[i][j]]`. The result has the sizes of `index`, which may be smaller than this tensor in the
        /// other dimensions.
        ///
        /// # Errors
        /// The numbers of dimensions differ; `index` has larger sizes; an index is out of range, or no integer.
        gather(input: Tensor, dim: Int, index: Tensor) -> Tensor;

        /// Selects elements as [`gather`](Self::gather) does, with `indices` and this tensor broadcast in dimensions of
        /// size 1. It takes the results of `argmax` and `argsort`.
        ///
        /// # Errors
        /// The errors of [`gather`](Self::gather).
        take_along_dim(input: Tensor, indices: Tensor, dim: Int) -> Tensor;

        /// Selects the entries of a dimension at the indices `index`, in the order of `index`.
        ///
        /// # Errors
        /// The dimension does not exist; the indices have more than one dimension, are out of range, or are no
        /// integers.
        index_select(input: Tensor, dim: Int, index: Tensor) -> Tensor;

        /// Selects elements by their flat index, which counts all elements with the last dimension fastest. The result
        /// has the sizes of the index. Negative indices count from the end.
        ///
        /// # Errors
        /// An index is out of range, or no integer.
        take(input: Tensor, index: Tensor) -> Tensor;

        /// Selects rows of this matrix by index. The result has the sizes of `indices`, and the rows as a new last
        /// dimension.
        ///
        /// # Errors
        /// This is no matrix; an index is out of range, or no integer.
        embedding(input: Tensor, indices: Tensor) -> Tensor;

        /// Selects rows as [`embedding`](Self::embedding) does, but row `padding_idx` gets no gradient.
        ///
        /// # Errors
        /// The errors of [`embedding`](Self::embedding); there is no row `padding_idx`.
        #[name(embedding)]
        embedding_padded(input: Tensor, indices: Tensor, padding_idx: Size) -> Tensor;

        /// Returns for each element a vector of `num_classes` numbers, 1 at the element and 0 elsewhere, as `int64`.
        ///
        /// # Errors
        /// An element is not below `num_classes`, is negative, or is no integer.
        one_hot(input: Tensor, num_classes: Size) -> Tensor;

        /// Reverses the order of elements along dimensions.
        ///
        /// # Errors
        /// A dimension does not exist.
        flip(input: Tensor, dims: Ints) -> Tensor;
    }
}

fn gather(input: &Tensor, dim: isize, index: &Tensor) -> Result<Tensor> {
    if input.rank() == 0 {
        return input.view(&[1])?.gather(dim, &index.reshape(&[-1])?)?.view_as(index);
    }
    let index = index.as_index("gather")?;
    let place = input.index_dim("gather", dim, &index)?;
    let mut strides = Dims::from_slice(input.strides());
    strides[place] = 0;
    let base = Layout::strided(index.sizes(), &strides, input.layout().offset())?;
    let out = input.read("gather", &index, &base, &[place])?;
    recipe::note(&out, "gather", [input, &index], [], || move |[x, index], []| x.gather(dim, index));
    attach(out, "gather", &[input], |saver| {
        let index = saver.save(&index)?;
        let from = input.sizes().to_vec();
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let zeros = Tensor::zeros(&from, grad.dtype(), grad.device())?;
            let grad = zeros.scattered("scatter_add", dim, &context.unpack(index)?, &grad, true)?;
            Ok([Some(grad)].into_iter().collect())
        })
    })
}

fn take_along_dim(input: &Tensor, index: &Tensor, dim: isize) -> Result<Tensor> {
    let place = input.existing_dim("take_along_dim", dim)?;
    if input.rank() != index.rank() {
        let reason = format!("an index of sizes {:?} is not one for sizes {:?}", index.sizes(), input.sizes());
        return Err(TensorError::shape("take_along_dim", reason));
    }
    let mut own = signed(input.sizes());
    let mut others = signed(index.sizes());
    for dim in (0..input.rank()).filter(|dim| *dim != place) {
        let size = if own[dim] == 1 { others[dim] } else { own[dim] };
        (own[dim], others[dim]) = (size, size);
    }
    input.expand(&own)?.gather(dim, &index.expand(&others)?)
}

fn index_select(input: &Tensor, dim: isize, index: &Tensor) -> Result<Tensor> {
    let place = input.existing_dim("index_select", dim)?;
    input.picked("index_select", &[place], place, &index.as_vector("index_select")?)
}

fn take(input: &Tensor, index: &Tensor) -> Result<Tensor> {
    let dims: Dims = (0..input.rank()).collect();
    input.picked("take", &dims, 0, &index.counted("take", input.numel())?)
}

fn embedding(input: &Tensor, indices: &Tensor) -> Result<Tensor> {
    input.embedded(indices, None)
}

fn embedding_padded(input: &Tensor, indices: &Tensor, padding: usize) -> Result<Tensor> {
    input.embedded(indices, Some(padding))
}

fn one_hot(input: &Tensor, classes: usize) -> Result<Tensor> {
    let index = input.as_index("one_hot")?.unsqueeze(-1)?;
    let sizes: Vec<usize> = input.sizes().iter().copied().chain([classes]).collect();
    let ones = Tensor::ones(&[], DType::I64, input.device())?.expand(&signed(index.sizes()))?;
    Tensor::zeros(&sizes, DType::I64, input.device())?.scattered("one_hot", -1, &index, &ones, false)
}

fn flip(input: &Tensor, dims: &[isize]) -> Result<Tensor> {
    let mut flipped = input.copy_if(dims.is_empty() || input.rank() == 0)?;
    for dim in dims {
        let place = input.dim("flip", *dim)?;
        if input.rank() > 0 {
            flipped = flipped.reversed(place)?;
        }
    }
    Ok(flipped)
}

impl Tensor {
    fn embedded(&self, indices: &Self, padding: Option<usize>) -> Result<Self> {
        let _op = entered("embedding");
        let [rows, _] = self.sizes()[..] else {
            let reason = format!("a matrix with a row for each index is needed, got sizes {:?}", self.sizes());
            return Err(TensorError::shape("embedding", reason));
        };
        if let Some(padding) = padding.filter(|padding| *padding >= rows) {
            return Err(TensorError::Index { op: "embedding", index: padding as i64, dim: 0, size: rows });
        }
        let indices = indices.as_index("embedding")?;
        attach(self.pick("embedding", &[0], 0, &indices)?, "embedding", &[self], |saver| {
            let indices = saver.save(&indices)?;
            let sizes = self.sizes().to_vec();
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let zeros = Self::zeros(&sizes, grad.dtype(), grad.device())?;
                let table = zeros.put("embedding", &[0], 0, &context.unpack(indices)?, &grad, true)?;
                if let Some(padding) = padding {
                    table.narrow(0, padding, 1)?.fill_(0)?;
                }
                Ok([Some(table)].into_iter().collect())
            })
        })
    }

    fn reversed(&self, dim: usize) -> Result<Self> {
        let input = no_grad(|| self.contiguous())?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        FLIP.find(self.device().kind(), self.dtype())?(&out, &input, dim)?;
        attach(out, "flip", &[self], |_| {
            Ok(move |context: &Context<'_>| Ok([Some(context.grad(0)?.reversed(dim)?)].into_iter().collect()))
        })
    }

    /// Selects the entries at `positions` of the dimensions `dims`: flat indices, with the last of `dims` fastest. The
    /// dimensions of `positions` are inserted at place `at` among the other dimensions.
    pub(crate) fn picked(&self, op: &'static str, dims: &[usize], at: usize, positions: &Self) -> Result<Self> {
        let _op = entered(op);
        attach(self.pick(op, dims, at, positions)?, op, &[self], |saver| {
            let positions = saver.save(positions)?;
            let sizes = self.sizes().to_vec();
            let dims = Dims::from_slice(dims);
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let zeros = Self::zeros(&sizes, grad.dtype(), grad.device())?;
                let positions = context.unpack(positions)?;
                Ok([Some(zeros.put("index_add", &dims, at, &positions, &grad, true)?)].into_iter().collect())
            })
        })
    }

    /// Selects as [`picked`](Self::picked) does, without a gradient.
    fn pick(&self, op: &'static str, dims: &[usize], at: usize, positions: &Self) -> Result<Self> {
        let mut sizes = Dims::new();
        let mut base = Dims::new();
        let mut index = Dims::new();
        for dim in (0..self.rank()).filter(|dim| !dims.contains(dim)) {
            sizes.push(self.sizes()[dim]);
            base.push(self.strides()[dim]);
            index.push(0);
        }
        sizes.insert_from_slice(at, positions.sizes());
        base.insert_many(at, std::iter::repeat_n(0, positions.rank()));
        index.insert_from_slice(at, positions.strides());
        let base = Layout::strided(&sizes, &base, self.layout().offset())?;
        let index = positions.alias(Layout::strided(&sizes, &index, positions.layout().offset())?);
        let out = self.read(op, &index, &base, dims)?;
        recipe::note(&out, op, [self, positions], [], || {
            let dims = Dims::from_slice(dims);
            move |[x, positions], []| x.pick(op, &dims, at, positions)
        });
        Ok(out)
    }

    /// Returns a fresh tensor of the elements at `index` along `dims`; `base` is the layout of the elements at index 0.
    fn read(&self, op: &'static str, index: &Self, base: &Layout, dims: &[usize]) -> Result<Self> {
        let _op = entered(op);
        let out = Self::empty(index.sizes(), self.dtype(), self.device())?;
        if out.numel() == 0 {
            return Ok(out);
        }
        if let Some(dim) = dims.iter().find(|dim| self.sizes()[**dim] == 0) {
            let reason = format!("there is nothing at any index of dimension {dim} of sizes {:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        let base = self.alias(base.clone());
        let iter = Elementwise::new(op, &[&out], &[index, &base])?;
        GATHER.find(self.device().kind(), self.dtype())?(&iter, self, dims)?;
        drop(iter);
        Ok(out)
    }

    /// Converts indices to `int64`, and fails for floats and `bool`.
    pub(crate) fn as_index(&self, op: &'static str) -> Result<Self> {
        if self.dtype().is_floating() || self.dtype() == DType::Bool {
            let expected = "an index is of integers: convert with to_dtype(DType::I64)".to_owned();
            return Err(TensorError::DType { op, found: self.dtype(), expected });
        }
        // Indices past the end must not become negative ones, which count from the end.
        let clamped = if self.dtype() == DType::U64 { self.clamp_max(i64::MAX)? } else { self.clone() };
        clamped.to_dtype(DType::I64)
    }

    /// Converts indices of one dimension to `int64`.
    pub(crate) fn as_vector(&self, op: &'static str) -> Result<Self> {
        if self.rank() > 1 {
            let reason = format!("indices of one dimension are needed, got sizes {:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        self.as_index(op)?.reshape(&[-1])
    }

    /// Returns the index of `dim`, after checking that `index` has as many dimensions as this tensor, and is no larger
    /// in the other dimensions.
    pub(crate) fn index_dim(&self, op: &'static str, dim: isize, index: &Self) -> Result<usize> {
        let place = self.dim(op, dim)?;
        if self.rank() == index.rank()
            && (0..self.rank()).all(|other| other == place || index.sizes()[other] <= self.sizes()[other])
        {
            return Ok(place);
        }
        let reason = format!(
            "an index of sizes {:?} does not fit sizes {:?}: it has as many dimensions, and but for dimension {place} is \
             no larger",
            index.sizes(),
            self.sizes()
        );
        Err(TensorError::shape(op, reason))
    }

    fn copy_if(&self, is_needed: bool) -> Result<Self> {
        if is_needed { self.copy() } else { Ok(self.clone()) }
    }
}
