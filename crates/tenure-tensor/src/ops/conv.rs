//! Convolutions over one to three spatial dimensions, and their transposes.

use super::entered;
use super::matmul::check_operands;
use super::view::signed;
use crate::autocast::lower;
use crate::autograd::{Context, attach, recipe};
use crate::cpu::conv::{Convolve, WeightGradient};
use crate::geometry::Geometry;
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{Kernel, Layout, MemoryFormat, Result, Tensor, TensorError, cpu, cuda};

static CONVOLVE: Kernel<Convolve> =
    Kernel::new("conv", &[cpu::conv::CONVOLVE, cpu::conv::CONVOLVE_HALVES, cuda::conv::CONVOLVE]);
static TRANSPOSED: Kernel<Convolve> =
    Kernel::new("conv_transpose", &[cpu::conv::TRANSPOSED, cpu::conv::TRANSPOSED_HALVES, cuda::conv::TRANSPOSED]);
static WEIGHT_GRADIENT: Kernel<WeightGradient> = Kernel::new(
    "conv_weight_gradient",
    &[cpu::conv::WEIGHT_GRADIENT, cpu::conv::WEIGHT_GRADIENT_HALVES, cuda::conv::WEIGHT_GRADIENT],
);

/// The options of a convolution. A list has a number for each spatial dimension, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// The distance from one place of the kernel to the next, in pixels.
    pub stride: &'a [usize],
    /// The number of zeros around the image.
    pub padding: &'a [usize],
    /// The distance from one element of the kernel to the next, in pixels.
    pub dilation: &'a [usize],
    /// The number of groups of channels, each with weights of its own.
    pub groups: usize,
}

impl Default for Conv<'_> {
    fn default() -> Self {
        Self { stride: &[1], padding: &[0], dilation: &[1], groups: 1 }
    }
}

/// Declares the convolutions of each number of dimensions.
macro_rules! convolutions {
    ($($conv:ident / $transpose:ident over $spatial:literal: $dims:literal;)*) => {
        operations! {
            static OPERATIONS;
            Function for front_ends {
                $(
                    #[doc = concat!(" Convolves images of ", $dims, " with a weight of sizes `(outputs, channels / groups, ...)`: [`Tensor::conv`].")]
                    ///
                    /// # Errors
                    /// Sizes that do not match, an image smaller than the kernel, different dtypes or devices.
                    $conv(
                        input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = &[1],
                        padding: Sizes = &[0], dilation: Sizes = &[1], groups: Size = 1
                    ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, dilation, groups| {
                        check_dims(stringify!($conv), $spatial, weight)?;
                        input.conv(weight, bias, &Conv { stride, padding, dilation, groups })
                    };
                )*
                $(
                    #[doc = concat!(" Computes the transpose of a convolution of ", $dims, ": [`Tensor::conv_transpose`].")]
                    ///
                    /// # Errors
                    /// Sizes that do not match, different dtypes or devices.
                    $transpose(
                        input: Tensor, weight: Tensor, bias: Option<Tensor> = None, stride: Sizes = &[1],
                        padding: Sizes = &[0], output_padding: Sizes = &[0], groups: Size = 1, dilation: Sizes = &[1]
                    ) -> Tensor = |input: &Tensor, weight: &Tensor, bias, stride, padding, output_padding, groups, dilation| {
                        check_dims(stringify!($transpose), $spatial, weight)?;
                        input.conv_transpose(weight, bias, &Conv { stride, padding, dilation, groups }, output_padding)
                    };
                )*
            }
        }
    };
}

convolutions! {
    conv1d / conv_transpose1d over 1: "one dimension";
    conv2d / conv_transpose2d over 2: "two dimensions";
    conv3d / conv_transpose3d over 3: "three dimensions";
}

/// Checks that a weight is of a convolution over `spatial` dimensions.
pub(super) fn check_dims(op: &'static str, spatial: usize, weight: &Tensor) -> Result<()> {
    if weight.rank() == spatial + 2 {
        return Ok(());
    }
    let reason = format!("the weight must have {} dimensions, got sizes {:?}", spatial + 2, weight.sizes());
    Err(TensorError::shape(op, reason))
}

impl Tensor {
    /// Convolves `(images, channels, ...)`, or one image without the first dimension, with a weight of sizes `(outputs,
    /// channels / groups, ...)` and one to three spatial dimensions. PyTorch's `conv1d`, `conv2d`, `conv3d`.
    ///
    /// # Errors
    /// Sizes that do not match, an image smaller than the kernel, different dtypes or devices.
    pub fn conv(&self, weight: &Self, bias: Option<&Self>, how: &Conv<'_>) -> Result<Self> {
        let name = ["conv1d", "conv2d", "conv3d"][weight.rank().clamp(3, 5) - 3];
        let Conv { stride, padding, dilation, groups } = how;
        observed(
            name,
            || arguments![self, weight, bias, stride, padding, dilation, groups],
            || self.lowered_conv(weight, bias, how),
        )
    }

    fn lowered_conv(&self, weight: &Self, bias: Option<&Self>, how: &Conv<'_>) -> Result<Self> {
        if self.rank() + 1 == weight.rank() {
            let out = self.one_image()?.conv(weight, bias, how)?;
            return out.view(&signed(&out.sizes()[1..]));
        }
        let bias = bias.map(lower).transpose()?;
        lower(self)?.convolved(&lower(weight)?, bias.as_ref(), how)
    }

    fn convolved(&self, weight: &Self, bias: Option<&Self>, how: &Conv<'_>) -> Result<Self> {
        let _op = entered("conv");
        let spatial = check("conv", self, weight, bias)?;
        let geometry = geometry("conv", spatial, how)?;
        let channels = self.sizes()[1];
        let outputs = weight.sizes()[0];
        let taken = weight.sizes()[1].saturating_mul(how.groups);
        let groups = how.groups;
        if !outputs.is_multiple_of(groups) {
            let reason = format!(
                "{outputs} outputs of a weight of sizes {:?} cannot be divided into {groups} groups",
                weight.sizes()
            );
            return Err(TensorError::shape("conv", reason));
        }
        if channels != taken {
            let reason = format!(
                "an input of sizes {:?} has {channels} channels, but a weight of sizes {:?} takes {taken}, with groups \
                 = {groups}",
                self.sizes(),
                weight.sizes()
            );
            return Err(TensorError::shape("conv", reason));
        }
        check_bias("conv", bias, outputs)?;
        let sizes: Option<Vec<usize>> = (0..spatial)
            .map(|dim| {
                let at = dim + 3 - spatial;
                let reach = geometry.dilation[at].checked_mul(weight.sizes()[dim + 2].checked_sub(1)?)?;
                let room = (self.sizes()[dim + 2] + 2 * geometry.padding[at]).checked_sub(reach)?.checked_sub(1)?;
                Some(room / geometry.stride[at] + 1)
            })
            .collect();
        let Some(sizes) = sizes else {
            let reason = format!(
                "a kernel of sizes {:?}, dilated by {:?}, is larger than images of sizes {:?}, padded by {:?}",
                &weight.sizes()[2..],
                how.dilation,
                &self.sizes()[2..],
                how.padding
            );
            return Err(TensorError::shape("conv", reason));
        };
        Direction::Forward.compute(self, weight, bias, geometry, &sizes)
    }

    /// Computes the transpose of a convolution, which maps sizes of the convolution's output to sizes of its input.
    /// Each element is multiplied with the whole kernel, `(channels, outputs / groups, ...)`, and products of one pixel
    /// are added. `output_padding` adds pixels at the end: several input sizes of a convolution give the same output
    /// size. PyTorch's `conv_transpose1d`, `conv_transpose2d`, `conv_transpose3d`.
    ///
    /// # Errors
    /// Sizes that do not match, different dtypes or devices.
    pub fn conv_transpose(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        how: &Conv<'_>,
        output_padding: &[usize],
    ) -> Result<Self> {
        let name = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"][weight.rank().clamp(3, 5) - 3];
        let Conv { stride, padding, dilation, groups } = how;
        observed(
            name,
            || arguments![self, weight, bias, stride, padding, output_padding, groups, dilation],
            || self.lowered_conv_transpose(weight, bias, how, output_padding),
        )
    }

    fn lowered_conv_transpose(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        how: &Conv<'_>,
        output_padding: &[usize],
    ) -> Result<Self> {
        if self.rank() + 1 == weight.rank() {
            let out = self.one_image()?.conv_transpose(weight, bias, how, output_padding)?;
            return out.view(&signed(&out.sizes()[1..]));
        }
        let bias = bias.map(lower).transpose()?;
        lower(self)?.convolved_transposed(&lower(weight)?, bias.as_ref(), how, output_padding)
    }

    fn convolved_transposed(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        how: &Conv<'_>,
        output_padding: &[usize],
    ) -> Result<Self> {
        let _op = entered("conv_transpose");
        const OP: &str = "conv_transpose";
        let spatial = check(OP, self, weight, bias)?;
        let geometry = geometry(OP, spatial, how)?;
        let added = for_each_dim(OP, "output_padding", output_padding, spatial, 0)?;
        let channels = self.sizes()[1];
        if channels != weight.sizes()[0] || !channels.is_multiple_of(how.groups) {
            let reason = format!(
                "an input of sizes {:?} has {channels} channels, but a weight of sizes {:?} in {} groups takes {}",
                self.sizes(),
                weight.sizes(),
                how.groups,
                weight.sizes()[0]
            );
            return Err(TensorError::shape(OP, reason));
        }
        check_bias(OP, bias, weight.sizes()[1].saturating_mul(how.groups))?;
        if (3 - spatial..3).any(|dim| added[dim] >= geometry.stride[dim].max(geometry.dilation[dim])) {
            let reason = format!(
                "output_padding {output_padding:?} must be smaller than the stride, {:?}, or the dilation, {:?}",
                how.stride, how.dilation
            );
            return Err(TensorError::argument(OP, reason));
        }
        let images = &self.sizes()[2..];
        let kernel = &weight.sizes()[2..];
        let sizes = (0..spatial).map(|dim| {
            let at = dim + 3 - spatial;
            let [pixels, elements] = [images[dim], kernel[dim]].map(|size| size as i128);
            let [stride, dilation, padding, added] =
                [geometry.stride[at], geometry.dilation[at], geometry.padding[at], added[at]].map(|size| size as i128);
            let size = stride * (pixels - 1) + dilation * (elements - 1) + added + 1 - 2 * padding;
            if pixels > 0 && elements > 0 { size } else { 0 }
        });
        let sizes: Vec<i128> = sizes.collect();
        let error = |problem: &str| {
            let Conv { stride, padding, dilation, .. } = how;
            let reason = format!(
                "images of sizes {images:?} and a kernel of sizes {kernel:?}, with a stride of {stride:?}, dilated by \
                 {dilation:?} and with a padding of {padding:?}, {problem}"
            );
            TensorError::shape(OP, reason)
        };
        if sizes.iter().any(|size| *size <= 0) {
            return Err(error("leave no pixel"));
        }
        let sizes = sizes.into_iter().map(|size| isize::try_from(size).map(isize::unsigned_abs));
        let sizes: Vec<usize> =
            sizes.collect::<Result<_, _>>().map_err(|_| error("make more pixels than there can be"))?;
        Direction::Transposed.compute(self, weight, bias, geometry, &sizes)
    }

    fn one_image(&self) -> Result<Self> {
        let mut sizes = signed(self.sizes());
        sizes.insert(0, 1);
        self.view(&sizes)
    }
}

/// A convolution or its transpose. Each is the gradient of the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Transposed,
}

impl Direction {
    /// Computes the convolution, as images of these sizes.
    fn compute(
        self,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        geometry: Geometry,
        sizes: &[usize],
    ) -> Result<Tensor> {
        let (format, [input, weight]) = ordered([input, weight])?;
        let input = &input;
        let weight = &weight;
        let (kernel, opposite, channels) = match self {
            Self::Forward => (&CONVOLVE, Self::Transposed, weight.sizes()[0]),
            Self::Transposed => (&TRANSPOSED, Self::Forward, weight.sizes()[1] * geometry.groups),
        };
        let out = output(&[&[input.sizes()[0], channels], sizes].concat(), format, input)?;
        let dense = bias.map(Tensor::contiguous).transpose()?;
        kernel.find(out.device().kind(), out.dtype())?(&out, input, weight, dense.as_ref(), &geometry)?;
        recipe::note(&out, kernel.name(), [input, weight], [bias], || {
            let sizes = sizes.to_vec();
            move |[input, weight], [bias]| self.compute(input, weight, bias, geometry, &sizes)
        });
        let inputs: Vec<&Tensor> = [input, weight].into_iter().chain(bias).collect();
        let images = input.sizes()[2..].to_vec();
        let elements = weight.sizes().to_vec();
        attach(out, kernel.name(), &inputs, |saver| {
            let left = saver.save_if(saver.needs(1), input)?;
            let right = saver.save_if(saver.needs(0), weight)?;
            let has_bias = bias.is_some();
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?.contiguous_in(format)?;
                let to_input =
                    context.give(0, || opposite.compute(&grad, &context.unpack(right)?, None, geometry, &images))?;
                let to_weight = context.give(1, || {
                    let input = context.unpack(left)?;
                    let (from, to) = if self == Self::Forward { (&input, &grad) } else { (&grad, &input) };
                    weight_gradient(from, to, geometry, &elements)
                })?;
                let to_bias = has_bias.then(|| context.give(2, || sum_of_channels(&grad)));
                Ok([to_input, to_weight].into_iter().chain(to_bias.transpose()?).collect())
            })
        })
    }
}

/// Computes the gradient of the weight, of sizes `kernel`, for a convolution of `input` whose output has the gradient
/// `grad`.
fn weight_gradient(input: &Tensor, grad: &Tensor, geometry: Geometry, kernel: &[usize]) -> Result<Tensor> {
    let (format, [input, grad]) = ordered([input, grad])?;
    let input = &input;
    let grad = &grad;
    let out = output(kernel, format, input)?;
    WEIGHT_GRADIENT.find(out.device().kind(), out.dtype())?(&out, input, grad, &geometry)?;
    let images = input.sizes()[2..].to_vec();
    let result = grad.sizes()[2..].to_vec();
    attach(out, "conv_weight_gradient", &[input, grad], |saver| {
        let left = saver.save_if(saver.needs(1), input)?;
        let right = saver.save_if(saver.needs(0), grad)?;
        Ok(move |context: &Context<'_>| {
            let weight = context.grad(0)?.contiguous_in(format)?;
            let to_input = context
                .give(0, || Direction::Transposed.compute(&context.unpack(right)?, &weight, None, geometry, &images))?;
            let to_grad = context
                .give(1, || Direction::Forward.compute(&context.unpack(left)?, &weight, None, geometry, &result))?;
            Ok([to_input, to_grad].into_iter().collect())
        })
    })
}

/// Returns the memory order of the convolution, and both tensors in that order. On the CPU it is contiguous; elsewhere,
/// channels come last if they do in one of the tensors, as in PyTorch.
fn ordered(tensors: [&Tensor; 2]) -> Result<(MemoryFormat, [Tensor; 2])> {
    let last = match tensors[0].rank() {
        4 => MemoryFormat::ChannelsLast2d,
        5 => MemoryFormat::ChannelsLast3d,
        _ => MemoryFormat::Contiguous,
    };
    let has_last = !tensors[0].device().is_cpu()
        && tensors.iter().any(|tensor| !tensor.is_contiguous() && tensor.layout().is_contiguous_in(last));
    let format = if has_last { last } else { MemoryFormat::Contiguous };
    Ok((format, [tensors[0].contiguous_in(format)?, tensors[1].contiguous_in(format)?]))
}

fn output(sizes: &[usize], format: MemoryFormat, input: &Tensor) -> Result<Tensor> {
    Tensor::empty_strided(Layout::with_format(sizes, format)?, input.dtype(), input.device())
}

fn sum_of_channels(grad: &Tensor) -> Result<Tensor> {
    let channels = grad.sizes()[1];
    let mut sizes = vec![1; grad.rank()];
    sizes[1] = channels;
    grad.sum_to(&sizes)?.view(&[channels as isize])
}

/// Checks ranks and dtypes. Returns the number of spatial dimensions.
fn check(op: &'static str, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<usize> {
    let operands: Vec<&Tensor> = [input, weight].into_iter().chain(bias).collect();
    check_operands(op, &operands)?;
    if !(3..=5).contains(&weight.rank()) || input.rank() != weight.rank() {
        let reason = format!(
            "an input (images, channels, ...) and a weight (outputs, channels, ...) of the same one to three spatial \
             dimensions are needed, got sizes {:?} and {:?}",
            input.sizes(),
            weight.sizes()
        );
        return Err(TensorError::shape(op, reason));
    }
    Ok(weight.rank() - 2)
}

fn check_bias(op: &'static str, bias: Option<&Tensor>, outputs: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.sizes() != [outputs] => {
            let reason = format!("a bias of sizes {:?} was given for {outputs} outputs", bias.sizes());
            Err(TensorError::shape(op, reason))
        }
        _ => Ok(()),
    }
}

fn geometry(op: &'static str, spatial: usize, how: &Conv<'_>) -> Result<Geometry> {
    let Conv { stride, padding, dilation, groups } = *how;
    if stride.contains(&0) || dilation.contains(&0) || groups == 0 {
        let reason =
            format!("stride {stride:?}, dilation {dilation:?} and groups {groups} must be at least 1 everywhere");
        return Err(TensorError::argument(op, reason));
    }
    if groups > LARGEST {
        return Err(TensorError::argument(op, format!("{groups} groups are more than the channels of any image")));
    }
    Ok(Geometry {
        stride: for_each_dim(op, "stride", stride, spatial, 1)?,
        padding: for_each_dim(op, "padding", padding, spatial, 0)?,
        dilation: for_each_dim(op, "dilation", dilation, spatial, 1)?,
        groups,
    })
}

/// A limit that no image reaches. The product of two such numbers does not overflow.
const LARGEST: usize = u32::MAX as usize;

/// Returns a number for each of three dimensions, from a list of one for each spatial dimension or one for all. A
/// missing dimension gets `none`.
pub(super) fn for_each_dim(
    op: &'static str,
    what: &str,
    given: &[usize],
    spatial: usize,
    none: usize,
) -> Result<[usize; 3]> {
    if given.len() != spatial && given.len() != 1 {
        let reason = format!("{what} {given:?} must have one number, or one for each of {spatial} spatial dimensions");
        return Err(TensorError::argument(op, reason));
    }
    if given.iter().any(|number| *number > LARGEST) {
        return Err(TensorError::argument(
            op,
            format!("{what} {given:?} has a number larger than any image, {LARGEST}"),
        ));
    }
    let missing = 3 - spatial;
    Ok(std::array::from_fn(|dim| match dim.checked_sub(missing) {
        None => none,
        Some(dim) => *given.get(dim).unwrap_or(&given[0]),
    }))
}
