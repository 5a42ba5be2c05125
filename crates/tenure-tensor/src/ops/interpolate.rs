//! Interpolation: images of other sizes.

use super::entered;
use super::pointwise::wide;
use super::reduce::floating;
use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError};

const OP: &str = "interpolate";

operations! {
    static OPERATIONS;
    Method for all {
        /// Resizes images of sizes `(batch, channels, ...)` to the spatial sizes `size`, or by `scale_factor`. One size
        /// is for all spatial dimensions. `mode` is `nearest`, or for one, two or three spatial dimensions `linear`,
        /// `bilinear` or `trilinear`; or `bicubic`, for two. If `align_corners`, the centres of the corner pixels stay
        /// in place, else the image's edges do.
        ///
        /// # Errors
        /// Both or none of `size` and `scale_factor`; a mode for other dimensions; a size of 0; `align_corners` with
        /// `nearest`; no floats, except with `nearest`.
        interpolate(
            input: Tensor, size: Sizes = &[], scale_factor: Option<Float> = None, mode: Text = "nearest",
            align_corners: Bool = false,
        ) -> Tensor;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

fn interpolate(
    input: &Tensor,
    size: &[usize],
    scale_factor: Option<f64>,
    mode: &str,
    align_corners: bool,
) -> Result<Tensor> {
    let _op = entered(OP);
    let spatial = input.rank().saturating_sub(2);
    let kind = match (mode, spatial) {
        ("nearest", 1..=3) => Mode::Nearest,
        ("linear", 1) | ("bilinear", 2) | ("trilinear", 3) => Mode::Linear,
        ("bicubic", 2) => Mode::Cubic,
        _ => {
            let reason = format!(
                "mode must be \"nearest\", \"linear\", \"bilinear\", \"trilinear\" or \"bicubic\", for one to three \
                 dimensions after batch and channels, got {mode:?} for sizes {:?}",
                input.sizes()
            );
            return Err(TensorError::argument(OP, reason));
        }
    };
    if kind == Mode::Nearest && align_corners {
        return Err(TensorError::argument(OP, "align_corners is not for mode \"nearest\""));
    }
    if kind != Mode::Nearest {
        floating(OP, input)?;
    }
    let from = &input.sizes()[2..];
    let to = target_sizes(from, size, scale_factor)?;
    if from.contains(&0) || to.contains(&0) {
        return Err(TensorError::shape(
            OP,
            format!("images need pixels, got spatial sizes {from:?}, resized to {to:?}"),
        ));
    }
    // Weights multiply wide numbers, so that several steps round once.
    let mut image = if kind == Mode::Nearest { input.clone() } else { wide(input)? };
    for (dim, (from, to)) in from.iter().zip(to).enumerate() {
        let ratio = match kind {
            Mode::Nearest => nearest_ratio([*from, to], scale_factor, spatial),
            _ => ratio([*from, to], scale_factor, align_corners),
        };
        image = Resize { dim: dim + 2, from: *from, to, ratio, align_corners }.apply(&image, kind)?;
    }
    let image = image.to_dtype(input.dtype())?;
    // A write to the result does not change the input.
    if image.storage().generation() == input.storage().generation() { image.copy() } else { Ok(image) }
}

fn target_sizes(from: &[usize], size: &[usize], scale_factor: Option<f64>) -> Result<Vec<usize>> {
    match (size, scale_factor) {
        ([], Some(scale)) if scale > 0.0 => Ok(from.iter().map(|size| (*size as f64 * scale) as usize).collect()),
        ([], Some(scale)) => Err(TensorError::argument(OP, format!("scale_factor must be positive, got {scale}"))),
        ([], None) | ([_, ..], Some(_)) => {
            Err(TensorError::argument(OP, "one of size and scale_factor is needed, and not both"))
        }
        ([size], None) => Ok(vec![*size; from.len()]),
        (sizes, None) if sizes.len() == from.len() => Ok(sizes.to_vec()),
        (sizes, None) => {
            let reason = format!("size {sizes:?} is not a number for each of the spatial sizes {from:?}");
            Err(TensorError::shape(OP, reason))
        }
    }
}

/// Returns the distance, in pixels of the source, of two pixels that are neighbours in the result.
fn ratio([from, to]: [usize; 2], scale_factor: Option<f64>, align_corners: bool) -> f64 {
    match scale_factor {
        _ if align_corners && to > 1 => (from - 1) as f64 / (to - 1) as f64,
        _ if align_corners => 0.0,
        Some(scale) => scale.recip(),
        None => from as f64 / to as f64,
    }
}

/// Returns [`ratio`] for the nearest pixels. In two dimensions, as in PyTorch, the factor does not matter where it leads to
/// the same size or twice the size.
fn nearest_ratio([from, to]: [usize; 2], scale_factor: Option<f64>, spatial: usize) -> f64 {
    let is_whole = spatial == 2 && (to == from || to == 2 * from);
    ratio([from, to], scale_factor.filter(|_| !is_whole), false)
}

/// The resizing of one dimension.
struct Resize {
    dim: usize,
    from: usize,
    to: usize,
    ratio: f64,
    align_corners: bool,
}

impl Resize {
    fn apply(&self, image: &Tensor, mode: Mode) -> Result<Tensor> {
        if self.from == self.to && (mode == Mode::Linear || self.ratio == 1.0) {
            return Ok(image.clone());
        }
        match mode {
            Mode::Nearest => image.picked(OP, &[self.dim], self.dim, &self.nearest(image)?),
            Mode::Linear => {
                let centres = self.centres(image)?.clamp(0.0, (self.from - 1) as f64)?;
                let first = centres.floor()?;
                let second = centres.sub(&first)?;
                self.weighted(image, &first, &[(0, second.neg()?.add(1.0)?), (1, second)])
            }
            Mode::Cubic => {
                let centres = self.centres(image)?;
                let first = centres.floor()?;
                let beyond = centres.sub(&first)?;
                let before = beyond.neg()?.add(1.0)?;
                let taps = [
                    (-1, outer(&beyond.add(1.0)?)?),
                    (0, inner(&beyond)?),
                    (1, inner(&before)?),
                    (2, outer(&before.add(1.0)?)?),
                ];
                self.weighted(image, &first, &taps)
            }
        }
    }

    /// Returns the nearest pixels, as PyTorch rounds them: in `f32`.
    fn nearest(&self, image: &Tensor) -> Result<Tensor> {
        let pixels = Tensor::arange(0, self.to as i64, 1, DType::F32, image.device())?;
        pixels.mul(self.ratio)?.floor()?.clamp_max((self.from - 1) as f64)?.to_dtype(DType::I64)
    }

    /// Returns the centres of the result's pixels, in pixels of the source.
    fn centres(&self, image: &Tensor) -> Result<Tensor> {
        let pixels = Tensor::arange(0, self.to as i64, 1, DType::F64, image.device())?;
        if self.align_corners { pixels.mul(self.ratio) } else { pixels.add(0.5)?.mul(self.ratio)?.sub(0.5) }
    }

    /// Sums the pixels at each offset from the first, multiplied with their weights. Pixels outside of the image are
    /// those at its edge.
    fn weighted(&self, image: &Tensor, first: &Tensor, taps: &[(i64, Tensor)]) -> Result<Tensor> {
        let mut along = vec![1; image.rank() - self.dim];
        along[0] = self.to as isize;
        let mut sum = Tensor::zeros(&[], image.dtype(), image.device())?;
        for (offset, weights) in taps {
            let places = first.add(*offset)?.clamp(0, (self.from - 1) as i64)?.to_dtype(DType::I64)?;
            let pixels = image.picked(OP, &[self.dim], self.dim, &places)?;
            let weights = weights.to_dtype(image.dtype())?.reshape(&along)?;
            sum = sum.addcmul(&pixels, &weights, 1)?;
        }
        Ok(sum)
    }
}

/// The slope of the cubic kernel at a distance of 1 (Keys 1981), as in PyTorch.
const SLOPE: f64 = -0.75;

/// Returns the weights of pixels at distances from 0 to 1.
fn inner(x: &Tensor) -> Result<Tensor> {
    x.mul(SLOPE + 2.0)?.sub(SLOPE + 3.0)?.mul(x)?.mul(x)?.add(1.0)
}

/// Returns the weights of pixels at distances from 1 to 2.
fn outer(x: &Tensor) -> Result<Tensor> {
    x.mul(SLOPE)?.sub(5.0 * SLOPE)?.mul(x)?.add(8.0 * SLOPE)?.mul(x)?.sub(4.0 * SLOPE)
}
