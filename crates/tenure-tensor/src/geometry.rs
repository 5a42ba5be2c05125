//! The options of convolutions, pooling and attention in the form that kernels take: complete and checked.

use std::ops::Range;

use crate::random::GeneratorState;
use crate::{Layout, MemoryFormat, Result, Tensor, TensorError};

/// The options of a convolution for depth, height and width; a missing dimension has the neutral value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) stride: [usize; 3],
    pub(crate) padding: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pub(crate) groups: usize,
}

/// Windows whose elements are told apart by their index in the window.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    /// The sizes of the images: depth, height and width.
    pub(crate) source: [usize; 3],
    /// The number of windows along each dimension.
    pub(crate) target: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) padding: [usize; 3],
    pub(crate) dilation: [usize; 3],
    /// The memory format of all images.
    pub(crate) format: MemoryFormat,
}

impl Taps {
    /// Returns the numbers of pixels of an image and of the result.
    pub(crate) fn pixels(&self) -> [usize; 2] {
        [self.source, self.target].map(|sizes| sizes.iter().product())
    }

    /// Returns the number of elements of a window.
    pub(crate) fn numel(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Calls `each` for each element of the windows of one row of the result, in their order: with the element's index,
    /// the pixel that the first column reads, the columns that have the element inside the image, and the distance
    /// between the pixels that they read.
    #[inline(always)]
    pub(crate) fn for_each_row(&self, row: usize, mut each: impl FnMut(usize, usize, Range<usize>, usize)) {
        let depth = row / self.target[1];
        let height = row % self.target[1];
        let mut number = 0;
        for d in 0..self.kernel[0] {
            for h in 0..self.kernel[1] {
                let inside = self.pixel(0, depth, d).zip(self.pixel(1, height, h));
                for w in 0..self.kernel[2] {
                    if let Some((d, h)) = inside {
                        let ahead = w * self.dilation[2];
                        let step = self.stride[2];
                        let padding = self.padding[2];
                        let first = padding.saturating_sub(ahead).div_ceil(step);
                        let end = (self.source[2] + padding).saturating_sub(ahead).div_ceil(step).min(self.target[2]);
                        if first < end {
                            let pixel = first * step + ahead - padding;
                            each(number, (d * self.source[1] + h) * self.source[2] + pixel, first..end, step);
                        }
                    }
                    number += 1;
                }
            }
        }
    }

    /// Calls `each` for each pixel of the result: with its index, and the index of its window's first element in the
    /// image, which may lie before the image.
    #[inline(always)]
    pub(crate) fn for_each_pixel(&self, mut each: impl FnMut(usize, isize)) {
        let first = |dim: usize, at: usize| (at * self.stride[dim]) as isize - self.padding[dim] as isize;
        let [_, height, width] = self.source.map(|size| size as isize);
        let mut pixel = 0;
        for d in 0..self.target[0] {
            for h in 0..self.target[1] {
                let row = (first(0, d) * height + first(1, h)) * width;
                for w in 0..self.target[2] {
                    each(pixel, row + first(2, w));
                    pixel += 1;
                }
            }
        }
    }

    /// Returns the distance of each element of a window from the first element, by index.
    pub(crate) fn offsets(&self) -> Vec<isize> {
        let [depth, height, width] = self.kernel;
        (0..depth * height * width)
            .map(|number| {
                let at = [number / width / height, number / width % height, number % width];
                (0..3).fold(0, |place, dim| place * self.source[dim] + at[dim] * self.dilation[dim]) as isize
            })
            .collect()
    }

    /// Returns the place of a window's element along a dimension, if it is inside the image.
    #[inline(always)]
    fn pixel(&self, dim: usize, window: usize, element: usize) -> Option<usize> {
        let pixel = (window * self.stride[dim] + element * self.dilation[dim]).checked_sub(self.padding[dim])?;
        (pixel < self.source[dim]).then_some(pixel)
    }
}

/// The rule that assigns pixels to windows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Windows at a fixed stride, as [`Pool`] describes them.
    Strided { kernel: [usize; 3], stride: [usize; 3], padding: [usize; 3], counts_padding: bool },
    /// Windows that cover the image evenly.
    Even,
}

impl Rule {
    /// Returns the pixels of a window along a dimension of this size, and the count that its mean divides by.
    fn window(self, dim: usize, index: usize, size: usize, windows: usize) -> (Range<usize>, usize) {
        match self {
            Self::Strided { kernel, stride, padding, counts_padding } => {
                let first = index * stride[dim];
                let padding = padding[dim];
                let end = (first + kernel[dim]).min(size + 2 * padding);
                let inside = first.saturating_sub(padding)..end.saturating_sub(padding).min(size);
                let count = if counts_padding { end - first } else { inside.len() };
                (inside, count)
            }
            Self::Even => {
                let inside = index * size / windows..((index + 1) * size).div_ceil(windows);
                let count = inside.len();
                (inside, count)
            }
        }
    }
}

/// Windows whose elements all count the same: along each dimension, the pixels of each window and their count.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// The sizes of the images.
    pub(crate) source: [usize; 3],
    pub(crate) target: [usize; 3],
    pub(crate) rule: Rule,
    /// The memory format of all images.
    pub(crate) format: MemoryFormat,
    windows: [Vec<(Range<usize>, usize)>; 3],
}

impl Windows {
    pub(crate) fn new(
        op: &'static str,
        source: [usize; 3],
        target: [usize; 3],
        rule: Rule,
        format: MemoryFormat,
    ) -> Result<Self> {
        let mut windows: [Vec<_>; 3] = Default::default();
        for (dim, list) in windows.iter_mut().enumerate() {
            if list.try_reserve_exact(target[dim]).is_err() {
                return Err(TensorError::shape(op, format!("there is no memory for {} windows", target[dim])));
            }
            list.extend((0..target[dim]).map(|index| rule.window(dim, index, source[dim], target[dim])));
        }
        Ok(Self { source, target, rule, format, windows })
    }

    /// Returns the number of pixels of an image, and the number of windows.
    pub(crate) fn pixels(&self) -> [usize; 2] {
        [self.source, self.target].map(|sizes| sizes.iter().product())
    }

    /// Calls `each` for each window: with its index, its pixels along each dimension, and the number of pixels that it
    /// counts.
    #[inline(always)]
    pub(crate) fn for_each(&self, mut each: impl FnMut(usize, [&Range<usize>; 3], usize)) {
        let [depths, heights, widths] = &self.windows;
        let mut pixel = 0;
        for (d, depth) in depths {
            for (h, height) in heights {
                for (w, width) in widths {
                    each(pixel, [d, h, w], depth * height * width);
                    pixel += 1;
                }
            }
        }
    }

    /// Returns the rows of a window, as ranges of pixels.
    #[inline(always)]
    pub(crate) fn rows<'a>(&'a self, [d, h, w]: [&'a Range<usize>; 3]) -> impl Iterator<Item = Range<usize>> + 'a {
        let [_, height, width] = self.source;
        d.clone().flat_map(move |d| {
            h.clone().map(move |h| {
                let first = (d * height + h) * width;
                first + w.start..first + w.end
            })
        })
    }
}

/// The options of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighting {
    pub(crate) scale: f64,
    pub(crate) is_causal: bool,
    pub(crate) dropout: Option<Dropping>,
}

/// The dropout of attention's weights, by the random numbers of a tensor of all weights. The numbers are not stored:
/// gradients draw the same numbers again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropping {
    pub(crate) probability: f64,
    pub(crate) state: GeneratorState,
}

/// Returns a view of one element for each channel that broadcasts to `x`. It has no gradient.
pub(crate) fn along_channels(channels: &Tensor, x: &Tensor) -> Result<Tensor> {
    let rank = x.rank() - 1;
    let mut sizes = vec![1; rank];
    let mut strides = vec![0; rank];
    (sizes[0], strides[0]) = (channels.sizes()[0], channels.strides()[0]);
    Ok(channels.alias(Layout::strided(&sizes, &strides, channels.layout().offset())?))
}
