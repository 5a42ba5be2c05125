//! Convolutions and their gradients, as cuDNN graphs of one operation.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind, cudnnConvolutionMode_t as Mode,
};
use tenure_core::DType;

use super::descriptor::Descriptor;
use super::graph::{self, EnginePlan, Engines, PlanTarget, Tensor, TensorPlace, data_type};
use crate::ErrorKind;
use crate::cuda::Compute;

/// A convolution of images `(images, channels, depth, height, width)`, with or without a depth, or one of its
/// gradients. The weight is `(outputs, channels / groups, ...)`: the number of groups follows from its number of
/// channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DnnConvolution {
    /// The tensor that is computed.
    pub pass: ConvolutionPass,
    /// The dtype of all tensors.
    pub dtype: DType,
    /// The precision of the computation.
    pub compute: Compute,
    /// The number of spatial dimensions, 2 or 3: only that many, from the end, are used of `stride`, `padding` and
    /// `dilation`.
    pub spatial: usize,
    /// Sizes of the images: the number of images and channels first, then the spatial sizes. The last entry is unused
    /// if there are two spatial dimensions.
    pub input: [usize; 5],
    /// Sizes of the weight.
    pub weight: [usize; 5],
    /// Sizes of the result.
    pub output: [usize; 5],
    /// Whether the channels, instead of the pixels, lie side by side in memory. All tensors are dense.
    pub is_channels_last: bool,
    /// The distance from one position of the kernel to the next, in pixels.
    pub stride: [usize; 3],
    /// The number of zeros on each side of the image.
    pub padding: [usize; 3],
    /// The distance from one element of the kernel to the next, in pixels.
    pub dilation: [usize; 3],
    /// A power of two that divides all addresses, in bytes, at most 16.
    pub alignment: usize,
}

/// The one of its three tensors that a convolution computes from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionPass {
    /// The result.
    Forward,
    /// The gradient of the images: the transpose of the convolution.
    DataGradient,
    /// The gradient of the weight.
    WeightGradient,
}

/// The limit on a workspace, in bytes.
const MAX_WORKSPACE: usize = 512 << 20;

/// Ids of the three tensors.
pub(super) const INPUT: i64 = 1;
pub(super) const WEIGHT: i64 = 2;
pub(super) const OUTPUT: i64 = 3;

impl DnnConvolution {
    /// Returns ways to compute the convolution, from one to `count`, in the library's ranking from best to worst.
    pub(super) fn plans(&self, target: &PlanTarget, count: usize) -> Result<Vec<EnginePlan>, ErrorKind> {
        graph::plans(target, &self.operations()?, self.engines(), MAX_WORKSPACE, count)
    }

    /// Returns the engines that compute with the precision asked for.
    fn engines(&self) -> Engines {
        let is_full = self.dtype == DType::F32 && self.compute == Compute::Full;
        if is_full { Engines::Full } else { Engines::Repeatable }
    }

    /// Describes the convolution as a graph of one operation.
    fn operations(&self) -> Result<Vec<Descriptor>, ErrorKind> {
        let [stride, padding, dilation] = [self.stride, self.padding, self.dilation]
            .map(|all| all[3 - self.spatial..].iter().map(|size| *size as i64).collect::<Vec<i64>>());
        let wide = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let convolution = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[self.spatial as i64])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[data_type(wide)?])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[Mode::CUDNN_CROSS_CORRELATION])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &dilation)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &stride)?
            .finish()?;
        let [input, weight, output] = [(INPUT, self.input), (WEIGHT, self.weight), (OUTPUT, self.output)]
            .map(|(id, sizes)| self.tensor(id, &sizes[..self.spatial + 2]));
        let (kind, [on_input, on_weight, on_output, with, alpha, beta]) = match self.pass {
            ConvolutionPass::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            ConvolutionPass::DataGradient => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            ConvolutionPass::WeightGradient => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let operation = Descriptor::new(kind)?
            .refer(on_input, &[&input?])?
            .refer(on_weight, &[&weight?])?
            .refer(on_output, &[&output?])?
            .refer(with, &[&convolution])?;
        let operation = match wide {
            DType::F64 => operation.set(alpha, &[1.0_f64])?.set(beta, &[0.0_f64])?,
            _ => operation.set(alpha, &[1.0_f32])?.set(beta, &[0.0_f32])?,
        };
        Ok(vec![operation.finish()?])
    }

    /// Describes a dense tensor.
    fn tensor(&self, id: i64, sizes: &[usize]) -> Result<Descriptor, ErrorKind> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        if self.is_channels_last {
            // The order in memory: images, pixels, channels.
            order[1..].rotate_left(1);
        }
        let mut strides = vec![0; sizes.len()];
        let mut stride = 1;
        for dim in order.into_iter().rev() {
            strides[dim] = stride;
            stride *= sizes[dim] as i64;
        }
        let sizes: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
        let dtype = self.dtype;
        let alignment = self.alignment;
        Tensor { id, sizes: &sizes, strides: &strides, dtype, alignment, place: TensorPlace::Device }.describe()
    }
}
