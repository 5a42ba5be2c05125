//! Copies: to other dtypes, devices and layouts.

use tenure_core::{DType, Device, Layout, MemoryFormat};

use super::entered;
use crate::autograd::{Context, attach, no_grad, recipe};
use crate::cpu::copy::Copy;
use crate::operation::operations;
use crate::tensor::create::dense_like;
use crate::transfer;
use crate::{Elementwise, Kernel, Result, Tensor, TensorError, cpu, cuda};

static COPY: Kernel<Copy> = Kernel::new("copy", &[cpu::copy::COPY, cuda::copy::COPY]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Converts the values to `dtype`; returns the tensor itself if it has that dtype. Floats are truncated to
        /// integers, and integers wrap.
        ///
        /// # Errors
        /// No memory.
        #[name(to)]
        to_dtype(input: Tensor, dtype: DType) -> Tensor;

        /// Copies the values to `device`; returns the tensor itself if it is there. A copy from or to pageable host
        /// memory waits until it is done. A copy between devices does not wait; it is ordered by the thread's current
        /// streams of both.
        ///
        /// # Errors
        /// No memory; the device cannot be used, or an earlier operation on it failed.
        #[name(to)]
        to_device(input: Tensor, device: Device) -> Tensor;

        /// Returns the values in contiguous memory, last dimension fastest; the tensor itself if its memory is so
        /// already.
        ///
        /// # Errors
        /// No memory.
        contiguous(input: Tensor) -> Tensor;

        /// Copies the values to a new storage, in the same memory order. PyTorch's `clone`: here `clone` copies the
        /// handle.
        ///
        /// # Errors
        /// No memory.
        #[name(clone)]
        copy(input: Tensor) -> Tensor;
    }
    Method for front_ends {
        /// Returns the values in the memory order of `memory_format`: `contiguous_format`, `channels_last` or
        /// `channels_last_3d`. It is the tensor itself if its memory is so already: [`Tensor::contiguous_in`].
        ///
        /// # Errors
        /// Another format, or one for another number of dimensions; no memory.
        #[name(contiguous)]
        contiguous_in_format(input: Tensor, memory_format: Text) -> Tensor = |input: &Tensor, format| {
            input.contiguous_in(format_named(format)?)
        };

        /// Copies the values to a new storage, in the memory order of `memory_format`.
        ///
        /// # Errors
        /// Another format than those of `contiguous`, or one for another number of dimensions; no memory.
        #[name(clone)]
        copy_in_format(input: Tensor, memory_format: Text) -> Tensor = |input: &Tensor, format| {
            input.copied("copy", Layout::with_format(input.sizes(), format_named(format)?)?, input.dtype())
        };
    }
}

fn format_named(name: &str) -> Result<MemoryFormat> {
    MemoryFormat::named(name).ok_or_else(|| {
        let reason = format!("must be contiguous_format, channels_last or channels_last_3d, got {name:?}");
        TensorError::argument("memory_format", reason)
    })
}

fn to_dtype(input: &Tensor, dtype: DType) -> Result<Tensor> {
    if dtype == input.dtype() {
        return Ok(input.clone());
    }
    input.copied("to_dtype", dense_like(input.sizes(), Some(input.layout()))?, dtype)
}

fn to_device(input: &Tensor, device: Device) -> Result<Tensor> {
    if device == input.device() {
        return Ok(input.clone());
    }
    let out = no_grad(|| transfer::to_device(input, device))?;
    let back = input.device();
    attach(out, "to_device", &[input], move |_| {
        Ok(move |context: &Context<'_>| Ok([Some(context.grad(0)?.to_device(back)?)].into_iter().collect()))
    })
}

fn contiguous(input: &Tensor) -> Result<Tensor> {
    input.contiguous_in(MemoryFormat::Contiguous)
}

fn copy(input: &Tensor) -> Result<Tensor> {
    input.copied("copy", dense_like(input.sizes(), Some(input.layout()))?, input.dtype())
}

impl Tensor {
    /// Returns the values in the memory order of `format`; the tensor itself if it is so already.
    ///
    /// # Errors
    /// The format is for another number of dimensions; no memory.
    pub fn contiguous_in(&self, format: MemoryFormat) -> Result<Self> {
        if self.layout().is_contiguous_in(format) {
            return Ok(self.clone());
        }
        self.copied("contiguous", Layout::with_format(self.sizes(), format)?, self.dtype())
    }

    /// Copies the values to a storage of their own with this layout.
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

    /// Writes the values of another tensor, broadcast and converted. It bumps no version and records no gradient.
    pub(crate) fn copy_raw(&self, source: &Self) -> Result<()> {
        let iter = Elementwise::new("copy", &[self], &[source])?;
        COPY.find(self.device().kind(), self.dtype())?(&iter)
    }
}
