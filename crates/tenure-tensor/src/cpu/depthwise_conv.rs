//! Depthwise convolutions, and others with few channels in a group: no matrix product is large enough for them.
//!
//! A channel of an image is copied to a *grid*, with the zeros around it. The grid's order makes the pixels that a tap
//! reads one run of memory: pixels that are a stride apart are neighbours, and rows of the result are as far apart as
//! rows of the grid. Values computed for places between the rows' pixels are dropped.

use std::array;

use super::im2col::{Im2col, ImageStrides};
use super::scratch;
use super::shared_memory::{DisjointSlice, unbound};
use super::vectorized;
use crate::{Access, Device, Number, Result, Tensor, arrays, threads};

/// The largest number of rows in a group for which this is faster than a matrix product.
const ROWS: usize = 8;
/// The largest size of a grid in bytes: it stays in the cache.
const GRID_BYTES: usize = 1 << 20;
/// The number of multiplications that are worth waking a thread for.
const GRAIN: usize = 1 << 20;
/// The number of parts to aim for, so that threads share the work evenly.
const PARTS: usize = 16;
/// The number of pixels that are summed up at once.
const LANES: usize = 64;
/// The numbers of pixels and of taps whose products are summed up at once.
const BLOCK: (usize, usize) = (16, 9);

/// The layout of a grid: where the mapping's pixels are, and the places that each tap reads for them.
pub(super) struct Grid<'a> {
    im2col: &'a Im2col,
    /// The image coordinate of the first place along each dimension; negative in the padding.
    first: [isize; 3],
    /// The number of places of a phase along each dimension. There are as many phases as steps between pixels.
    sizes: [usize; 3],
    /// The offset from a pixel's place to the place that each tap reads for it.
    offsets: Vec<usize>,
    /// The number of places from the first pixel to the last, inclusive.
    length: usize,
}

impl<'a> Grid<'a> {
    /// Creates the grid for groups of `rows` rows and `channels` channels, or returns `None` if a matrix product is
    /// better.
    pub(super) fn new<T>(im2col: &'a Im2col, [groups, rows, channels]: [usize; 3]) -> Option<Self> {
        let taps = &im2col.taps;
        let count = im2col.count;
        let step = im2col.source_step;
        if groups == 1 || !(1..=ROWS).contains(&rows) || channels * taps.len() == 0 || count.contains(&0) {
            return None;
        }
        let along = |dim: usize| taps.iter().map(move |tap| tap[dim]);
        let first: [isize; 3] = array::from_fn(|dim| along(dim).min().unwrap_or(0));
        let sizes: [usize; 3] = array::from_fn(|dim| {
            let reach = (along(dim).max().unwrap_or(0) - first[dim]) as usize;
            count[dim] + reach / step[dim]
        });
        let mut grid = Self { im2col, first, sizes, offsets: Vec::new(), length: 0 };
        grid.offsets =
            taps.iter().map(|tap| grid.place(array::from_fn(|dim| (tap[dim] - first[dim]) as usize))).collect();
        grid.length = ((count[0] - 1) * sizes[1] + count[1] - 1) * sizes[2] + count[2];
        let bytes = (channels * grid.places() + rows * grid.run()) * size_of::<T>();
        (bytes <= GRID_BYTES).then_some(grid)
    }

    /// Returns the place of the pixel at this distance from the first place.
    fn place(&self, at: [usize; 3]) -> usize {
        let step = self.im2col.source_step;
        let phase = array::from_fn(|dim| at[dim] % step[dim]);
        let inside = array::from_fn(|dim| at[dim] / step[dim]);
        flat(phase, step) * self.phase() + flat(inside, self.sizes)
    }

    fn phase(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the number of places of a channel, with room to read past the last.
    fn places(&self) -> usize {
        self.phase() * self.im2col.source_step.iter().product::<usize>() + LANES
    }

    /// Returns the number of places that are computed for a row of the result.
    fn run(&self) -> usize {
        self.length.next_multiple_of(LANES)
    }

    /// Copies an image's channel. The padding around it is not written.
    fn load<T: Number>(&self, image: &[T], grid: &mut [T]) {
        let ([depth, height, width], step) = (self.im2col.source, self.im2col.source_step);
        let along = |dim: usize, at: usize| {
            let place = usize::try_from(at as isize - self.first[dim]).ok()?;
            (place < self.sizes[dim] * step[dim]).then_some(place)
        };
        let before = self.first[2].max(0) as usize;
        for (slice, row) in (0..depth).flat_map(|slice| (0..height).map(move |row| (slice, row))) {
            let (Some(d), Some(h)) = (along(0, slice), along(1, row)) else { continue };
            let pixels = &image[(slice * height + row) * width..][..width];
            // Pixels a step apart are of one phase, and become neighbours.
            for first in before..width.min(before + step[2]) {
                let Some(w) = along(2, first) else { break };
                let to = &mut grid[self.place([d, h, w])..][..self.sizes[2] - w / step[2]];
                if step[2] == 1 {
                    let length = to.len().min(width - first);
                    to[..length].copy_from_slice(&pixels[first..][..length]);
                } else {
                    to.iter_mut().zip(pixels[first..].iter().step_by(step[2])).for_each(|(to, pixel)| *to = *pixel);
                }
            }
        }
    }

    /// Returns, for each row of pixels, where it begins in the computed places, and the number of the result's first
    /// pixel.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        let Im2col { count, start, step, target, .. } = self.im2col;
        (0..count[0]).flat_map(move |slice| {
            (0..count[1]).map(move |row| {
                let d = start[0] + slice * step[0];
                let h = start[1] + row * step[1];
                ((slice * self.sizes[1] + row) * self.sizes[2], (d * target[1] + h) * target[2] + start[2])
            })
        })
    }

    /// Writes the pixels of the mapping, as `im2col_product` does.
    pub(super) fn convolve<T: Number>(
        &self,
        out: &Tensor,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        [groups, rows, channels]: [usize; 3],
    ) -> Result<()> {
        let mut reads = vec![input, weight];
        reads.extend(bias);
        let mut access = Access::new("conv", &[out], &reads)?;
        // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through
        // it.
        let (images, weights) = unsafe { (unbound(access.slice::<T>(0)?), unbound(access.slice::<T>(1)?)) };
        // SAFETY: as above.
        let biases = bias.map(|_| access.slice::<T>(2).map(|biases| unsafe { unbound(biases) })).transpose()?;
        let from = strides_of(input);
        let to = strides_of(out);
        let results = DisjointSlice::new(access.slice_mut::<T>(0)?);
        let inner = channels * self.offsets.len();
        let places = self.places();
        let run = self.run();
        let together = (GRAIN / (rows * inner * self.length).max(1)).max(1);
        let jobs = out.sizes()[0] * groups;
        // The zeros around the images are never overwritten.
        let room = channels * places + rows * run;
        threads::for_each_part_with(
            jobs.div_ceil(together),
            || zeros::<T>(room),
            |workspace, part| {
                let mut access = Access::new("conv", &[workspace], &[])?;
                let (grid, sums) = access.slice_mut::<T>(0)?.split_at_mut(channels * places);
                for job in part * together..jobs.min((part + 1) * together) {
                    let image = job / groups;
                    let group = job % groups;
                    for (channel, grid) in grid.chunks_exact_mut(places).enumerate() {
                        self.load(&images[image * from.image + (group * channels + channel) * from.channel..], grid);
                    }
                    let weights = &weights[group * rows * inner..][..rows * inner];
                    vectorized!(self.sum_up(grid, weights, sums));
                    for (row, sums) in (group * rows..).zip(sums.chunks_exact(run)) {
                        let bias = biases.map_or(T::ZERO, |biases| biases[row]);
                        let count = self.im2col.count[2];
                        let step = self.im2col.step[2];
                        for (place, pixel) in self.rows() {
                            let first = image * to.image + row * to.channel + pixel;
                            // SAFETY: these are pixels of a channel of an image, which only this job writes.
                            let to = unsafe { results.range(first..first + (count - 1) * step + 1) };
                            let sums = &sums[place..][..count];
                            if step == 1 {
                                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.plus(bias));
                            } else {
                                to.iter_mut().step_by(step).zip(sums).for_each(|(to, sum)| *to = sum.plus(bias));
                            }
                        }
                    }
                }
                Ok(())
            },
        )
    }

    /// Multiplies rows of weights with the places that the taps read, for all places from the first pixel to the last.
    #[inline(always)]
    fn sum_up<T: Number>(&self, grid: &[T], weights: &[T], sums: &mut [T]) {
        let run = self.run();
        let inner = weights.len() / (sums.len() / run);
        let mut rows = weights.chunks_exact(inner).zip(sums.chunks_exact_mut(run));
        while let Some(first) = rows.next() {
            match [rows.next(), rows.next(), rows.next()] {
                [Some(second), Some(third), Some(fourth)] => self.sum_rows(grid, [first, second, third, fourth]),
                rest => [Some(first)].into_iter().chain(rest).flatten().for_each(|row| self.sum_rows(grid, [row])),
            }
        }
    }

    #[inline(always)]
    fn sum_rows<T: Number, const R: usize>(&self, grid: &[T], mut rows: [(&[T], &mut [T]); R]) {
        let taps = self.offsets.len();
        for at in (0..self.run()).step_by(LANES) {
            let mut sums = [[T::ZERO; LANES]; R];
            for (channel, grid) in grid.chunks_exact(self.places()).enumerate() {
                for (tap, offset) in self.offsets.iter().enumerate() {
                    let read = &grid[offset + at..][..LANES];
                    for (sums, (weights, _)) in sums.iter_mut().zip(&rows) {
                        let weight = weights[channel * taps + tap];
                        sums.iter_mut().zip(read).for_each(|(sum, read)| *sum = sum.plus(weight.times(*read)));
                    }
                }
            }
            rows.iter_mut().zip(sums).for_each(|((_, to), sums)| to[at..at + LANES].copy_from_slice(&sums));
        }
    }

    /// Computes sums for the gradient of the weights, `(slices, groups, channels * taps, rows)`: each slice over some
    /// of the images.
    pub(super) fn weight_gradient<T: Number>(
        &self,
        input: &Tensor,
        grad: &Tensor,
        [groups, rows, channels]: [usize; 3],
    ) -> Result<Tensor> {
        let images = grad.sizes()[0];
        let inner = channels * self.offsets.len();
        let slices = PARTS.div_ceil(groups).min(images);
        let sums = scratch(|| Tensor::empty(&[slices, groups, inner, rows], T::DTYPE, Device::CPU))?;
        let mut access = Access::new("conv", &[&sums], &[input, grad])?;
        // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through
        // it.
        let (sources, grads) = unsafe { (unbound(access.slice::<T>(0)?), unbound(access.slice::<T>(1)?)) };
        let to = DisjointSlice::new(access.slice_mut::<T>(0)?);
        let from = strides_of(input);
        let of_grad = strides_of(grad);
        let places = self.places();
        let run = self.run();
        let together = (GRAIN / (images * rows * inner * self.length / slices).max(1)).max(1);
        let room = channels * places + run;
        let jobs = slices * groups;
        threads::for_each_part_with(
            jobs.div_ceil(together),
            || zeros::<T>(room),
            |workspace, part| {
                let mut access = Access::new("conv", &[workspace], &[])?;
                let (grid, grid_of_grad) = access.slice_mut::<T>(0)?.split_at_mut(channels * places);
                for job in part * together..jobs.min((part + 1) * together) {
                    let slice = job / groups;
                    let group = job % groups;
                    // SAFETY: these are the sums of this job.
                    let sums = unsafe { to.range(job * inner * rows..(job + 1) * inner * rows) };
                    sums.fill(T::ZERO);
                    for image in slice * images / slices..(slice + 1) * images / slices {
                        for (channel, grid) in grid.chunks_exact_mut(places).enumerate() {
                            self.load(
                                &sources[image * from.image + (group * channels + channel) * from.channel..],
                                grid,
                            );
                        }
                        for row in 0..rows {
                            let first = image * of_grad.image + (group * rows + row) * of_grad.channel;
                            for (place, pixel) in self.rows() {
                                let count = self.im2col.count[2];
                                grid_of_grad[place..][..count].copy_from_slice(&grads[first + pixel..][..count]);
                            }
                            vectorized!(for (channel, grid) in grid.chunks_exact(places).enumerate() {
                                for first in (0..self.offsets.len()).step_by(BLOCK.1) {
                                    let offsets = &self.offsets[first..self.offsets.len().min(first + BLOCK.1)];
                                    let dots = dots(grid, grid_of_grad, offsets);
                                    let sums = sums[(channel * self.offsets.len() + first) * rows + row..].iter_mut();
                                    sums.step_by(rows)
                                        .zip(&dots[..offsets.len()])
                                        .for_each(|(sum, dot)| *sum = sum.plus(*dot));
                                }
                            });
                        }
                    }
                }
                Ok(())
            },
        )?;
        drop(access);
        Ok(sums)
    }
}

/// Returns the products of a run with the places of the grid that each tap reads.
#[inline(always)]
fn dots<T: Number>(grid: &[T], run: &[T], offsets: &[usize]) -> [T; BLOCK.1] {
    let mut sums = [[T::ZERO; BLOCK.0]; BLOCK.1];
    let mut starts = [0; BLOCK.1];
    starts[..offsets.len()].copy_from_slice(offsets);
    let grids = arrays::map(starts, |start| &grid[start..][..run.len()]);
    for (at, values) in run.as_chunks::<{ BLOCK.0 }>().0.iter().enumerate() {
        for (tap, sums) in sums.iter_mut().enumerate() {
            let read = &grids[tap][at * BLOCK.0..][..BLOCK.0];
            sums.iter_mut().zip(values).zip(read).for_each(|((sum, value), read)| *sum = sum.plus(value.times(*read)));
        }
    }
    arrays::map(sums, |lanes| lanes.into_iter().fold(T::ZERO, Number::plus))
}

fn strides_of(tensor: &Tensor) -> ImageStrides {
    ImageStrides { image: tensor.strides()[0], channel: tensor.strides()[1] }
}

/// Returns the number of a place in an array of these sizes.
fn flat(at: [usize; 3], sizes: [usize; 3]) -> usize {
    (at[0] * sizes[1] + at[1]) * sizes[2] + at[2]
}

/// Makes a temporary vector of zeros.
fn zeros<T: Number>(elements: usize) -> Result<Tensor> {
    scratch(|| Tensor::zeros(&[elements], T::DTYPE, Device::CPU))
}
