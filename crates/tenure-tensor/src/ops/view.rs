//! Views: other layouts of the same storage. No value is copied, and what is written to one shows in the others.

use tenure_core::{Layout, Reshape};

use crate::autograd::{Context, attach};
use crate::{Result, Tensor};

impl Tensor {
    /// The same elements, in the same order, in other sizes. One size may be -1: what is left.
    ///
    /// # Errors
    /// Sizes of another number of elements, or that would need a copy: see [`reshape`](Self::reshape).
    pub fn view(&self, sizes: &[isize]) -> Result<Self> {
        let sizes = self.resolve("view", sizes)?;
        self.viewed("view", self.layout().view(&sizes)?, |grad, from| grad.reshape(&signed(from)))
    }

    /// The same as [`view`](Self::view), copied if it has to be.
    ///
    /// # Errors
    /// Sizes of another number of elements.
    pub fn reshape(&self, sizes: &[isize]) -> Result<Self> {
        let resolved = self.resolve("reshape", sizes)?;
        match self.layout().reshape(&resolved)? {
            Reshape::View(_) => self.view(sizes),
            Reshape::Copy(_) => self.contiguous()?.view(sizes),
        }
    }

    /// Dimensions of size 1, and new ones in front, repeated without a copy; -1 keeps a size.
    ///
    /// # Errors
    /// A size that is neither 1 nor the same.
    pub fn expand(&self, sizes: &[isize]) -> Result<Self> {
        let added = sizes.len().saturating_sub(self.rank());
        let keep = |(dim, size): (usize, &isize)| match usize::try_from(*size) {
            Ok(size) => size,
            Err(_) => dim.checked_sub(added).map_or(1, |own| self.sizes()[own]),
        };
        let sizes: Vec<usize> = sizes.iter().enumerate().map(keep).collect();
        self.viewed("expand", self.layout().expand(&sizes)?, |grad, from| grad.sum_to(from))
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let (from, to) = (self.dim("transpose", a)?, self.dim("transpose", b)?);
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        self.viewed("transpose", self.layout().transpose(from, to)?, move |grad, _| grad.transpose(a, b))
    }

    /// A view, whose gradient `back` brings to these sizes.
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

    /// Sizes with -1 replaced.
    fn resolve(&self, op: &'static str, sizes: &[isize]) -> Result<Vec<usize>> {
        let known: usize = sizes.iter().filter(|size| **size >= 0).map(|size| *size as usize).product();
        let unknown = sizes.iter().filter(|size| **size < 0).count();
        if unknown > 1 || sizes.iter().any(|size| *size < -1) {
            let reason = format!("sizes {sizes:?} may have one -1 and no other negative number");
            return Err(crate::TensorError::shape(op, reason));
        }
        if unknown == 1 && (known == 0 || !self.numel().is_multiple_of(known)) {
            let reason =
                format!("sizes {sizes:?} do not divide the {} elements of sizes {:?}", self.numel(), self.sizes());
            return Err(crate::TensorError::shape(op, reason));
        }
        Ok(sizes.iter().map(|size| usize::try_from(*size).unwrap_or_else(|_| self.numel() / known)).collect())
    }
}

/// Sizes as they are given to [`Tensor::view`].
pub(crate) fn signed(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|size| *size as isize).collect()
}
