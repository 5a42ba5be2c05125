//! Matrix products in half the bits.
//!
//! While an [`Autocast`] lives, operations of its thread choose the dtype that they compute in, as PyTorch's do on CUDA, and as those
//! that its lists for the CPU name alone (`binary_cross_entropy`, `index_copy`) do there:
//!
//! | operations | compute in |
//! | --- | --- |
//! | matrix products, linear layers, convolutions, attention, `einsum` | the lower dtype |
//! | softmax and its relatives, `layer_norm`, `group_norm`, `rms_norm`, losses, sums, products and norms over dimensions, `exp`, `log`, `tan`, `pow`, `reciprocal`, `rsqrt`, `softplus` and their like | `float32` |
//! | `dot`, `cat`, `stack`, `scatter_add`, `index_copy`, `index_put`, `addcmul`, `addcdiv`, `atan2` | the widest of them |
//! | all others | what they are given |
//!
//! `float64` and integers stay as they are. Gradients go through the conversions, so that a parameter's is of its own
//! dtype. [`backward`](crate::autograd::backward) computes each gradient in the dtype of its operation, inside or outside.
//!
//! An operation of the first row calls [`lower`] for each tensor, of the second [`raise`], of the third [`widest`], unless it promotes
//! its operands anyway.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

use tenure_core::{DType, Generation};

use crate::autograd::is_grad_enabled;
use crate::scopes::Scopes;
use crate::{Result, Tensor};

/// Chooses dtypes while it lives, on its thread: the latest that is alive does. PyTorch's `torch.autocast`.
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

/// Parameters that were converted, by storage, lower dtype and whether it was differentiated.
type Parameters = HashMap<(Generation, DType, bool), Converted>;

#[derive(Clone)]
struct Converted {
    parameter: Tensor,
    version: u64,
    result: Tensor,
}

thread_local! {
    static DTYPES: Scopes<Option<DType>> = const { Scopes::new() };
    /// They go with the last guard.
    static PARAMETERS: RefCell<Parameters> = RefCell::default();
}

impl Autocast {
    /// Begins, with `float16` or `bfloat16` as the lower dtype; none leaves all dtypes as they are.
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

/// Parameters that this thread had converted: they come back when this is dropped, in place of those converted since.
pub(crate) struct Aside(Parameters);

impl Aside {
    /// Puts them aside.
    pub(crate) fn put() -> Self {
        Self(PARAMETERS.take())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(PARAMETERS.try_with(|parameters| parameters.replace(std::mem::take(&mut self.0))));
    }
}

/// The lower dtype, if this thread has one.
pub fn dtype() -> Option<DType> {
    Scopes::latest(&DTYPES).flatten()
}

/// A tensor in the lower dtype: itself outside of autocast, or if it is not of 16 or 32 bits with a fraction. A parameter
/// is converted once for all uses.
///
/// # Errors
/// No memory.
pub fn lower(tensor: &Tensor) -> Result<Tensor> {
    let Some(dtype) = dtype().filter(|dtype| is_eligible(tensor) && tensor.dtype() != *dtype) else {
        return Ok(tensor.clone());
    };
    if !(tensor.is_leaf() && tensor.requires_grad() && tensor.dtype() == DType::F32) {
        return tensor.to_dtype(dtype);
    }
    let (key, version) = ((tensor.storage().generation(), dtype, is_grad_enabled()), tensor.version());
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

/// Whether [`raise`] changes one of these.
pub fn raises(tensors: &[&Tensor]) -> bool {
    let is_lower = |tensor: &&Tensor| is_eligible(tensor) && tensor.dtype() != DType::F32;
    dtype().is_some() && tensors.iter().any(is_lower)
}

/// A tensor in `float32`: itself outside of autocast, or if it is not of 16 bits with a fraction.
///
/// # Errors
/// No memory.
pub fn raise(tensor: &Tensor) -> Result<Tensor> {
    if raises(&[tensor]) { tensor.to_dtype(DType::F32) } else { Ok(tensor.clone()) }
}

/// Tensors in the widest dtype of them: themselves outside of autocast.
///
/// # Errors
/// No memory.
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
