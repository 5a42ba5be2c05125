//! im2col, a panel at a time: pixels of images, and the pixels around them that a convolution sums up.

use std::ops::Range;

use smallvec::SmallVec;

use crate::Number;
use crate::arrays;
use crate::geometry::Geometry;

/// The im2col mapping of a convolution: the pixels that it writes, and those that it reads for each.
///
/// Along each dimension, pixel `i` of `count` is written at `start + i * step`, and each *tap* of the kernel reads at
/// `i * source_step + tap`; outside of the image there are zeros.
pub(super) struct Im2col {
    pub(super) source: [usize; 3],
    pub(super) target: [usize; 3],
    pub(super) start: [usize; 3],
    pub(super) step: [usize; 3],
    pub(super) count: [usize; 3],
    pub(super) source_step: [usize; 3],
    pub(super) taps: Vec<[isize; 3]>,
    /// The kernel element of each tap, in ascending order.
    numbers: Vec<usize>,
}

/// Neighbouring pixels of one row of an image.
pub(super) struct PixelRun {
    /// The panel's column of the first.
    column: usize,
    image: usize,
    /// The coordinates of the first.
    at: [usize; 3],
    length: usize,
}

/// The strides of images and channels in memory, in elements.
#[derive(Clone, Copy)]
pub(super) struct ImageStrides {
    pub(super) image: usize,
    pub(super) channel: usize,
}

impl Im2col {
    /// Returns the mapping of a convolution of images of sizes `source`.
    pub(super) fn forward(source: [usize; 3], target: [usize; 3], kernel: [usize; 3], geometry: &Geometry) -> Self {
        Self {
            source,
            target,
            start: [0; 3],
            step: [1; 3],
            count: target,
            source_step: geometry.stride,
            taps: positions(kernel)
                .map(|at| {
                    std::array::from_fn(|dim| {
                        (at[dim] * geometry.dilation[dim]) as isize - geometry.padding[dim] as isize
                    })
                })
                .collect(),
            numbers: (0..kernel.iter().product()).collect(),
        }
        .without_padding_taps()
    }

    /// Drops the taps that read zeros for every pixel: the kernel's outer taps, if an image is small.
    fn without_padding_taps(mut self) -> Self {
        let met = self.taps.iter().zip(&self.numbers).filter(|(tap, _)| self.reads_a_pixel(tap));
        (self.taps, self.numbers) = met.map(|(tap, number)| (*tap, *number)).unzip();
        self
    }

    /// Returns whether this tap reads an element of the image for any pixel.
    fn reads_a_pixel(&self, tap: &[isize; 3]) -> bool {
        (0..3).all(|dim| {
            let step = self.source_step[dim] as isize;
            let tap = tap[dim];
            let first = (step - 1 - tap).div_euclid(step).max(0);
            first < self.count[dim] as isize && first * step + tap < self.source[dim] as isize
        })
    }

    /// Returns the mappings of the transposed convolution. A pixel of the result meets the taps that are a multiple of
    /// the stride away. These are the same for each pixel of a *phase*; there are as many phases as the product of the
    /// strides.
    pub(super) fn transposed(
        source: [usize; 3],
        target: [usize; 3],
        kernel: [usize; 3],
        geometry: &Geometry,
    ) -> impl Iterator<Item = Self> {
        let Geometry { stride, padding, dilation, .. } = *geometry;
        positions(stride).map(move |start| {
            let tap = |at: [usize; 3]| {
                let mut tap = [0; 3];
                for dim in 0..3 {
                    let ahead = (start[dim] + padding[dim]) as isize - (at[dim] * dilation[dim]) as isize;
                    let stride = stride[dim] as isize;
                    if ahead.rem_euclid(stride) != 0 {
                        return None;
                    }
                    tap[dim] = ahead.div_euclid(stride);
                }
                Some(tap)
            };
            let met = positions(kernel).enumerate().filter_map(|(number, at)| tap(at).map(|tap| (tap, number)));
            let (taps, numbers) = met.unzip();
            let count = std::array::from_fn(|dim| target[dim].saturating_sub(start[dim]).div_ceil(stride[dim]));
            Self { source, target, start, step: stride, count, source_step: [1; 3], taps, numbers }
                .without_padding_taps()
        })
    }

    /// Returns the number of pixels that are written of each image.
    pub(super) fn pixels(&self) -> usize {
        self.count.iter().product()
    }

    /// Returns the kernel element of each tap.
    pub(super) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Returns the rows that contain a range of the pixels of all images.
    pub(super) fn runs(&self, pixels: Range<usize>) -> SmallVec<[PixelRun; 16]> {
        let [depth, height, width] = self.count;
        let mut runs = SmallVec::new();
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let row = pixel / width;
            let across = pixel % width;
            let slice = row / height;
            let down = row % height;
            let length = (width - across).min(pixels.end - pixel);
            let at = [slice % depth, down, across];
            runs.push(PixelRun { column: pixel - pixels.start, image: slice / depth, at, length });
            pixel += length;
        }
        runs
    }

    /// Writes the pixels that every tap reads: for each channel and tap a row of columns, `pitch` apart. It may also
    /// write up to `SLACK` columns after the last run. `source` begins with the first channel.
    #[inline(always)]
    pub(super) fn gather<T: Number>(
        &self,
        runs: &[PixelRun],
        source: &[T],
        strides: ImageStrides,
        channels: usize,
        columns: &mut [T],
        pitch: usize,
    ) {
        let taps = self.taps.len();
        let [depth, height, _] = arrays::map(self.source, |size| size as isize);
        let step = self.source_step[2];
        assert!(
            columns.len() >= channels * taps * pitch && runs.iter().all(|run| run.column + run.length + SLACK <= pitch)
        );
        for (number, tap) in self.taps.iter().enumerate() {
            for run in runs {
                let at: [isize; 3] = arrays::from_fn(|dim| (run.at[dim] * self.source_step[dim]) as isize + tap[dim]);
                let is_inside = (0..depth).contains(&at[0]) && (0..height).contains(&at[1]);
                let inside = if is_inside { self.inside(at[2], run.length) } else { 0..0 };
                let row = (at[0] * height + at[1]) * self.source[2] as isize + at[2];
                let first = (run.image * strides.image) as isize + row + (inside.start * step) as isize;
                let first = if inside.is_empty() { 0 } else { first as usize };
                let last = first + (channels - 1) * strides.channel;
                assert!(inside.is_empty() || last + (inside.len() - 1) * step < source.len());
                let has_slack = step == 1 && last + inside.len().next_multiple_of(SLACK) <= source.len();
                // SAFETY: the targets are the run's columns of the row, and slack; the sources are pixels of the image,
                // as `inside` says.
                unsafe {
                    let mut to = columns.as_mut_ptr().add(number * pitch + run.column);
                    let mut from = source.as_ptr().add(first);
                    for _ in 0..channels {
                        zero(to, inside.start);
                        let middle = to.add(inside.start);
                        if has_slack {
                            for at in (0..inside.len()).step_by(SLACK) {
                                middle.add(at).cast::<[T; SLACK]>().write(from.add(at).cast::<[T; SLACK]>().read());
                            }
                        } else if step == 2 {
                            (0..inside.len()).for_each(|i| middle.add(i).write(from.add(2 * i).read()));
                        } else {
                            (0..inside.len()).for_each(|i| middle.add(i).write(from.add(step * i).read()));
                        }
                        zero(to.add(inside.end), run.length - inside.end);
                        to = to.wrapping_add(taps * pitch);
                        from = from.wrapping_add(strides.channel);
                    }
                }
            }
        }
    }

    /// Returns which of `length` pixels are inside the image, if the first is read at `at`.
    #[inline(always)]
    fn inside(&self, at: isize, length: usize) -> Range<usize> {
        let step = self.source_step[2] as isize;
        let size = self.source[2] as isize;
        let before = |limit: isize| ((limit - at + step - 1).div_euclid(step)).clamp(0, length as isize) as usize;
        let start = before(0);
        let end = before(size);
        start..end.max(start)
    }

    /// Writes a row of `width` columns for each channel to its pixels, and adds `bias(channel)`.
    ///
    /// # Safety
    /// `target` must have these channels of all images of the runs, which no other thread accesses, and `tile` must
    /// have the rows.
    #[inline(always)]
    pub(super) unsafe fn scatter<T: Number>(
        &self,
        runs: &[PixelRun],
        (tile, width): (*const T, usize),
        target: *mut T,
        strides: ImageStrides,
        channels: usize,
        bias: impl Fn(usize) -> T,
    ) {
        for channel in 0..channels {
            let bias = bias(channel);
            for run in runs {
                let at: [usize; 3] = arrays::from_fn(|dim| self.start[dim] + run.at[dim] * self.step[dim]);
                let pixel = (at[0] * self.target[1] + at[1]) * self.target[2] + at[2];
                let step = self.step[2];
                // SAFETY: these are the run's columns of the row, and its pixels.
                unsafe {
                    let from = tile.add(channel * width + run.column);
                    let to = target.add(run.image * strides.image + channel * strides.channel + pixel);
                    if step == 1 {
                        (0..run.length).for_each(|i| to.add(i).write(from.add(i).read().plus(bias)));
                    } else {
                        (0..run.length).for_each(|i| to.add(i * step).write(from.add(i).read().plus(bias)));
                    }
                }
            }
        }
    }

    /// Copies pixels, panels of `PANEL` channels one after the other: a row of channels for each pixel.
    ///
    /// # Safety
    /// `target` must have these channels of all images of the runs, and `rows` must have `pixels` rows for each panel.
    #[inline(always)]
    pub(super) unsafe fn transpose<T: Number>(
        &self,
        runs: &[PixelRun],
        target: *const T,
        strides: ImageStrides,
        channels: usize,
        rows: *mut T,
        pixels: usize,
    ) {
        let [_, height, width] = self.count;
        for first in (0..channels).step_by(PANEL) {
            let across = PANEL.min(channels - first);
            for run in runs {
                let pixel = (run.at[0] * height + run.at[1]) * width + run.at[2];
                // SAFETY: these are pixels of the run, and their rows.
                unsafe {
                    let from = target.add(run.image * strides.image + first * strides.channel + pixel);
                    let to = rows.add(first * pixels + run.column * PANEL);
                    for i in 0..run.length {
                        for channel in 0..across {
                            to.add(i * PANEL + channel).write(from.add(channel * strides.channel + i).read());
                        }
                    }
                }
            }
        }
    }
}

/// The number of columns that are copied at a time, wherever a run ends.
pub(super) const SLACK: usize = 16;

/// The number of columns in a panel: as many as the matrix product has in registers at a time.
pub(super) const PANEL: usize = 64;

/// Returns all indices of an array of these sizes.
fn positions(sizes: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [depth, height, width] = sizes;
    (0..depth).flat_map(move |d| (0..height).flat_map(move |h| (0..width).map(move |w| [d, h, w])))
}

/// Sets a few elements to zero, without a call.
#[inline(always)]
unsafe fn zero<T: Number>(to: *mut T, length: usize) {
    let mut at = 0;
    // SAFETY: there are `length` elements, as the caller promises; an array is aligned like its elements.
    unsafe {
        while at + SLACK <= length {
            to.add(at).cast::<[T; SLACK]>().write([T::ZERO; SLACK]);
            at += SLACK;
        }
        while at < length {
            to.add(at).write_volatile(T::ZERO);
            at += 1;
        }
    }
}
