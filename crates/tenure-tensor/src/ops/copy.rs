//! The same values elsewhere, or as another dtype.

use tenure_core::{DType, Layout};

use super::pointwise::dense_like;
use crate::autograd::{Context, attach};
use crate::cpu;
use crate::cpu::copy::Copy;
use crate::{Elementwise, Kernel, Result, Tensor};

static COPY: Kernel<Copy> = Kernel::new("copy", &[cpu::copy::COPY]);

impl Tensor {
    /// The same values as `dtype`: itself, if that is its own. Integers are cut off and wrap.
    ///
    /// # Errors
    /// No memory.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        self.copied("to_dtype", dense_like(self.sizes(), Some(self.layout()))?, dtype)
    }

    /// The same values in the order of dimensions: itself, if they are.
    ///
    /// # Errors
    /// No memory.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        self.copied("contiguous", Layout::contiguous(self.sizes())?, self.dtype())
    }

    /// The same values on a storage of their own, in the same order in memory. PyTorch's `clone`.
    ///
    /// # Errors
    /// No memory.
    pub fn copy(&self) -> Result<Self> {
        self.copied("copy", dense_like(self.sizes(), Some(self.layout()))?, self.dtype())
    }

    /// The same values on a storage of their own, so laid out.
    pub(crate) fn copied(&self, op: &'static str, layout: Layout, dtype: DType) -> Result<Self> {
        let out = Self::empty_strided(layout, dtype, self.device())?;
        out.copy_raw(self)?;
        attach(out, op, &[self], |_| Ok(|context: &Context<'_>| Ok([Some(context.grad(0)?)].into_iter().collect())))
    }

    /// Writes the values of another tensor, broadcast and converted; nobody is told.
    pub(crate) fn copy_raw(&self, source: &Self) -> Result<()> {
        let iter = Elementwise::new("copy", &[self], &[source])?;
        COPY.find(self.device().kind(), self.dtype())?(&iter)
    }
}
