//! Convolutions whose padding is a word: `valid` or `same`.

use super::conv::{Conv, check_dims};
use super::pad::PadMode;
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    front_ends {
        /// Convolves images of one dimension without padding if it is `valid`, and with as much as keeps the sizes if it is
        /// `same`.
        ///
        /// # Errors
        /// The errors of [`Tensor::conv`]; another word; `same` with a stride.
        #[name(conv1d)]
        conv1d_padded(
            input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = [1], padding: Text = "valid",
            dilation: Sizes = [1], groups: Size = 1
        ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, dilation, groups| {
            check_dims("conv1d", 1, weight)?;
            padded(input, weight, bias, padding, &Conv { stride, padding: &[0], dilation, groups })
        };

        /// Convolves images of two dimensions without padding if it is `valid`, and with as much as keeps the sizes if it is
        /// `same`.
        ///
        /// # Errors
        /// The errors of [`Tensor::conv`]; another word; `same` with a stride.
        #[name(conv2d)]
        conv2d_padded(
            input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = [1], padding: Text = "valid",
            dilation: Sizes = [1], groups: Size = 1
        ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, dilation, groups| {
            check_dims("conv2d", 2, weight)?;
            padded(input, weight, bias, padding, &Conv { stride, padding: &[0], dilation, groups })
        };

        /// Convolves images of three dimensions without padding if it is `valid`, and with as much as keeps the sizes if it is
        /// `same`.
        ///
        /// # Errors
        /// The errors of [`Tensor::conv`]; another word; `same` with a stride.
        #[name(conv3d)]
        conv3d_padded(
            input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = [1], padding: Text = "valid",
            dilation: Sizes = [1], groups: Size = 1
        ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, dilation, groups| {
            check_dims("conv3d", 3, weight)?;
            padded(input, weight, bias, padding, &Conv { stride, padding: &[0], dilation, groups })
        };
    }
}

/// Convolves with the padding that a word names.
fn padded(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: &str, how: &Conv<'_>) -> Result<Tensor> {
    match padding {
        "valid" => input.conv(weight, bias, how),
        "same" if how.stride.iter().all(|stride| *stride == 1) => same(input, weight, bias, how),
        "same" => Err(TensorError::argument("conv", format!("padding \"same\" takes no stride, got {:?}", how.stride))),
        _ => Err(TensorError::argument("conv", format!("padding must be \"valid\" or \"same\", got {padding:?}"))),
    }
}

/// Convolves with as many zeros around as keep the sizes. If their number is odd, one more is at the end.
fn same(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>, how: &Conv<'_>) -> Result<Tensor> {
    let kernel = &weight.sizes()[2..];
    let dilation = |dim: usize| how.dilation.get(dim).or(how.dilation.first()).copied().unwrap_or(1);
    let total = |dim: usize| dilation(dim).saturating_mul(kernel[dim].saturating_sub(1));
    let around: Vec<usize> = (0..kernel.len()).map(|dim| total(dim) / 2).collect();
    let how = Conv { padding: &around, ..*how };
    // `pad` takes the last dimension first.
    let more: Vec<isize> = (0..kernel.len()).rev().flat_map(|dim| [0, (total(dim) % 2) as isize]).collect();
    if more.iter().all(|count| *count == 0) {
        return input.conv(weight, bias, &how);
    }
    input.pad(&more, PadMode::Constant(0.into()))?.conv(weight, bias, &how)
}
