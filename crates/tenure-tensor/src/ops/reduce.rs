//! Sums, means, products and other numbers that dimensions are reduced to.

use tenure_core::DType;

use super::view::signed;
use crate::autograd::{self, Context, attach};
use crate::cpu;
use crate::cpu::reduce::{Given, Reduce};
use crate::{Kernel, Result, Tensor, TensorError};

static SUM: Kernel<Reduce> = Kernel::new("sum", &cpu::reduce::SUM);
static MEAN: Kernel<Reduce> = Kernel::new("mean", &[cpu::reduce::MEAN]);
static PROD: Kernel<Reduce> = Kernel::new("prod", &cpu::reduce::PROD);
static LOGSUMEXP: Kernel<Given> = Kernel::new("logsumexp", &[cpu::reduce::LOGSUMEXP]);

impl Tensor {
    /// Sums over dimensions, all if there are none, which are left with size 1 if `keep`. Of integers and `bool` as
    /// `int64`.
    ///
    /// # Errors
    /// A dimension that is not there, or twice.
    pub fn sum(&self, dims: &[isize], keep: bool) -> Result<Self> {
        let dims = Reduced::new("sum", self, dims)?;
        let out = dims.run(&SUM, self, summed(self.dtype()))?;
        self.spread("sum", &dims, dims.finish(out, keep)?, Ok)
    }

    /// The sum of all elements.
    ///
    /// # Errors
    /// No memory.
    pub fn sum_all(&self) -> Result<Self> {
        self.sum(&[], false)
    }

    /// Sums over what was broadcast from `sizes`.
    ///
    /// # Errors
    /// `sizes` do not broadcast to these.
    pub fn sum_to(&self, sizes: &[usize]) -> Result<Self> {
        if sizes == self.sizes() {
            return Ok(self.clone());
        }
        let added = self.rank().checked_sub(sizes.len());
        let fits = |added: usize| sizes.iter().zip(&self.sizes()[added..]).all(|(to, from)| to == from || *to == 1);
        let Some(added) = added.filter(|added| fits(*added)) else {
            let reason = format!("sizes {sizes:?} do not broadcast to {:?}", self.sizes());
            return Err(TensorError::shape("sum_to", reason));
        };
        let is_kept = |dim: usize| dim >= added && sizes[dim - added] == self.sizes()[dim];
        let dims = Reduced::of(self, |dim| !is_kept(dim));
        let out = dims.run(&SUM, self, summed(self.dtype()))?;
        self.spread("sum_to", &dims, out.alias(out.layout().view(sizes)?), Ok)
    }

    /// Means over dimensions, as [`sum`](Self::sum) takes them.
    ///
    /// # Errors
    /// Those of [`sum`](Self::sum); an integer dtype.
    pub fn mean(&self, dims: &[isize], keep: bool) -> Result<Self> {
        floating("mean", self)?;
        let dims = Reduced::new("mean", self, dims)?;
        let out = dims.run(&MEAN, self, self.dtype())?;
        let count = dims.count(self) as f64;
        self.spread("mean", &dims, dims.finish(out, keep)?, move |grad| grad.div(count))
    }

    /// The mean of all elements.
    ///
    /// # Errors
    /// An integer dtype.
    pub fn mean_all(&self) -> Result<Self> {
        self.mean(&[], false)
    }

    /// How many elements are not zero, over dimensions as [`sum`](Self::sum) takes them, as `int64`.
    ///
    /// # Errors
    /// A dimension that is not there, or twice.
    pub fn count_nonzero(&self, dims: &[isize], keep: bool) -> Result<Self> {
        self.to_dtype(DType::Bool)?.sum(dims, keep)
    }

    /// A reduction, each element of which goes with the same weight to the output that it is part of.
    fn spread(
        &self,
        op: &'static str,
        dims: &Reduced,
        out: Self,
        scale: impl Fn(Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (kept, from) = (signed(&dims.sizes), signed(self.sizes()));
        attach(out, op, &[self], |_| {
            Ok(move |context: &Context<'_>| {
                let grad = scale(context.grad(0)?)?.reshape(&kept)?.expand(&from)?;
                Ok([Some(grad)].into_iter().collect())
            })
        })
    }
}

/// What dimensions are reduced.
pub(super) struct Reduced {
    /// The tensor's, with 1 for each reduced dimension.
    pub(super) sizes: Vec<usize>,
    is_reduced: Vec<bool>,
}

impl Reduced {
    /// `dims` of a tensor, or all if there are none.
    pub(super) fn new(op: &'static str, tensor: &Tensor, dims: &[isize]) -> Result<Self> {
        let mut is_reduced = vec![dims.is_empty(); tensor.rank()];
        for dim in dims {
            let found = tensor.dim(op, *dim)?;
            // A tensor of no dimension has a dimension 0 to name, but none to reduce.
            let Some(is_reduced) = is_reduced.get_mut(found) else { continue };
            if std::mem::replace(is_reduced, true) {
                return Err(TensorError::argument(op, format!("dimension {dim} is in {dims:?} twice")));
            }
        }
        Ok(Self::of(tensor, |dim| is_reduced[dim]))
    }

    fn of(tensor: &Tensor, is_reduced: impl Fn(usize) -> bool) -> Self {
        let is_reduced: Vec<bool> = (0..tensor.rank()).map(is_reduced).collect();
        let size = |(size, is_reduced): (&usize, &bool)| if *is_reduced { 1 } else { *size };
        let sizes = tensor.sizes().iter().zip(&is_reduced).map(size).collect();
        Self { sizes, is_reduced }
    }

    /// Elements that an output is made of.
    pub(super) fn count(&self, tensor: &Tensor) -> usize {
        tensor
            .sizes()
            .iter()
            .zip(&self.is_reduced)
            .filter(|(_, is_reduced)| **is_reduced)
            .map(|(size, _)| size)
            .product()
    }

    /// A fresh output.
    pub(super) fn output(&self, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        Tensor::empty(&self.sizes, dtype, tensor.device())
    }

    /// The output of a kernel.
    pub(super) fn run(&self, kernel: &'static Kernel<Reduce>, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        let out = self.output(tensor, dtype)?;
        kernel.find(tensor.device().kind(), tensor.dtype())?(&out, tensor)?;
        Ok(out)
    }

    /// The output, without the reduced dimensions unless they are kept.
    pub(super) fn finish(&self, out: Tensor, keep: bool) -> Result<Tensor> {
        if keep {
            return Ok(out);
        }
        let left = self.sizes.iter().zip(&self.is_reduced).filter(|(_, is_reduced)| !**is_reduced);
        let sizes: Vec<usize> = left.map(|(size, _)| *size).collect();
        Ok(out.alias(out.layout().view(&sizes)?))
    }
}

/// The dtype of sums.
fn summed(dtype: DType) -> DType {
    if dtype.is_floating() { dtype } else { DType::I64 }
}

pub(super) fn floating(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_floating() {
        return Ok(());
    }
    let expected = "a floating dtype is needed: convert first with to_dtype(DType::F32)".to_owned();
    Err(TensorError::DType { op, found: tensor.dtype(), expected })
}
