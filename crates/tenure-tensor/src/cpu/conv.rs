//! Convolutions, their transposes, and the gradients of their weights.
//!
//! All three gather the pixels that each tap of the kernel reads (im2col), for a panel of pixels that is small enough
//! to stay in the cache, and multiply them with the weights. A panel is as wide as the product's registers, so that the
//! product packs nothing again.

use super::depthwise_conv::Grid;
use super::gemm::Multiply;
use super::im2col::{Im2col, ImageStrides, PANEL, SLACK};
use super::matrix::Matrix;
use super::shared_memory::{DisjointSlice, unbound};
use super::{in_f32, scratch, scratch_of, widened};
use crate::geometry::Geometry;
use crate::kernel::on_cpu;
use crate::{Access, Device, Entry, Number, Result, Tensor, threads};

/// A kernel that writes a convolution of `(images, channels, ...)`, or its transpose, with weights and a bias for each
/// channel. All tensors are contiguous, or all have their channels last; on the CPU they are contiguous.
pub(crate) type Convolve = fn(&Tensor, &Tensor, &Tensor, Option<&Tensor>, &Geometry) -> Result<()>;

/// A kernel that writes the gradient of a convolution's weights, from its input and its output's gradient. The layouts
/// are those of [`Convolve`].
pub(crate) type WeightGradient = fn(&Tensor, &Tensor, &Tensor, &Geometry) -> Result<()>;

pub(crate) const CONVOLVE: &[Entry<Convolve>] = on_cpu!(@ convolve: (F32 f32) (F64 f64));
pub(crate) const CONVOLVE_HALVES: &[Entry<Convolve>] = on_cpu!(@ convolve_halves, (F16 BF16));
pub(crate) const TRANSPOSED: &[Entry<Convolve>] = on_cpu!(@ transposed: (F32 f32) (F64 f64));
pub(crate) const TRANSPOSED_HALVES: &[Entry<Convolve>] = on_cpu!(@ transposed_halves, (F16 BF16));
pub(crate) const WEIGHT_GRADIENT: &[Entry<WeightGradient>] = on_cpu!(@ weight_gradient: (F32 f32) (F64 f64));
pub(crate) const WEIGHT_GRADIENT_HALVES: &[Entry<WeightGradient>] = on_cpu!(@ weight_gradient_halves, (F16 BF16));

/// The number of multiplications that are worth waking a thread for.
const GRAIN: usize = 2 << 20;

/// The number of parts to aim for, so that threads share the work evenly.
const PARTS: usize = 16;

/// The number of rows that are transposed together.
const BLOCK: usize = 16;

/// The number of rows times channels whose taps one thread copies.
const TAPS_TOGETHER: usize = 4096;

/// The distance of rows of columns: `Im2col::gather` may write past a row's end.
const PITCH: usize = PANEL + SLACK;

/// The number of rows of weights that the product takes without packing them.
const ROWS: usize = 48;

fn convolve<T: Multiply>(
    out: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: &Geometry,
) -> Result<()> {
    let im2col = Im2col::forward(spatial(input), spatial(out), spatial(weight), geometry);
    let rows = weight.sizes()[0];
    let channels = weight.sizes()[1];
    let sizes = [geometry.groups, rows / geometry.groups, channels];
    if im2col.numbers().len() == kernel(weight) {
        return im2col_product::<T>(out, input, weight, bias, &im2col, sizes);
    }
    let packed = scratch(|| Tensor::empty(&[rows, channels, im2col.numbers().len()], T::DTYPE, Device::CPU))?;
    copy_taps::<T>(&packed, weight, |packed, weight| {
        packed.iter_mut().zip(im2col.numbers()).for_each(|(tap, number)| *tap = weight[*number]);
    })?;
    im2col_product::<T>(out, input, &packed, bias, &im2col, sizes)
}

/// Calls `copy` with the taps of `to` and of `from`, for every row and channel.
fn copy_taps<T: Number>(to: &Tensor, from: &Tensor, copy: impl Fn(&mut [T], &[T]) + Sync) -> Result<()> {
    let to_taps = kernel(to);
    let from_taps = kernel(from);
    if to.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new("conv", &[to], &[from])?;
    let (from, to) = access.slices::<T, T>(0, 0)?;
    threads::for_each_chunk(to, TAPS_TOGETHER * to_taps, |first, to| {
        let channels = (first / to_taps..).zip(to.chunks_exact_mut(to_taps));
        channels.for_each(|(channel, to)| copy(to, &from[channel * from_taps..][..from_taps]));
    });
    Ok(())
}

fn transposed<T: Multiply>(
    out: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: &Geometry,
) -> Result<()> {
    let rows = weight.sizes()[1];
    let channels = weight.sizes()[0] / geometry.groups;
    for im2col in Im2col::transposed(spatial(input), spatial(out), spatial(weight), geometry) {
        if im2col.pixels() > 0 {
            let packed = transpose_weights::<T>(weight, im2col.numbers(), geometry.groups)?;
            im2col_product::<T>(out, input, &packed, bias, &im2col, [geometry.groups, rows, channels])?;
        }
    }
    Ok(())
}

/// Returns the weights of some taps, `(groups, output channels, input channels, taps)`, of the transposed convolution.
fn transpose_weights<T: Number>(weight: &Tensor, taps: &[usize], groups: usize) -> Result<Tensor> {
    let rows = weight.sizes()[1];
    let channels = weight.sizes()[0] / groups;
    let kernel = kernel(weight);
    let packed = scratch(|| Tensor::empty(&[groups, rows, channels, taps.len()], T::DTYPE, Device::CPU))?;
    let mut access = Access::new("conv_transpose", &[&packed], &[weight])?;
    let to = Matrix::<T>::new(access.write_ptr(0).cast(), channels * taps.len(), 1);
    let from = access.slice::<T>(0)?;
    let row_parts = rows.div_ceil(BLOCK);
    threads::for_each_part(groups * row_parts, |part| {
        let group = part / row_parts;
        let first = part % row_parts * BLOCK;
        for channel in 0..channels {
            for row in first..rows.min(first + BLOCK) {
                let source = &from[((group * channels + channel) * rows + row) * kernel..][..kernel];
                let to = to.at(group * rows + row, channel * taps.len()).data;
                for (tap, number) in taps.iter().enumerate() {
                    // SAFETY: this is an element of a row that only this part writes.
                    unsafe { to.add(tap).write(source[*number]) };
                }
            }
        }
    });
    drop(access);
    Ok(packed)
}

/// Writes the pixels of an im2col mapping: the product of `(groups, rows, channels * taps)` weights with the pixels
/// that the taps read.
fn im2col_product<T: Multiply>(
    out: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    im2col: &Im2col,
    [groups, rows, channels]: [usize; 3],
) -> Result<()> {
    let pixels = out.sizes()[0] * im2col.pixels();
    if out.numel() == 0 {
        return Ok(());
    }
    if let Some(grid) = Grid::new::<T>(im2col, [groups, rows, channels]) {
        return grid.convolve::<T>(out, input, weight, bias, [groups, rows, channels]);
    }
    let taps = im2col.numbers().len();
    let inner = channels * taps;
    let panels = pixels.div_ceil(PANEL);
    // The pixels gathered at a time stay in the cache.
    let channels_together = channels.div_ceil((inner * PANEL * size_of::<T>()).div_ceil(512 * 1024).max(1)).max(1);
    let mut rows_together = rows;
    while groups * panels * rows.div_ceil(rows_together) < PARTS
        && rows_together > ROWS
        && PANEL * inner * rows_together > GRAIN
    {
        rows_together = (rows_together / 2).next_multiple_of(ROWS);
    }
    let row_parts = rows.div_ceil(rows_together);
    let panels_together = (GRAIN / (PANEL * inner * rows_together).max(1)).clamp(1, panels);
    let panel_parts = panels.div_ceil(panels_together);

    // If several parts divide the rows, the pixels that they all read are gathered once, and stored.
    let gathered = (row_parts > 1).then(|| gather_all::<T>(input, im2col, [groups, channels, pixels])).transpose()?;
    let mut reads = vec![input, weight];
    reads.extend(bias);
    reads.extend(&gathered);
    let mut access = Access::new("conv", &[out], &reads)?;
    let to = strides(out);
    let from = strides(input);
    let target = Matrix::<T>::new(access.write_ptr(0).cast(), to.channel, 0);
    let source = access.slice::<T>(0)?;
    let weights = access.slice::<T>(1)?;
    let biases = bias.map(|_| access.slice::<T>(2)).transpose()?;
    let gathered = gathered.as_ref().map(|_| access.slice::<T>(reads.len() - 1)).transpose()?;

    let room = if gathered.is_some() { 0 } else { PITCH * channels_together * taps };
    let elements = room + PANEL * rows_together;
    threads::for_each_part_with(
        groups * row_parts * panel_parts,
        || scratch_of::<T>(elements),
        |workspace, part| {
            let group = part / (row_parts * panel_parts);
            let row_part = part / panel_parts % row_parts;
            let panel_part = part % panel_parts;
            let first_row = row_part * rows_together;
            let row_count = rows_together.min(rows - first_row);
            let first_panel = panel_part * panels_together;
            let mut access = Access::new("conv", &[workspace], &[])?;
            let (workspace, tile) = access.slice_mut::<T>(0)?.split_at_mut(room);
            for panel in first_panel..panels.min(first_panel + panels_together) {
                let width = PANEL.min(pixels - panel * PANEL);
                let runs = im2col.runs(panel * PANEL..panel * PANEL + width);
                if inner == 0 {
                    tile.fill(T::ZERO);
                }
                for channel in (0..channels).step_by(channels_together) {
                    let channel_count = channels_together.min(channels - channel);
                    let columns = match gathered {
                        Some(gathered) => &gathered[((group * panels + panel) * channels + channel) * taps * PITCH..],
                        None => {
                            let images = &source[(group * channels + channel) * from.channel..];
                            crate::vectorized(
                                #[inline(always)]
                                || im2col.gather(&runs, images, from, channel_count, workspace, PITCH),
                            );
                            &*workspace
                        }
                    };
                    for row in (0..row_count).step_by(ROWS) {
                        let weight = ((group * rows + first_row + row) * channels + channel) * taps;
                        let beta = if channel == 0 { T::ZERO } else { T::ONE };
                        // SAFETY: the operands are the gathered columns, and rows of the weights and of the tile.
                        unsafe {
                            T::multiply(
                                [width, channel_count * taps, ROWS.min(row_count - row)],
                                Matrix::new(tile[row * PANEL..].as_ptr(), 1, PANEL),
                                Matrix::new(columns.as_ptr(), 1, PITCH),
                                Matrix::new(weights[weight..].as_ptr(), 1, inner),
                                T::ONE,
                                beta,
                            );
                        }
                    }
                }
                let first = group * rows + first_row;
                let images = target.at(first, 0).data;
                crate::vectorized(
                    #[inline(always)]
                    // SAFETY: these are channels of the output; only this part writes to this panel's pixels.
                    || unsafe {
                        im2col.scatter(&runs, (tile.as_ptr(), PANEL), images, to, row_count, |row| {
                            biases.map_or(T::ZERO, |biases| biases[first + row])
                        });
                    },
                );
            }
            Ok(())
        },
    )
}

/// Gathers the pixels that the taps read for all pixels: `(groups, panels, channels * taps, PITCH)`.
fn gather_all<T: Number>(input: &Tensor, im2col: &Im2col, [groups, channels, pixels]: [usize; 3]) -> Result<Tensor> {
    let taps = im2col.numbers().len();
    let panels = pixels.div_ceil(PANEL);
    let all = scratch(|| Tensor::empty(&[groups, panels, channels * taps, PITCH], T::DTYPE, Device::CPU))?;
    let mut access = Access::new("conv", &[&all], &[input])?;
    // SAFETY: `access` has locked the slice, and has checked that it is not written.
    let source = unsafe { unbound(access.slice::<T>(0)?) };
    let columns = DisjointSlice::new(access.slice_mut::<T>(0)?);
    let from = strides(input);
    let together = channels.div_ceil(PARTS.div_ceil((groups * panels).max(1))).max(1);
    let channel_parts = channels.div_ceil(together);
    threads::for_each_part(groups * panels * channel_parts, |part| {
        let place = part / channel_parts;
        let channel = part % channel_parts * together;
        let group = place / panels;
        let first = place % panels * PANEL;
        let count = together.min(channels - channel);
        let runs = im2col.runs(first..pixels.min(first + PANEL));
        let start = (place * channels + channel) * taps * PITCH;
        // SAFETY: only this part uses the rows of these channels.
        let columns = unsafe { columns.range(start..start + count * taps * PITCH) };
        let images = &source[(group * channels + channel) * from.channel..];
        crate::vectorized(
            #[inline(always)]
            || im2col.gather(&runs, images, from, count, columns, PITCH),
        );
    });
    drop(access);
    Ok(all)
}

fn weight_gradient<T: Multiply>(out: &Tensor, input: &Tensor, grad: &Tensor, geometry: &Geometry) -> Result<()> {
    let im2col = Im2col::forward(spatial(input), spatial(grad), spatial(out), geometry);
    if im2col.numbers().len() == kernel(out) {
        return gradient_of_taps::<T>(out, input, grad, &im2col, geometry.groups);
    }
    let packed =
        scratch(|| Tensor::empty(&[out.sizes()[0], out.sizes()[1], im2col.numbers().len()], T::DTYPE, Device::CPU))?;
    gradient_of_taps::<T>(&packed, input, grad, &im2col, geometry.groups)?;
    copy_taps::<T>(out, &packed, |out, packed| {
        out.fill(T::ZERO);
        im2col.numbers().iter().zip(packed).for_each(|(number, tap)| out[*number] = *tap);
    })
}

/// Writes the gradient of the weights `(rows, channels, ...)` of the mapping's taps.
fn gradient_of_taps<T: Multiply>(
    out: &Tensor,
    input: &Tensor,
    grad: &Tensor,
    im2col: &Im2col,
    groups: usize,
) -> Result<()> {
    /// The number of pixels to sum up at a time, at most.
    const PIXELS: usize = 256;
    let rows = out.sizes()[0] / groups;
    let channels = out.sizes()[1];
    let taps = im2col.numbers().len();
    let pixels = grad.sizes()[0] * im2col.pixels();
    let inner = channels * taps;
    let blocks = pixels.div_ceil(PIXELS);
    if let Some(grid) = Grid::new::<T>(im2col, [groups, rows, channels]).filter(|_| pixels > 0) {
        let sums = grid.weight_gradient::<T>(input, grad, [groups, rows, channels])?;
        return add_up::<T>(out, &sums, [sums.sizes()[0], groups, inner, rows]);
    }
    let together = pixels.div_ceil(blocks.max(1)).next_multiple_of(16);
    let pitch = together + SLACK;
    let channels_together = channels.div_ceil((inner * PIXELS * size_of::<T>()).div_ceil(640 * 1024).max(1)).max(1);
    let channel_parts = channels.div_ceil(channels_together);
    let work = PIXELS * rows * channels_together * taps;
    // Parts with the same channels sum up different pixels. Their sums are added in order afterwards.
    let slices = PARTS.div_ceil(groups * channel_parts).min(blocks * work / GRAIN).clamp(1, blocks.max(1));
    let blocks_together = blocks.div_ceil(slices);
    let sums = scratch(|| Tensor::empty(&[slices, groups, inner, rows], T::DTYPE, Device::CPU))?;
    if out.numel() == 0 {
        return Ok(());
    }
    if pixels == 0 {
        return out.fill_raw("conv", 0.into());
    }

    let mut access = Access::new("conv", &[&sums], &[input, grad])?;
    let sum = Matrix::<T>::new(access.write_ptr(0).cast(), 1, rows);
    let source = access.slice::<T>(0)?;
    let grads = access.slice::<T>(1)?;
    let from = strides(input);
    let to = strides(grad);
    let gathered = pitch * channels_together * taps;
    let workspace =
        || scratch(|| Tensor::empty(&[gathered + together * rows.next_multiple_of(PANEL)], T::DTYPE, Device::CPU));
    threads::for_each_part_with(groups * channel_parts * slices, workspace, |workspace, part| {
        let slice = part / (groups * channel_parts);
        let group = part / channel_parts % groups;
        let channel = part % channel_parts * channels_together;
        let count = channels_together.min(channels - channel);
        let mut access = Access::new("conv", &[workspace], &[])?;
        let (columns, transposed) = access.slice_mut::<T>(0)?.split_at_mut(gathered);
        let sum = sum.at(0, (slice * groups + group) * inner + channel * taps);
        let first_block = slice * blocks_together;
        if first_block >= blocks {
            // SAFETY: these are the sums of this part.
            unsafe { std::slice::from_raw_parts_mut(sum.data, count * taps * rows) }.fill(T::ZERO);
        }
        for block in first_block..blocks.min(first_block + blocks_together) {
            let range = block * together..pixels.min((block + 1) * together);
            let runs = im2col.runs(range.clone());
            crate::vectorized(
                #[inline(always)]
                // SAFETY: these are channels of the input and of the output's gradient, and rows of the workspace for
                // them.
                || unsafe {
                    let images = &source[(group * channels + channel) * from.channel..];
                    im2col.gather(&runs, images, from, count, columns, pitch);
                    let images = grads[group * rows * to.channel..].as_ptr();
                    im2col.transpose(&runs, images, to, rows, transposed.as_mut_ptr(), together);
                },
            );
            let beta = if block == first_block { T::ZERO } else { T::ONE };
            for column in (0..count * taps).step_by(ROWS) {
                for row in (0..rows).step_by(PANEL) {
                    // SAFETY: the operands are the gathered columns, the transposed pixels, and sums of this part.
                    unsafe {
                        T::multiply(
                            [PANEL.min(rows - row), range.len(), ROWS.min(count * taps - column)],
                            sum.at(row, column),
                            Matrix::new(transposed[row * together..].as_ptr(), 1, PANEL),
                            Matrix::new(columns[column * pitch..].as_ptr(), 1, pitch),
                            T::ONE,
                            beta,
                        );
                    }
                }
            }
        }
        Ok(())
    })?;
    drop(access);
    add_up::<T>(out, &sums, [slices, groups, inner, rows])
}

/// Adds up the slices of sums, and writes `(groups, inner, rows)` in the order of weights.
fn add_up<T: Number>(out: &Tensor, sums: &Tensor, [slices, groups, inner, rows]: [usize; 4]) -> Result<()> {
    let mut access = Access::new("conv", &[out], &[sums])?;
    let to = Matrix::<T>::new(access.write_ptr(0).cast(), inner, 1);
    let sums = access.slice::<T>(0)?;
    let row_parts = rows.div_ceil(BLOCK);
    threads::for_each_part(groups * row_parts, |part| {
        let group = part / row_parts;
        let first = part % row_parts * BLOCK;
        let count = BLOCK.min(rows - first);
        for column in 0..inner {
            let row_of = |slice| &sums[((slice * groups + group) * inner + column) * rows + first..][..count];
            let mut sum = [T::ZERO; BLOCK];
            sum[..count].copy_from_slice(row_of(0));
            for slice in 1..slices {
                sum.iter_mut().zip(row_of(slice)).for_each(|(sum, more)| *sum = sum.plus(*more));
            }
            for (row, sum) in sum[..count].iter().enumerate() {
                // SAFETY: this is an element of a row that only this part writes.
                unsafe { to.at(group * rows + first + row, column).data.write(*sum) };
            }
        }
    });
    Ok(())
}

fn convolve_halves(
    out: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: &Geometry,
) -> Result<()> {
    in_f32(out, |wide| {
        let bias = bias.map(widened).transpose()?;
        convolve::<f32>(wide, &widened(input)?, &widened(weight)?, bias.as_ref(), geometry)
    })
}

fn transposed_halves(
    out: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: &Geometry,
) -> Result<()> {
    in_f32(out, |wide| {
        let bias = bias.map(widened).transpose()?;
        transposed::<f32>(wide, &widened(input)?, &widened(weight)?, bias.as_ref(), geometry)
    })
}

fn weight_gradient_halves(out: &Tensor, input: &Tensor, grad: &Tensor, geometry: &Geometry) -> Result<()> {
    in_f32(out, |wide| weight_gradient::<f32>(wide, &widened(input)?, &widened(grad)?, geometry))
}

/// Returns depth, height and width.
fn spatial(tensor: &Tensor) -> [usize; 3] {
    let sizes = &tensor.sizes()[2..];
    std::array::from_fn(|dim| (dim + sizes.len()).checked_sub(3).map_or(1, |dim| sizes[dim]))
}

/// Returns the number of elements of a kernel.
fn kernel(weight: &Tensor) -> usize {
    weight.sizes()[2..].iter().product()
}

fn strides(tensor: &Tensor) -> ImageStrides {
    ImageStrides { image: tensor.strides()[0], channel: tensor.strides()[1] }
}
