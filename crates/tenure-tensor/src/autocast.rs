//! Automatic mixed precision: matrix products computed in 16-bit floats.
//!
//! While an [`Autocast`] lives, the operations of its thread choose the dtype that they compute in. The choice is that
//! of PyTorch on CUDA; operations that only PyTorch's CPU lists name (`binary_cross_entropy`, `index_copy`) follow
//! those lists:
//!
//! | operations | compute in |
//! | --- | --- |
//! | matrix products, linear layers, convolutions, attention, `einsum` | the lower dtype |
//! | softmax and its relatives, `layer_norm`, `group_norm`, `rms_norm`, losses, sums, products and norms over dimensions, `exp`, `log`, `tan`, `pow`, `reciprocal`, `rsqrt`, `softplus` and their like | `float32` |
//! | `dot`, `cat`, `stack`, `scatter_add`, `index_copy`, `index_put`, `addcmul`, `addcdiv`, `atan2` | the widest dtype
//! of the operands |
//! | all others | the dtype of the operands |
//!
//! `float64` and integers are not converted. Gradients go back through the conversions, so a parameter's gradient has
//! the parameter's dtype. [`backward`](crate::autograd::backward) computes each gradient in the dtype of its operation,
//! whether or not an [`Autocast`] lives then.
//!
//! An operation of the first row calls [`lower`] for each tensor, one of the second [`raise`], one of the third
//! [`widest`], unless it promotes its operands anyway.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

use tenure_core::{DType, Generation};

use crate::autograd::is_grad_enabled;
use crate::scopes::Scopes;
use crate::{Result, Tensor};

/// A guard that turns autocast on for its thread while it lives, like PyTorch's `torch.autocast`. If several live, the
/// one entered last decides.
///
/// ```
/// use tenure_tensor::autocast::Autocast;
/// use tenure_tensor::{DType, Device, Tensor};
///
/// let x = Tensor::ones(&[2, 2], DType::F32, Device::CPU)?;
/// let _autocast = Autocast::enter(DType::BF16);
/// assert_eq!(x.matmul(&x)?.dtype(), DType::BF16);
/// assert_eq!(x.add(&x)?.dtype(), DType::F32);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
#[must_use = "it holds for as long as it lives"]
pub struct Autocast {
    scope: u64,
    thread: PhantomData<*const ()>,
}

/// Converted parameters, by storage, lower dtype and whether the conversion was differentiated.
type Parameters = HashMap<(Generation, DType, bool), Converted>;

#[derive(Clone)]
struct Converted {
    parameter: Tensor,
    version: u64,
    result: Tensor,
}

thread_local! {
    static DTYPES: Scopes<Option<DType>> = const { Scopes::new() };
    /// Cleared when the last guard is dropped.
    static PARAMETERS: RefCell<Parameters> = RefCell::default();
}

impl Autocast {
    /// Turns autocast on, with `float16` or `bfloat16` as the lower dtype; `None` leaves all dtypes as they are.
    pub fn enter(dtype: impl Into<Option<DType>>) -> Self {
        Self { scope: Scopes::enter(&DTYPES, dtype.into()), thread: PhantomData }
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        Scopes::leave(&DTYPES, self.scope);
        if Scopes::latest(&DTYPES).is_none() {
            drop(PARAMETERS.try_with(RefCell::take));
        }
    }
}

/// The parameters that this thread had converted, put aside. Dropping this restores them in place of those converted
/// since.
pub(crate) struct Aside(Parameters);

impl Aside {
    /// Takes this thread's converted parameters and leaves none.
    pub(crate) fn put() -> Self {
        Self(PARAMETERS.take())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(PARAMETERS.try_with(|parameters| parameters.replace(std::mem::take(&mut self.0))));
    }
}

/// Returns this thread's lower dtype, or `None` outside of autocast.
pub fn dtype() -> Option<DType> {
    Scopes::latest(&DTYPES).flatten()
}

/// Converts a tensor to the lower dtype. Returns the tensor itself outside of autocast, or if it is not a float of 16
/// or 32 bits. A parameter is converted once for all uses.
///
/// # Errors
/// Out of memory.
pub fn lower(tensor: &Tensor) -> Result<Tensor> {
    let Some(dtype) = dtype().filter(|dtype| is_eligible(tensor) && tensor.dtype() != *dtype) else {
        return Ok(tensor.clone());
    };
    if !(tensor.is_leaf() && tensor.requires_grad() && tensor.dtype() == DType::F32) {
        return tensor.to_dtype(dtype);
    }
    let key = (tensor.storage().generation(), dtype, is_grad_enabled());
    let version = tensor.version();
    let known = PARAMETERS.with_borrow(|parameters| parameters.get(&key).cloned());
    if let Some(known) = known.filter(|known| known.parameter.is_same(tensor) && known.version == version) {
        return Ok(known.result);
    }
    let result = tensor.to_dtype(dtype)?;
    let converted = Converted { parameter: tensor.clone(), version, result: result.clone() };
    let replaced = PARAMETERS.with_borrow_mut(|parameters| parameters.insert(key, converted));
    drop(replaced);
    Ok(result)
}

/// Returns whether [`raise`] would convert any of these tensors.
pub fn raises(tensors: &[&Tensor]) -> bool {
    dtype().is_some() && tensors.iter().any(|tensor| is_eligible(tensor) && tensor.dtype() != DType::F32)
}

/// Converts a 16-bit float tensor to `float32`. Returns other tensors, and all tensors outside of autocast, as they
/// are.
///
/// # Errors
/// Out of memory.
pub fn raise(tensor: &Tensor) -> Result<Tensor> {
    if raises(&[tensor]) { tensor.to_dtype(DType::F32) } else { Ok(tensor.clone()) }
}

/// Converts tensors to the widest dtype among them. Returns them as they are outside of autocast.
///
/// # Errors
/// Out of memory.
pub fn widest<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let is_wide = tensors.iter().any(|tensor| tensor.dtype() == DType::F32);
    let mut widened = tensors.map(Tensor::clone);
    if is_wide {
        for tensor in &mut widened {
            *tensor = raise(tensor)?;
        }
    }
    Ok(widened)
}

fn is_eligible(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F16 | DType::BF16 | DType::F32)
}
