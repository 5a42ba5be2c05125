//! Maxima over windows that are spread evenly.

use super::entered;
use super::view::signed;
use crate::operation::operations;
use crate::{DType, Device, Result, Tensor, TensorError};

macro_rules! pools {
    ($($name:ident over $spatial:literal: $dims:literal, $rest:literal;)*) => {
        operations! {
            static OPERATIONS;
            Method for all {$(
                #[doc = concat!(" Computes the largest element of each of `output_size` windows of ", $dims, ", which cover ", $rest)]
                ///
                /// # Errors
                /// Images of fewer dimensions, or without pixels.
                $name(input: Tensor, output_size: Sizes) -> (Tensor, Tensor) =
                    |input, sizes| adaptive_max_pool(stringify!($name), input, $spatial, sizes);
            )*}
        }
    };
}

pools! {
    adaptive_max_pool1d over 1: "one dimension", "it evenly, and\n its index.";
    adaptive_max_pool2d over 2: "two dimensions", "the image\n evenly, and its index among all pixels.";
    adaptive_max_pool3d over 3: "three dimensions", "the image\n evenly, and its index among all pixels.";
}

fn adaptive_max_pool(op: &'static str, input: &Tensor, spatial: usize, sizes: &[usize]) -> Result<(Tensor, Tensor)> {
    let _op = entered(op);
    let windows = if let [size] = sizes { vec![*size; spatial] } else { sizes.to_vec() };
    let leading = input.rank().saturating_sub(spatial);
    let from = &input.sizes()[leading..];
    if leading == 0 || windows.len() != spatial || from.contains(&0) {
        let reason = format!(
            "channels, {spatial} spatial dimensions with pixels and as many sizes are needed, got sizes {:?} and {sizes:?}",
            input.sizes()
        );
        return Err(TensorError::shape(op, reason));
    }
    let pixels = window_pixels(from, &windows, input.device())?;
    let (values, places) =
        input.flatten(leading as isize, -1)?.picked(op, &[leading], leading, &pixels)?.max(-1, false)?;
    let rows: Vec<usize> = [&input.sizes()[..leading], pixels.sizes()].concat();
    let indices = pixels.expand(&signed(&rows))?.gather(-1, &places.unsqueeze(-1)?)?;
    let out = signed(&[&input.sizes()[..leading], &windows].concat());
    Ok((values.reshape(&out)?, indices.reshape(&out)?))
}

/// Returns the pixels of each window, a row for each. The last pixel of a window is repeated until all have as many.
fn window_pixels(from: &[usize], windows: &[usize], device: Device) -> Result<Tensor> {
    let mut pixels = Tensor::zeros(&[1, 1], DType::I64, device)?;
    for (size, windows) in from.iter().zip(windows) {
        let size = *size as i64;
        let count = *windows as i64;
        let begins = Tensor::arange(0, count, 1, DType::I64, device)?.mul(size)?;
        let ends = begins.add(size + count - 1)?.div_floor(count)?;
        let begins = begins.div_floor(count)?;
        // A window has at most this many pixels: both of its ends may share one with a neighbour.
        let most = if size % count.max(1) == 0 { size / count.max(1) } else { size / count.max(1) + 2 };
        let along = Tensor::arange(0, most, 1, DType::I64, device)?;
        let own = begins.unsqueeze(-1)?.add(&along)?.minimum(&ends.sub(1)?.unsqueeze(-1)?)?;
        let [rows, columns] = [0, 1].map(|dim| pixels.sizes()[dim] as isize);
        let all = pixels.mul(size)?.reshape(&[rows, 1, columns, 1])?.add(&own.unsqueeze(-2)?)?;
        pixels = all.reshape(&[rows * count as isize, columns * most as isize])?;
    }
    Ok(pixels)
}
