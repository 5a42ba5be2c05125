//! Convolutions whose padding is a word: `valid` or `same`.

use super::conv::{Conv, check_dims};
use super::pad::PadMode;
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

macro_rules! padded_convolutions {
    ($($name:ident = $conv:ident over $spatial:literal: $dims:literal;)*) => {
        operations! {
            static OPERATIONS;
            Function for front_ends {$(
                #[doc = concat!(" Convolves images of ", $dims, " without padding if `padding` is `valid`, and with as much as keeps the sizes if it is")]
                /// `same`.
                ///
                /// # Errors
                /// The errors of [`Tensor::conv`]; another word; `same` with a stride.
                #[name($conv)]
                $name(
                    input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = &[1],
                    padding: Text = "valid", dilation: Sizes = &[1], groups: Size = 1
                ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, dilation, groups| {
                    check_dims(stringify!($conv), $spatial, weight)?;
                    padded(input, weight, bias, padding, &Conv { stride, padding: &[0], dilation, groups })
                };
            )*}
        }
    };
}

padded_convolutions! {
    conv1d_padded = conv1d over 1: "one dimension";
    conv2d_padded = conv2d over 2: "two dimensions";
    conv3d_padded = conv3d over 3: "three dimensions";
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
    let totals = kernel.iter().enumerate().map(|(dim, size)| {
        let dilation = how.dilation.get(dim).or(how.dilation.first()).copied().unwrap_or(1);
        dilation.saturating_mul(size.saturating_sub(1))
    });
    let totals: Vec<usize> = totals.collect();
    let around: Vec<usize> = totals.iter().map(|total| total / 2).collect();
    let how = Conv { padding: &around, ..*how };
    // `pad` takes the last dimension first.
    let more: Vec<isize> = totals.iter().rev().flat_map(|total| [0, (total % 2) as isize]).collect();
    if more.iter().all(|count| *count == 0) {
        return input.conv(weight, bias, &how);
    }
    input.pad(&more, PadMode::Constant(0.into()))?.conv(weight, bias, &how)
}
