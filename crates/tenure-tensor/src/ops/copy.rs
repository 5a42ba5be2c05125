//! The same values elsewhere, or as another dtype.

use tenure_core::{DType, Device, Layout, MemoryFormat};

use super::entered;
use super::pointwise::dense_like;
use crate::autograd::{Context, attach, no_grad, recipe};
use crate::cpu::copy::Copy;
use crate::transfer;
use crate::{Elementwise, Kernel, Result, Tensor, cpu, cuda};

static COPY: Kernel<Copy> = Kernel::new("copy", &[cpu::copy::COPY, cuda::copy::COPY]);

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

    /// The same values on `device`: itself, if it is there. From and to pageable memory of the host it waits until the
    /// copy is done; from one device to another it does not, and the copy is in the order of the thread's streams of both.
    ///
    /// # Errors
    /// No memory; the device cannot be used, or met something in an operation before.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        if device == self.device() {
            return Ok(self.clone());
        }
        let out = no_grad(|| transfer::to_device(self, device))?;
        let back = self.device();
        attach(out, "to_device", &[self], move |_| {
            Ok(move |context: &Context<'_>| Ok([Some(context.grad(0)?.to_device(back)?)].into_iter().collect()))
        })
    }

    /// The same values in the order of dimensions: itself, if they are.
    ///
    /// # Errors
    /// No memory.
    pub fn contiguous(&self) -> Result<Self> {
        self.contiguous_in(MemoryFormat::Contiguous)
    }

    /// The same values in the order of `format`: itself, if they are.
    ///
    /// # Errors
    /// The format is for another number of dimensions; no memory.
    pub fn contiguous_in(&self, format: MemoryFormat) -> Result<Self> {
        if self.layout().is_contiguous_in(format) {
            return Ok(self.clone());
        }
        self.copied("contiguous", Layout::with_format(self.sizes(), format)?, self.dtype())
    }

    /// The same values on a storage of their own, in the same order in memory. PyTorch's `clone`, whose name is the
    /// handle's here.
    ///
    /// # Errors
    /// No memory.
    pub fn copy(&self) -> Result<Self> {
        self.copied("copy", dense_like(self.sizes(), Some(self.layout()))?, self.dtype())
    }

    /// The same values on a storage of their own, so laid out.
    pub(crate) fn copied(&self, op: &'static str, layout: Layout, dtype: DType) -> Result<Self> {
        let _op = entered(op);
        let out = Self::empty_strided(layout, dtype, self.device())?;
        out.copy_raw(self)?;
        recipe::note(&out, op, [self], [], || {
            let layout = out.layout().clone();
            move |[x], []| x.copied(op, layout.clone(), dtype)
        });
        attach(out, op, &[self], |_| Ok(|context: &Context<'_>| Ok([Some(context.grad(0)?)].into_iter().collect())))
    }

    /// Writes the values of another tensor, broadcast and converted; nobody is told.
    pub(crate) fn copy_raw(&self, source: &Self) -> Result<()> {
        let iter = Elementwise::new("copy", &[self], &[source])?;
        COPY.find(self.device().kind(), self.dtype())?(&iter)
    }
}
