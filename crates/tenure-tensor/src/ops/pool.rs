//! Pooling over one to three spatial dimensions.

use super::conv::for_each_dim;
use super::entered;
use crate::autograd::{Context, attach, recipe};
use crate::cpu::pool::{self as kernels, AvgPool, Chosen, MaxPool};
use crate::geometry::{Rule, Taps, Windows};
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{DType, Kernel, Layout, MemoryFormat, Result, Tensor, TensorError, cuda};

static MAX_POOL: Kernel<MaxPool> =
    Kernel::new("max_pool", &[kernels::MAX_POOL, kernels::MAX_POOL_HALVES, cuda::pool::MAX_POOL]);
static PICK: Kernel<Chosen> = Kernel::new("max_pool_pick", &[kernels::PICK, kernels::PICK_HALVES, cuda::pool::PICK]);
static PUT: Kernel<Chosen> = Kernel::new("max_pool_put", &[kernels::PUT, kernels::PUT_HALVES, cuda::pool::PUT]);
static AVG_POOL: Kernel<AvgPool> =
    Kernel::new("avg_pool", &[kernels::AVG_POOL, kernels::AVG_POOL_HALVES, cuda::pool::AVG_POOL]);
static SPREAD: Kernel<AvgPool> =
    Kernel::new("avg_pool_spread", &[kernels::SPREAD, kernels::SPREAD_HALVES, cuda::pool::SPREAD]);

/// The options of pooling windows. A list has a number for each spatial dimension; all but `kernel` may have one for
/// all.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// The sizes of a window: as many as there are spatial dimensions.
    pub kernel: &'a [usize],
    /// The distance from one window to the next, in pixels; the window's own sizes if empty.
    pub stride: &'a [usize],
    /// The padding around the image, in pixels. [`Tensor::max_pool`] leaves it out.
    pub padding: &'a [usize],
    /// The distance from one element of a window to the next, in pixels. For [`Tensor::max_pool`] only.
    pub dilation: &'a [usize],
    /// Whether the last window may reach past the end of the image.
    pub ceil: bool,
}

impl Default for Pool<'_> {
    fn default() -> Self {
        Self { kernel: &[], stride: &[], padding: &[0], dilation: &[1], ceil: false }
    }
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the means of `output_size` windows that cover the image evenly. PyTorch's `adaptive_avg_pool1d`,
        /// `adaptive_avg_pool2d`, `adaptive_avg_pool3d`.
        ///
        /// # Errors
        /// Not one to three sizes, or more sizes than spatial dimensions.
        adaptive_avg_pool(input: Tensor, output_size: Sizes) -> Tensor;
    }
}

/// Declares the pooling of each number of dimensions.
macro_rules! pools {
    ($($max:ident, $average:ident, $adaptive:ident over $spatial:literal: $dims:literal;)*) => {
        operations! {
            static POOLS;
            Function for front_ends {$(
                #[doc = concat!(" Computes the largest element of each window of ", $dims, ": [`Tensor::max_pool`].")]
                ///
                /// # Errors
                /// Windows that do not fit.
                $max(
                    input: Tensor, kernel_size: Sizes, stride: Sizes = &[], padding: Sizes = &[0],
                    dilation: Sizes = &[1], ceil_mode: Bool = false
                ) -> Tensor = |input: &Tensor, kernel_size, stride, padding, dilation, ceil| {
                    input.max_pool(&Pool { kernel: &each_dim($spatial, kernel_size), stride, padding, dilation, ceil })
                };

                #[doc = concat!(" Computes the mean of each window of ", $dims, ": [`Tensor::avg_pool`].")]
                ///
                /// # Errors
                /// Windows that do not fit.
                $average(
                    input: Tensor, kernel_size: Sizes, stride: Sizes = &[], padding: Sizes = &[0],
                    ceil_mode: Bool = false, count_include_pad: Bool = true
                ) -> Tensor = |input: &Tensor, kernel_size, stride, padding, ceil, count_include_pad| {
                    let kernel = &each_dim($spatial, kernel_size);
                    input.avg_pool(&Pool { kernel, stride, padding, ceil, ..Pool::default() }, count_include_pad)
                };

                #[doc = concat!(" Computes means over windows of ", $dims, " that are spread evenly: [`Tensor::adaptive_avg_pool`].")]
                ///
                /// # Errors
                /// Images of fewer dimensions.
                $adaptive(input: Tensor, output_size: Sizes) -> Tensor = |input: &Tensor, output_size| {
                    input.adaptive_avg_pool(&each_dim($spatial, output_size))
                };
            )*}
        }
    };
}

pools! {
    max_pool1d, avg_pool1d, adaptive_avg_pool1d over 1: "one dimension";
    max_pool2d, avg_pool2d, adaptive_avg_pool2d over 2: "two dimensions";
    max_pool3d, avg_pool3d, adaptive_avg_pool3d over 3: "three dimensions";
}

/// Returns a number for each spatial dimension: those given, or the one given.
fn each_dim(spatial: usize, numbers: &[usize]) -> Vec<usize> {
    if let [number] = numbers { vec![*number; spatial] } else { numbers.to_vec() }
}

fn adaptive_avg_pool(input: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let _op = entered("adaptive_avg_pool");
    const OP: &str = "adaptive_avg_pool";
    let source = spatial(OP, input, sizes.len())?;
    let target = for_each_dim(OP, "sizes", sizes, sizes.len(), 1)?;
    let windows = Windows::new(OP, source, target, Rule::Even, format(input, sizes.len()))?;
    let leading = &input.sizes()[..input.rank() - sizes.len()];
    averaged(input, windows, &[leading, sizes].concat())
}

impl Tensor {
    /// Computes the largest element of each window of `(..., channels, ...)`, whose last dimensions are the spatial
    /// ones. PyTorch's `max_pool1d`, `max_pool2d`, `max_pool3d`.
    ///
    /// # Errors
    /// Sizes that do not match; padding of more than half a window.
    pub fn max_pool(&self, how: &Pool<'_>) -> Result<Self> {
        let name = ["max_pool1d", "max_pool2d", "max_pool3d"][how.kernel.len().clamp(1, 3) - 1];
        let Pool { kernel, stride, padding, dilation, ceil } = how;
        observed(name, || arguments![self, kernel, stride, padding, dilation, ceil], || self.max_pooled(how))
    }

    fn max_pooled(&self, how: &Pool<'_>) -> Result<Self> {
        let _op = entered("max_pool");
        let (taps, sizes) = taps("max_pool", self, how)?;
        let input = self.contiguous_in(taps.format)?;
        let (out, numbers) = largest(&input, &taps, &sizes)?;
        recipe::note(&out, "max_pool", [&input], [], || {
            let taps = taps.clone();
            let sizes = sizes.clone();
            move |[x], []| Ok(largest(x, &taps, &sizes)?.0)
        });
        let sizes = input.sizes().to_vec();
        attach(out, "max_pool", &[&input], |saver| {
            let numbers = saver.save(&numbers)?;
            Ok(move |context: &Context<'_>| {
                let grad = Move::Put.compute(&context.grad(0)?, &context.unpack(numbers)?, &taps, &sizes)?;
                Ok([Some(grad)].into_iter().collect())
            })
        })
    }

    /// Computes the mean of each window of `(..., channels, ...)`. Padding counts as zeros if `count_include_pad`, else
    /// it is left out. PyTorch's `avg_pool1d`, `avg_pool2d`, `avg_pool3d`.
    ///
    /// # Errors
    /// Sizes that do not match; padding of more than half a window; a dilation.
    pub fn avg_pool(&self, how: &Pool<'_>, count_include_pad: bool) -> Result<Self> {
        let name = ["avg_pool1d", "avg_pool2d", "avg_pool3d"][how.kernel.len().clamp(1, 3) - 1];
        let Pool { kernel, stride, padding, ceil, .. } = how;
        observed(
            name,
            || arguments![self, kernel, stride, padding, ceil, count_include_pad],
            || self.avg_pooled(how, count_include_pad),
        )
    }

    fn avg_pooled(&self, how: &Pool<'_>, count_include_pad: bool) -> Result<Self> {
        let _op = entered("avg_pool");
        if how.dilation.iter().any(|dilation| *dilation != 1) {
            let reason = format!("windows of a mean have no dilation, got {:?}", how.dilation);
            return Err(TensorError::argument("avg_pool", reason));
        }
        let (Taps { source, target, kernel, stride, padding, format, .. }, sizes) = taps("avg_pool", self, how)?;
        let rule = Rule::Strided { kernel, stride, padding, counts_padding: count_include_pad };
        averaged(self, Windows::new("avg_pool", source, target, rule, format)?, &sizes)
    }
}

/// Returns the image of `sizes` with the largest element of each window, and the index of that element in the window.
fn largest(input: &Tensor, taps: &Taps, sizes: &[usize]) -> Result<(Tensor, Tensor)> {
    let out = image(sizes, taps.format, input, input.dtype())?;
    let dtype = if taps.numel() < usize::from(u8::MAX) { DType::U8 } else { DType::I32 };
    let numbers = image(sizes, taps.format, input, dtype)?;
    MAX_POOL.find(out.device().kind(), out.dtype())?(&out, &numbers, input, taps)?;
    Ok((out, numbers))
}

/// Moves pixels between an image and the places that were chosen in it.
#[derive(Clone, Copy)]
enum Move {
    /// To the chosen places.
    Put,
    /// From the chosen places.
    Pick,
}

impl Move {
    /// Returns the image of `sizes` with the pixels of `from`.
    fn compute(self, from: &Tensor, numbers: &Tensor, taps: &Taps, sizes: &[usize]) -> Result<Tensor> {
        let (kernel, opposite) = match self {
            Self::Put => (&PUT, Self::Pick),
            Self::Pick => (&PICK, Self::Put),
        };
        let from = from.contiguous_in(taps.format)?;
        let out = image(sizes, taps.format, &from, from.dtype())?;
        kernel.find(out.device().kind(), out.dtype())?(&out, &from, numbers, taps)?;
        let taps = taps.clone();
        let sizes = from.sizes().to_vec();
        attach(out, kernel.name(), &[&from], |saver| {
            let numbers = saver.save(numbers)?;
            Ok(move |context: &Context<'_>| {
                let grad = opposite.compute(&context.grad(0)?, &context.unpack(numbers)?, &taps, &sizes)?;
                Ok([Some(grad)].into_iter().collect())
            })
        })
    }
}

fn averaged(input: &Tensor, windows: Windows, sizes: &[usize]) -> Result<Tensor> {
    let input = input.contiguous_in(windows.format)?;
    let out = image(sizes, windows.format, &input, input.dtype())?;
    AVG_POOL.find(out.device().kind(), out.dtype())?(&out, &input, &windows)?;
    recipe::note(&out, "avg_pool", [&input], [], || {
        let windows = windows.clone();
        let sizes = sizes.to_vec();
        move |[x], []| averaged(x, windows.clone(), &sizes)
    });
    let sizes = input.sizes().to_vec();
    attach(out, "avg_pool", &[&input], |_| {
        Ok(move |context: &Context<'_>| {
            let grad = spread(&context.grad(0)?, &windows, &sizes)?;
            Ok([Some(grad)].into_iter().collect())
        })
    })
}

fn spread(from: &Tensor, windows: &Windows, sizes: &[usize]) -> Result<Tensor> {
    let from = from.contiguous_in(windows.format)?;
    let out = image(sizes, windows.format, &from, from.dtype())?;
    SPREAD.find(out.device().kind(), out.dtype())?(&out, &from, windows)?;
    let windows = windows.clone();
    let sizes = from.sizes().to_vec();
    attach(out, "avg_pool_spread", &[&from], |_| {
        Ok(move |context: &Context<'_>| {
            let grad = averaged(&context.grad(0)?, windows.clone(), &sizes)?;
            Ok([Some(grad)].into_iter().collect())
        })
    })
}

/// Allocates an image in this format, on the device of `beside`.
fn image(sizes: &[usize], format: MemoryFormat, beside: &Tensor, dtype: DType) -> Result<Tensor> {
    Tensor::empty_strided(Layout::with_format(sizes, format)?, dtype, beside.device())
}

/// Returns the memory format of the images that kernels read and write: contiguous, or on CUDA with the channels dense
/// if the input has them so.
fn format(input: &Tensor, dims: usize) -> MemoryFormat {
    let format = match (input.rank(), dims) {
        (4, 2) => MemoryFormat::ChannelsLast2d,
        (5, 3) => MemoryFormat::ChannelsLast3d,
        _ => MemoryFormat::Contiguous,
    };
    if input.device().is_cpu() || input.is_contiguous() || !input.layout().is_contiguous_in(format) {
        return MemoryFormat::Contiguous;
    }
    format
}

/// Returns the windows and the sizes of the result.
fn taps(op: &'static str, input: &Tensor, how: &Pool<'_>) -> Result<(Taps, Vec<usize>)> {
    let dims = how.kernel.len();
    let source = spatial(op, input, dims)?;
    let kernel = for_each_dim(op, "kernel", how.kernel, dims, 1)?;
    let stride = if how.stride.is_empty() { how.kernel } else { how.stride };
    let stride = for_each_dim(op, "stride", stride, dims, 1)?;
    let padding = for_each_dim(op, "padding", how.padding, dims, 0)?;
    let dilation = for_each_dim(op, "dilation", how.dilation, dims, 1)?;
    let Pool { kernel: given, padding: around, dilation: apart, .. } = *how;
    if [kernel, stride, dilation].as_flattened().contains(&0) {
        let reason =
            format!("kernel {given:?}, stride {:?} and dilation {apart:?} must be at least 1 everywhere", how.stride);
        return Err(TensorError::argument(op, reason));
    }
    let numel = kernel.iter().try_fold(1, |numel: usize, size| numel.checked_mul(*size));
    if numel.is_none_or(|numel| numel > i32::MAX as usize) {
        let reason = format!("a window of sizes {given:?} has more than {} elements", i32::MAX);
        return Err(TensorError::argument(op, reason));
    }
    if (0..3).any(|dim| padding[dim] > kernel[dim] / 2) {
        let reason = format!("padding {around:?} may be at most half of the kernel, {given:?}");
        return Err(TensorError::argument(op, reason));
    }
    let mut sizes = input.sizes()[..input.rank() - dims].to_vec();
    let mut target = [1; 3];
    for dim in 3 - dims..3 {
        let size = source[dim];
        let stride = stride[dim];
        let padded = size + 2 * padding[dim];
        let Some(room) = padded.checked_sub(dilation[dim] * (kernel[dim] - 1) + 1) else {
            let reason = format!(
                "a window of sizes {given:?}, dilated by {apart:?}, is larger than images of sizes {:?}, padded by \
                 {around:?}",
                &input.sizes()[input.rank() - dims..]
            );
            return Err(TensorError::shape(op, reason));
        };
        let mut count = (if how.ceil { room.div_ceil(stride) } else { room / stride }) + 1;
        // A window must begin inside the image, or in the padding before it.
        if how.ceil && (count - 1) * stride >= size + padding[dim] {
            count -= 1;
        }
        target[dim] = count;
        sizes.push(count);
    }
    Ok((Taps { source, target, kernel, stride, padding, dilation, format: format(input, dims) }, sizes))
}

/// Returns depth, height and width of images with `dims` spatial dimensions.
fn spatial(op: &'static str, input: &Tensor, dims: usize) -> Result<[usize; 3]> {
    if !(1..=3).contains(&dims) || input.rank() <= dims {
        let reason = format!(
            "one to three spatial dimensions after channels are needed, got {dims} for an input of sizes {:?}",
            input.sizes()
        );
        return Err(TensorError::shape(op, reason));
    }
    let sizes = &input.sizes()[input.rank() - dims..];
    for_each_dim(op, "sizes", sizes, dims, 1)
}
