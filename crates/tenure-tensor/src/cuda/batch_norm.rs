//! Batch normalisation on CUDA devices.

use tenure_device::cuda::KernelName;

use super::elementwise::{self, Expression};
use super::iteration_space::linear;
use super::queue::{self, Queue};
use super::{computed, on_cpu, stored};
use crate::cpu;
use crate::cpu::batch_norm::{
    ChannelCoefficients, ChannelGradients, ChannelStatistics, FinishStatistics, FusedActivation, Gradients,
    NormalizeChannels, Scale,
};
use crate::element;
use crate::kernel::on_cuda;
use crate::{Access, DType, Element, Elementwise, Entry, Result, Scalar, Tensor};

/// The source of the kernels per channel, without its types.
const TEMPLATE: &str = include_str!("source/channels.cu");

pub(crate) const FINISH_STATISTICS: &[Entry<FinishStatistics>] = on_cuda!(floats: finish_statistics::<T>);
pub(crate) const NORMALIZE: &[Entry<NormalizeChannels>] = on_cuda!(floats: normalize);
pub(crate) const GRADIENTS: &[Entry<Gradients>] = on_cuda!(floats: gradients::<T>);

fn finish_statistics<T: Element>(statistics: ChannelStatistics<'_>, count: f64, momentum: f64, eps: f64) -> Result<()> {
    finish_statistics_as(T::DTYPE, statistics, count, momentum, eps)
}

/// The part of [`finish_statistics`] that is compiled once for all element types.
fn finish_statistics_as(
    dtype: DType,
    statistics: ChannelStatistics<'_>,
    count: f64,
    momentum: f64,
    eps: f64,
) -> Result<()> {
    let ChannelStatistics { mean, squares, weight, running, rstd, scale } = statistics;
    let (running_mean, running_variance) = running.unzip();
    let has_running = running.is_some();
    let written_scale = weight.map(|_| scale);
    let writes: Vec<&Tensor> =
        running_mean.into_iter().chain(running_variance).chain([rstd]).chain(written_scale).collect();
    let reads: Vec<&Tensor> = [mean, squares].into_iter().chain(weight).collect();
    let channels = [Some(mean), Some(squares), weight, running_mean, running_variance, Some(rstd), written_scale];
    let numbers = [count, momentum, eps];
    let dtypes = [weight, running_mean, running_variance, None];
    launch(false, dtype, [&writes, &reads], &channels, dtypes, &numbers, move |writes, reads| {
        let (running, rest) = writes.split_at(if has_running { 2 } else { 0 });
        let statistics = ChannelStatistics {
            mean: &reads[0],
            squares: &reads[1],
            weight: reads.get(2),
            running: has_running.then(|| (&running[0], &running[1])),
            rstd: &rest[0],
            // Without a weight nothing is written to it, and any tensor will do.
            scale: rest.get(1).unwrap_or(&rest[0]),
        };
        on_cpu("batch_norm", &[cpu::batch_norm::FINISH_STATISTICS], dtype)?(statistics, count, momentum, eps)
    })
}

fn gradients<T: Element>(gradients: ChannelGradients<'_>, count: f64) -> Result<()> {
    gradients_as(T::DTYPE, gradients, count)
}

/// The part of [`gradients`] that is compiled once for all element types.
fn gradients_as(dtype: DType, gradients: ChannelGradients<'_>, count: f64) -> Result<()> {
    let ChannelGradients { grads, products, rstd, weight, slope, shift, to_weight, to_bias } = gradients;
    let has_to_weight = to_weight.is_some();
    let has_to_bias = to_bias.is_some();
    let writes: Vec<&Tensor> = [slope, shift].into_iter().chain(to_weight).chain(to_bias).collect();
    let reads: Vec<&Tensor> = [grads, products, rstd].into_iter().chain(weight).collect();
    let channels = [Some(grads), Some(products), Some(rstd), weight, Some(slope), Some(shift), to_weight, to_bias];
    let dtypes = [weight, None, None, to_bias];
    launch(true, dtype, [&writes, &reads], &channels, dtypes, &[count], move |writes, reads| {
        let gradients = ChannelGradients {
            grads: &reads[0],
            products: &reads[1],
            rstd: &reads[2],
            weight: reads.get(3),
            slope: &writes[0],
            shift: &writes[1],
            to_weight: has_to_weight.then(|| &writes[2]),
            to_bias: if has_to_bias { writes.last() } else { None },
        };
        on_cpu("batch_norm_backward", &[cpu::batch_norm::GRADIENTS], dtype)?(gradients, count)
    })
}

/// Launches a kernel of [`TEMPLATE`] with a thread for each channel. On a simulated device, `host` computes on CPU
/// copies of `writes` and `reads` instead.
///
/// The kernel's parameters are an address and a stride for each of `channels`, both 0 for a tensor that is not given;
/// the number of channels; and `numbers`. `dtypes` has the tensors whose dtypes are the kernel's types `Weight`,
/// `Mean`, `Variance` and `Bias`; `dtype` stands for those not given.
fn launch(
    is_backward: bool,
    dtype: DType,
    [writes, reads]: [&[&Tensor]; 2],
    channels: &[Option<&Tensor>],
    dtypes: [Option<&Tensor>; 4],
    numbers: &[f64],
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let count = reads[0].numel();
    if count == 0 {
        return Ok(());
    }
    let op = if is_backward { "batch_norm_backward" } else { "batch_norm" };
    let access = Access::new(op, writes, reads)?;
    let mut words = Vec::new();
    for tensor in channels {
        let Some(tensor) = tensor else {
            words.extend([0, 0]);
            continue;
        };
        let found = access.all().find(|(other, ..)| std::ptr::eq(*other, *tensor));
        words.push(found.map_or(0, |(_, data, _)| data.addr() as u64));
        words.push(tensor.strides()[0] as u64);
    }
    words.push(count as u64);
    words.extend(numbers.iter().map(|number| number.to_bits()));
    let dtypes = dtypes.map(|tensor| tensor.map_or(dtype, Tensor::dtype));
    let variant = dtypes.iter().fold(dtype as u64, |variant, dtype| variant << 4 | *dtype as u64);
    let name = KernelName { op: if is_backward { "channel_gradients" } else { "channel_statistics" }, variant };
    queue::submit(
        &access,
        |queue: &mut Queue| queue.launch(name, || source(is_backward, dtype, dtypes), linear(count), &mut words),
        host,
    )
}

/// Returns the kernel's source: [`TEMPLATE`] after the definitions of its types.
fn source(is_backward: bool, dtype: DType, dtypes: [DType; 4]) -> String {
    let mut source = format!("#define BACKWARD {}\ntypedef {} C;\n", u8::from(is_backward), computed(dtype));
    for (name, dtype) in ["Weight", "Mean", "Variance", "Bias"].into_iter().zip(dtypes) {
        source += &format!("typedef {} {name};\n", stored(dtype));
    }
    source + TEMPLATE
}

/// Returns three expressions for an elementwise kernel: the normalised value `$value` of the inputs `$lane`; its ReLU;
/// and the ReLU of its sum with one more input, `$carried`.
macro_rules! expressions {
    ($name:literal, [$($lane:literal),*], $value:literal, $carried:literal) => {{
        static PLAIN: Expression =
            Expression { name: $name, lanes: &[$($lane),*], values: &[$value], fault: None };
        static RELU: Expression = Expression {
            name: concat!($name, "_relu"),
            values: &[concat!("maximum((T)0, ", $value, ")")],
            ..PLAIN
        };
        static ADD_RELU: Expression = Expression {
            name: concat!($name, "_add_relu"),
            lanes: &[$($lane),*, "T"],
            values: &[concat!("maximum((T)0, ", $value, " + ", $carried, ")")],
            ..PLAIN
        };
        [&PLAIN, &RELU, &ADD_RELU]
    }};
}

fn normalize(out: &Tensor, x: &Tensor, by: ChannelCoefficients<'_>, then: FusedActivation<'_>) -> Result<()> {
    let dtype = x.dtype();
    let mut inputs = vec![x, by.mean];
    let (expressions, eps) = match by.scale {
        Scale::Is(scale) => {
            inputs.push(scale);
            (expressions!("batch_norm", ["T", "T", "T", "T", "T"], "(a - b) * c + d", "e"), None)
        }
        Scale::Of { variance, weight, eps } => {
            inputs.extend([variance, weight]);
            let value = expressions!(
                "batch_norm_by",
                ["T", "T", "T", "T", "T", "T"],
                "(a - b) * ((T)1 / sqrt(c + n0) * d) + e",
                "f"
            );
            (value, Some(eps))
        }
    };
    inputs.push(by.shift);
    let which = match then {
        FusedActivation::Nothing => 0,
        FusedActivation::Relu => 1,
        FusedActivation::AddRelu(carried) => {
            inputs.push(carried);
            2
        }
    };
    let numbers: Vec<Scalar> = eps.map(Scalar::Float).into_iter().collect();
    let iter = Elementwise::new("batch_norm", &[out], &inputs)?;
    elementwise::run_of(&iter, element::computed(dtype), expressions[which], &numbers, move |writes, reads| {
        let (scale, shift) = match eps {
            None => (Scale::Is(&reads[2]), 3),
            Some(eps) => (Scale::Of { variance: &reads[2], weight: &reads[3], eps }, 4),
        };
        let then = match which {
            0 => FusedActivation::Nothing,
            1 => FusedActivation::Relu,
            _ => FusedActivation::AddRelu(&reads[shift + 1]),
        };
        let by = ChannelCoefficients { mean: &reads[1], scale, shift: &reads[shift] };
        on_cpu("batch_norm", &[cpu::batch_norm::NORMALIZE], dtype)?(&writes[0], &reads[0], by, then)
    })
}
