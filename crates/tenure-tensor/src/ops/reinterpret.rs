//! Views of the same bytes as elements of another dtype.

use smallvec::SmallVec;
use tenure_core::{DType, Layout};

use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

const OP: &str = "view";

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns a view of the same bytes as elements of another dtype. If these have another size, the last
        /// dimension, which must be dense, gets more or fewer elements. The view has no gradient.
        ///
        /// # Errors
        /// `bool` of another dtype, whose bytes may be no truth values; a last dimension that is not dense, or whose
        /// bytes are no whole elements; strides, an offset or an address between two elements.
        #[name(view)]
        view_dtype(input: Tensor, dtype: DType) -> Tensor;
    }
}

fn view_dtype(input: &Tensor, dtype: DType) -> Result<Tensor> {
    let from = input.dtype();
    if dtype == DType::Bool && from != DType::Bool {
        let expected = "a view as bool needs bool: compare with ne(0)".to_owned();
        return Err(TensorError::DType { op: OP, found: from, expected });
    }
    let address = input.storage().lock().as_ptr().addr();
    if !address.is_multiple_of(dtype.size()) {
        let reason = format!("the memory at {address:#x} is not aligned for {dtype}: clone() the tensor first");
        return Err(TensorError::argument(OP, reason));
    }
    let layout = if from.size() == dtype.size() {
        input.layout().clone()
    } else {
        resized(input.layout(), from.size(), dtype.size()).ok_or_else(|| {
            let reason = format!(
                "{from} of sizes {:?}, strides {:?} and offset {} do not make whole elements of {dtype}, one after the other \
                 in the last dimension: use contiguous(), or slices of whole elements",
                input.sizes(),
                input.strides(),
                input.layout().offset()
            );
            TensorError::shape(OP, reason)
        })?
    };
    Ok(input.alias_as(layout, dtype))
}

/// Returns the layout of the same bytes in elements of `to` bytes rather than `from`.
fn resized(layout: &Layout, from: usize, to: usize) -> Option<Layout> {
    let converted = |count: usize| {
        let bytes = count.checked_mul(from)?;
        bytes.is_multiple_of(to).then_some(bytes / to)
    };
    let mut sizes: SmallVec<[usize; 6]> = layout.sizes().into();
    let last = sizes.last_mut()?;
    let (1, rest) = layout.strides().split_last().map(|(last, rest)| (*last, rest))? else { return None };
    *last = converted(*last)?;
    let mut strides = rest.iter().map(|stride| converted(*stride)).collect::<Option<SmallVec<[usize; 6]>>>()?;
    strides.push(1);
    Layout::strided(&sizes, &strides, converted(layout.offset())?).ok()
}
